// The long way of malloc: thread caches that are empty, the device's lock, content options, tags, memory pressure.
#include <algorithm>
#include <bit>
#include <cstring>
#include <new>

#include "allocator/device_allocator.hpp"
#include "allocator/out_of_memory.hpp"

namespace cistern::allocation {

using core::Block;
using core::Chain;
using core::ThreadCache;

std::uint64_t DeviceAllocator::cache_budget() const {
  const FrontConfig& config = central_.config();
  return std::max<std::uint64_t>(config.cache_bytes, central_.figures().active() / config.cache_fraction);
}

// Holds the cache to its budget; what has to go joins what was spilled already.
void DeviceAllocator::bound(ThreadCache& cache, Chain spill) {
  cache.bound([this] { return cache_budget(); }, spill);
  central_.give_later(spill);
}

// The cache of a record for a heap; null when it has none.
ThreadCache* DeviceAllocator::own_cache(ThreadRecord* record, const StreamHeap& heap) const {
  return record != nullptr && heap.number < record->caches.size() ? record->caches[heap.number] : nullptr;
}

// The thread's cache of a heap whose number is beyond the inline ones, if calls may take the short way; else null.
ThreadCache* DeviceAllocator::far_cache(const StreamEntry* entry) const {
  if (thread_state.tag != 0 || instrumented() || central_.captures().any()) return nullptr;
  if (entry == nullptr && host_buffers_) return nullptr;
  return own_cache(thread_state.record, *(entry != nullptr ? entry : streams_.at(0))->heap);
}

DeviceAllocator::Request DeviceAllocator::round(std::size_t bytes) const {
  Request request;
  request.bytes = bytes;
  request.alignment = alignment_mask_ + 1;
  // An empty buffer is a smallest one that shows no capacity.
  const std::size_t wanted = std::max<std::size_t>(bytes, 1);
  if (wanted <= small_limit_) {
    request.bin = classes_.index(wanted);
    request.rounded = classes_.size(static_cast<std::size_t>(request.bin));
  } else if (central_.capabilities().virtual_memory || central_.capabilities().whole_buffers) {
    request.rounded = aligned(wanted);
  } else {
    central_.driver().block_layout(wanted, request.rounded, request.alignment);
    request.rounded = aligned(request.rounded);
    if (central_.capabilities().block_objects) {
      // The fewer sizes and starts there are, the more often a block comes to where an object of its size stands.
      const std::size_t floor = std::bit_floor(request.rounded);
      request.rounded = core::align_up(request.rounded, std::max(alignment_mask_ + 1, floor / kObjectSizes));
      request.alignment =
          std::max(request.alignment, std::min(floor / kObjectStarts, central_.capabilities().granularity));
    }
  }
  return request;
}

void DeviceAllocator::throw_foreign_stream(const Stream& stream, const char* call) const {
  std::string text = std::string("cistern: ") + call + ": ";
  if (stream.device() != device_) {
    text += "a stream of " + to_string(stream.device()) + " was given to " + to_string(device_);
  } else {
    text += "stream " + std::to_string(stream.id()) + " of " + to_string(device_) +
            " was destroyed, or is another allocator's";
  }
  throw invalid_argument(text);
}

void DeviceAllocator::drain_own_inbox(ThreadCache& cache) {
  Chain freed, spill;
  core::LateFrees late;
  cache.complete(cache.take_inbox(), nullptr, freed, late);
  central_.note_late(late);
  for (Block* block = freed.head; block != nullptr;) {
    Block* const following = block->next;
    if (kept_by_threads(block)) {
      cache.hold(block, spill);
    } else {
      spill.push(block);
    }
    block = following;
  }
  bound(cache, spill);
}

// Puts a block that is about to be live into the figures: under the lock when it came from there, so that limits are
// never looked at in between.
void DeviceAllocator::account_malloc(ThreadCache* cache, const Block* block, const Request& request) {
  const auto bytes = static_cast<std::int64_t>(request.bytes == 0 ? 0 : block->capacity);
  if (cache == nullptr) {
    central_.figures().add_shared(bytes, 1);
    return;
  }
  cache->add_live(bytes, 1);
  if (cache->above_high()) central_.figures().checkpoint();
}

void DeviceAllocator::give_pocket_back(ThreadCache& cache) {
  if (Block* block = cache.pocket.take()) central_.give_later(block);
}

// pre: under the device's lock.
void DeviceAllocator::note_large(ThreadCache& cache, Block* block) {
  cache.pocket.note(static_cast<const StreamHeap*>(cache.heap)->recent.stays(block) ? block : nullptr);
}

// Makes a cache of the heap the thread's; null when the host has no memory. pre: the record has none of the heap.
ThreadCache* DeviceAllocator::join(const Central::Lock& lock, ThreadRecord& record, StreamHeap& heap) {
  ThreadCache* cache = central_.adopt(lock, heap, &record);
  if (cache == nullptr) return nullptr;
  cache->epoch = central_.flush_epoch();
  if (install(record, heap.number, *cache)) return cache;
  central_.abandon(lock, *cache);
  return nullptr;
}

// A free block that serves the request, in the figures already; null when there is no memory. `cache` becomes the
// thread's cache of the heap.
Block* DeviceAllocator::obtain(const Request& request, StreamHeap& heap, ThreadCache*& cache) {
  const auto pop = [&]() -> Block* {
    if (request.bin >= 0) return ThreadCache::pop(cache->bins[static_cast<std::size_t>(request.bin)]);
    core::Bin* bin = cache->find_exact(request.rounded);
    return bin != nullptr ? ThreadCache::pop(*bin) : nullptr;
  };
  thread_state.freeing.store(nullptr, std::memory_order_relaxed);
  ThreadRecord* record = thread_state.record;
  if (record == nullptr) record = this_record();
  cache = own_cache(record, heap);
  if (cache != nullptr) {
    if (const std::uint32_t epoch = central_.flush_epoch(); cache->epoch != epoch) {
      cache->epoch = epoch;
      Chain kept;
      cache->flush(kept);
      central_.give_later(kept);
    }
    if (!cache->inbox_empty()) drain_own_inbox(*cache);
    give_pocket_back(*cache);
    if (Block* block = pop()) {
      cache->took(block);
      account_malloc(cache, block, request);
      return block;
    }
  }

  const Central::Lock lock(central_);
  if (record != nullptr && cache == nullptr) {
    cache = join(lock, *record, heap);
    if (cache != nullptr && !cache->inbox_empty()) drain_own_inbox(*cache);
  }
  central_.drain(lock);
  if (central_.beyond_limit(lock, request.rounded)) return nullptr;
  if (request.bin < 0) {
    Block* block = central_.take_large(lock, heap, request.rounded, request.alignment, record);
    if (block == nullptr) return nullptr;
    account_malloc(cache, block, request);
    if (cache != nullptr) note_large(*cache, block);
    return block;
  }
  const auto bin = static_cast<std::uint8_t>(request.bin);
  Block* first = central_.take_small(lock, heap, bin, record);
  if (first != nullptr) account_malloc(cache, first, request);
  if (first == nullptr || cache == nullptr) return first;
  Chain none;
  const std::size_t most = std::clamp<std::size_t>(central_.config().refill_bytes / request.rounded, 1, 64);
  const std::size_t wanted = cache->refill(bin, most);
  for (std::size_t i = 1; i < wanted; ++i) {
    Block* block = central_.take_small_ready(lock, heap, bin);
    if (block == nullptr) break;
    cache->hold(block, none);
  }
  return first;
}

Block* DeviceAllocator::obtain_host(const Request& request) {
  const Central::Lock lock(central_);
  central_.drain(lock);
  if (central_.beyond_limit(lock, std::max<std::size_t>(request.bytes, 1))) return nullptr;
  Block* block = central_.take_host(lock, std::max<std::size_t>(request.bytes, 1), thread_state.record);
  if (block != nullptr) account_malloc(nullptr, block, request);
  return block;
}

Block* DeviceAllocator::obtain_ordered(const Request& request, StreamHeap& heap) {
  const Central::Lock lock(central_);
  central_.drain(lock);
  Block* block =
      central_.take_ordered(lock, heap, aligned(std::max<std::size_t>(request.bytes, 1)), thread_state.record);
  if (block != nullptr) account_malloc(nullptr, block, request);
  return block;
}

// Memory of a capture pool is kept by no thread, so that the pool has all of it when it is released.
Block* DeviceAllocator::obtain_captured(const Request& request, std::uint64_t pool, const StreamEntry& entry) {
  const Central::Lock lock(central_);
  central_.drain(lock);
  if (central_.beyond_limit(lock, request.rounded)) return nullptr;
  StreamHeap& heap = central_.capture_heap(lock, pool, entry);
  const ThreadRecord* record = thread_state.record;
  Block* block = request.bin < 0 ? central_.take_large(lock, heap, request.rounded, request.alignment, record)
                                 : central_.take_small(lock, heap, static_cast<std::uint8_t>(request.bin), record);
  if (block != nullptr) account_malloc(nullptr, block, request);
  return block;
}

// What the driver says when it cannot; empty otherwise.
std::string DeviceAllocator::clear_content(Block* block) {
  // Which bytes are fresh is not known here, so a reused buffer and a fresh one are cleared alike.
  const std::uint64_t bytes = central_.full_capacity(block);
  const bool reachable = central_.capabilities().host_accessible || (block->flags & core::kBlockHost) != 0;
  if (reachable && (!asynchronous_ || !central_.capabilities().host_accessible)) {
    std::memset(reinterpret_cast<void*>(address_of(block)), 0, bytes);
    return {};
  }
  const Central::Lock lock(central_);
  const auto status = central_.driver().fill(address_of(block), 0, bytes, central_.native_of(block));
  return status == drivers::Status::ok ? std::string() : central_.driver().error_text();
}

// The bin that takes the block back when its thread frees it.
std::uintptr_t DeviceAllocator::owner_in(ThreadCache& cache, const Block* block, Chain& spill) const {
  if ((block->flags & core::kBlockSlab) != 0) return cache.owner_of_bin(block->bin);
  if (block->capacity > central_.config().max_cached) return cache.owner_of_bin(ThreadCache::kNoBin);
  return reinterpret_cast<std::uintptr_t>(&cache.exact_bin(block->capacity, spill));
}

// Makes a block live that did not come the short way and is in the figures already.
Buffer DeviceAllocator::issue(Block* block, ThreadCache* cache, const Request& request) {
  const std::uint16_t tag = thread_state.tag;
  const bool host = (block->flags & core::kBlockHost) != 0;
  const bool clear = (options_.load(std::memory_order_relaxed) & (kZeroOnAlloc | kZeroOnReuse)) != 0;
  const std::string failure = clear ? clear_content(block) : std::string();
  std::uintptr_t owner = core::central_owner_value();
  Chain spill;
  if (cache != nullptr && tag == 0 && !host && request.bytes != 0) {
    owner = owner_in(*cache, block, spill);
  }
  block->owner.store(owner, std::memory_order_relaxed);
  block->tag = tag;
  if (request.bytes == 0) {
    set_flags(block, block->flags | core::kBlockEmpty);
    block->capacity = 0;
  }
  if (tag != 0) tag_figures_.add(tag, block->capacity);
  const Buffer buffer = make_live(block);
  if (cache != nullptr) bound(*cache, spill);
  if (!failure.empty()) {
    free(buffer);
    throw driver_error("cistern: malloc: a buffer of " + std::to_string(request.bytes) +
                       " bytes cannot be cleared: " + failure);
  }
  return buffer;
}

// The usual way of a block above the small classes, when nothing but the heap is to be looked at. Null when there is
// more to do, or no memory. pre: the cache is the thread's of the heap, and calls may take the short way.
Buffer DeviceAllocator::malloc_large(ThreadCache& cache, std::size_t bytes) {
  if (cache.epoch != central_.flush_epoch() || !cache.inbox_empty()) return {};
  thread_state.freeing.store(nullptr, std::memory_order_relaxed);
  give_pocket_back(cache);
  Block* block = nullptr;
  {
    const Central::Lock lock(central_);
    central_.drain(lock);
    if (central_.beyond_limit(lock, bytes)) return {};
    block = central_.take_large(lock, *static_cast<StreamHeap*>(cache.heap), aligned(bytes), alignment_mask_ + 1,
                                thread_state.record);
    if (block == nullptr) return {};
    note_large(cache, block);
    if (cache.fetched(static_cast<std::int64_t>(block->capacity))) central_.figures().checkpoint();
  }
  Chain spill;
  block->owner.store(owner_in(cache, block, spill), std::memory_order_relaxed);
  block->tag = 0;
  const Buffer buffer = make_live(block);
  central_.give_later(spill);
  return buffer;
}

Buffer DeviceAllocator::malloc_slow(ThreadCache& cache, std::size_t bytes, StreamEntry* entry) {
  if (cache.heap == nullptr) {  // The empty cache.
    ThreadCache* const far = far_cache(entry);
    return far != nullptr ? malloc_far(*far, bytes, entry) : malloc_slower(bytes, entry);
  }
  if (exact_limit_ != 0 && bytes > small_limit_ && bytes <= core::kMaxRequest) {
    try {
      if (const Buffer buffer = malloc_large(cache, bytes)) return buffer;
    } catch (const std::bad_alloc&) {
      // The host has no memory for the books: below there is more to be tried.
    }
  }
  return malloc_slower(bytes, entry);
}

Buffer DeviceAllocator::malloc_slower(std::size_t bytes, StreamEntry* entry) {
  if (bytes > core::kMaxRequest) {
    throw invalid_argument("cistern: malloc: no device has " + std::to_string(bytes) + " bytes");
  }
  const bool host = entry == nullptr && host_buffers_;
  StreamHeap& heap = *(entry != nullptr ? entry : streams_.at(0))->heap;
  const Request request = round(bytes);
  std::uint64_t active = UINT64_MAX;
  for (;;) {
    ThreadCache* cache = nullptr;
    Block* block = nullptr;
    try {
      const bool captures = entry != nullptr && central_.captures().any();
      if (const std::uint64_t pool = captures ? central_.captures().route(entry->native) : 0; pool != 0) {
        block = obtain_captured(request, pool, *entry);
      } else if (!host && central_.capabilities().ordered_buffers) {
        block = obtain_ordered(request, heap);
      } else {
        block = host || central_.capabilities().whole_buffers ? obtain_host(request) : obtain(request, heap, cache);
      }
    } catch (const std::bad_alloc&) {
      // The host has no memory for the books: the same to the caller.
    }
    if (block != nullptr) return issue(block, cache, request);
    std::string failure;
    {
      const Central::Lock lock(central_);
      failure = central_.work().take_failure();
    }
    // As long as callbacks free something.
    const std::uint64_t before = std::exchange(active, central_.figures().active());
    if (active >= before || !call_out_of_memory_callbacks(device_, bytes)) throw_out_of_memory(bytes, failure);
  }
}

}  // namespace cistern::allocation
