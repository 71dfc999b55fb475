// The planned arena and the heap: in steady state it takes nothing from it and asks nothing of the allocator, also
// while a buffer escapes each cycle; and a cycle ends also where the heap has no memory for learning it.
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

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

void expect_sound(const PlannedArena& arena, std::size_t cycle, std::size_t nth) {
  for (const std::string& rule : arena.check_invariants()) {
    ADD_FAILURE() << "cycle " << cycle << ", allocation " << nth << ": " << rule;
  }
}

TEST(PlannedArenaAllocationTest, ACycleEndsThoughThereIsNoMemoryToLearnIt) {
  constexpr std::size_t kCycles = 12;
  std::uint64_t met = 0;
  for (const bool background : {false, true}) {
    for (std::size_t at = 1; at < kCycles; ++at) {
      for (std::size_t nth = 1; nth <= 40; ++nth) {
        PlannedArena arena(Device::cpu(),
                           {.background = background, .plan_time = std::chrono::duration<double>(0.001)});
        std::size_t asked = 0;
        for (std::size_t cycle = 0; cycle < kCycles; ++cycle) {
          {
            std::vector<PlannedBuffer> kept;
            for (std::size_t i = 0; i < 8; ++i, ++asked) {
              // Every third cycle is of another shape, and the later ones are of others than the first.
              const std::size_t more = cycle % 3 == 2 ? 7000 : cycle >= 6 ? 64 : 0;
              kept.push_back(arena.alloc(DType::f32, Shape{1000 * (i + 1) + more * i}));
            }
          }
          if (cycle == at) failing = allocations + nth;
          EXPECT_NO_THROW(arena.end_cycle());
          failing = 0;
          expect_sound(arena, cycle, nth);
        }
        const ArenaFigures figures = arena.figures();
        EXPECT_EQ(figures.from_slab + figures.from_pool, asked) << "cycle " << at << ", allocation " << nth;
        EXPECT_EQ(figures.cycles, kCycles) << "cycle " << at << ", allocation " << nth;
        met += figures.failed_plans;
      }
    }
  }
  EXPECT_GT(met, 0u);
}

}  // namespace
}  // namespace cistern
