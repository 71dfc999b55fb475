// Capture pools under the device's lock: heaps of their own for streams that are captured, and their end.
#include <algorithm>

#include "allocator/central.hpp"
#include "cistern/error.hpp"

namespace cistern::allocation {
namespace {

std::string name_of(std::uint64_t pool) { return "capture pool " + std::to_string(pool); }

}  // namespace

// The fast way of malloc looks for a cache by the heap's number; while a pool is open every allocation on a stream must
// be looked at.
std::uint32_t Central::shown_number(const StreamHeap& heap) const { return captures_.any() ? 0 : heap.number; }

void Central::show_numbers() {
  streams_.for_each_live(
      [&](StreamEntry& entry) { entry.number.store(shown_number(*entry.heap), std::memory_order_relaxed); });
}

std::uint64_t Central::make_pool(const Lock&) {
  if (!capabilities_.asynchronous || capabilities_.whole_buffers) {
    const bool whole = capabilities_.asynchronous;
    throw cistern::invalid_argument("cistern: make_capture_pool: " + to_string(device_) +
                                    (whole ? " gives its memory out as whole buffers, which it may put elsewhere"
                                           : " has no graphs whose memory could be kept in place"));
  }
  return captures_.add().id;
}

Captures::Pool& Central::pool_for(std::uint64_t id, const char* call) {
  if (Captures::Pool* pool = captures_.find(id)) return *pool;
  throw cistern::invalid_argument(std::string("cistern: ") + call + ": " + name_of(id) + " of " + to_string(device_) +
                                  " was released, or is another device's");
}

void Central::begin_capture(const Lock& lock, std::uint64_t id, CaptureFilter filter, StreamEntry* only) {
  Captures::Pool& pool = pool_for(id, "begin_capture_pool");
  if (pool.open) throw cistern::invalid_argument("cistern: begin_capture_pool: " + name_of(id) + " is open already");
  // While the host may still wait.
  settle_captures(lock);
  captures_.open(pool, std::move(filter));
  if (only != nullptr) {
    pool.blocking = work_.begin_capture(*only);
    pool.only = only;
    pool.only_id = only->id.load(std::memory_order_relaxed);
  }
  driver_->begin_capture();
  show_numbers();
}

std::shared_ptr<const CaptureFilter> Central::end_capture(const Lock& lock, std::uint64_t id) {
  Captures::Pool& pool = pool_for(id, "end_capture_pool");
  if (!pool.open) throw cistern::invalid_argument("cistern: end_capture_pool: " + name_of(id) + " is not open");
  std::shared_ptr<const CaptureFilter> filter = captures_.close(pool);
  StreamEntry* const only = std::exchange(pool.only, nullptr);
  if (only != nullptr) {
    const bool same = only->id.load(std::memory_order_relaxed) == pool.only_id;
    work_.end_capture(same ? only : nullptr, pool.blocking);
  }
  driver_->end_capture();
  show_numbers();
  settle_captures(lock);
  return filter;
}

void Central::release_pool(const Lock& lock, std::uint64_t id) {
  Captures::Pool& pool = pool_for(id, "release_capture_pool");
  if (pool.open)
    throw cistern::invalid_argument("cistern: release_capture_pool: " + name_of(id) + " is open; end it first");
  pool.released = true;
  settle_captures(lock);
}

std::uint64_t Central::pool_bytes(const Lock&, std::uint64_t id) {
  const Captures::Pool* pool = captures_.find(id);
  std::uint64_t bytes = 0;
  if (pool == nullptr) return 0;
  for (const auto& [stream, heap] : pool->heaps)
    bytes += heap->range.pages != nullptr ? heap->range.pages->mapped() : 0;
  return bytes;
}

StreamHeap& Central::capture_heap(const Lock&, std::uint64_t id, const StreamEntry& entry) {
  // The pool may have been closed between the look at the routes and now.
  Captures::Pool* pool = captures_.find(id);
  if (pool == nullptr || !pool->open) return *entry.heap;
  const std::uint64_t stream = entry.id.load(std::memory_order_relaxed);
  for (const auto& [owner, heap] : pool->heaps) {
    if (owner == stream) return *heap;
  }
  pool->heaps.reserve(pool->heaps.size() + 1);
  StreamHeap* heap = nullptr;
  if (!spare_capture_heaps_.empty()) {
    heap = spare_capture_heaps_.back();
    spare_capture_heaps_.pop_back();
  } else {
    heap = &new_heap(nullptr);
  }
  heap->native = entry.native;
  heap->slot = entry.slot;
  heap->held = true;
  if (heap->range.pages != nullptr) heap->range.pages->hold(true);
  if (group_ != nullptr) group_->replace_stream(heap->index);
  pool->heaps.emplace_back(stream, heap);
  return *heap;
}

// Gives back the pages of released pools as soon as no replay can be running. A heap serves another stream once all of
// it is back and the host has waited for whatever its old stream did: memory that went to others carries its number.
void Central::settle_captures(const Lock& lock) {
  captures_.settle([&](const Captures::Pool& pool) {
    for (const auto& [stream, heap] : pool.heaps) left_capture_heaps_.push_back(heap);
  });
  if (left_capture_heaps_.empty()) return;
  drain(lock);
  for (StreamHeap* heap : left_capture_heaps_) {
    flush_recent(lock, *heap);
    while (core::Slab* slab = heap->slabs.take_empty()) release_slab(*heap, slab);
  }
  const auto may_go = [](const StreamHeap* heap) {
    return heap->held || heap->range.pages == nullptr || !heap->range.pages->any_live();
  };
  if (std::none_of(left_capture_heaps_.begin(), left_capture_heaps_.end(), may_go)) return;
  if (!wait_for_device()) return;
  std::erase_if(left_capture_heaps_, [&](StreamHeap* heap) {
    heap->held = false;
    if (core::PageHeap* const pages = heap->range.pages) {
      pages->hold(false);
      if (!pages->release_pieces()) return false;
    }
    spare_capture_heaps_.push_back(heap);
    return true;
  });
}

bool Central::fixed(const core::Block* block) const { return node_of(block) != nullptr && heap_of(block).held; }

}  // namespace cistern::allocation
