// Slabs of small blocks.
#include "core/slab.hpp"

#include <new>

namespace cistern::core {

SlabStore::~SlabStore() {
  while (all_ != nullptr) {
    Slab* slab = all_;
    all_ = slab->all_next;
    delete slab;
  }
}

void SlabStore::push(Slab*& list, Slab* slab) {
  slab->prev = nullptr;
  slab->next = list;
  if (list != nullptr) list->prev = slab;
  list = slab;
}

void SlabStore::unlink(Slab*& list, Slab* slab) {
  (slab->prev != nullptr ? slab->prev->next : list) = slab->next;
  if (slab->next != nullptr) slab->next->prev = slab->prev;
  slab->prev = slab->next = nullptr;
}

Block* SlabStore::take(std::uint8_t bin) {
  // Partly used slabs first, so that empty ones can be given back.
  const bool from_empty = partial_[bin] == nullptr;
  Slab* slab = from_empty ? empty_[bin] : partial_[bin];
  if (slab == nullptr) return nullptr;
  Block* block = slab->free;
  if (block != nullptr) {
    slab->free = block->next;
  } else {
    block = pool_.take();
    if (block == nullptr) return nullptr;
    const std::uint32_t size = slab->block_bytes.load(std::memory_order_relaxed);
    block->address.store(slab->base.load(std::memory_order_relaxed) + std::uint64_t{slab->carved} * size,
                         std::memory_order_relaxed);
    block->capacity = size;
    block->home = slab;
    block->bin = bin;
    set_flags(block, kBlockSlab);
    slab->blocks[slab->carved++].store(block, std::memory_order_release);
  }
  --slab->free_count;
  free_bytes_ -= block->capacity;
  if (from_empty) {
    unlink(empty_[bin], slab);
    if (slab->free_count != 0) push(partial_[bin], slab);
  } else if (slab->free_count == 0) {
    unlink(partial_[bin], slab);
  }
  return block;
}

Slab* SlabStore::add(std::uint8_t bin, HeapNode* node, std::uint64_t address) {
  Slab* slab = unused_;
  if (slab != nullptr) {
    unused_ = slab->next;
  } else {
    slab = new (std::nothrow) Slab;
    if (slab == nullptr) return nullptr;
    slab->all_next = all_;
    all_ = slab;
    slab->store = this;
  }
  slab->node = node;
  slab->bin = bin;
  slab->capacity = slab->free_count = static_cast<std::uint32_t>(classes_.per_slab(bin));
  slab->carved = 0;
  slab->free = nullptr;
  slab->base.store(address, std::memory_order_relaxed);
  slab->block_bytes.store(static_cast<std::uint32_t>(classes_.size(bin)), std::memory_order_relaxed);
  push(empty_[bin], slab);
  ++slabs_;
  free_bytes_ += classes_.size(bin) * slab->capacity;
  return slab;
}

Slab* SlabStore::give(Block* block) {
  Slab* slab = static_cast<Slab*>(block->home);
  const std::uint8_t bin = slab->bin;
  block->next = slab->free;
  slab->free = block;
  free_bytes_ += block->capacity;
  const bool was_full = slab->free_count++ == 0;
  if (slab->free_count == slab->capacity) {
    if (!was_full) unlink(partial_[bin], slab);
    const bool spare = empty_[bin] != nullptr;
    push(empty_[bin], slab);
    return spare ? slab : nullptr;
  }
  if (was_full) push(partial_[bin], slab);
  return nullptr;
}

Slab* SlabStore::take_empty() {
  for (Slab* slab : empty_) {
    if (slab != nullptr) return slab;
  }
  return nullptr;
}

HeapNode* SlabStore::release(Slab* slab) {
  unlink(empty_[slab->bin], slab);
  free_bytes_ -= classes_.size(slab->bin) * slab->capacity;
  for (std::uint32_t i = 0; i < slab->carved; ++i) {
    pool_.give(slab->blocks[i].load(std::memory_order_relaxed));
    slab->blocks[i].store(nullptr, std::memory_order_release);
  }
  slab->block_bytes.store(0, std::memory_order_relaxed);
  slab->free = nullptr;
  slab->next = unused_;
  unused_ = slab;
  --slabs_;
  return slab->node;
}

std::vector<std::string> SlabStore::check_invariants() const {
  std::vector<std::string> broken;
  std::uint64_t free_bytes = 0;
  std::size_t slabs = 0;
  for_each([&](const Slab& slab) {
    ++slabs;
    std::uint32_t listed = 0;
    for (const Block* block = slab.free; block != nullptr; block = block->next) {
      ++listed;
      if (block->home != &slab) broken.emplace_back("slab: a free block belongs to another slab");
      if (block->serial.load(std::memory_order_relaxed) % 2 != 0) broken.emplace_back("slab: a listed block is live");
      if (listed > slab.capacity) break;
    }
    if (listed + (slab.capacity - slab.carved) != slab.free_count) {
      broken.emplace_back("slab: free blocks listed and uncarved are not the free count");
    }
    free_bytes += std::uint64_t{slab.free_count} * slab.block_bytes.load(std::memory_order_relaxed);
  });
  if (free_bytes != free_bytes_) broken.emplace_back("slabs: the sum of free blocks is not free_bytes()");
  if (slabs != slabs_) broken.emplace_back("slabs: the count of slabs is wrong");
  return broken;
}

}  // namespace cistern::core
