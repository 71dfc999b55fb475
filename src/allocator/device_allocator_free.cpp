// The long way of free: other threads' blocks, blocks that no cache owns, content options, tags, and misuse.
#include <cstring>
#include <string_view>
#include <utility>

#include "allocator/device_allocator.hpp"
#include "allocator/hexadecimal.hpp"

namespace cistern::allocation {

using core::Block;
using core::Chain;
using core::ThreadCache;

std::string DeviceAllocator::describe(const Block* block) const {
  return hexadecimal(address_of(block)) + " (" + std::to_string(block->capacity) + " bytes, " + to_string(device_) +
         ")";
}

// Says what is wrong with a buffer that is not a live one of this allocator.
void DeviceAllocator::throw_misuse(Buffer buffer, const char* call) const {
  const Block* block = buffer.block();
  const std::string start = std::string("cistern: ") + call + ": ";
  DeviceAllocator* owner = allocator_of(block);
  if (owner == nullptr) throw invalid_argument(start + "the buffer's allocator is gone");
  if (owner != this) {
    const char* const other = owner->device_ == device_ ? "another allocator of " : "another allocator than that of ";
    throw invalid_argument(start + "buffer " + owner->describe(block) + " belongs to " + other + to_string(device_));
  }
  const std::uint64_t serial = block->serial.load(std::memory_order_relaxed);
  if (serial > buffer.serial() + 1) {
    throw invalid_argument(start +
                           "the buffer was already freed (double free or stale handle); its descriptor, serial " +
                           std::to_string(buffer.serial()) + " on " + to_string(device_) +
                           ", has served others since, now " + describe(block));
  }
  const std::string_view what = call;
  const bool ends = what == "free" || what == "release";
  throw invalid_argument(start + "buffer " + describe(block) + " was already freed (" +
                         (ends ? "double free)" : "use after free)"));
}

Block* DeviceAllocator::checked(Buffer buffer, const char* call) const {
  Block* block = buffer.block();
  if (block == nullptr) throw invalid_argument(std::string("cistern: ") + call + ": the buffer is null");
  const std::uint64_t serial = block->serial.load(std::memory_order_acquire);
  if (allocator_of(block) != this || serial != buffer.serial() || core::claimed(block, serial)) {
    throw_misuse(buffer, call);
  }
  return block;
}

// A pool's or an arena's memory ends with it alone: its handles would stand on bytes of somebody else.
void DeviceAllocator::check_not_kept(const Block* block, const char* call) const {
  const Keeper keeper = keeper_of(block);
  if (keeper == Keeper::none) return;
  throw invalid_argument(std::string("cistern: ") + call + ": buffer " + describe(block) + " is " + to_string(keeper) +
                         "; expected a buffer that nobody keeps");
}

// Restores what malloc(0) hid. pre: the block is free.
void DeviceAllocator::restore_empty(Block* block) const {
  if ((block->flags & core::kBlockEmpty) == 0) return;
  set_flags(block, block->flags & ~core::kBlockEmpty);
  block->capacity = central_.full_capacity(block);
}

void DeviceAllocator::poison(const Block* block) const {
  if ((options_.load(std::memory_order_relaxed) & kPoisonOnFree) == 0 || asynchronous_) return;
  if (!central_.capabilities().host_accessible && (block->flags & core::kBlockHost) == 0) return;
  std::memset(reinterpret_cast<void*>(address_of(block)), kPoison, block->capacity);
}

// The calling thread's cache of the heap that the block is from; null when it has none.
ThreadCache* DeviceAllocator::cache_for(const Block* block) const {
  const ThreadRecord* record = thread_state.record;
  const core::HeapNode* node = node_of(block);
  if (record == nullptr || node == nullptr) return nullptr;
  for (ThreadCache* cache : record->caches) {
    if (cache != nullptr && cache->front == this &&
        static_cast<const StreamHeap*>(cache->heap)->index == node->stream) {
      return cache;
    }
  }
  return nullptr;
}

// Takes bytes out of the figures, in any account of the calling thread. Whether the cache limit is to be looked at.
bool DeviceAllocator::account_free(std::uint64_t capacity) {
  const auto bytes = static_cast<std::int64_t>(capacity);
  if (const ThreadRecord* record = thread_state.record) {
    for (ThreadCache* cache : record->caches) {
      if (cache != nullptr && cache->front == this) return cache->freed_elsewhere(bytes);
    }
  }
  if (++thread_state.strays == 0) join_for_account();
  return central_.figures().add_shared(-bytes, -1);
}

// A thread that goes on freeing without ever allocating gets a cache, for the sake of its account: the common one costs
// locked instructions on a line that all such threads share. Not on devices with asynchronous work, where it may be a
// thread of the driver's that runs a callback. Waits for nothing: if the lock is not free, later.
void DeviceAllocator::join_for_account() {
  if (asynchronous_ || central_.capabilities().whole_buffers) return;
  ThreadRecord* record = this_record();
  if (record == nullptr) return;
  const Central::Lock lock(central_, std::try_to_lock);
  if (lock.owns()) join(lock, *record, *streams_.at(0)->heap);
}

// pre: the caller has made the serial even, so that the block is its alone.
void DeviceAllocator::finish_free(Block* block, ThreadCache* cache) {
  poison(block);
  if (block->tag != 0) tag_figures_.subtract(std::exchange(block->tag, std::uint16_t{0}), block->capacity);
  const bool look = cache != nullptr ? cache->freed_elsewhere(static_cast<std::int64_t>(block->capacity))
                                     : account_free(block->capacity);
  restore_empty(block);
  if (cache != nullptr && kept_by_threads(block)) {
    Chain spill;
    cache->hold(block, spill);
    bound(*cache, spill);
  } else {
    central_.give_later(block);
  }
  after_free(look);
}

// A fast free went below the watermark: the cache is full, or the cache limit asks for memory back.
void DeviceAllocator::after_low(ThreadCache& cache) {
  cache.used(thread_state.freeing.load(std::memory_order_relaxed)->owner.load(std::memory_order_relaxed) &
             ~core::kOwnerBits);
  bound(cache);
  const core::Account& account = cache.account;
  after_free(account.bytes.load(std::memory_order_relaxed) < account.floor.load(std::memory_order_relaxed));
}

void DeviceAllocator::after_free(bool look_at_cache_limit) {
  if (look_at_cache_limit) central_.enforce_cache_limit_soon(thread_state.record);
  if (keeps_nothing_) {
    // This device has no asynchronous work, so the lock is never held for long.
    const Central::Lock lock(central_);
    central_.drain(lock);
  }
}

void DeviceAllocator::free_slow(Buffer buffer) {
  Block* block = buffer.block();
  const std::uint64_t serial = buffer.serial();
  if (allocator_of(block) != this) throw_misuse(buffer, "free");
  std::uint64_t expected = block->serial.load(std::memory_order_acquire);
  if (expected != serial) throw_misuse(buffer, "free");
  check_not_kept(block, "free");
  ThreadCache* owner = ThreadCache::of(block->owner.load(std::memory_order_acquire));
  if (owner == &core::central_owner) {
    if ((block->flags & core::kBlockView) != 0) {
      throw invalid_argument("cistern: free: buffer " + describe(block) +
                             " is a view of memory that is not Cistern's; end it with release()");
    }
    if (!block->serial.compare_exchange_strong(expected, serial + 1, std::memory_order_acq_rel))
      throw_misuse(buffer, "free");
    finish_free(block, cache_for(block));
    return;
  }
  const ThreadRecord* record = thread_state.record;
  if (record == nullptr || owner->thread.load(std::memory_order_relaxed) != record) {
    free_foreign(buffer, owner);
    return;
  }
  // `freeing` announces the block (free() has set it), and the claim is looked for afterwards.
  if (block->remote.load(std::memory_order_acquire) == static_cast<std::uint32_t>(serial)) throw_misuse(buffer, "free");
  block->serial.store(serial + 1, std::memory_order_relaxed);
  finish_free(block, owner);
}

void DeviceAllocator::free_foreign(Buffer buffer, ThreadCache* owner) {
  Block* block = buffer.block();
  // Once claimed, the block may be somebody else's at any time.
  const std::uint64_t capacity = block->capacity;
  poison(block);
  const core::Claim result = core::claim(block, owner, buffer.serial());
  if (result == core::Claim::double_free) throw_misuse(buffer, "free");
  if (result == core::Claim::over_stale) central_.note_late({1, static_cast<std::int64_t>(capacity)});
  const bool look = account_free(capacity);
  if (look || keeps_nothing_) after_free(look);
}

void DeviceAllocator::free(Buffer buffer, const Stream& stream) {
  if (buffer.block() == nullptr) return;
  check_stream_entry(streams_.at(stream.slot()), stream, "free");
  if (asynchronous_) {
    Block* const block = checked(buffer, "free");
    check_not_kept(block, "free");
    add_use(block, stream);
  }
  free(buffer);
}

void DeviceAllocator::record_use(Buffer buffer, const Stream& stream) {
  check_stream_entry(streams_.at(stream.slot()), stream, "record_use");
  Block* const block = checked(buffer, "record_use");
  if (asynchronous_) add_use(block, stream);
}

// pre: the block is live.
void DeviceAllocator::add_use(Block* block, const Stream& stream) {
  if ((core::flags_of(block) & core::kBlockView) != 0) return;  // Its memory is not ours to reuse.
  const core::HeapNode* node = node_of(block);
  if (node != nullptr && streams_.at(stream.slot())->heap->index == node->stream) return;
  central_.uses().add(block, stream.slot());
  block->owner.fetch_or(core::kAttention, std::memory_order_acq_rel);
}

void DeviceAllocator::free_raw(void* ptr) {
  if (ptr == nullptr) return;
  const Buffer buffer = find(ptr);
  if (!buffer) {
    throw invalid_argument("cistern: free_raw: no live buffer of " + to_string(device_) + " starts at " +
                           hexadecimal(reinterpret_cast<std::uintptr_t>(ptr)));
  }
  free(buffer);
}

Buffer DeviceAllocator::find(const void* ptr) const {
  const auto address = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(ptr));
  const auto live = [&](Block* block) {
    if (block == nullptr) return Buffer();
    const std::uint64_t serial = block->serial.load(std::memory_order_acquire);
    const bool here = serial % 2 != 0 && address_of(block) == address && !core::claimed(block, serial);
    return here ? Buffer(block, serial) : Buffer();
  };
  // Blocks that are gone may be found, and the driver may give their addresses to the host.
  Buffer found = live(central_.find(address));
  if (!found && host_buffers_) found = live(central_.host().find(address));
  if (!found && central_.capabilities().ordered_buffers) found = live(central_.ordered().find(address));
  return found;
}

std::size_t DeviceAllocator::size(Buffer buffer) const {
  return buffer.block() == nullptr ? 0 : checked(buffer, "size")->capacity;
}

}  // namespace cistern::allocation
