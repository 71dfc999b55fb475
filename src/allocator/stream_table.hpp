// StreamTable: the streams of one device by number, and the heap that serves each.
//
//   entry     id        heap
//   unused    0         none
//   live      unique    its own (or the device's only one, where streams mean nothing)
//
// When a stream's owner destroys it, its entry is unused again and its heap waits, in the order of the default stream,
// for the next new stream. Copies of the old Stream value are recognised by their id. Locking: changes under the
// device's lock; at() and the fields of a live entry are read without one.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "cistern/stream.hpp"

namespace cistern::allocation {

struct StreamHeap;

struct StreamEntry {
  std::atomic<std::uint64_t> id{0};
  std::atomic<std::uint32_t> number{0};  // Of the heap.
  std::uint32_t slot = 0;
  StreamHeap* heap = nullptr;
  void* native = nullptr;
  std::uint64_t driver_id = 0;
  int captured = 0;  // Announced captures that forbid to submit to it; a mark covers all of its work until then.
};

class StreamTable {
 public:
  static constexpr std::size_t kMaxStreams = 4096;  // Live at a time.

  StreamTable() = default;
  ~StreamTable();
  StreamTable(const StreamTable&) = delete;
  StreamTable& operator=(const StreamTable&) = delete;

  // Null for a number that was never given out.
  StreamEntry* at(std::uint32_t slot) const {
    return slot < kMaxStreams ? entries_[slot].load(std::memory_order_acquire) : nullptr;
  }
  // Null when there is none.
  StreamEntry* find(std::uint64_t driver_id) const;
  // An entry with a new id. Null when kMaxStreams are live. May throw std::bad_alloc.
  StreamEntry* add(std::uint64_t driver_id, void* native, StreamHeap* heap, std::uint32_t number);
  void remove(StreamEntry& entry);

  template <typename Visit>
  void for_each_live(Visit visit) const {
    for (std::uint32_t i = 0; i < used_; ++i) {
      StreamEntry* entry = at(i);
      if (entry->id.load(std::memory_order_relaxed) != 0) visit(*entry);
    }
  }

 private:
  std::array<std::atomic<StreamEntry*>, kMaxStreams> entries_{};
  std::uint32_t used_ = 0;
  std::vector<StreamEntry*> free_;
  std::unordered_map<std::uint64_t, StreamEntry*> by_driver_id_;
};

}  // namespace cistern::allocation
