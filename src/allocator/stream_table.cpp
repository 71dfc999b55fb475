// Streams by number.
#include "allocator/stream_table.hpp"

#include <algorithm>

namespace cistern::allocation {
namespace {

std::uint64_t next_stream_id() {
  static constinit std::atomic<std::uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

StreamTable::~StreamTable() {
  for (std::uint32_t i = 0; i < used_; ++i) delete entries_[i].load(std::memory_order_relaxed);
}

StreamEntry* StreamTable::find(std::uint64_t driver_id) const {
  const auto found = by_driver_id_.find(driver_id);
  return found == by_driver_id_.end() ? nullptr : found->second;
}

StreamEntry* StreamTable::add(std::uint64_t driver_id, void* native, StreamHeap* heap, std::uint32_t number) {
  StreamEntry* entry = nullptr;
  if (!free_.empty()) {
    entry = free_.back();
    by_driver_id_.emplace(driver_id, entry);
    free_.pop_back();
  } else {
    if (used_ == kMaxStreams) return nullptr;
    // So that remove() cannot fail.
    if (free_.capacity() <= used_) free_.reserve(std::max<std::size_t>(16, 2 * std::size_t{used_}));
    auto fresh = std::make_unique<StreamEntry>();
    by_driver_id_.emplace(driver_id, fresh.get());
    entry = fresh.release();
    entry->slot = used_;
    entries_[used_++].store(entry, std::memory_order_release);
  }
  entry->heap = heap;
  entry->native = native;
  entry->driver_id = driver_id;
  entry->captured = 0;
  entry->number.store(number, std::memory_order_relaxed);
  entry->id.store(next_stream_id(), std::memory_order_release);
  return entry;
}

void StreamTable::remove(StreamEntry& entry) {
  by_driver_id_.erase(entry.driver_id);
  entry.id.store(0, std::memory_order_release);
  free_.push_back(&entry);
}

}  // namespace cistern::allocation
