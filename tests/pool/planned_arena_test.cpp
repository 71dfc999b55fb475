// PlannedArena: what it serves from the slab and what not.
#include "pool/planned_arena_fixture.hpp"

namespace cistern {
namespace {

using namespace testing::planned;

TEST(PlannedArenaTest, ServesARepeatingCycleFromTheSlab) {
  testing::CountingAllocator below;
  {
    PlannedArena arena(below, kStream, at_once());
    for (int i = 0; i < 2; ++i) run_chain(arena, kDecode);
    EXPECT_EQ(arena.figures().plans, 1u);
    const std::size_t calls = below.mallocs + below.frees;
    const auto first = run_chain(arena, kDecode);
    for (int i = 0; i < 10; ++i) EXPECT_EQ(run_chain(arena, kDecode), first);
    const ArenaFigures figures = arena.figures();
    EXPECT_EQ(figures.from_slab, 11 * kDecode.size());
    EXPECT_EQ(figures.from_pool, 2 * kDecode.size());
    EXPECT_EQ(figures.other_size + figures.longer_life, 0u);
    EXPECT_EQ(figures.pool_bytes, 0u);
    EXPECT_EQ(figures.slab_bytes, figures.last_peak);
    EXPECT_LE(figures.last_peak, 5000u);
    EXPECT_GE(figures.last_peak, figures.last_lower_bound);
    EXPECT_EQ(below.mallocs + below.frees, calls);
    expect_rules(arena);
  }
  EXPECT_EQ(below.live(), 0u);
  EXPECT_EQ(below.wrong_frees, 0u);
}

// More shapes than are kept: one is served, the others are recorded less and less often, and a change of the loop is
// still noticed.
TEST(PlannedArenaTest, ShapesThatHaveNoPlaceAreNotRecordedForEver) {
  for (const unsigned record_cycles : {1u, 2u, 3u}) {
    ArenaOptions options = at_once();
    options.max_shapes = 1;
    options.record_cycles = record_cycles;
    PlannedArena arena(allocator(Device::cpu()), kStream, options);
    for (int i = 0; i < 500; ++i) {
      run_chain(arena, kDecode);
      run_chain(arena, kPrefill);
    }
    const ArenaFigures figures = arena.figures();
    EXPECT_LE(figures.recorded, 100u) << record_cycles;
    EXPECT_LE(figures.plans, 10u) << record_cycles;
    EXPECT_GE(figures.from_slab, 400 * kDecode.size()) << record_cycles;
    for (int i = 0; i < 600; ++i) run_chain(arena, kPrefill);
    EXPECT_GE(arena.figures().from_slab, figures.from_slab + 200 * kPrefill.size()) << record_cycles;
    expect_rules(arena);
  }
}

TEST(PlannedArenaTest, AnotherShapeTakesThePlaceOfOneThatIsNoLongerUsed) {
  ArenaOptions options = at_once();
  options.max_shapes = 1;
  PlannedArena arena(allocator(Device::cpu()), kStream, options);
  for (int i = 0; i < 100; ++i) run_chain(arena, kDecode);
  const std::uint64_t before = arena.figures().from_slab;
  for (int i = 0; i < 50; ++i) run_chain(arena, kPrefill);
  EXPECT_GE(arena.figures().from_slab, before + 20 * kPrefill.size());
  EXPECT_EQ(arena.figures().shapes, 1u);
}

TEST(PlannedArenaTest, AnotherSizeCostsThatRequestOnly) {
  PlannedArena arena(allocator(Device::cpu()), kStream, at_once());
  for (int i = 0; i < 3; ++i) run_chain(arena, kDecode);
  const ArenaFigures before = arena.figures();
  auto other = kDecode;
  other[3] = 700;
  run_chain(arena, other);
  EXPECT_EQ(arena.figures().other_size, before.other_size + 1);
  EXPECT_EQ(arena.figures().from_slab, before.from_slab + kDecode.size() - 1);
  other = kDecode;
  other.insert(other.begin() + 2, 777);  // One more.
  run_chain(arena, other);
  EXPECT_EQ(arena.figures().other_size, before.other_size + 3);  // The next one shows where the loop is.
  expect_rules(arena);
}

TEST(PlannedArenaTest, StepsLeftOutAreFoundAgain) {
  PlannedArena arena(allocator(Device::cpu()), kStream, at_once());
  for (int i = 0; i < 3; ++i) run_chain(arena, kDecode);
  const ArenaFigures before = arena.figures();
  auto other = kDecode;
  other.erase(other.begin() + 2);
  run_chain(arena, other);
  EXPECT_EQ(arena.figures().other_size, before.other_size + 1);
  EXPECT_EQ(arena.figures().from_slab, before.from_slab + kDecode.size() - 2);
  expect_rules(arena);
}

TEST(PlannedArenaTest, ARunOfDeparturesIsPlannedAnew) {
  PlannedArena arena(allocator(Device::cpu()), kStream, at_once());
  for (int i = 0; i < 3; ++i) run_chain(arena, kDecode);
  auto other = kDecode;
  other[3] = 700;
  for (int i = 0; i < 6; ++i) run_chain(arena, other);
  EXPECT_EQ(arena.figures().plans, 2u);
  const ArenaFigures before = arena.figures();
  run_chain(arena, other);
  run_chain(arena, kDecode);  // The step has room for both.
  EXPECT_EQ(arena.figures().from_slab, before.from_slab + 2 * kDecode.size());
  expect_rules(arena);
}

TEST(PlannedArenaTest, ShapesAreKeptSideBySide) {
  PlannedArena arena(allocator(Device::cpu()), kStream, at_once());
  for (int i = 0; i < 8; ++i) {
    run_chain(arena, kPrefill);
    for (int k = 0; k < 3; ++k) run_chain(arena, kDecode);
  }
  EXPECT_EQ(arena.figures().shapes, 2u);
  const auto prefill = run_chain(arena, kPrefill);
  const auto decode = run_chain(arena, kDecode);
  const ArenaFigures before = arena.figures();
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(run_chain(arena, kPrefill), prefill);
    EXPECT_EQ(run_chain(arena, kDecode), decode);
    EXPECT_EQ(run_chain(arena, kDecode), decode);
  }
  EXPECT_EQ(arena.figures().from_pool, before.from_pool);
  EXPECT_EQ(arena.figures().plans, 2u);
  expect_rules(arena);
}

TEST(PlannedArenaTest, ACommonPrefixIsNotLost) {
  PlannedArena arena(allocator(Device::cpu()), kStream, at_once());
  const std::vector<std::size_t> a{1000, 200, 3000, 500, 100, 4000, 64, 900};
  const std::vector<std::size_t> b{1000, 200, 3000, 9000, 100000, 20000, 640, 9000, 10};
  for (int i = 0; i < 3; ++i) run_chain(arena, a);
  for (int i = 0; i < 8; ++i) run_chain(arena, b);
  EXPECT_EQ(arena.figures().shapes, 2u);
  run_chain(arena, a);
  const ArenaFigures before = arena.figures();
  for (int i = 0; i < 4; ++i) {
    run_chain(arena, a);
    run_chain(arena, b);
  }
  EXPECT_EQ(arena.figures().from_pool, before.from_pool);
  EXPECT_GT(arena.figures().switches, before.switches);
  expect_rules(arena);
}

TEST(PlannedArenaTest, ALongerLifeKeepsItsBytes) {
  PlannedArena arena(allocator(Device::cpu()), kStream, at_once());
  for (int i = 0; i < 3; ++i) run_chain(arena, kDecode);
  const ArenaFigures before = arena.figures();
  TypedBuffer kept = take(arena, kDecode[0]);
  std::memset(kept.data(), 0x5A, kDecode[0]);
  for (std::size_t i = 1; i < kDecode.size(); ++i) {
    const TypedBuffer buffer = take(arena, kDecode[i]);
    std::memset(buffer.data(), 0x11, kDecode[i]);
  }
  arena.end_cycle();
  EXPECT_EQ(arena.figures().held, 1u);
  for (int c = 0; c < 2; ++c) {
    for (const std::size_t bytes : kDecode) std::memset(take(arena, bytes).data(), 0x22, bytes);
    arena.end_cycle();
  }
  EXPECT_GT(arena.figures().longer_life, before.longer_life);
  const auto bytes = kept.as_span<std::byte>();
  EXPECT_TRUE(std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0x5A}; }));
  expect_rules(arena);
}

