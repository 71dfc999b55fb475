// StreamUses: which other streams used a block, and therefore must be waited for (in the stream, never on the host)
// before its memory serves again. A free block with uses is "pending" until the device's lock holder has ordered them.
//
//   live, no uses  --record_use-->  live, used  --free-->  pending  --ordered under the lock-->  free
//
// Knows streams as numbers; records no event and makes no call. Locking: one leaf lock inside; empty() needs none.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace cistern::core {

struct Block;

class StreamUses {
 public:
  StreamUses() = default;
  StreamUses(const StreamUses&) = delete;
  StreamUses& operator=(const StreamUses&) = delete;

  // May throw std::bad_alloc; nothing has changed then.
  void add(const Block* block, std::uint32_t stream);
  bool contains(const Block* block) const { return !empty() && has(block); }
  // Takes the streams of a block out of the table; empty when it has none.
  std::vector<std::uint32_t> take(const Block* block);
  // A stream is gone and `heir` comes after all its work.
  void replace_stream(std::uint32_t gone, std::uint32_t heir);
  bool empty() const { return count_.load(std::memory_order_acquire) == 0; }
  std::size_t size() const { return count_.load(std::memory_order_acquire); }

  std::mutex& mutex() { return mutex_; }

 private:
  bool has(const Block* block) const;

  std::atomic<std::size_t> count_{0};
  mutable std::mutex mutex_;
  std::unordered_map<const Block*, std::vector<std::uint32_t>> uses_;
};

// Remembers which heap has waited for which other one, so that memory that moves again without a free in between costs
// no further event. Under the device's lock.
class OrderLedger {
 public:
  // Memory of `heap` was freed: what waited for it before must wait again.
  void freed(std::uint32_t heap) { ++slot(heap).frees; }
  // Whether `to` must wait for `from` before it takes memory from there.
  bool needs_wait(std::uint32_t to, std::uint32_t from);
  void waited(std::uint32_t to, std::uint32_t from);
  // Another stream takes the heap over: everything must be waited for again.
  void forget(std::uint32_t heap);

 private:
  struct Heap {
    std::uint64_t frees = 1;
    std::vector<std::uint64_t> seen;  // By heap: its `frees` when this one waited last.
  };
  Heap& slot(std::uint32_t heap) {
    if (heap >= heaps_.size()) heaps_.resize(heap + 1);
    return heaps_[heap];
  }

  std::vector<Heap> heaps_;
};

}  // namespace cistern::core
