// Slab: a stretch of the heap of pages cut into equal small blocks. SlabStore: the slabs of one heap, by size class.
//
//   state    in which list        free blocks
//   full     none                 none
//   partial  partial of its class some
//   empty    empty of its class   all; at most one a class is kept unless pressure takes it
//
// Does: hands out and takes back blocks. Does not: get or give the memory of a slab (the caller does), touch memory.
// Locking: all under the device's lock, except Slab::block_at(), which readers of the index call without one. Slab
// objects are therefore recycled, and freed only with the store.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/block.hpp"
#include "core/block_pool.hpp"
#include "core/size_class.hpp"

namespace cistern::core {

struct HeapNode;
class SlabStore;

struct Slab {
  HeapNode* node = nullptr;
  SlabStore* store = nullptr;
  Slab* prev = nullptr;
  Slab* next = nullptr;
  Slab* all_next = nullptr;  // Every slab object ever made by the store.
  Block* free = nullptr;
  std::uint32_t capacity = 0;    // Blocks.
  std::uint32_t carved = 0;      // Blocks that have a descriptor; the rest were never handed out.
  std::uint32_t free_count = 0;  // Blocks not handed out, uncarved ones included.
  std::uint8_t bin = 0;          // Size class.
  std::atomic<std::uint64_t> base{0};
  std::atomic<std::uint32_t> block_bytes{0};  // 0 while the object waits to be used again.
  std::array<std::atomic<Block*>, SizeClasses::kMaxPerSlab> blocks{};

  // Another descriptor takes over the memory of a block. Under the device's lock.
  void replace(const Block* block, Block* by) {
    for (auto& entry : blocks) {
      if (entry.load(std::memory_order_relaxed) == block) entry.store(by, std::memory_order_release);
    }
  }
  // The block that starts exactly at `address`, else null. Any thread.
  Block* block_at(std::uint64_t address) const {
    const std::uint32_t size = block_bytes.load(std::memory_order_relaxed);
    const std::uint64_t start = base.load(std::memory_order_relaxed);
    if (size == 0 || address < start || (address - start) % size != 0 || (address - start) / size >= blocks.size()) {
      return nullptr;
    }
    return blocks[(address - start) / size].load(std::memory_order_acquire);
  }
};

class SlabStore {
 public:
  SlabStore(const SizeClasses& classes, BlockPool& pool) : classes_(classes), pool_(pool) {}
  ~SlabStore();
  SlabStore(const SlabStore&) = delete;
  SlabStore& operator=(const SlabStore&) = delete;

  // A block of the class from a slab that has one; null when add() must bring a slab first (or the host has no memory
  // left).
  Block* take(std::uint8_t bin);
  // Brings memory for a slab of the class: `node` at `address`. Null when the host has no memory left.
  Slab* add(std::uint8_t bin, HeapNode* node, std::uint64_t address);
  // Takes a block back. Returns a slab that is wholly free and not worth keeping, for release(); else null.
  Slab* give(Block* block);
  // A wholly free slab, for release(); null when there is none.
  Slab* take_empty();
  // Forgets a wholly free slab and returns its memory's node.
  HeapNode* release(Slab* slab);

  std::size_t slabs() const { return slabs_; }
  // Bytes in blocks that were not handed out.
  std::uint64_t free_bytes() const { return free_bytes_; }
  // One message a broken rule.
  std::vector<std::string> check_invariants() const;

  template <typename Visit>
  void for_each(Visit visit) const {
    for (Slab* slab = all_; slab != nullptr; slab = slab->all_next) {
      if (slab->block_bytes.load(std::memory_order_relaxed) != 0) visit(*slab);
    }
  }

 private:
  static void push(Slab*& list, Slab* slab);
  static void unlink(Slab*& list, Slab* slab);

  const SizeClasses& classes_;
  BlockPool& pool_;
  std::array<Slab*, SizeClasses::kMaxClasses> partial_{};
  std::array<Slab*, SizeClasses::kMaxClasses> empty_{};
  Slab* all_ = nullptr;
  Slab* unused_ = nullptr;
  std::size_t slabs_ = 0;
  std::uint64_t free_bytes_ = 0;
};

}  // namespace cistern::core
