// The table of size classes.
#include "core/size_class.hpp"

#include <algorithm>
#include <bit>

#include "core/units.hpp"

namespace cistern::core {

SizeClasses::SizeClasses(std::size_t alignment) {
  const std::size_t unit = std::max(alignment, kUnit);
  if (unit > KiB) return;
  for (std::size_t size = unit; size <= kLargest;) {
    size_[count_] = static_cast<std::uint32_t>(size);
    // 64 blocks a slab amortise its bookkeeping; 64 KiB keeps a slab of large blocks from pinning much memory.
    const std::size_t wanted = std::clamp(align_up(64 * size, 8 * KiB), 8 * KiB, 64 * KiB);
    slab_bytes_[count_] = static_cast<std::uint32_t>(wanted);
    ++count_;
    size += std::max<std::size_t>(unit, std::bit_floor(size) / 8);
  }
  largest_ = kLargest;
  for (std::size_t i = 1, index = 0; i < table_.size(); ++i) {
    while (size_[index] < i * kUnit) ++index;
    table_[i] = static_cast<std::uint8_t>(index);
  }
}

}  // namespace cistern::core
