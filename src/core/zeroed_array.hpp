// ZeroedArray: a large array of zeros of which only the parts that are used cost memory: systems hand out zeroed pages
// when they are first touched, and a vector would touch them all. Not resizable. No locking of its own.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <type_traits>

namespace cistern::core {

// T: all bytes zero must be a value of it.
template <class T>
class ZeroedArray {
  static_assert(std::is_trivially_destructible_v<T>);

 public:
  ZeroedArray() = default;
  // Throws std::bad_alloc.
  explicit ZeroedArray(std::size_t count) : data_(static_cast<T*>(std::calloc(1, asked(count * kBytes)))) {
    if (data_ == nullptr) throw std::bad_alloc();
  }

  T& operator[](std::size_t i) { return data_.get()[i]; }
  const T& operator[](std::size_t i) const { return data_.get()[i]; }
  T* begin() { return data_.get(); }
  const T* begin() const { return data_.get(); }

 private:
  static constexpr std::size_t kBytes = sizeof(T[1]);
  // The GNU library clears memory that was used before, all of it, unless more than 32 MiB are asked for: these it
  // always maps anew (mallopt(3), M_MMAP_THRESHOLD). Addresses cost nothing.
  static constexpr std::size_t kLarge = std::size_t{128} << 10, kAlwaysMapped = std::size_t{33} << 20;
  static std::size_t asked(std::size_t bytes) { return bytes < kLarge ? bytes : std::max(bytes, kAlwaysMapped); }

  struct Free {
    void operator()(T* data) const { std::free(data); }
  };
  std::unique_ptr<T, Free> data_;
};

}  // namespace cistern::core
