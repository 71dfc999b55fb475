// Replaces operator new for a whole test program, to count what is taken from the heap, and to fail on demand. For one
// file of a program.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace {
std::atomic<std::size_t> allocations{0};
std::atomic<std::size_t> failing{0};                        // The allocation of this number finds no memory; 0: none.
[[maybe_unused]] std::atomic<std::size_t> failing_from{0};  // None from this number on does; 0: all do.

// Out of line: inlined, the pair below looks to the compiler like new with free().
[[gnu::noinline]] void give_back(void* memory) noexcept { std::free(memory); }

[[gnu::noinline]] void* count_and_allocate(std::size_t bytes, std::size_t alignment) {
  const std::size_t number = allocations.fetch_add(1, std::memory_order_relaxed) + 1;
  const std::size_t from = failing_from.load(std::memory_order_relaxed);
  if (number == failing.load(std::memory_order_relaxed) || (from != 0 && number >= from)) throw std::bad_alloc();
  const std::size_t rounded = (std::max<std::size_t>(bytes, 1) + alignment - 1) / alignment * alignment;
  if (void* memory = std::aligned_alloc(alignment, rounded)) return memory;
  throw std::bad_alloc();
}
}  // namespace

void* operator new(std::size_t bytes) { return count_and_allocate(bytes, alignof(std::max_align_t)); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return count_and_allocate(bytes, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  try {
    return count_and_allocate(bytes, alignof(std::max_align_t));
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void* operator new(std::size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  try {
    return count_and_allocate(bytes, static_cast<std::size_t>(alignment));
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void operator delete(void* memory, const std::nothrow_t&) noexcept { give_back(memory); }
void operator delete(void* memory) noexcept { give_back(memory); }
void operator delete(void* memory, std::size_t) noexcept { give_back(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { give_back(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { give_back(memory); }
