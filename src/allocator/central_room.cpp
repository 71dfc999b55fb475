// Room: where blocks are placed, what happens when memory is short, the limits, and the list of thread caches.
#include <algorithm>
#include <new>
#include <utility>

#include "allocator/central.hpp"
#include "allocator/process_barrier.hpp"
#include "allocator/thread_state.hpp"

namespace cistern::allocation {

using core::Block;
using core::Chain;
using core::HeapNode;
using core::ThreadCache;
using drivers::Status;

std::uint64_t Central::full_capacity(const Block* block) const {
  if ((block->flags & core::kBlockSlab) != 0) {
    return static_cast<const core::Slab*>(block->home)->block_bytes.load(std::memory_order_relaxed);
  }
  if ((block->flags & (core::kBlockHost | core::kBlockOrdered)) != 0) {
    return reinterpret_cast<std::uintptr_t>(block->home);
  }
  return static_cast<const HeapNode*>(block->home)->size;
}

// --- Placing --------------------------------------------------------------------------------------------------------

bool Central::open(AddressRange& range, core::StreamIndex first) {
  const std::uint64_t granularity = capabilities_.granularity;
  // It may be reserved already: the host had no memory for the rest.
  std::uint64_t bytes = group_ != nullptr ? range_bytes_ : range.bytes;
  if (bytes == 0) {
    const std::uint64_t total = std::max<std::uint64_t>(capabilities_.total_memory, granularity);
    bytes = core::align_up(std::min(total, (std::uint64_t{1} << 46) / config_.range_factor) * config_.range_factor,
                           granularity);
  }
  if (capabilities_.virtual_memory && range.bytes == 0) {
    drivers::Address base = 0;
    while (driver_->reserve(bytes, base) != Status::ok) {
      // The first range says how much there is of addresses; the later ones must have the same.
      bytes = core::align_down(bytes / 2, granularity);
      if (group_ != nullptr || bytes == 0) return false;
    }
    range.bytes = bytes;
    range.backing.set_base(base);
  }
  if (group_ == nullptr) {
    core::HeapConfig heap_config;
    heap_config.cell_bytes = granularity;
    heap_config.alignment = capabilities_.alignment;
    heap_config.range_bytes = bytes;
    heap_config.virtual_memory = capabilities_.virtual_memory;
    heap_config.commit_on_touch = capabilities_.commit_on_touch;
    if (capabilities_.commit_on_touch) heap_config.slack_percent = kTouchSlackPercent;
    group_ = std::make_unique<core::HeapGroup>(heap_config);
    range_bytes_ = bytes;
    apply_limit();
  }
  range.pages = &group_->add_heap(range.backing, first);
  return true;
}

HeapNode* Central::place(const Lock& lock, StreamHeap& heap, std::uint64_t bytes, std::uint64_t alignment,
                         const void* thread) {
  alignment = std::max<std::uint64_t>(alignment, capabilities_.alignment);
  flush_recent(lock, heap);
  const std::uint64_t most = std::min<std::uint64_t>(capabilities_.max_buffer, limits_.memory());
  core::PageHeap* const pages = heap.range.pages;
  if (bytes <= most && pages != nullptr && !group_->gauge().over) {
    if (HeapNode* node = pages->allocate_mapped(bytes, alignment, heap.index)) return node;
  }
  return bring(lock, heap, bytes, alignment, thread);
}

HeapNode* Central::bring(const Lock& lock, StreamHeap& heap, std::uint64_t bytes, std::uint64_t alignment,
                         const void* thread) {
  work_.forget_errors();
  if (bytes > limits_.memory()) return nullptr;
  if (bytes > capabilities_.max_buffer) {
    work_.note_shortage("the device's longest buffer has " + std::to_string(capabilities_.max_buffer) + " bytes");
    return nullptr;
  }
  if (heap.range.pages == nullptr) {
    if (!open(heap.range, heap.index)) return nullptr;
    heap.range.pages->hold(heap.held);
  }
  core::PageHeap& pages = *heap.range.pages;
  const auto over = [&] { return group_->reserved() - std::min(group_->reserved(), group_->limit()); };
  if (over() != 0) {
    // The limit was lowered below what is reserved: first under it again, then more.
    release_above(lock, over());
    if (over() != 0) give_all_back(lock, thread, true);
    if (over() != 0) trim(lock, 0, true);
    if (over() != 0 && group_->live() + bytes > group_->limit()) return nullptr;
    if (HeapNode* node = pages.allocate_mapped(bytes, alignment, heap.index)) return node;
  }
  // Before new memory is brought: what this thread keeps, what others keep in pockets or have freed for their owners.
  bool found = empty_pockets(lock, thread, ThreadCache::kAlwaysKept + 1);
  found = drain_inboxes(lock, thread, true) || found;
  Chain kept;
  for (ThreadCache* cache = caches_; cache != nullptr; cache = cache->next) {
    if (thread != nullptr && cache->thread == thread && cache->heap == &heap) cache->flush(kept);
  }
  found = found || kept.head != nullptr;
  give_chain(lock, kept);
  flush_recent(lock);
  release_empty_slabs();
  if (found) {
    if (HeapNode* node = pages.allocate_mapped(bytes, alignment, heap.index)) return node;
  }
  if (HeapNode* node = pages.allocate(bytes, alignment, heap.index)) return node;
  give_all_back(lock, thread, true);
  if (HeapNode* node = pages.allocate(bytes, alignment, heap.index)) return node;
  trim(lock, 0, true);
  return pages.allocate(bytes, alignment, heap.index);
}

// --- Making room ----------------------------------------------------------------------------------------------------

void Central::give_chain(const Lock& lock, const Chain& chain) {
  for (Block* block = chain.head; block != nullptr;) {
    Block* const following = block->next;
    give(lock, block);
    block = following;
  }
}

bool Central::drain_inboxes(const Lock& lock, const void* thread, bool others) {
  bool found = has_returned();
  drain(lock);
  for (ThreadCache* cache = caches_; cache != nullptr; cache = cache->next) {
    if (cache->inbox_empty()) continue;
    const bool running = cache->thread != nullptr && cache->thread != thread;
    if (running && !others) continue;
    Block* claimed = cache->take_inbox();
    const Block* busy = nullptr;
    if (running) {
      // Its thread may be in the middle of a free() of one of these handles (a double free). After the barrier it sees
      // the claims when it looks, or else had announced the block before it looked; see DeviceAllocator::free_fast().
      // Without a barrier nothing is known.
      if (!barrier_on_all_threads()) {
        while (claimed != nullptr) {
          Block* const following = claimed->remote_next;
          cache->push_inbox(claimed);
          claimed = following;
        }
        continue;
      }
      // The thread cannot be gone: it would have had to take the lock to abandon the cache.
      const auto* record = static_cast<const ThreadRecord*>(cache->thread.load(std::memory_order_relaxed));
      busy = record->state->freeing.load(std::memory_order_acquire);
    }
    Chain freed;
    core::LateFrees late;
    cache->complete(claimed, busy, freed, late);
    note_late(late);
    found = found || freed.head != nullptr;
    give_chain(lock, freed);
  }
  return found;
}

// The steps of core::Pocket: after the barrier a thread sees that its pocket is closed, or is seen to be busy with it.
bool Central::empty_pockets(const Lock& lock, const void* thread, std::uint64_t least) {
  Chain kept;
  bool others = false;
  for (ThreadCache* cache = caches_; cache != nullptr; cache = cache->next) {
    if (cache->thread == thread) {
      cache->empty_pocket(kept);
    } else {
      others = others || cache->pocket.bytes() >= least;
    }
  }
  if (others) {
    for (ThreadCache* cache = caches_; cache != nullptr; cache = cache->next) cache->pocket.close();
    const bool seen = barrier_on_all_threads();
    for (ThreadCache* cache = caches_; cache != nullptr; cache = cache->next) {
      Block* const block = seen ? cache->pocket.steal(least) : nullptr;
      if (block != nullptr) kept.push(block);
      if (block != nullptr && least > 1) cache->pocket.rest();  // All of them is no sign that this one was missed.
      cache->pocket.open();
    }
  }
  give_chain(lock, kept);
  return kept.head != nullptr;
}

void Central::settle_pockets() {
  keeps_pockets_.store(reserved() <= limits_.memory() && !limits_.cache_binds(), std::memory_order_relaxed);
}

void Central::flush_thread(const Lock& lock, const void* thread) {
  if (thread == nullptr) return;
  Chain kept;
  for (ThreadCache* cache = caches_; cache != nullptr; cache = cache->next) {
    if (cache->thread == thread) cache->flush(kept);
  }
  give_chain(lock, kept);
}

void Central::flush_all_caches(const Lock& lock) {
  Chain kept;
  for (ThreadCache* cache = caches_; cache != nullptr; cache = cache->next) {
    cache->flush(kept);
    core::LateFrees late;
    cache->complete(cache->take_inbox(), nullptr, kept, late);
    note_late(late);
  }
  give_chain(lock, kept);
  drain(lock);
  flush_recent(lock);
}

void Central::release_empty_slabs() {
  for (const auto& heap : heaps_) {
    while (core::Slab* slab = heap->slabs.take_empty()) release_slab(*heap, slab);
  }
}

void Central::give_all_back(const Lock& lock, const void* thread, bool wait) {
  epoch_.fetch_add(1, std::memory_order_relaxed);
  flush_thread(lock, thread);
  if (wait) wait_for_all();
  empty_pockets(lock, thread, 1);
  drain_inboxes(lock, thread, true);
  flush_recent(lock);
  settle_host();
  release_empty_slabs();
  objects_.drop_idle();
  if (wait && (!pending_host_.empty() || objects_.retired() != 0)) {
    wait_for_all();
    objects_.settle();
  }
  drop_host_cache();
  if (group_ != nullptr) group_->collect();
}

void Central::trim(const Lock& lock, std::uint64_t keep, bool wait) {
  flush_recent(lock);
  // What a capture may still use is not known to the driver.
  const bool free = group_ != nullptr && group_->wholly_free() > keep && !(captures_.any() && work_.hidden());
  if (free) group_->trim(keep, wait);
  if (!capabilities_.ordered_buffers) return;
  ordered_.watch(limits_.memory(), true);
  if (ordered_.reserved() <= keep) return;
  if (wait) wait_for_all();  // What was freed a moment ago is the pool's only then.
  ordered_.give_back(ordered_.reserved() - keep);
}

// --- Limits ---------------------------------------------------------------------------------------------------------

// Whole host buffers count against the same limit as the heap.
void Central::apply_limit() {
  if (group_ == nullptr) return;
  group_->set_limit(limit_beside_host(), limits_.lowered());
}

void Central::release_above(const Lock& lock, std::uint64_t excess_bytes) {
  if (excess_bytes == 0) return;
  flush_recent(lock);
  if (group_ != nullptr) {
    const std::uint64_t free = group_->wholly_free();
    if (free != 0) excess_bytes -= std::min(excess_bytes, group_->trim(free - std::min(free, excess_bytes), false));
  }
  if (excess_bytes != 0 && capabilities_.ordered_buffers) {
    excess_bytes -= std::min(excess_bytes, ordered_.give_back(excess_bytes));
  }
  settle_host();
  if (excess_bytes != 0) {
    const std::uint64_t before = host_.bytes();
    host_.release_slabs();
    excess_bytes -= std::min(excess_bytes, before - host_.bytes());
  }
  while (excess_bytes != 0) {
    const std::uint64_t released = host_.release_oldest();
    if (released == 0) break;
    excess_bytes -= std::min(excess_bytes, released);
  }
  apply_limit();
}

std::uint64_t Central::live() const {
  const std::uint64_t active = figures_.active(), views = view_bytes_.load(std::memory_order_relaxed);
  return active - std::min(active, views);
}

std::uint64_t Central::excess() const { return limits_.excess(reserved(), live()); }

bool Central::exceeds_limit(std::uint64_t bytes) const {
  return bytes > limits_.memory() || live() > limits_.memory() - bytes;
}

void Central::enforce_cache_limit(const Lock& lock, const void* thread) {
  drain(lock);
  release_above(lock, excess());
  if (excess() == 0) return;
  flush_thread(lock, thread);
  empty_pockets(lock, thread, 1);
  drain_inboxes(lock, thread, true);
  release_empty_slabs();
  release_above(lock, excess());
}

void Central::enforce_cache_limit_soon(const void* thread) {
  enforce_wanted_.store(true, std::memory_order_relaxed);
  Lock lock(*this, std::try_to_lock);
  if (!lock.owns()) return;
  enforce_wanted_.store(false, std::memory_order_relaxed);
  enforce_cache_limit(lock, thread);
}

void Central::set_memory_limit(const Lock& lock, std::uint64_t bytes, const void* thread) {
  limits_.set_memory(bytes);
  apply_limit();
  settle_pockets();
  const std::uint64_t reserved = reserved_now(lock);
  if (reserved <= bytes) return;
  give_all_back(lock, thread, true);
  release_above(lock, reserved_now(lock) - std::min(reserved_now(lock), bytes));
  if (reserved_now(lock) > bytes) trim(lock, 0, true);
}

void Central::set_cache_limit(const Lock& lock, std::uint64_t bytes, const void* thread) {
  limits_.set_cache(bytes);
  settle_pockets();
  enforce_cache_limit(lock, thread);
}

void Central::reset_peak_reserved(const Lock& lock) {
  if (group_ != nullptr) group_->reset_peak_reserved();
  peak_reserved_ = reserved_now(lock);
  published_changes_ = UINT64_MAX;
}

void Central::settle_residency(const Lock&, bool batches) {
  batches_ = batches_ || batches;
  if (!capabilities_.residency || limits_.wired() == 0) return;
  for (const auto& range : ranges_) {
    if (range->pages == nullptr) continue;
    range->pages->for_each_piece([&](core::Piece piece, bool live) {
      if (const drivers::Segment* segment = range->backing.segment_of(piece)) driver_->segment_used(*segment, live);
    });
  }
  driver_->commit_residency();
}

void Central::publish_changes(const Lock& lock) {
  if (capabilities_.residency && !batches_ && group_ != nullptr) {
    const std::uint64_t segments = group_->counts().created + group_->counts().released;
    if (std::exchange(settled_changes_, segments) != segments) settle_residency(lock, false);
  }
  if (enforce_wanted_.load(std::memory_order_relaxed) && enforce_wanted_.exchange(false, std::memory_order_relaxed)) {
    enforce_cache_limit(lock, nullptr);
  }
  if (limits_.cache_binds()) {
    release_above(lock, excess());
    if (!capabilities_.asynchronous) {
      const auto signed_bytes = [](std::uint64_t v) {
        return static_cast<std::int64_t>(std::min<std::uint64_t>(v, INT64_MAX));
      };
      const std::int64_t views = signed_bytes(view_bytes_.load(std::memory_order_relaxed));
      const std::int64_t floor = signed_bytes(reserved_now(lock)) - signed_bytes(limits_.cache()) + views;
      figures_.set_floor(floor, signed_bytes(limits_.cache() / 64));
      has_floor_ = true;
    }
  } else if (has_floor_) {
    figures_.set_floor(core::Figures::kNoFloor, 0);
    has_floor_ = false;
  }
  settle_pockets();
  const std::uint64_t reserved = reserved_now(lock);
  published_changes_ = changes();
  const auto set = [](std::atomic<std::uint64_t>& to, std::uint64_t value) {
    to.store(value, std::memory_order_relaxed);
  };
  set(published_.reserved, reserved);
  if (group_ != nullptr) {
    const core::HeapCounts& counts = group_->counts();
    peak_reserved_ = std::max(peak_reserved_, group_->peak_reserved());
    set(published_.created, counts.created);
    set(published_.moved, counts.moved);
    set(published_.released, counts.released);
  }
  peak_reserved_ = std::max(peak_reserved_, reserved);
  set(published_.peak_reserved, peak_reserved_);
  set(published_.handles, (group_ != nullptr ? group_->pieces() : 0) + host_.count() + ordered_.count());
  set(published_.host_waits, work_.host_waits());
}

// --- Thread caches --------------------------------------------------------------------------------------------------

ThreadCache* Central::adopt(const Lock&, StreamHeap& heap, const void* thread) {
  for (ThreadCache* cache = caches_; cache != nullptr; cache = cache->next) {
    if (cache->thread == nullptr && cache->heap == &heap) {
      cache->thread = thread;
      return cache;
    }
  }
  auto* cache = new (std::nothrow) ThreadCache;
  if (cache == nullptr) return nullptr;
  cache->set_up(classes_);
  cache->account.set_keep_low(0);  // The first free looks.
  // What others cannot take while the thread sleeps must be little.
  cache->pocket.set_most(barrier_on_all_threads() ? UINT64_MAX : ThreadCache::kAlwaysKept);
  cache->front = front_;
  cache->heap = &heap;
  cache->thread = thread;
  cache->next = caches_;
  caches_ = cache;
  figures_.attach(cache->account);
  return cache;
}

void Central::abandon(const Lock& lock, ThreadCache& cache) {
  Chain kept;
  cache.flush(kept);
  cache.fast_thread.store(nullptr, std::memory_order_relaxed);
  cache.thread = nullptr;
  give_chain(lock, kept);
  drain_inboxes(lock, nullptr, false);
}

void Central::orphan_caches(const void* thread) {
  for (ThreadCache* cache = caches_; cache != nullptr; cache = cache->next) {
    if (cache->thread == thread || cache->thread == nullptr) continue;
    cache->fast_thread.store(nullptr, std::memory_order_relaxed);
    if (Block* block = cache->pocket.steal(1)) give_later(block);
    cache->forget();
    cache->thread = nullptr;
  }
}

}  // namespace cistern::allocation
