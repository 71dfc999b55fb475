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
    : DeviceAllocator(device, std::move(driver), config, false) {}

DeviceAllocator::DeviceAllocator(Device device, std::unique_ptr<drivers::Driver> driver, FrontConfig config,
                                 bool primary)
    : device_(device),
      central_(std::move(driver), config, static_cast<DeviceAllocator*>(this), device, primary),
      host_buffers_(central_.capabilities().whole_buffers || !central_.capabilities().host_accessible),
      asynchronous_(central_.capabilities().asynchronous),
      keeps_nothing_(central_.capabilities().whole_buffers && !central_.capabilities().asynchronous),
      default_number_(host_buffers_ ? kNoHeap : inline_number(central_.streams().at(0)->number)),
      small_limit_(central_.classes().largest()),
      exact_limit_(central_.capabilities().virtual_memory ? central_.config().max_cached : 0),
      alignment_mask_(central_.capabilities().alignment - 1),
      classes_(central_.classes()),
      streams_(central_.streams()) {
  register_instance(*this);
}

DeviceAllocator::~DeviceAllocator() { unregister_instance(*this); }

// A free block for the request from the cache, or null. `small_limit` is small_limit_, a constant where it is known.
inline Block* DeviceAllocator::cached(ThreadCache& cache, std::size_t bytes, std::size_t small_limit) {
  // One less, so that an empty request fails both comparisons.
  if (bytes - 1 < small_limit) [[likely]] {
    return ThreadCache::pop(cache.bins[classes_.index(bytes)]);
  }
  if (bytes - 1 < exact_limit_) {
    if (Bin* bin = cache.find_exact(aligned(bytes))) return ThreadCache::pop(*bin);
  }
  return nullptr;
}

Buffer DeviceAllocator::checkpoint(Buffer buffer) {
  central_.figures().checkpoint();
  return buffer;
}

