// report/picture: a trace of any length becomes a drawing of a fixed size that says the same.
#include "report/picture.hpp"

#include <gtest/gtest.h>

#include <numeric>

namespace cistern::report {
namespace {

using trace::Curves;
using trace::Op;
using trace::OpKind;
using trace::Program;

struct Sample {
  Program program;
  Curves curves;

  void op(OpKind kind, std::uint64_t bytes, std::uint64_t time_us) {
    program.ops.push_back({bytes, 0, 0, kind});
    program.times_us.push_back(time_us);
    program.ids.push_back(0);
    const std::uint64_t live = curves.live.empty() ? 0 : curves.live.back();
    curves.live.push_back(kind == OpKind::allocate ? live + bytes : live - bytes);
    curves.reserved.push_back(std::max(curves.reserved.empty() ? 0 : curves.reserved.back(), curves.live.back()));
    curves.cached.push_back(curves.reserved.back() - curves.live.back());
    if (curves.live.back() > program.peak_live) {
      program.peak_live = curves.live.back();
      program.peak_op = program.ops.size() - 1;
    }
  }
};

// Two blocks: 1 MiB for all of the time, 3 MiB above it for the second half.
Sample two_blocks() {
  Sample s;
  s.program.name = "two";
  s.program.streams = {0};
  s.op(OpKind::allocate, 1 << 20, 0);
  s.op(OpKind::allocate, 3 << 20, 500);
  s.op(OpKind::free, 3 << 20, 1000);
  s.curves.lives = {{.address = 0x1000000, .bytes = 1 << 20, .id = 7, .born = 0, .died = 3, .stream = 0},
                    {.address = 0x1100000, .bytes = 3 << 20, .id = 8, .born = 1, .died = 2, .stream = 0}};
  return s;
}

TEST(Picture, RasterShowsBlocksWhereTheyAre) {
  const Sample s = two_blocks();
  const Picture p = make_picture(s.program, s.curves, {.points = 10, .columns = 100, .rows = 40, .blocks = 10});
  ASSERT_EQ(p.raster.size(), 4000U);
  ASSERT_EQ(p.regions.size(), 1U);
  EXPECT_EQ(p.regions[0].bytes, 4U << 20);
  const auto cell = [&](std::uint32_t column, std::uint32_t row) { return p.raster[row * 100 + column]; };
  const auto full = static_cast<std::uint8_t>(((size_class(1 << 20) + 1) << 5) | 31);
  EXPECT_EQ(cell(5, 5), full);  // The lower quarter: the first block, all of the time.
  EXPECT_EQ(cell(95, 5), full);
  EXPECT_EQ(cell(5, 30), 0);      // Above it nothing in the first half,
  EXPECT_EQ(cell(95, 30), full);  // the second block in the second.
  ASSERT_EQ(p.outlines.size(), 2U);
  EXPECT_EQ(p.outlines[0].id, 8U);  // The larger area first.
  EXPECT_FLOAT_EQ(p.outlines[0].left, 50);
}

TEST(Picture, FiguresAndSizes) {
  const Sample s = two_blocks();
  const Picture p = make_picture(s.program, s.curves);
  EXPECT_TRUE(p.by_time);
  EXPECT_DOUBLE_EQ(p.end, 1.0);
  EXPECT_DOUBLE_EQ(p.peak_x, 0.5);
  EXPECT_EQ(p.peak_live, 4U << 20);
  EXPECT_EQ(p.peak_reserved, 4U << 20);
  ASSERT_EQ(p.sizes.size(), 2U);
  EXPECT_EQ(p.sizes[1].from, 2U << 20);
  EXPECT_EQ(p.sizes[1].peak_bytes, 3U << 20);
  ASSERT_EQ(p.peak.size(), 2U);
  EXPECT_EQ(p.peak[0].bytes, 3U << 20);
  EXPECT_EQ(p.peak[0].first_id, 8U);
}

TEST(Picture, CurveKeepsThePeakOfEachStep) {
  Sample s;
  s.program.streams = {0};
  for (std::uint64_t i = 0; i < 10000; ++i) {
    s.op(i % 2 == 0 ? OpKind::allocate : OpKind::free, i / 2 == 2500 ? 999 : 10, i);
  }
  const Picture p = make_picture(s.program, s.curves, {.points = 50, .columns = 10, .rows = 10, .blocks = 0});
  EXPECT_LE(p.curve.x.size(), 51U);
  EXPECT_EQ(*std::max_element(p.curve.live.begin(), p.curve.live.end()), 999U);
}

TEST(Picture, WithoutUsefulTimesTheAxisCountsEvents) {
  Sample s;
  s.program.streams = {0};
  for (int i = 0; i < 100; ++i) s.op(OpKind::allocate, 8, i < 99 ? 0 : 5);
  const Picture p = make_picture(s.program, s.curves);
  EXPECT_FALSE(p.by_time);
  EXPECT_DOUBLE_EQ(p.end, 100);
}

TEST(Picture, UnusedAddressSpaceIsCutOut) {
  Sample s = two_blocks();
  s.curves.lives[1].address = std::uint64_t{1} << 46;  // Another heap, far away.
  const Picture p = make_picture(s.program, s.curves, {.points = 10, .columns = 50, .rows = 100, .blocks = 10});
  ASSERT_EQ(p.regions.size(), 2U);
  EXPECT_EQ(p.regions[0].bytes, 1U << 20);
  EXPECT_EQ(p.regions[1].bytes, 3U << 20);
  EXPECT_GT(p.regions[1].first_row, p.regions[0].first_row + p.regions[0].rows);
  EXPECT_LE(p.regions[1].first_row + p.regions[1].rows, 100U);
}

TEST(Picture, ManyScatteredBlocksStillFit) {
  Sample s;
  s.program.streams = {0};
  for (std::uint64_t i = 0; i < 500; ++i) {
    s.op(OpKind::allocate, 4096, i);
    s.curves.lives.push_back({.address = (i + 1) << 30,
                              .bytes = 4096,
                              .id = i,
                              .born = static_cast<std::uint32_t>(i),
                              .died = 500,
                              .stream = 0});
  }
  const Picture p = make_picture(s.program, s.curves);
  EXPECT_LE(p.regions.size(), 12U);
  for (const Region& region : p.regions) EXPECT_LE(region.first_row + region.rows, p.rows);
}

TEST(Picture, EmptyTraceAndEmptyBlocks) {
  Program program;
  program.streams = {0};
  EXPECT_TRUE(make_picture(program, {}).raster.empty());
  Sample s;
  s.program.streams = {0};
  s.op(OpKind::allocate, 0, 3);
  s.curves.lives = {{.address = 0, .bytes = 0, .id = 0, .born = 0, .died = 1, .stream = 0}};
  const Picture p = make_picture(s.program, s.curves);
  EXPECT_TRUE(p.regions.empty());
  EXPECT_EQ(std::accumulate(p.raster.begin(), p.raster.end(), 0), 0);
}

}  // namespace
}  // namespace cistern::report
