// Shape: up to 8 extents, stored inline in the words that handles (typed_buffer.hpp) keep as well.
//
// Does: count elements and bytes without wrapping, compare, copy by words. Does not: know strides or memory.
//
// Locking: none; a value.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "cistern/dtype.hpp"

namespace cistern {

inline constexpr std::size_t kMaxRank = 8;

namespace detail {

template <typename T>
concept Extent = std::integral<T> && !std::same_as<T, bool>;

template <Extent T>
constexpr bool is_negative(T value) noexcept {
  if constexpr (std::signed_integral<T>) return value < 0;
  return false;
}

// A shape in 38 bytes: the low halves of all extents, two a word, and the high half of one of them. The other two are
// for handles. All parts are words, written and copied as such, so that a copy right after a write does not stall.
struct Extents {
  std::uint64_t low[kMaxRank / 2] = {};
  std::uint64_t rest =
      0;  // From the top: flags (8 bits), dtype (8), rank (8), index of the high half (8), the high half.

  constexpr Extents() noexcept = default;
  constexpr Extents(const Extents& other) noexcept
      : low{other.low[0], other.low[1], other.low[2], other.low[3]}, rest(other.rest) {}
  template <typename Each>
  constexpr Extents(const Extents& other, Each each) noexcept
      : low{each(other.low[0]), each(other.low[1]), each(other.low[2]), each(other.low[3])}, rest(each(other.rest)) {}
  // NOLINTNEXTLINE(bugprone-unhandled-self-assignment): words onto themselves.
  constexpr Extents& operator=(const Extents& other) noexcept {
    low[0] = other.low[0];
    low[1] = other.low[1];
    low[2] = other.low[2];
    low[3] = other.low[3];
    rest = other.rest;
    return *this;
  }

  constexpr std::size_t rank() const noexcept { return static_cast<std::uint8_t>(rest >> 40); }
  constexpr DType dtype() const noexcept { return static_cast<DType>(static_cast<std::uint8_t>(rest >> 48)); }
  constexpr std::uint8_t flags() const noexcept { return static_cast<std::uint8_t>(rest >> 56); }
  constexpr void set_rank(std::size_t rank) noexcept { rest |= static_cast<std::uint64_t>(rank) << 40; }
  constexpr void set_handle(DType dtype, std::uint8_t flags) noexcept {
    rest = (rest & ((std::uint64_t{1} << 48) - 1)) | static_cast<std::uint64_t>(dtype) << 48 |
           static_cast<std::uint64_t>(flags) << 56;
  }
  constexpr std::size_t operator[](std::size_t i) const noexcept {
    const std::uint64_t high = i == static_cast<std::uint8_t>(rest >> 32) ? rest << 32 : 0;
    return high | static_cast<std::uint32_t>(low[i / 2] >> (i % 2 * 32));
  }
};
static_assert(sizeof(Extents) == 40);

struct HandleAccess;

}  // namespace detail

class TypedBuffer;
class BufferPool;

class Shape {
 public:
  /// No dimension: one element.
  constexpr Shape() noexcept = default;

  /// `Shape{40, heads, 128}`; any integers. Throws invalid_argument for negative ones, and for more than one of 2^32 or
  /// more (they are stored in 32 bits, with one exception).
  template <detail::Extent... Dims>
  // NOLINTNEXTLINE(google-explicit-constructor): an integer stands for a shape of one dimension.
  requires(sizeof...(Dims) >= 1 && sizeof...(Dims) <= kMaxRank) constexpr Shape(Dims... dims) {
    if (((static_cast<std::uint64_t>(dims) | ...) >> 32) != 0) [[unlikely]] {
      take_wide<sizeof...(Dims)>(make_wide(dims...));
    } else {
      // Written out: the loop goes through memory when the compiler does not unroll it.
      const std::uint64_t values[kMaxRank] = {static_cast<std::uint64_t>(dims)...};
      extents_.low[0] = values[0] | values[1] << 32;
      extents_.low[1] = values[2] | values[3] << 32;
      extents_.low[2] = values[4] | values[5] << 32;
      extents_.low[3] = values[6] | values[7] << 32;
      count_ = product(static_cast<std::size_t>(dims)...);
    }
    // After the two ways met: the compiler then knows the rank, and compares and copies no more words than it needs.
    extents_.set_rank(sizeof...(Dims));
  }

