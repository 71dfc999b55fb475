// Captures: the capture pools of one device and which allocations go there. A pool has a heap of its own for each
// stream that allocates in it; Central makes those heaps and takes them back.
//
//   pool      open        heaps' pages
//   made      no          none yet
//   open      yes         held: they neither move, leave, nor come from other heaps
//   closed    no          held
//   released  no          held until no work can touch them any more, then given back
//
// Locking: the table is under the device's lock; the routes, which every malloc of an open pool reads, have a leaf lock
// of their own; any() takes none.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "cistern/capture.hpp"

namespace cistern::allocation {

struct StreamEntry;
struct StreamHeap;

class Captures {
 public:
  struct Pool {
    std::uint64_t id = 0;
    bool open = false;
    bool released = false;
    StreamEntry* only = nullptr;  // While open: the stream that is captured, where the caller named it.
    std::uint64_t only_id = 0;
    bool blocking = false;                                     // The default stream waits for that one.
    std::vector<std::pair<std::uint64_t, StreamHeap*>> heaps;  // By the stream's id.
  };

  // Whether some pool is open.
  bool any() const { return open() != 0; }
  int open() const { return open_.load(std::memory_order_relaxed); }
  // The open pool that an allocation on the stream belongs to; 0 when none. Calls filters, without a lock.
  std::uint64_t route(void* native) const;

  Pool& add();
  // Null when there is none, or it was released.
  Pool* find(std::uint64_t id);
  void open(Pool& pool, CaptureFilter filter);
  // Returns the filter, to be destroyed without a lock.
  std::shared_ptr<const CaptureFilter> close(Pool& pool);
  // Visits the released pools and forgets them.
  template <typename GiveBack>
  void settle(GiveBack give_back) {
    std::erase_if(pools_, [&](const std::unique_ptr<Pool>& pool) {
      if (pool->released) give_back(*pool);
      return pool->released;
    });
  }
  // The pool that a heap belongs to; 0 for ordinary heaps.
  std::uint64_t pool_of(const StreamHeap& heap) const;

 private:
  struct Route {
    std::uint64_t pool = 0;
    std::shared_ptr<const CaptureFilter> filter;
  };

  std::atomic<int> open_{0};
  mutable std::mutex mutex_;  // Guards routes_.
  std::vector<Route> routes_;
  std::vector<std::unique_ptr<Pool>> pools_;
};

}  // namespace cistern::allocation
