// Chunks of descriptors and the process-wide store of chunks whose pool is gone.
#include "core/block_pool.hpp"

#include <mutex>
#include <new>

namespace cistern::core {
namespace {

// Leaf lock: nothing is called while it is held. Never destroyed, since handles may be used by static destructors.
std::mutex& store_mutex() {
  alignas(std::mutex) static unsigned char storage[sizeof(std::mutex)];
  static std::mutex* mutex = new (storage) std::mutex;
  return *mutex;
}

}  // namespace

BlockPool::Chunk*& BlockPool::store() {
  static Chunk* head = nullptr;
  return head;
}

void BlockPool::lock_store() { store_mutex().lock(); }
void BlockPool::unlock_store() { store_mutex().unlock(); }

bool BlockPool::grow() {
  Chunk* chunk = nullptr;
  {
    const std::lock_guard lock(store_mutex());
    chunk = store();
    if (chunk != nullptr) store() = chunk->next;
  }
  if (chunk == nullptr) {
    void* memory = ::operator new (kChunkBytes, std::align_val_t{kChunkBytes}, std::nothrow);
    if (memory == nullptr) return false;
    chunk = new (memory) Chunk;
    for (std::size_t i = 0; i < kBlocksPerChunk; ++i) new (chunk->blocks() + i) Block;
  }
  if (!with_objects_) {
    delete[] chunk->objects;
    chunk->objects = nullptr;
  } else if (chunk->objects == nullptr) {
    chunk->objects = new (std::nothrow) BlockObject[kBlocksPerChunk];
    if (chunk->objects == nullptr) {
      const std::lock_guard lock(store_mutex());
      chunk->next = store();
      store() = chunk;
      return false;
    }
  }
  chunk->next = chunks_.load(std::memory_order_relaxed);
  chunks_.store(chunk, std::memory_order_release);
  ++chunk_count_;
  for (std::size_t i = kBlocksPerChunk; i-- > 0;) {
    Block* block = chunk->blocks() + i;
    block->next = free_;
    free_ = block;
  }
  chunk->owner.store(owner_, std::memory_order_release);
  return true;
}

BlockPool::~BlockPool() {
  for (Chunk* chunk = chunks_.load(std::memory_order_relaxed); chunk != nullptr;) {
    Chunk* const following = chunk->next;
    for (std::size_t i = 0; i < kBlocksPerChunk; ++i) {
      Block* block = chunk->blocks() + i;
      const std::uint64_t serial = block->serial.load(std::memory_order_relaxed);
      block->serial.store(serial + (serial & 1), std::memory_order_relaxed);
      block->remote.store(0, std::memory_order_relaxed);
      block->owner.store(0, std::memory_order_relaxed);
      block->home = nullptr;
      block->flags = 0;
      block->tag = 0;
    }
    chunk->owner.store(nullptr, std::memory_order_release);
    const std::lock_guard lock(store_mutex());
    chunk->next = store();
    store() = chunk;
    chunk = following;
  }
}

}  // namespace cistern::core
