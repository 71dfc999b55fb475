// What a thread knows: its cache of each heap, and whether it must take the long way. The layer's only thread_local.
//
//   caches[n]   the thread's cache of heap number n; `empty_cache` while there is none or every call must be looked at
//   fast        the thread's record while frees may take the short way, else an address that no cache has
//
// The state itself is trivial to make and destroy, so that malloc and free work at any time: in static constructors,
// and after the thread's own storage is gone (then without a cache). The record behind it holds the truth and is given
// back by a thread-exit hook. Locking: one process-wide lock guards the list of records and every change of `caches`
// and `fast` (options are set from other threads); the thread reads its own without it.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/thread_cache.hpp"

namespace cistern::allocation {

class DeviceAllocator;

inline constexpr std::size_t kInlineHeaps = 32;   // 256 bytes of static thread storage; further heaps go the long way.
inline constexpr std::uint32_t kNoHeap = 0;       // Its cache is always empty.
inline constexpr std::uint32_t kPrimaryHeap = 1;  // The CPU's: its number is a constant for the sake of speed.

struct ThreadRecord;

// A free function: clang 14 does not evaluate a constructor template here.
template <std::size_t... I>
constexpr std::array<std::atomic<core::ThreadCache*>, sizeof...(I)> empty_caches(std::index_sequence<I...>) {
  return {{((void)I, &core::empty_cache)...}};
}

struct ThreadState {
  std::array<std::atomic<core::ThreadCache*>, kInlineHeaps> caches =
      empty_caches(std::make_index_sequence<kInlineHeaps>());
  std::atomic<const void*> fast{&core::empty_cache};
  // The block that this thread looks at, or looked at last, in order to free it the short way.
  std::atomic<core::Block*> freeing{nullptr};
  ThreadRecord* record = nullptr;
  std::uint16_t tag = 0;
  bool gone = false;        // The exit hook has run.
  std::uint8_t strays = 0;  // Frees that found no account of this thread; wraps.
};

// A library that is opened late (the adapter for PyTorch) finds no room in the static thread storage.
#if defined(__GNUC__) && !defined(__APPLE__) && !defined(CISTERN_DYNAMIC_TLS)
__attribute__((tls_model("initial-exec")))
#endif
extern constinit thread_local ThreadState thread_state;

struct ThreadRecord {
  ThreadState* state = nullptr;
  std::vector<core::ThreadCache*> caches;  // By heap number; null when there is none.
  ThreadRecord* prev = nullptr;
  ThreadRecord* next = nullptr;
};

// The calling thread's record, made at the first call. Null when the thread's storage is gone or the host has no
// memory.
ThreadRecord* this_record();
// Adds a cache of the calling thread. False when the host has no memory left.
bool install(ThreadRecord& record, std::uint32_t heap, core::ThreadCache& cache);
// Recomputes the short ways of all threads after an allocator's rules changed.
void refresh_all_threads();
// Sets the calling thread's tag; returns the one before.
std::uint16_t exchange_tag(std::uint16_t tag);
// Takes the caches of a heap away from every thread. pre: no thread uses the heap.
void forget_heap(std::uint32_t heap);

// Numbers of heaps, unique while in use; small ones first.
std::uint32_t take_heap_number();
void give_heap_number(std::uint32_t number);

// Around fork(): all of the above stands still. In the child only the calling thread's record is left.
void lock_threads();
void unlock_threads();
void forget_other_threads();

}  // namespace cistern::allocation
