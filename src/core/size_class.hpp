// Size classes of small blocks: multiples of the unit up to eight units, then eight steps a doubling, up to 8 KiB.
// At most 12.5 % of a block is rounding (above eight units). Values only: no state after construction, no locking.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace cistern::core {

class SizeClasses {
 public:
  static constexpr std::size_t kLargest = std::size_t{8} << 10;  // Bytes; see block_index.hpp, whose granule this is.
  static constexpr std::size_t kUnit = 64;                       // Bytes; every class is a multiple.
  static constexpr std::size_t kMaxClasses = 48;
  static constexpr std::size_t kMaxPerSlab = 128;  // Blocks.

  // `alignment` is the device's: a power of two. Above 1 KiB there are no classes: too few blocks would share a slab.
  explicit SizeClasses(std::size_t alignment);

  std::size_t count() const { return count_; }
  // Largest request that has a class; 0 when there are none.
  std::size_t largest() const { return largest_; }
  // pre: 0 < bytes <= largest().
  std::uint8_t index(std::size_t bytes) const { return table_[(bytes + kUnit - 1) / kUnit]; }
  std::size_t size(std::size_t index) const { return size_[index]; }
  // Bytes of a slab of this class: a multiple of 8 KiB, at most 64 KiB.
  std::size_t slab_bytes(std::size_t index) const { return slab_bytes_[index]; }
  std::size_t per_slab(std::size_t index) const { return slab_bytes_[index] / size_[index]; }

 private:
  std::array<std::uint8_t, kLargest / kUnit + 1> table_{};
  std::array<std::uint32_t, kMaxClasses> size_{};
  std::array<std::uint32_t, kMaxClasses> slab_bytes_{};
  std::size_t count_ = 0;
  std::size_t largest_ = 0;
};

}  // namespace cistern::core
