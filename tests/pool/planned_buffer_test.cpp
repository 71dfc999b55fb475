// PlannedBuffer: the arena's own handle, its life, and what it turns into.
#include "cistern/planned_buffer.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>
#include <utility>

#include "cistern/error.hpp"
#include "pool/planned_arena_fixture.hpp"

namespace cistern {
namespace {

using namespace testing::planned;

constexpr std::size_t kBytes = 1000;

void run_two(PlannedArena& arena) {
  (void)arena.alloc(DType::u8, Shape{kBytes});
  (void)arena.alloc(DType::u8, Shape{kBytes});
  arena.end_cycle();
}

TEST(PlannedBufferTest, HandlesMoveAndBecomeTypedBuffers) {
  testing::CountingAllocator below;
  PlannedArena arena(below, kStream, at_once());
  const auto cycle = [&](DType dtype, const Shape& shape) {
    PlannedBuffer first = arena.alloc(400, dtype, shape);
    PlannedBuffer other = arena.alloc(DType::i32, Shape{5, 6, 7});
    EXPECT_EQ(first.byte_len(), 400u);
    EXPECT_EQ(first.dtype(), dtype);
    EXPECT_EQ(first.shape(), shape);
    EXPECT_EQ(first->element_count(), shape.element_count());
    EXPECT_EQ(other.shape(), (Shape{5, 6, 7}));
    EXPECT_EQ(other.as_span<std::int32_t>().size(), 210u);
    EXPECT_EQ(first.use_count(), 1u);
    const std::byte* at = first.data();

    PlannedBuffer moved = std::move(first);
    EXPECT_FALSE(first);  // NOLINT(bugprone-use-after-move): what is left is defined.
    EXPECT_EQ(first.data(), nullptr);
    EXPECT_EQ(first.byte_len(), 0u);
    EXPECT_FALSE(TypedBuffer(std::move(first)));
    PlannedBuffer& same = moved;
    moved = std::move(same);
    EXPECT_EQ(moved.data(), at);

    TypedBuffer copy = moved;
    EXPECT_EQ(moved.use_count(), 2u);
    EXPECT_TRUE(moved.shares_memory(copy));
    const TypedBuffer view = moved.slice_view(0, 1);
    EXPECT_EQ(copy.use_count(), 3u);
    moved.reset();
    EXPECT_EQ(copy.use_count(), 2u);
    EXPECT_EQ(copy.data(), at);
    TypedBuffer taken = std::move(other);
    EXPECT_FALSE(other);  // NOLINT(bugprone-use-after-move)
    EXPECT_EQ(taken.use_count(), 1u);
    EXPECT_FALSE(taken.is_view());
    EXPECT_EQ(taken.shape(), (Shape{5, 6, 7}));
    return at;
  };
  const auto run = [&](DType dtype, const Shape& shape) {
    const std::byte* at = cycle(dtype, shape);
    arena.end_cycle();
    expect_rules(arena);
    return at;
  };
  for (int i = 0; i < 3; ++i) run(DType::f32, Shape{10, 10});
  const std::byte* at = run(DType::f32, Shape{10, 10});
  // The same bytes in another form are the same step.
  EXPECT_EQ(run(DType::f32, Shape{100}), at);
  EXPECT_EQ(run(DType::i32, Shape{100}), at);
  EXPECT_EQ(run(DType::f16, Shape{1, 2, 1, 2, 5, 2, 5, 1}), at);
  EXPECT_EQ(run(DType::f16, Shape{1, 2, 1, 2, 5, 2, 1, 5}), at);
  EXPECT_EQ(arena.figures().from_pool, 4u);
  EXPECT_EQ(arena.figures().other_size, 0u);
}

TEST(PlannedBufferTest, PlannedHandlesAreReleasedWithChecks) {
  PlannedArena arena(allocator(Device::cpu()), kStream, at_once());
  PlannedArena stranger(allocator(Device::cpu()), kStream, at_once());
  for (int i = 0; i < 4; ++i) {
    PlannedBuffer first = arena.alloc(100, DType::u8, Shape{100});
    EXPECT_THROW(stranger.release(first), invalid_argument);
    EXPECT_EQ(first.use_count(), 1u);
    arena.release(first);
    EXPECT_FALSE(first);
    EXPECT_THROW(arena.release(first), invalid_argument);
    PlannedBuffer second = arena.alloc(100, DType::u8, Shape{100});
    TypedBuffer copy = second;
    arena.release(std::move(second));
    EXPECT_THROW(arena.release(copy), invalid_argument);
    EXPECT_EQ(copy.use_count(), 1u);
    // What does not match dtype and shape is refused although the bytes are those of the plan.
    EXPECT_THROW((void)arena.alloc(100, DType::f32, Shape{100}), invalid_argument);
    copy.reset();
    arena.end_cycle();
  }
  EXPECT_EQ(arena.figures().plans, 1u);
  EXPECT_EQ(arena.figures().longer_life, 0u);
  expect_rules(arena);
}

TEST(PlannedBufferTest, PlannedHandlesOutliveTheArena) {
  testing::CountingAllocator below;
  PlannedBuffer of_slab;
  PlannedBuffer of_pool;
  {
    PlannedArena arena(below, kStream, at_once());
    for (int i = 0; i < 3; ++i) run_two(arena);
    of_slab = arena.alloc(DType::u8, Shape{kBytes});
    of_pool = arena.alloc(DType::u8, Shape{999999});
  }
  EXPECT_EQ(below.live(), 2u);
  std::memset(of_slab.data(), 1, of_slab.byte_len());
  std::memset(of_pool.data(), 2, of_pool.byte_len());
  EXPECT_EQ(of_slab.data()[kBytes - 1], std::byte{1});
  std::thread([&] {
    of_slab.reset();
    of_pool = PlannedBuffer();
  }).join();
  EXPECT_EQ(below.live(), 0u);
  EXPECT_EQ(below.wrong_frees, 0u);
}

}  // namespace
}  // namespace cistern
