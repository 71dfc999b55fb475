// BlockPool: the descriptors of one allocator, in chunks that are never unmapped.
//
// Does: hands out and takes back descriptors; leads from a descriptor to its allocator. Does not: look at what a block
// describes. A chunk outlives its pool: when the pool goes, its chunks wait in a process-wide store for the next pool,
// and serials go on, so that an old handle is recognised as dead for ever. Locking: take() and give() under the
// device's lock; for_each(), owner_of() and object_of() need none.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/block.hpp"

namespace cistern::core {

// The object that ptr() of a block names, on devices where that is no address. Read without a lock.
struct BlockObject {
  std::atomic<void*> object{nullptr};
  std::atomic<std::uint64_t> offset{0};

  void set(void* named, std::uint64_t inside) {
    offset.store(inside, std::memory_order_relaxed);
    object.store(named, std::memory_order_release);
  }
};

class BlockPool {
 public:
  // `owner` is what owner_of() returns for the blocks; the pool never looks at it.
  BlockPool(void* owner, bool with_objects) : owner_(owner), with_objects_(with_objects) {}
  // Every handle to one of the blocks is dead afterwards.
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  // Null when the host has no memory left.
  Block* take() {
    if (free_ == nullptr && !grow()) return nullptr;
    Block* block = free_;
    free_ = block->next;
    ++used_;
    return block;
  }
  // pre: the block is free (its serial is even).
  void give(Block* block) {
    block->home = nullptr;
    set_flags(block, 0);
    if (BlockObject* object = object_of(block)) object->set(nullptr, 0);
    block->next = free_;
    free_ = block;
    --used_;
  }
  // A descriptor that goes back unless it is released, also when something throws.
  struct Giver {
    BlockPool* pool;
    void operator()(Block* block) const { pool->give(block); }
  };
  using Taken = std::unique_ptr<Block, Giver>;
  Taken take_for_now() { return {take(), Giver{this}}; }
  std::size_t used() const { return used_; }
  std::size_t bytes() const { return chunk_count_ * kChunkBytes; }

  // Null when the allocator is gone.
  static void* owner_of(const Block* block) { return chunk_of(block)->owner.load(std::memory_order_acquire); }
  // Null when the pool was made without objects.
  static BlockObject* object_of(const Block* block) {
    Chunk* chunk = chunk_of(block);
    return chunk->objects == nullptr ? nullptr : chunk->objects + (block - chunk->blocks());
  }

  // Visits every descriptor, free ones included.
  template <typename Visit>
  void for_each(Visit visit) const {
    for (Chunk* chunk = chunks_.load(std::memory_order_acquire); chunk != nullptr; chunk = chunk->next) {
      for (std::size_t i = 0; i < kBlocksPerChunk; ++i) visit(chunk->blocks() + i);
    }
  }

  // Around fork().
  static void lock_store();
  static void unlock_store();

  static constexpr std::size_t kChunkBytes = std::size_t{64} << 10;
  static constexpr std::size_t kBlocksPerChunk = kChunkBytes / sizeof(Block) - 1;

 private:
  struct alignas(64) Chunk {
    std::atomic<void*> owner{nullptr};
    Chunk* next = nullptr;
    BlockObject* objects = nullptr;

    Block* blocks() { return reinterpret_cast<Block*>(this + 1); }
  };
  static_assert(sizeof(Chunk) == sizeof(Block));

  static Chunk* chunk_of(const Block* block) {
    return reinterpret_cast<Chunk*>(reinterpret_cast<std::uintptr_t>(block) & ~(kChunkBytes - 1));
  }
  bool grow();
  static Chunk*& store();

  void* owner_;
  bool with_objects_;
  Block* free_ = nullptr;
  std::atomic<Chunk*> chunks_{nullptr};
  std::size_t used_ = 0;
  std::size_t chunk_count_ = 0;
};

}  // namespace cistern::core
