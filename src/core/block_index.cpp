// The radix tree from addresses to blocks.
#include "core/block_index.hpp"

#include <new>

#include "core/slab.hpp"

namespace cistern::core {

BlockIndex::~BlockIndex() {
  for (auto& middle : root_) {
    Middle* node = middle.load(std::memory_order_relaxed);
    if (node == nullptr) continue;
    for (auto& leaf : node->leaves) delete leaf.load(std::memory_order_relaxed);
    delete node;
  }
}

std::atomic<std::uintptr_t>* BlockIndex::entry(std::uint64_t granule) const {
  const std::uint64_t root = granule >> (kLeafBits + kMiddleBits);
  if (root >= root_.size()) return nullptr;
  Middle* middle = root_[root].load(std::memory_order_acquire);
  if (middle == nullptr) return nullptr;
  Leaf* leaf = middle->leaves[(granule >> kLeafBits) % middle->leaves.size()].load(std::memory_order_acquire);
  if (leaf == nullptr) return nullptr;
  return &leaf->entries[granule % leaf->entries.size()];
}

std::atomic<std::uintptr_t>* BlockIndex::make_entry(std::uint64_t granule) {
  const std::uint64_t root = granule >> (kLeafBits + kMiddleBits);
  if (root >= root_.size()) return nullptr;
  Middle* middle = root_[root].load(std::memory_order_relaxed);
  if (middle == nullptr) {
    middle = new (std::nothrow) Middle;
    if (middle == nullptr) return nullptr;
    root_[root].store(middle, std::memory_order_release);
  }
  auto& slot = middle->leaves[(granule >> kLeafBits) % middle->leaves.size()];
  Leaf* leaf = slot.load(std::memory_order_relaxed);
  if (leaf == nullptr) {
    leaf = new (std::nothrow) Leaf;
    if (leaf == nullptr) return nullptr;
    slot.store(leaf, std::memory_order_release);
  }
  return &leaf->entries[granule % leaf->entries.size()];
}

bool BlockIndex::insert(std::uint64_t address, Block* block) {
  auto* slot = make_entry(address >> kGranuleBits);
  if (slot == nullptr) return false;
  slot->store(reinterpret_cast<std::uintptr_t>(block), std::memory_order_release);
  return true;
}

bool BlockIndex::insert(std::uint64_t address, std::size_t bytes, Slab* slab) {
  const std::uint64_t first = address >> kGranuleBits, last = (address + bytes - 1) >> kGranuleBits;
  for (std::uint64_t granule = first; granule <= last; ++granule) {
    auto* slot = make_entry(granule);
    if (slot == nullptr) {
      while (granule-- > first) make_entry(granule)->store(0, std::memory_order_release);
      return false;
    }
    slot->store(reinterpret_cast<std::uintptr_t>(slab) | kSlabTag, std::memory_order_release);
  }
  return true;
}

void BlockIndex::erase(std::uint64_t address, std::size_t bytes) {
  const std::uint64_t first = address >> kGranuleBits, last = (address + bytes - 1) >> kGranuleBits;
  for (std::uint64_t granule = first; granule <= last; ++granule) {
    if (auto* slot = entry(granule)) slot->store(0, std::memory_order_release);
  }
}

Block* BlockIndex::find(std::uint64_t address) const {
  const auto* slot = entry(address >> kGranuleBits);
  if (slot == nullptr) return nullptr;
  const std::uintptr_t value = slot->load(std::memory_order_acquire);
  if ((value & kSlabTag) != 0) return reinterpret_cast<const Slab*>(value & ~kSlabTag)->block_at(address);
  return reinterpret_cast<Block*>(value);
}

}  // namespace cistern::core
