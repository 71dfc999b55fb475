// BlockIndex: from an address to the block that starts there.
//
// A radix tree whose nodes exist only where they are needed: a slot that covers one block has that block in it,
// whatever the number of addresses below, so that an index of blocks of megabytes takes a few bytes a block.
//
//   level    a slot covers
//   top      512 GiB          root_
//   cells    2 MiB            made of zeros that cost nothing until they are touched
//   nodes    128 KiB, 8 KiB   16 slots each, where two blocks start below one slot
//
// A granule of 8 KiB holds at most one block from the heap of pages that starts in it (those are larger than 8 KiB), or
// belongs to one slab (slabs are aligned to granules). Does not: say whether the block is live, or starts exactly at
// the address. Locking: writers under the device's lock; readers take none (nodes are only added; slabs are never
// freed).
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/block.hpp"
#include "core/zeroed_array.hpp"

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

  // The block's address, which it has already, becomes known. False when it is out of reach or the host has no memory
  // left; nothing has changed then. pre: the block's home is set; see gone().
  bool insert(Block* block);
  // The same of a slab. It may stay entered where it is no more: it knows no block there.
  bool insert(std::uint64_t address, std::size_t bytes, Slab* slab);
  // The block whose start is `address`, else null. It may be free by now: check its serial.
  Block* find(std::uint64_t address) const;

 private:
  using Entry = std::uintptr_t;  // A block, or one of these with a tag; 0 for nothing.
  using Slot = std::atomic<Entry>;
  static_assert(Slot::is_always_lock_free && sizeof(Slot) == sizeof(Entry));
  enum Tag : std::uintptr_t { kSlab = 1, kNode = 2, kTags = 3 };

  static constexpr unsigned kNodeBits = 4, kCellBits = 21, kTopBits = 39;
  static_assert(kCellBits == kGranuleBits + 2 * kNodeBits);

  struct Node {
    std::array<Slot, std::size_t{1} << kNodeBits> slots{};
  };
  using Cells = ZeroedArray<Slot>;
  static constexpr std::size_t kNodeChunk = 32;  // 4 KiB.

  static Node* node_of(Entry entry) { return reinterpret_cast<Node*>(entry & ~Entry{kTags}); }
  static bool gone(Entry entry, std::uint64_t address, unsigned bits);
  Slot* cell_slot(std::uint64_t address) const;
  Slot* make_cell_slot(std::uint64_t address);
  Slot* make_granule_slot(std::uint64_t address);
  struct Found {
    Slot* slot;
    Entry entry;  // What was read from it: no node.
    unsigned bits;
  };
  static Found descend(Slot* slot, std::uint64_t address, unsigned bits);
  bool split(Slot& slot, unsigned bits);

  std::array<std::atomic<Cells*>, std::size_t{1} << (kAddressBits - kTopBits)> root_{};
  std::vector<std::unique_ptr<Node[]>> chunks_;
  std::size_t spare_ = 0;  // Nodes of the last chunk that are not in use.
};

}  // namespace cistern::core