// Makes a block of the calling thread's cache live.
inline Buffer DeviceAllocator::hand_out(ThreadCache& cache, Block* block) {
  const std::uint64_t serial = block->serial.load(std::memory_order_relaxed) + 1;
  block->serial.store(serial, std::memory_order_relaxed);
  core::Account& account = cache.account;
  const std::int64_t now = account.bytes.load(std::memory_order_relaxed) + static_cast<std::int64_t>(block->capacity);
  account.bytes.store(now, std::memory_order_relaxed);
  account.count.store(account.count.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  const Buffer buffer(block, serial);
  if (now > account.high.load(std::memory_order_relaxed)) [[unlikely]]
    return checkpoint(buffer);
  return buffer;
}

inline Buffer DeviceAllocator::malloc_from(ThreadCache& cache, std::size_t bytes, StreamEntry* entry,
                                           std::size_t small_limit) {
  if (Block* block = cached(cache, bytes, small_limit)) [[likely]]
    return hand_out(cache, block);
  if (Block* block = cache.pocket.take(aligned(bytes))) {
    // Another thread may free it, and who needs its memory leaves alone what is announced.
    thread_state.freeing.store(nullptr, std::memory_order_relaxed);
    const Buffer buffer = make_live(block);
    return cache.fetched(static_cast<std::int64_t>(block->capacity)) ? checkpoint(buffer) : buffer;
  }
  return malloc_slow(cache, bytes, entry);
}

Buffer DeviceAllocator::malloc_far(ThreadCache& cache, std::size_t bytes, StreamEntry* entry) {
  return malloc_from(cache, bytes, entry, small_limit_);
}

Buffer DeviceAllocator::malloc(std::size_t bytes) {
  return malloc_from(*thread_state.caches[default_number_].load(std::memory_order_relaxed), bytes, nullptr,
                     small_limit_);
}

Buffer PrimaryAllocator::malloc(std::size_t bytes) {
  return malloc_from(*thread_state.caches[kPrimaryHeap].load(std::memory_order_relaxed), bytes, nullptr,
                     core::SizeClasses::kLargest);
}

Buffer DeviceAllocator::malloc(std::size_t bytes, const Stream& stream) {
  StreamEntry* entry = streams_.at(stream.slot());
  check_stream_entry(entry, stream, "malloc");
  const std::uint32_t number = inline_number(entry->number.load(std::memory_order_relaxed));
  return malloc_from(*thread_state.caches[number].load(std::memory_order_relaxed), bytes, entry, small_limit_);
}

// Takes the buffer back into the bin that owns it. False, with nothing changed, when that is not all there is to do.
// pre: the block was announced in `freeing` before its owner was read; the bin is one of the calling thread's cache.
inline bool DeviceAllocator::free_fast(ThreadCache& cache, std::uintptr_t owner, Buffer buffer) {
  Block* block = buffer.block();
  Bin& bin = *reinterpret_cast<Bin*>(owner);
  const std::uint64_t serial = buffer.serial();
  if (block->serial.load(std::memory_order_relaxed) != serial) [[unlikely]]
    return false;
  const std::uintptr_t offset = owner - reinterpret_cast<std::uintptr_t>(&cache);
  if (offset >= ThreadCache::kSmallBins * sizeof(Bin) && bin.size != block->capacity) [[unlikely]]
    return false;
  block->serial.store(serial + 1, std::memory_order_relaxed);
  block->next = bin.head;
  bin.head = block;
  core::Account& account = cache.account;
  const std::int64_t now = account.bytes.load(std::memory_order_relaxed) - static_cast<std::int64_t>(block->capacity);
  account.bytes.store(now, std::memory_order_relaxed);
  account.count.store(account.count.load(std::memory_order_relaxed) - 1, std::memory_order_relaxed);
  if (now < account.low.load(std::memory_order_relaxed)) [[unlikely]]
    after_low(cache);
  return true;
}

inline void DeviceAllocator::free_to(ThreadCache& cache, Buffer buffer) {
  const std::uintptr_t owner = buffer.block()->owner.load(std::memory_order_relaxed);
  if (owner - reinterpret_cast<std::uintptr_t>(&cache) < sizeof(cache.bins)) [[likely]] {
    if (free_fast(cache, owner, buffer)) [[likely]]
      return;
  }
  free_other(buffer);
}

namespace {

// First the announcement, then the look at the owner: whoever empties this thread's inbox from outside has set
// kAttention on its blocks before, makes all threads see it, and leaves the announced block alone.
inline void announce(Block* block) {
  core::prefetch_for_write(block);  // Another thread may have made it live.
  thread_state.freeing.store(block, std::memory_order_relaxed);
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

}  // namespace

void DeviceAllocator::free(Buffer buffer) {
  if (buffer.block() == nullptr) return;
  announce(buffer.block());
  free_to(*thread_state.caches[default_number_].load(std::memory_order_relaxed), buffer);
}

void PrimaryAllocator::free(Buffer buffer) {
  if (buffer.block() == nullptr) return;
  announce(buffer.block());
  free_to(*thread_state.caches[kPrimaryHeap].load(std::memory_order_relaxed), buffer);
}

// The same for a block that is too large for a bin: the pocket takes it back, or the device's heap.
inline bool DeviceAllocator::free_large(ThreadCache& cache, std::uintptr_t owner, Buffer buffer) {
  Block* block = buffer.block();
  const std::uint64_t serial = buffer.serial();
  if (owner != cache.owner_of_bin(ThreadCache::kNoBin) || block->serial.load(std::memory_order_relaxed) != serial) {
    return false;
  }
  block->serial.store(serial + 1, std::memory_order_relaxed);
  const bool look = cache.freed_elsewhere(static_cast<std::int64_t>(block->capacity));
  if (!central_.keeps_pockets() || !cache.pocket.put(block)) {
    core::Chain freed;
    cache.empty_pocket(freed);
    freed.push(block);
    central_.give_later(freed);
  }
  if (look) after_free(true);
  return true;
}

// A block of another heap's cache of this thread, or something that needs a longer look.
void DeviceAllocator::free_other(Buffer buffer) {
  const std::uintptr_t owner = buffer.block()->owner.load(std::memory_order_relaxed);
  if (owner != 0 && (owner & core::kAttention) == 0) {
    ThreadCache& cache = *ThreadCache::of(owner);
    if (cache.front == this &&
        cache.fast_thread.load(std::memory_order_relaxed) == thread_state.fast.load(std::memory_order_relaxed) &&
        (free_large(cache, owner, buffer) || free_fast(cache, owner, buffer))) {
      return;
    }
  }
  free_slow(buffer);
}

}  // namespace cistern::allocation