  /// Throws invalid_argument for more than 8 extents, and as above.
  explicit Shape(std::span<const std::size_t> dims);
  explicit Shape(std::span<const std::int64_t> dims);

  constexpr std::size_t rank() const noexcept { return extents_.rank(); }
  /// pre: i < rank().
  constexpr std::size_t operator[](std::size_t i) const noexcept { return extents_[i]; }
  /// All extents; those from rank() on are 0.
  constexpr std::array<std::size_t, kMaxRank> to_array() const noexcept {
    std::array<std::size_t, kMaxRank> out{};
    for (std::size_t i = 0; i < rank(); ++i) out[i] = (*this)[i];
    return out;
  }

  /// Product of the extents. Throws invalid_argument when it does not fit in size_t.
  constexpr std::size_t element_count() const {
    if (count_ == kTooMany) throw_overflow();
    return count_;
  }
  /// The same times `unit`, into `out`; false when it does not fit.
  constexpr bool count_bytes(std::size_t unit, std::size_t& out) const noexcept {
    return count_ != kTooMany && !__builtin_mul_overflow(count_, unit, &out);
  }

  friend constexpr bool operator==(const Shape& a, const Shape& b) noexcept {
    if (a.rank() != b.rank()) return false;
    for (std::size_t i = 0; i < a.rank(); ++i) {
      if (a[i] != b[i]) return false;
    }
    return true;
  }

 private:
  friend class TypedBuffer;
  friend class BufferPool;
  friend struct detail::HandleAccess;

  // Stands for a count over 64 bits; no shape has it, since memory ends long before.
  static constexpr std::size_t kTooMany = SIZE_MAX;

  constexpr Shape(const detail::Extents& extents, std::size_t count) noexcept : extents_(extents), count_(count) {}
  // The rare case out of line and by value, so that the common one stays in registers.
  template <detail::Extent... Dims>
  [[gnu::noinline]] static Shape make_wide(Dims... dims) {
    const std::uint64_t values[] = {static_cast<std::uint64_t>(dims)...};
    const bool negative[] = {detail::is_negative(dims)...};
    return make(values, negative, sizeof...(Dims));
  }
  static Shape make(const std::uint64_t* values, const bool* negative, std::size_t rank);
  // All but the rank.
  template <std::size_t kRank>
  constexpr void take_wide(const Shape& wide) noexcept {
    extents_.low[0] = wide.extents_.low[0];
    if constexpr (kRank > 2) extents_.low[1] = wide.extents_.low[1];
    if constexpr (kRank > 4) extents_.low[2] = wide.extents_.low[2];
    if constexpr (kRank > 6) extents_.low[3] = wide.extents_.low[3];
    extents_.rest = wide.extents_.rest & ((std::uint64_t{1} << 40) - 1);
    count_ = wide.count_;
  }
  // pre: each factor is below 2^32.
  template <typename... Factors>
  static constexpr std::size_t product(Factors... factors) noexcept {
    if constexpr (sizeof...(factors) <= 2) return (factors * ...);
    std::size_t out = 1;
    bool overflow = false;
    ((overflow |= __builtin_mul_overflow(out, factors, &out)), ...);
    if (overflow) [[unlikely]]
      return ((factors == 0) || ...) ? 0 : kTooMany;
    return out;
  }
  [[noreturn]] static void throw_overflow();

  detail::Extents extents_;
  std::size_t count_ = 1;  // Elements.
};

/// "[40, 128]"
std::string to_string(const Shape& shape);

}  // namespace cistern
