// PlannedArena: live buffers never share a byte, whatever the loop does.
#include <algorithm>
#include <random>

#include "pool/planned_arena_fixture.hpp"

namespace cistern {
namespace {

using namespace testing::planned;

// Lives that vary from cycle to cycle, so that buffers are looked at before and after their death.
TEST(PlannedArenaRandom, WideBuffersWaitForAllThatLayInTheirBytes) {
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

// A loop that mostly repeats, with everything that may go wrong in it. Patterns show any two buffers that share a byte.
TEST(PlannedArenaRandom, LiveBuffersNeverShareAByte) {
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
