// The tree from addresses to blocks.
#include "core/block_index.hpp"

#include <new>

#include "core/slab.hpp"

namespace cistern::core {

BlockIndex::~BlockIndex() {
  for (auto& cells : root_) delete cells.load(std::memory_order_relaxed);
}

// The slot of the cell of an address; null when nothing is known there.
BlockIndex::Slot* BlockIndex::cell_slot(std::uint64_t address) const {
  if (address >> kAddressBits != 0) return nullptr;
  Cells* cells = root_[address >> kTopBits].load(std::memory_order_acquire);
  return cells == nullptr ? nullptr : &(*cells)[(address >> kCellBits) % (std::size_t{1} << (kTopBits - kCellBits))];
}

// The same, made when there is none; null when the address is out of reach or the host has no memory left.
BlockIndex::Slot* BlockIndex::make_cell_slot(std::uint64_t address) {
  Slot* const slot = cell_slot(address);
  if (slot != nullptr || address >> kAddressBits != 0) return slot;
  try {
    auto made = std::make_unique<Cells>(std::size_t{1} << (kTopBits - kCellBits));
    root_[address >> kTopBits].store(made.release(), std::memory_order_release);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
  return cell_slot(address);
}

// Goes down to the first slot that has no node in it, from one that covers 2^bits bytes.
BlockIndex::Found BlockIndex::descend(Slot* slot, std::uint64_t address, unsigned bits) {
  Entry entry = slot->load(std::memory_order_acquire);
  while ((entry & kNode) != 0) {
    bits -= kNodeBits;
    slot = &node_of(entry)->slots[(address >> bits) % (std::size_t{1} << kNodeBits)];
    entry = slot->load(std::memory_order_acquire);
  }
  return {slot, entry, bits};
}

// Whether an entry of the slot that covers 2^bits bytes round the address is out of date: the block was given back to
// the pool of descriptors, or serves elsewhere. Blocks of slabs, views and the like are known by other means.
bool BlockIndex::gone(Entry entry, std::uint64_t address, unsigned bits) {
  if (entry == 0 || (entry & kTags) != 0) return entry == 0;
  auto* block = reinterpret_cast<Block*>(entry);
  const bool inside = (block->address.load(std::memory_order_relaxed) ^ address) >> bits == 0;
  if (!inside || std::atomic_ref(block->home).load(std::memory_order_relaxed) == nullptr) return true;
  return !is_node(block);
}

// Puts a node below a slot that covers 2^bits bytes, and the slot's block, if it has one, below the node. False when
// the host has no memory left.
bool BlockIndex::split(Slot& slot, unsigned bits) {
  if (spare_ == 0) {
    try {
      chunks_.push_back(std::make_unique<Node[]>(kNodeChunk));
    } catch (const std::bad_alloc&) {
      return false;
    }
    spare_ = kNodeChunk;
  }
  Node* const node = &chunks_.back()[--spare_];
  if (const Entry entry = slot.load(std::memory_order_relaxed); entry != 0) {
    const std::uint64_t address = reinterpret_cast<const Block*>(entry)->address.load(std::memory_order_relaxed);
    const std::size_t below = (address >> (bits - kNodeBits)) % (std::size_t{1} << kNodeBits);
    node->slots[below].store(entry, std::memory_order_relaxed);
  }
  slot.store(reinterpret_cast<Entry>(node) | kNode, std::memory_order_release);
  return true;
}

bool BlockIndex::insert(Block* block) {
  const std::uint64_t address = block->address.load(std::memory_order_relaxed);
  const Entry mine = reinterpret_cast<Entry>(block);
  Slot* const cell = make_cell_slot(address);
  if (cell == nullptr) return false;
  for (Found at = descend(cell, address, kCellBits);; at = descend(at.slot, address, at.bits)) {
    if (at.entry == mine) return true;
    if (at.bits == kGranuleBits || gone(at.entry, address, at.bits)) {
      at.slot->store(mine, std::memory_order_release);
      return true;
    }
    if (!split(*at.slot, at.bits)) return false;
  }
}

// The slot of the granule of an address, which has no nodes below, made when there is none; null when that is not
// possible.
BlockIndex::Slot* BlockIndex::make_granule_slot(std::uint64_t address) {
  Slot* const cell = make_cell_slot(address);
  if (cell == nullptr) return nullptr;
  for (Found at = descend(cell, address, kCellBits);; at = descend(at.slot, address, at.bits)) {
    if (at.bits == kGranuleBits) return at.slot;
    if (gone(at.entry, address, at.bits)) at.slot->store(0, std::memory_order_relaxed);
    if (!split(*at.slot, at.bits)) return nullptr;
  }
}

bool BlockIndex::insert(std::uint64_t address, std::size_t bytes, Slab* slab) {
  const std::uint64_t first = address >> kGranuleBits, last = (address + bytes - 1) >> kGranuleBits;
  for (std::uint64_t granule = first; granule <= last; ++granule) {
    Slot* slot = make_granule_slot(granule << kGranuleBits);
    if (slot == nullptr) return false;
    slot->store(reinterpret_cast<Entry>(slab) | kSlab, std::memory_order_release);
  }
  return true;
}

Block* BlockIndex::find(std::uint64_t address) const {
  Slot* const cell = cell_slot(address);
  if (cell == nullptr) return nullptr;
  const Entry entry = descend(cell, address, kCellBits).entry;
  if ((entry & kSlab) != 0) return reinterpret_cast<const Slab*>(entry & ~Entry{kTags})->block_at(address);
  auto* const block = reinterpret_cast<Block*>(entry);
  return block != nullptr && block->address.load(std::memory_order_relaxed) == address ? block : nullptr;
}

}  // namespace cistern::core
