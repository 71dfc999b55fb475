// Shape: extents in and out, wide extents, the limits.
#include <gtest/gtest.h>

#include <random>
#include <utility>

#include "cistern/error.hpp"
#include "cistern/typed_buffer.hpp"

namespace cistern {
namespace {

constexpr std::size_t kBig = std::size_t{1} << 32;

TEST(ShapeTest, ExtentsComeBack) {
  const Shape shape{2, 3u, std::int64_t{4}, std::size_t{5}, short{6}, 7, 8, 9};
  ASSERT_EQ(shape.rank(), 8u);
  for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(shape[i], i + 2);
  EXPECT_EQ(shape.element_count(), 362880u);
  EXPECT_EQ(to_string(shape), "[2, 3, 4, 5, 6, 7, 8, 9]");
  EXPECT_EQ(Shape().rank(), 0u);
  EXPECT_EQ(Shape().element_count(), 1u);
  EXPECT_EQ(to_string(Shape()), "[]");
  static_assert(Shape(3, 4).element_count() == 12);
}

TEST(ShapeTest, OneWideExtentAnywhere) {
  for (std::size_t place = 0; place < kMaxRank; ++place) {
    std::array<std::size_t, kMaxRank> dims;
    dims.fill(2);
    dims[place] = 5 * kBig + 7;
    const Shape shape{std::span<const std::size_t>(dims)};
    EXPECT_EQ(shape.to_array(), dims);
    EXPECT_EQ(shape.element_count(), 128 * (5 * kBig + 7));
    const Shape copy = shape;
    EXPECT_EQ(copy, shape);
  }
  EXPECT_EQ(Shape(INT64_MAX).element_count(), static_cast<std::size_t>(INT64_MAX));
  EXPECT_EQ((Shape{kBig, 3}[0]), kBig);
  EXPECT_THROW((Shape{kBig, kBig}), invalid_argument);
}

// The constructor that takes extents one by one, of each rank, with a wide extent at each place.
template <std::size_t... kPlaces>
void expect_same_either_way(std::index_sequence<kPlaces...>) {
  for (std::size_t wide = 0; wide < sizeof...(kPlaces); ++wide) {
    std::array<std::size_t, sizeof...(kPlaces)> dims{(kPlaces + 2)...};
    dims[wide] = 3 * kBig + 1;
    const Shape one_by_one(dims[kPlaces]...);
    EXPECT_EQ(one_by_one, Shape{std::span<const std::size_t>(dims)});
    EXPECT_EQ(one_by_one.rank(), dims.size());
    EXPECT_EQ(one_by_one.element_count(), Shape{std::span<const std::size_t>(dims)}.element_count());
    for (std::size_t i = 0; i < dims.size(); ++i) EXPECT_EQ(one_by_one[i], dims[i]);
  }
}

TEST(ShapeTest, WideExtentsOneByOne) {
  [&]<std::size_t... kRanks>(std::index_sequence<kRanks...>) {
    (expect_same_either_way(std::make_index_sequence<kRanks + 1>()), ...);
  }
  (std::make_index_sequence<kMaxRank>());
}

TEST(ShapeTest, WrongExtentsAreRefused) {
  EXPECT_THROW(Shape(-1), invalid_argument);
  EXPECT_THROW((Shape{3, std::int64_t{-4}}), invalid_argument);
  EXPECT_THROW((Shape{3, short{-1}, 2}), invalid_argument);
  EXPECT_THROW(Shape(SIZE_MAX), invalid_argument);
  const std::array<std::size_t, 9> nine{};
  EXPECT_THROW(Shape{std::span<const std::size_t>(nine)}, invalid_argument);
  const std::array<std::int64_t, 2> negative{4, -4};
  EXPECT_THROW(Shape{std::span<const std::int64_t>(negative)}, invalid_argument);
}

TEST(ShapeTest, OverflowIsSeenUnlessThereIsAZero) {
  const std::uint32_t m = UINT32_MAX;
  EXPECT_EQ((Shape{m, m}.element_count()), std::size_t{m} * m);
  EXPECT_THROW((void)(Shape{m, m, 2}.element_count()), invalid_argument);
  EXPECT_THROW((void)(Shape{kBig, m, 2}.element_count()), invalid_argument);
  EXPECT_EQ((Shape{m, m, m, 0}.element_count()), 0u);
  EXPECT_EQ((Shape{kBig, m, 2, 0}.element_count()), 0u);
  EXPECT_EQ(Shape(0).element_count(), 0u);
  std::size_t bytes = 1;
  EXPECT_TRUE((Shape{m, m}.count_bytes(1, bytes)));
  EXPECT_FALSE((Shape{m, m}.count_bytes(8, bytes)));
}

TEST(ShapeTest, RandomShapesCountLikeWideArithmetic) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::size_t> dims(random() % (kMaxRank + 1));
    std::size_t wide = 0;
    for (std::size_t& dim : dims) {
      dim = random() >> (random() % 62 + 2);
      if (dim >= kBig && ++wide > 1) dim &= 0xFFFF;
    }
    const Shape shape{std::span<const std::size_t>(dims)};
    ASSERT_EQ(shape.rank(), dims.size());
    __extension__ unsigned __int128 product = 1;
    bool over = false;
    bool zero = false;
    for (std::size_t i = 0; i < dims.size(); ++i) {
      ASSERT_EQ(shape[i], dims[i]);
      zero = zero || dims[i] == 0;
      if (!over) product *= dims[i];
      over = over || product > SIZE_MAX;
    }
    if (zero) {
      ASSERT_EQ(shape.element_count(), 0u);
    } else if (over) {
      ASSERT_THROW((void)shape.element_count(), invalid_argument);
    } else {
      ASSERT_EQ(shape.element_count(), static_cast<std::size_t>(product));
    }
  }
}

}  // namespace
}  // namespace cistern
