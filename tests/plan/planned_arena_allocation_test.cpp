// In steady state the planned arena takes nothing from the heap and asks nothing of the allocator, also while a buffer
// escapes each cycle.
#include <gtest/gtest.h>

#include <cstddef>

#include "cistern/planned_arena.hpp"
#include "pool/counting_allocator.hpp"
#include "pool/counting_new.hpp"

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