TEST(PlannedArenaTest, WhatLivesIntoTheNextCycleIsPlannedSo) {
  PlannedArena arena(allocator(Device::cpu()), kStream, at_once());
  TypedBuffer logits;
  const auto cycle = [&] {
    for (std::size_t i = 0; i < kDecode.size(); ++i) {
      if (i == 2) logits.reset();
      (void)take(arena, kDecode[i]);
    }
    logits = take(arena, 2000);
    arena.end_cycle();
  };
  for (int i = 0; i < 2; ++i) cycle();
  ASSERT_EQ(arena.figures().plans, 1u);
  cycle();  // The buffer held now is the pool's.
  const ArenaFigures before = arena.figures();
  for (int i = 0; i < 5; ++i) cycle();
  EXPECT_EQ(arena.figures().from_pool, before.from_pool);
  EXPECT_EQ(arena.figures().longer_life, 0u);
  expect_rules(arena);
}

TEST(PlannedArenaTest, LearnsACycleBeforehand) {
  PlannedArena arena(allocator(Device::cpu()), kStream, at_once());
  const ArenaLife lives[] = {{1000, 1}, {0, 4}, {1000, 3}, {0, 4}};
  arena.learn(lives);
  for (int i = 0; i < 3; ++i) {
    (void)take(arena, 1000);
    const TypedBuffer nothing = take(arena, 0);
    (void)take(arena, 1000);
    const TypedBuffer another = take(arena, 0);
    EXPECT_NE(nothing.data(), another.data());
    arena.end_cycle();
  }
  EXPECT_EQ(arena.figures().from_slab, 12u);
  expect_rules(arena);
}

TEST(PlannedArenaTest, PlansInTheBackground) {
  ArenaOptions options;
  options.plan_time = std::chrono::duration<double>(0.05);
  PlannedArena arena(allocator(Device::cpu()), kStream, options);
  for (int i = 0; i < 2; ++i) run_chain(arena, kDecode);
  arena.finish_planning();
  EXPECT_EQ(arena.figures().plans, 1u);
  const ArenaFigures before = arena.figures();
  run_chain(arena, kDecode);
  EXPECT_EQ(arena.figures().from_slab, before.from_slab + kDecode.size());
  arena.clear();
  for (int i = 0; i < 2; ++i) run_chain(arena, kDecode);  // Ends while it plans.
}

}  // namespace
}  // namespace cistern
