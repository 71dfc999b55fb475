// PlannedArena: wrong use, other streams, no memory, and handles that outlive it.
#include <thread>

#include "cistern/error.hpp"
#include "pool/planned_arena_fixture.hpp"

namespace cistern {
namespace {

using namespace testing::planned;

TEST(PlannedArenaMisuse, ErrorsNameTheCall) {
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

TEST(PlannedArenaMisuse, HandlesOutliveTheArena) {
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

TEST(PlannedArenaMisuse, UseOnAnotherStreamMovesTheBufferOut) {
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

TEST(PlannedArenaMisuse, MisuseIsRefused) {
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

TEST(PlannedArenaMisuse, NoMemoryForASlabLeavesThePool) {
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

}  // namespace
}  // namespace cistern
