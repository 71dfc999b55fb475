// The fast paths of malloc and free. See thread_cache.hpp for what they may rely on.
#include "allocator/device_allocator.hpp"

#include <algorithm>

#include "allocator/defaults.hpp"

namespace cistern::allocation {

using core::Bin;
using core::Block;
using core::ThreadCache;

namespace {

std::uint32_t inline_number(std::uint32_t number) { return number < kInlineHeaps ? number : kNoHeap; }

}  // namespace

DeviceAllocator::DeviceAllocator(Device device, std::unique_ptr<drivers::Driver> driver, FrontConfig config)
    : device_(device),
      central_(std::move(driver), config, this, device.type),
      host_buffers_(central_.capabilities().whole_buffers || !central_.capabilities().host_accessible),
      asynchronous_(central_.capabilities().asynchronous),
      default_number_(host_buffers_ ? kNoHeap : inline_number(central_.streams().at(0)->number)),
      small_limit_(central_.classes().largest()),
      exact_limit_(central_.capabilities().virtual_memory ? config.max_cached : 0),
      alignment_mask_(central_.capabilities().alignment - 1),
      classes_(central_.classes()),
      streams_(central_.streams()) {
  register_instance(*this);
}

DeviceAllocator::~DeviceAllocator() { unregister_instance(*this); }

// A free block for the request from the cache, or null.
inline Block* DeviceAllocator::cached(ThreadCache& cache, std::size_t bytes) {
  // One less, so that an empty request fails both comparisons.
  if (bytes - 1 < small_limit_) [[likely]] {
    return ThreadCache::pop(cache.bins[classes_.index(bytes)]);
  }
  if (bytes - 1 < exact_limit_) {
    if (Bin* bin = cache.find_exact((bytes + alignment_mask_) & ~alignment_mask_)) return ThreadCache::pop(*bin);
  }
  return nullptr;
}

// Makes a block of the calling thread's cache live.
inline Buffer DeviceAllocator::hand_out(ThreadCache& cache, Block* block) {
  const std::uint64_t serial = block->serial.load(std::memory_order_relaxed) + 1;
  block->serial.store(serial, std::memory_order_relaxed);
  core::Account& account = cache.account;
  const std::int64_t now = account.bytes.load(std::memory_order_relaxed) + static_cast<std::int64_t>(block->capacity);
  account.bytes.store(now, std::memory_order_relaxed);
  account.count.store(account.count.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  if (now > account.high.load(std::memory_order_relaxed)) [[unlikely]] central_.figures().checkpoint();
  return Buffer(block, serial);
}

Buffer DeviceAllocator::malloc(std::size_t bytes) {
  ThreadCache& cache = *thread_state.caches[default_number_].load(std::memory_order_relaxed);
  if (Block* block = cached(cache, bytes)) [[likely]] return hand_out(cache, block);
  return malloc_slow(bytes, nullptr);
}

Buffer DeviceAllocator::malloc(std::size_t bytes, const Stream& stream) {
  StreamEntry* entry = streams_.at(stream.slot());
  check_stream_entry(entry, stream, "malloc");
  ThreadCache& cache = *thread_state.caches[inline_number(entry->number.load(std::memory_order_relaxed))].load(std::memory_order_relaxed);
  if (Block* block = cached(cache, bytes)) [[likely]] return hand_out(cache, block);
  return malloc_slow(bytes, entry);
}

// Takes the buffer back into the cache that owns it. False, with nothing changed, when that is not all there is to do.
// pre: the cache is the calling thread's, and owned the block just now.
inline bool DeviceAllocator::free_fast(ThreadCache& cache, Buffer buffer) {
  Block* block = buffer.block();
  const std::uint64_t serial = buffer.serial();
  // Whoever empties this inbox from outside waits while `busy` is set: a claim on this block comes before our checks and
  // is seen by them, or after our stores and finds the serial gone.
  cache.busy.store(1, std::memory_order_relaxed);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  Bin& bin = cache.bins[block->bin];
  if (block->serial.load(std::memory_order_relaxed) != serial || block->remote.load(std::memory_order_relaxed) != 0 ||
      bin.room <= 0 || bin.size != block->capacity) [[unlikely]] {
    cache.busy.store(0, std::memory_order_relaxed);
    return false;
  }
  block->serial.store(serial + 1, std::memory_order_relaxed);
  block->next = bin.head;
  bin.head = block;
  --bin.room;
  cache.busy.store(0, std::memory_order_release);
  core::Account& account = cache.account;
  const std::int64_t now = account.bytes.load(std::memory_order_relaxed) - static_cast<std::int64_t>(block->capacity);
  account.bytes.store(now, std::memory_order_relaxed);
  account.count.store(account.count.load(std::memory_order_relaxed) - 1, std::memory_order_relaxed);
  if (now < account.low.load(std::memory_order_relaxed)) [[unlikely]] {
    central_.enforce_cache_limit_soon(cache.thread.load(std::memory_order_relaxed));
  }
  return true;
}

void DeviceAllocator::free(Buffer buffer) {
  Block* block = buffer.block();
  if (block == nullptr) return;
  ThreadCache* cache = thread_state.caches[default_number_].load(std::memory_order_relaxed);
  if (block->owner.load(std::memory_order_relaxed) != cache || !free_fast(*cache, buffer)) [[unlikely]] {
    free_other(buffer);
  }
}

// A block of another heap's cache of this thread, or something that needs a longer look.
void DeviceAllocator::free_other(Buffer buffer) {
  ThreadCache* owner = buffer.block()->owner.load(std::memory_order_relaxed);
  if (owner != nullptr && owner->front == this &&
      owner->fast_thread.load(std::memory_order_relaxed) == thread_state.fast.load(std::memory_order_relaxed) &&
      free_fast(*owner, buffer)) {
    return;
  }
  free_slow(buffer);
}

}  // namespace cistern::allocation
