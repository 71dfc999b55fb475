// heavy_fence: the expensive half of a fence whose other half is free. After it returns, for every other thread of the
// process: what that thread did before some point is visible to the caller, and what it does after that point sees what
// the caller did before the fence. The other half is only a compiler fence, so threads pay nothing in ordinary times.
// No state; any thread.
#pragma once

#include <atomic>

#include "allocator/process_barrier.hpp"

// The thread sanitizer does not know fences, and says so; nothing here relies on one to order plain accesses.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wtsan"
#endif

namespace cistern::pooling {

// An ordinary fence of the calling thread.
inline void full_fence() noexcept { std::atomic_thread_fence(std::memory_order_seq_cst); }

// Whether the system offers the heavy one. Where not, slots keep their hint set from the start, and those who drop
// handles fence for themselves in last_look().
inline bool has_heavy_fence() noexcept {
  static const bool has = allocation::barrier_on_all_threads();
  return has;
}

// An ordinary fence where has_heavy_fence() is false.
inline void heavy_fence() noexcept {
  full_fence();
  if (has_heavy_fence()) allocation::barrier_on_all_threads();
}

}  // namespace cistern::pooling

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
