// ZeroedArray: a large array of zeros of which only the parts that are used cost memory: systems hand out zeroed pages
// when they are first touched, and a vector would touch them all. Not resizable. No locking of its own.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <type_traits>

#include "core/zeroed_pages.hpp"

namespace cistern::core {

// T: all bytes zero must be a value of it.
template <class T>
class ZeroedArray {
  static_assert(std::is_trivially_destructible_v<T>);
  static constexpr std::size_t kBytes = sizeof(T[1]);

 public:
  ZeroedArray() = default;
  // Throws std::bad_alloc. pre: count > 0.
  explicit ZeroedArray(std::size_t count)
      : data_(static_cast<T*>(take_zeroed_pages(count * kBytes)), Give{count * kBytes}) {
    if (data_ == nullptr) throw std::bad_alloc();
  }

  T& operator[](std::size_t i) { return data_.get()[i]; }
  const T& operator[](std::size_t i) const { return data_.get()[i]; }
  T* begin() { return data_.get(); }
  const T* begin() const { return data_.get(); }

 private:
  struct Give {
    std::size_t bytes = 0;
    void operator()(T* data) const { give_zeroed_pages(data, bytes); }
  };
  std::unique_ptr<T, Give> data_;
};

}  // namespace cistern::core
