// BlockIndex: from an address to the block that starts there. A radix tree of three levels over granules of 8 KiB.
//
// A granule holds at most one block from the heap of pages that starts in it (those are larger than 8 KiB), or belongs
// to one slab (slabs are aligned to granules). Does not: say whether the block is live, or starts exactly at the
// address. Locking: writers under the device's lock; readers take none (nodes are only added; slabs are never freed).
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/block.hpp"

namespace cistern::core {

struct Slab;

class BlockIndex {
 public:
  static constexpr unsigned kGranuleBits = 13;
  static constexpr unsigned kAddressBits = 49;

  BlockIndex() = default;
  ~BlockIndex();
  BlockIndex(const BlockIndex&) = delete;
  BlockIndex& operator=(const BlockIndex&) = delete;

  // False when the address is out of reach or the host has no memory left; nothing has changed then.
  bool insert(std::uint64_t address, Block* block);
  bool insert(std::uint64_t address, std::size_t bytes, Slab* slab);
  void erase(std::uint64_t address, std::size_t bytes = 1);
  // The block whose start is `address`, else null. It may be free or elsewhere by now: check its serial and address.
  Block* find(std::uint64_t address) const;

 private:
  static constexpr unsigned kLeafBits = 11, kMiddleBits = 12, kRootBits = 13;
  static_assert(kLeafBits + kMiddleBits + kRootBits + kGranuleBits == kAddressBits);
  static constexpr std::uintptr_t kSlabTag = 1;

  struct Leaf {
    std::array<std::atomic<std::uintptr_t>, std::size_t{1} << kLeafBits> entries{};
  };
  struct Middle {
    std::array<std::atomic<Leaf*>, std::size_t{1} << kMiddleBits> leaves{};
  };

  std::atomic<std::uintptr_t>* entry(std::uint64_t granule) const;
  std::atomic<std::uintptr_t>* make_entry(std::uint64_t granule);

  std::array<std::atomic<Middle*>, std::size_t{1} << kRootBits> root_{};
};

}  // namespace cistern::core
