// PlannedArena: what it serves from the slab and what not, and that live buffers never share a byte.
#include "cistern/planned_arena.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <thread>

#include "cistern/error.hpp"
#include "pool/counting_allocator.hpp"

namespace cistern {
namespace {

const Stream kStream{Device::cpu()};

ArenaOptions at_once() {
  ArenaOptions options;
  options.background = false;
  options.plan_time = std::chrono::duration<double>(0.02);
  return options;
}

TypedBuffer take(PlannedArena& arena, std::size_t bytes) { return arena.alloc(bytes, DType::u8, Shape{bytes}); }

void expect_rules(const PlannedArena& arena) {
  for (const std::string& rule : arena.check_invariants()) ADD_FAILURE() << "broken: " << rule;
}

// A chain: each buffer lives until the one after the next is asked for. Returns the addresses.
std::vector<const std::byte*> run_chain(PlannedArena& arena, const std::vector<std::size_t>& sizes) {
  std::vector<const std::byte*> out;
  TypedBuffer held[2];
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    held[i % 2] = TypedBuffer();
    held[i % 2] = take(arena, sizes[i]);
    out.push_back(held[i % 2].data());
  }
  held[0] = held[1] = TypedBuffer();
  arena.end_cycle();
  return out;
}

const std::vector<std::size_t> kDecode{1000, 200, 3000, 500, 100, 4000, 64, 900};
const std::vector<std::size_t> kPrefill{50000, 200, 90000, 500, 7000};

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

TEST(PlannedArenaTest, ErrorsNameTheCall) {
  PlannedArena arena(allocator(Device::cpu()), kStream, at_once());
  const auto message = [](const auto& call) -> std::string {
    try {
      call();
    } catch (const invalid_argument& e) {
      return e.what();
    }
    return "none";
  };
  for (const bool planned : {false, true}) {
    if (planned) {
      for (int i = 0; i < 3; ++i) run_chain(arena, kDecode);
    }
    TypedBuffer buffer = take(arena, kDecode[0]);
    TypedBuffer view = buffer.slice_view(0, 4);
    EXPECT_EQ(message([&] { arena.release(view); }),
              "PlannedArena::release: the handle is a view; release the buffer that it is part of");
    EXPECT_EQ(message([&] { static_cast<void>(buffer.slice_view(997, 4)); }),
              "TypedBuffer::slice_view: u8[4] at byte 997 does not lie within u8[1000], 1000 bytes");
  }
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

TEST(PlannedArenaTest, HandlesOutliveTheArena) {
  testing::CountingAllocator below;
  TypedBuffer kept;
  {
    PlannedArena arena(below, kStream, at_once());
    for (int i = 0; i < 3; ++i) run_chain(arena, kDecode);
    kept = take(arena, kDecode[0]);
    const TypedBuffer copy = kept.slice_view(0, 10);
    arena.clear();
    EXPECT_EQ(below.live(), 1u);
    std::memset(kept.data(), 1, kDecode[0]);
    for (int i = 0; i < 3; ++i) run_chain(arena, kDecode);
    EXPECT_EQ(arena.figures().plans, 2u);
    EXPECT_THROW(arena.release(kept), invalid_argument);
    expect_rules(arena);
  }
  EXPECT_EQ(below.live(), 1u);
  std::thread([&] { kept.reset(); }).join();
  EXPECT_EQ(below.live(), 0u);
  EXPECT_EQ(below.wrong_frees, 0u);
}

TEST(PlannedArenaTest, UseOnAnotherStreamMovesTheBufferOut) {
  testing::CountingAllocator below;
  PlannedArena arena(below, kStream, at_once());
  const Stream other(Device::cpu(), reinterpret_cast<void*>(8));
  const auto cycle = [&] {
    for (std::size_t i = 0; i < kDecode.size(); ++i) {
      const TypedBuffer buffer = take(arena, kDecode[i]);
      if (i == 2 && arena.figures().plans > 0) buffer.record_use(other);
    }
    arena.end_cycle();
    expect_rules(arena);
  };
  for (int i = 0; i < 8; ++i) cycle();
  EXPECT_EQ(arena.figures().plans, 2u);
  const ArenaFigures before = arena.figures();
  for (int i = 0; i < 4; ++i) cycle();
  EXPECT_EQ(arena.figures().from_pool, before.from_pool + 4);
  EXPECT_EQ(arena.figures().longer_life, before.longer_life);
}

TEST(PlannedArenaTest, MisuseIsRefused) {
  PlannedArena arena(allocator(Device::cpu()), kStream, at_once());
  PlannedArena stranger(allocator(Device::cpu()), kStream, at_once());
  for (int i = 0; i < 3; ++i) run_chain(arena, kDecode);
  EXPECT_THROW((void)arena.alloc(5, DType::f32, Shape{2}), invalid_argument);
  EXPECT_THROW((void)arena.alloc(SIZE_MAX, DType::u8, Shape{SIZE_MAX / 2}), invalid_argument);
  EXPECT_THROW((void)arena.alloc(8, static_cast<DType>(250), Shape{8}), invalid_argument);
  EXPECT_THROW((void)arena.alloc(DType::f64, Shape{SIZE_MAX / 2}), invalid_argument);
  TypedBuffer buffer = take(arena, kDecode[0]);
  TypedBuffer copy = buffer;
  TypedBuffer view = buffer.slice_view(0, 4);
  TypedBuffer empty;
  EXPECT_THROW(arena.release(empty), invalid_argument);
  EXPECT_THROW(arena.release(view), invalid_argument);
  EXPECT_THROW(stranger.release(buffer), invalid_argument);
  arena.release(buffer);
  EXPECT_FALSE(buffer);
  EXPECT_THROW(arena.release(copy), invalid_argument);
  EXPECT_THROW(arena.finish_planning(), invalid_argument);
  EXPECT_THROW(arena.learn({}), invalid_argument);
  copy.reset();
  view.reset();
  arena.end_cycle();
  const ArenaLife dead_before[] = {{10, 0}};
  const ArenaLife beyond[] = {{10, 2}};
  const ArenaLife huge[] = {{SIZE_MAX, 1}};
  EXPECT_THROW(arena.learn(dead_before), invalid_argument);
  EXPECT_THROW(arena.learn(beyond), invalid_argument);
  EXPECT_THROW(arena.learn(huge), invalid_argument);
  const ArenaLife large[] = {{std::size_t{1} << 50, 1}};
  try {
    arena.learn(large);
    FAIL() << "nothing was thrown";
  } catch (const out_of_memory& error) {
    EXPECT_EQ(error.requested(), std::size_t{1} << 50);
    EXPECT_NE(error.limit(), 0u);
  }
  // Sums that no number holds are a lack of memory, too.
  for (const std::size_t bytes : {SIZE_MAX / 2, SIZE_MAX / 4 + 1, SIZE_MAX / 4}) {
    const ArenaLife both[] = {{bytes, 2}, {bytes, 2}};
    EXPECT_THROW(arena.learn(both), out_of_memory) << bytes;
  }
  ArenaOptions bad;
  bad.record_cycles = 0;
  EXPECT_THROW(PlannedArena(allocator(Device::cpu()), kStream, bad), invalid_argument);
  expect_rules(arena);
}

// Lives that vary from cycle to cycle, so that buffers are looked at before and after their death.
TEST(PlannedArenaTest, WideBuffersWaitForAllThatLayInTheirBytes) {
  PlannedArena arena(allocator(Device::cpu()), kStream, at_once());
  std::uint64_t longer = 0;
  for (std::size_t cycle = 0; cycle < 40; ++cycle) {
    std::vector<PlannedBuffer> small;
    for (std::size_t i = 0; i < 16; ++i) small.push_back(arena.alloc(64, DType::u8, Shape{64}));
    PlannedBuffer kept;
    if (cycle > 5) kept = std::move(small[cycle % 16]);
    small.clear();
    if (kept) std::memset(kept.data(), 0x77, 64);
    PlannedBuffer wide = arena.alloc(1024, DType::u8, Shape{1024});
    std::memset(wide.data(), 0x11, 1024);
    if (kept) {
      EXPECT_EQ(kept.data()[0], std::byte{0x77});
      EXPECT_EQ(kept.data()[63], std::byte{0x77});
    }
    expect_rules(arena);
    wide.reset();
    kept.reset();
    arena.end_cycle();
    longer = arena.figures().longer_life;
  }
  EXPECT_GT(longer, 0u);
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

TEST(PlannedArenaTest, NoMemoryForASlabLeavesThePool) {
  testing::CountingAllocator below;
  PlannedArena arena(below, kStream, at_once());
  run_chain(arena, kDecode);
  below.limit = below.live();
  std::vector<TypedBuffer> kept;
  for (const std::size_t bytes : kDecode) kept.push_back(take(arena, bytes));
  arena.end_cycle();
  EXPECT_EQ(arena.figures().failed_plans, 1u);
  kept.clear();
  below.limit = SIZE_MAX;
  for (int i = 0; i < 4; ++i) run_chain(arena, kDecode);
  EXPECT_EQ(arena.figures().shapes, 1u);
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

// A loop that mostly repeats, with everything that may go wrong in it. Patterns show any two buffers that share a byte.
TEST(PlannedArenaTest, LiveBuffersNeverShareAByte) {
  std::uint64_t from_slab = 0;
  std::uint64_t longer = 0;
  for (unsigned seed = 0; seed < 40; ++seed) {
    testing::CountingAllocator below;
    std::mt19937 random(seed);
    const auto below_n = [&random](std::size_t n) { return static_cast<std::size_t>(random() % n); };
    struct Script {
      std::vector<std::size_t> sizes, lives;
    };
    std::vector<Script> scripts(1 + below_n(3));
    for (Script& script : scripts) {
      const std::size_t n = 5 + below_n(60);
      for (std::size_t i = 0; i < n; ++i) {
        script.sizes.push_back(below_n(8) == 0 ? 0 : 1 + below_n(3000));
        script.lives.push_back(1 + (below_n(5) == 0 ? below_n(n + 4) : below_n(4)));
      }
    }
    struct Live {
      TypedBuffer buffer;
      std::byte pattern;
      std::size_t until;
      std::size_t epoch;  // Clears before it was made.
    };
    std::size_t epoch = 0;
    std::vector<Live> live;
    {
      ArenaOptions options = at_once();
      options.plan_time = std::chrono::duration<double>(0.005);
      options.background = seed % 4 == 3;
      options.max_shapes = 1 + seed % 3;
      PlannedArena arena(below, kStream, options);
      std::size_t now = 0;
      const auto drop = [&](std::size_t i) {
        const auto bytes = live[i].buffer.as_span<std::byte>();
        ASSERT_TRUE(std::all_of(bytes.begin(), bytes.end(), [&](std::byte b) { return b == live[i].pattern; }))
            << "seed " << seed;
        if (random() % 4 == 0 && live[i].epoch == epoch) arena.release(live[i].buffer);
        live[i] = std::move(live.back());
        live.pop_back();
      };
      for (int cycle = 0; cycle < 60; ++cycle) {
        const Script& script =
            scripts[below_n(6) == 0 ? below_n(scripts.size()) : static_cast<std::size_t>(cycle / 20) % scripts.size()];
        const bool wild = below_n(5) == 0;
        for (std::size_t i = 0; i < script.sizes.size(); ++i, ++now) {
          for (std::size_t k = live.size(); k-- > 0;) {
            if (live[k].until <= now) drop(k);
          }
          if (wild && below_n(12) == 0) continue;
          if (wild && below_n(40) == 0) break;
          const std::size_t bytes = wild && below_n(8) == 0 ? below_n(5000) : script.sizes[i];
          const std::size_t life = wild && below_n(6) == 0 ? below_n(200) + 1 : script.lives[i];
          const bool floats = bytes % 4 == 0 && below_n(4) == 0;
          TypedBuffer buffer = floats ? TypedBuffer(arena.alloc(DType::f32, Shape{bytes / 4})) : take(arena, bytes);
          ASSERT_EQ(buffer.byte_len(), bytes);
          ASSERT_EQ(buffer.dtype(), floats ? DType::f32 : DType::u8);
          const auto pattern = static_cast<std::byte>(random());
          std::fill_n(buffer.data(), bytes, pattern);
          live.push_back({below_n(5) == 0 ? TypedBuffer(buffer) : std::move(buffer), pattern, now + life, epoch});
        }
        arena.end_cycle();
        if (below_n(50) == 0) {
          arena.clear();
          ++epoch;
        }
        expect_rules(arena);
      }
      from_slab += arena.figures().from_slab;
      longer += arena.figures().longer_life;
    }
    for (const Live& l : live) {
      const auto bytes = l.buffer.as_span<std::byte>();
      EXPECT_TRUE(std::all_of(bytes.begin(), bytes.end(), [&](std::byte b) { return b == l.pattern; }));
    }
    live.clear();
    EXPECT_EQ(below.live(), 0u);
    EXPECT_EQ(below.wrong_frees, 0u);
  }
  // The test is worth something only if plans were followed and departed from.
  EXPECT_GT(from_slab, 5000u);
  EXPECT_GT(longer, 100u);
}

}  // namespace
}  // namespace cistern
