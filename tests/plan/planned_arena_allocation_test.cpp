// In steady state the planned arena takes nothing from the heap and asks nothing of the allocator, also while a buffer
// escapes each cycle. This file replaces operator new for its whole test program, to count.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

#include "cistern/planned_arena.hpp"
#include "pool/counting_allocator.hpp"

namespace {
std::atomic<std::size_t> allocations{0};

// Out of line: inlined, the pair below looks to the compiler like new with free().
[[gnu::noinline]] void give_back(void* memory) noexcept { std::free(memory); }

[[gnu::noinline]] void* count_and_allocate(std::size_t bytes, std::size_t alignment) {
  allocations.fetch_add(1, std::memory_order_relaxed);
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
  allocations.fetch_add(1, std::memory_order_relaxed);
  return std::malloc(std::max<std::size_t>(bytes, 1));
}
void operator delete(void* memory, const std::nothrow_t&) noexcept { give_back(memory); }
void operator delete(void* memory) noexcept { give_back(memory); }
void operator delete(void* memory, std::size_t) noexcept { give_back(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { give_back(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { give_back(memory); }

namespace cistern {
namespace {

TEST(PlannedArenaAllocationTest, SteadyStateTakesNothing) {
  testing::CountingAllocator below;
  ArenaOptions options;
  options.background = false;
  PlannedArena arena(below, Stream(Device::cpu()), options);
  TypedBuffer kept;
  std::size_t heap = 0;
  std::size_t calls = 0;
  for (std::size_t cycle = 0; cycle < 60; ++cycle) {
    if (cycle == 10) {
      heap = allocations.load();
      calls = below.mallocs + below.frees;
    }
    TypedBuffer last;
    for (std::size_t i = 0; i < 200; ++i) {
      TypedBuffer buffer = arena.alloc(i * 40, DType::f32, {i, std::size_t{10}});
      const TypedBuffer view = buffer.slice_view(0, i / 2);
      if (i % 7 == 0) arena.release(buffer);
      if (i == 50) kept.reset();
      if (i == 150) kept = buffer;  // Escapes, until the next cycle.
      last = std::move(buffer);
    }
    last.reset();
    arena.end_cycle();
  }
  EXPECT_EQ(allocations.load(), heap);
  EXPECT_EQ(below.mallocs + below.frees, calls);
  EXPECT_EQ(arena.figures().plans, 1u);
  EXPECT_EQ(arena.figures().longer_life, 0u);
  for (const std::string& rule : arena.check_invariants()) ADD_FAILURE() << "broken: " << rule;
}

}  // namespace
}  // namespace cistern
