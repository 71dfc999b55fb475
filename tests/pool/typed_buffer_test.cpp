// TypedBuffer: counting, views, checked access.
#include "cistern/typed_buffer.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <string>

#include "cistern/buffer_pool.hpp"
#include "cistern/error.hpp"

namespace cistern {
namespace {

class TypedBufferTest : public ::testing::Test {
 protected:
  BufferPool pool_{Device::cpu()};
};

TEST_F(TypedBufferTest, KnowsItsTypeAndShape) {
  const TypedBuffer buffer = pool_.alloc(480, DType::f32, {4, 30});
  EXPECT_EQ(buffer.byte_len(), 480u);
  EXPECT_EQ(buffer.element_count(), 120u);
  EXPECT_EQ(buffer.dtype(), DType::f32);
  EXPECT_EQ(buffer.shape(), (Shape{4, 30}));
  EXPECT_EQ(buffer.byte_offset(), 0u);
  EXPECT_EQ(buffer.data(), buffer.buffer().raw_ptr());
  EXPECT_FALSE(buffer.is_view());
  EXPECT_EQ(to_string(buffer), "f32[4, 30], 480 bytes");
}

TEST_F(TypedBufferTest, EmptyHandle) {
  const TypedBuffer empty;
  EXPECT_FALSE(empty);
  EXPECT_EQ(empty.byte_len(), 0u);
  EXPECT_EQ(empty.element_count(), 0u);
  EXPECT_EQ(empty.shape(), Shape());
  EXPECT_EQ(empty.data(), nullptr);
  EXPECT_EQ(empty.use_count(), 0u);
  EXPECT_FALSE(empty.buffer());
  EXPECT_FALSE(empty.shares_memory(empty));
  EXPECT_THROW((void)empty.as_span<float>(), invalid_argument);
  EXPECT_THROW((void)empty.as_span<std::byte>(), invalid_argument);
  EXPECT_THROW((void)empty.slice_view(0, 0), invalid_argument);
  EXPECT_THROW((void)empty.reshape({1}), invalid_argument);
  const TypedBuffer copy = empty;
  EXPECT_FALSE(copy);
}

TEST_F(TypedBufferTest, CopiesAndMovesCount) {
  TypedBuffer first = pool_.alloc(DType::i32, {10});
  EXPECT_EQ(first.use_count(), 1u);
  TypedBuffer second = first;
  TypedBuffer third = second;
  EXPECT_EQ(first.use_count(), 3u);
  EXPECT_TRUE(third.shares_memory(first));
  TypedBuffer moved = std::move(first);
  EXPECT_FALSE(first);  // NOLINT(bugprone-use-after-move): empty is what is promised.
  EXPECT_EQ(moved.use_count(), 3u);
  second = std::move(moved);
  EXPECT_EQ(second.use_count(), 2u);
  third.reset();
  EXPECT_EQ(second.use_count(), 1u);
  TypedBuffer& same = second;
  second = same;
  EXPECT_EQ(second.use_count(), 1u);
  second = std::move(same);
  EXPECT_EQ(second.use_count(), 1u);
  second = pool_.alloc(DType::i32, {3});
  EXPECT_EQ(second.element_count(), 3u);
}

TEST_F(TypedBufferTest, ViewsLieWithinAndKeepTheMemory) {
  TypedBuffer whole = pool_.alloc(DType::i32, {100});
  std::iota(whole.as_span<int>().begin(), whole.as_span<int>().end(), 0);
  TypedBuffer part = whole.slice_view(40, 20);
  EXPECT_TRUE(part.is_view());
  EXPECT_EQ(part.shape(), Shape(20));
  EXPECT_EQ(part.byte_offset(), 40u);
  EXPECT_EQ(part.as_span<int>()[0], 10);
  const TypedBuffer inner = part.slice_view(40, 10);
  EXPECT_EQ(inner.byte_offset(), 80u);
  EXPECT_EQ(inner.as_span<const int>()[9], 29);
  const TypedBuffer bits = whole.view(4, DType::u32, {3, 33});
  EXPECT_EQ(bits.as_span<std::uint32_t>()[98], 99u);
  const TypedBuffer table = whole.reshape({10, 10});
  EXPECT_EQ(table.shape(), (Shape{10, 10}));
  EXPECT_TRUE(table.is_view());
  EXPECT_EQ(whole.use_count(), 5u);
  whole.reset();
  part.reset();
  pool_.reset();
  EXPECT_EQ(pool_.escaped_count(), 1u);
  EXPECT_EQ(inner.as_span<int>()[0], 20);
}

TEST_F(TypedBufferTest, ViewsOutsideAreRefused) {
  const TypedBuffer whole = pool_.alloc(DType::i32, {100});
  EXPECT_NO_THROW((void)whole.slice_view(400, 0));
  EXPECT_NO_THROW((void)whole.slice_view(0, 100));
  EXPECT_THROW((void)whole.slice_view(4, 100), invalid_argument);
  EXPECT_THROW((void)whole.slice_view(401, 0), invalid_argument);
  EXPECT_THROW((void)whole.slice_view(SIZE_MAX, 1), invalid_argument);
  EXPECT_THROW((void)whole.slice_view(0, SIZE_MAX / 4), invalid_argument);
  EXPECT_THROW((void)whole.slice_view(0, SIZE_MAX), invalid_argument);
  EXPECT_THROW((void)whole.view(0, DType::i64, {51}), invalid_argument);
  EXPECT_THROW((void)whole.view(0, static_cast<DType>(77), {1}), invalid_argument);
  EXPECT_THROW((void)whole.reshape({99}), invalid_argument);
  EXPECT_THROW((void)whole.reshape({UINT32_MAX, UINT32_MAX, UINT32_MAX}), invalid_argument);
  EXPECT_EQ(whole.use_count(), 1u);
}

TEST_F(TypedBufferTest, SpansAreChecked) {
  const TypedBuffer buffer = pool_.alloc(DType::f32, {16});
  EXPECT_EQ(buffer.as_span<float>().size(), 16u);
  EXPECT_EQ(buffer.as_span<std::byte>().size(), 64u);
  EXPECT_THROW((void)buffer.as_span<int>(), invalid_argument);
  EXPECT_THROW((void)buffer.as_span<double>(), invalid_argument);
  EXPECT_THROW((void)buffer.as_span<std::uint8_t>(), invalid_argument);
  const TypedBuffer odd = buffer.slice_view(2, 8);
  EXPECT_NO_THROW((void)odd.as_span<std::byte>());
  try {
    (void)odd.as_span<float>();
    ADD_FAILURE();
  } catch (const invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find("not aligned to 4"), std::string::npos) << error.what();
  }
}

TEST_F(TypedBufferTest, WideShapesSurviveTheHandle) {
  const TypedBuffer buffer = pool_.alloc(DType::u8, {std::size_t{1} << 40, 0, 3});
  EXPECT_EQ(buffer.byte_len(), 0u);
  EXPECT_EQ(buffer.shape(), (Shape{std::size_t{1} << 40, 0, 3}));
  const TypedBuffer copy = buffer;
  EXPECT_EQ(copy.shape()[0], std::size_t{1} << 40);
  EXPECT_EQ(buffer.as_span<std::uint8_t>().size(), 0u);
}

}  // namespace
}  // namespace cistern
