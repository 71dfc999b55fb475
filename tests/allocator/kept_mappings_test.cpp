// Mappings that outlast their use: what ends them, and that a driver is not called for what is kept.
#include "allocator/kept_mappings.hpp"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "allocator/allocator_fixture.hpp"

namespace cistern::allocation {
namespace {

using drivers::Address;
using drivers::Physical;
using Ended = std::vector<std::pair<Address, std::size_t>>;

TEST(KeptMappings, EndWhenTheirAddressesOrTheirPieceAreNeeded) {
  Mappings all;
  for (std::uint64_t piece = 1; piece <= 3; ++piece) all.add_piece(Physical{piece});
  const auto aside = [&](Address at, std::size_t bytes, Physical piece) {
    all.add(at, bytes, piece);
    all.put_aside(at);
  };
  aside(100, 20, Physical{1});
  aside(120, 10, Physical{2});
  aside(200, 30, Physical{1});
  EXPECT_FALSE(all.use_again(100, Physical{2}));
  EXPECT_FALSE(all.use_again(110, Physical{1}));
  Ended ended;
  const auto end = [&](Address at, std::size_t bytes) { return ended.emplace_back(at, bytes), true; };
  EXPECT_TRUE(all.end_overlapping(80, 20, end));
  EXPECT_TRUE(all.end_overlapping(130, 70, end));
  EXPECT_TRUE(ended.empty());
  EXPECT_FALSE(all.end_overlapping(119, 2, [](Address, std::size_t) { return false; }));
  EXPECT_TRUE(all.end_overlapping(119, 2, end));
  EXPECT_EQ(ended, (Ended{{100, 20}, {120, 10}}));
  aside(100, 40, Physical{3});
  EXPECT_TRUE(all.end_all_of(Physical{1}, end));
  EXPECT_EQ(ended.back(), (std::pair<Address, std::size_t>{200, 30}));
  EXPECT_TRUE(all.use_again(100, Physical{3}));
  EXPECT_FALSE(all.end_overlapping(100, 1, end)) << "in use";
  EXPECT_EQ(all.count(), 1U);
}

// Shapes of memory by turns: pieces move in each of them, with fewer calls than a map, an access and an unmap each; and
// no piece is given back that is still shown.
TEST(KeptMappings, ShapesByTurnsTakeFewerCallsThanMoves) {
  auto report = std::make_shared<drivers::ModelReport>();
  {
    DeviceAllocator allocator(Device::model(), drivers::make_model_driver({.report = report}));
    const Stream stream = allocator.stream(nullptr);
    for (std::size_t turn = 0; turn < 20; ++turn) {
      std::vector<Buffer> live;
      const std::size_t bytes = (24 + turn % 3 * 8) * core::MiB;
      for (std::size_t i = 0; i < 12; ++i) live.push_back(allocator.malloc(bytes + i * 512, stream));
      for (std::size_t i = 0; i < live.size(); i += 2) allocator.free(live[i]);
      const Buffer large = allocator.malloc(3 * bytes, stream);
      for (std::size_t i = 1; i < live.size(); i += 2) allocator.free(live[i]);
      allocator.free(large);
      ASSERT_TRUE(allocator.check_invariants().empty()) << allocator.check_invariants().front();
    }
    const Stats stats = allocator.stats();
    EXPECT_GT(stats.handles_moved, 0U);
    EXPECT_LT(stats.driver_calls, 3 * (stats.handles_moved + stats.handles_created));
    allocator.clear_cache();
  }
  EXPECT_TRUE(report->violations.empty()) << report->violations.front();
  EXPECT_TRUE(report->leaks.empty()) << report->leaks.front();
}

}  // namespace
}  // namespace cistern::allocation
