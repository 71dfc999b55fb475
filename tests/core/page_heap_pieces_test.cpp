// Which pieces move and leave, pieces of held heaps, and what a run knows of the streams that freed it.
#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "core/order_model.hpp"
#include "core/page_heap.hpp"
#include "core/page_heap_fixture.hpp"

namespace cistern::core {
namespace {

constexpr StreamIndex kSecond{1}, kThird{2};
using Orders = std::vector<std::pair<StreamIndex, StreamIndex>>;

// Pieces are of two cells, 4 MiB, in these small heaps.
constexpr std::uint64_t kPiece = 4 * MiB;

TEST(Pieces, HighAddressesMoveFirst) {
  HeapFixture f;
  std::vector<HeapNode*> nodes;
  for (int i = 0; i < 7; ++i) nodes.push_back(f.heaps[0]->allocate(kPiece, 512, kFirst));
  ASSERT_EQ(f.group.pieces(), 7U);
  for (const std::size_t i : {3U, 1U, 5U}) f.heaps[0]->free(nodes[i]);
  HeapNode* more = f.heaps[0]->allocate(6 * MiB, 512, kFirst);
  ASSERT_NE(more, nullptr);
  EXPECT_EQ(f.group.counts().moved, 2U);
  EXPECT_TRUE(f.backings[0]->shows(2));
  EXPECT_FALSE(f.backings[0]->shows(6));
  EXPECT_FALSE(f.backings[0]->shows(10));
  EXPECT_EQ(broken(f.group), "");
}

TEST(Pieces, HighAddressesLeaveFirst) {
  HeapFixture f;
  f.heaps[0]->free(f.heaps[0]->allocate(3 * kPiece, 512, kFirst));
  ASSERT_EQ(f.group.pieces(), 3U);
  EXPECT_EQ(f.group.trim(2 * kPiece, false), kPiece);
  EXPECT_TRUE(f.backings[0]->shows(0));
  EXPECT_TRUE(f.backings[0]->shows(2));
  EXPECT_FALSE(f.backings[0]->shows(4));
}

// As little as is enough.
TEST(Pieces, TheSmallestThatIsEnoughLeaves) {
  for (const bool small_first : {false, true}) {
    for (const std::uint64_t keep : {kPiece, kCell}) {
      HeapFixture f;
      HeapNode* a = f.heaps[0]->allocate(small_first ? kCell : kPiece, 512, kFirst);
      HeapNode* b = f.heaps[0]->allocate(small_first ? kPiece : kCell, 512, kFirst);
      f.heaps[0]->free(a);
      f.heaps[0]->free(b);
      ASSERT_EQ(f.group.pieces(), 2U);
      f.group.trim(keep, false);
      EXPECT_EQ(f.group.reserved(), keep);
      EXPECT_EQ(broken(f.group), "");
    }
  }
}

// After a large phase a small one has the slack of a large heap, unless it is told that the phase is over.
TEST(Pieces, TheSlackIsThatOfThePhase) {
  for (const bool over : {false, true}) {
    HeapFixture f;
    PageHeap& heap = *f.heaps[0];
    heap.free(heap.allocate(2 * GiB, 512, kFirst));
    f.group.trim(0, true);
    if (over) f.group.forget_peak_live();
    std::vector<HeapNode*> nodes;
    for (int i = 0; i < 20; ++i) nodes.push_back(heap.allocate(kCell, 512, kFirst));
    const std::uint64_t reserved = f.group.reserved();
    for (std::size_t i = 0; i < nodes.size(); i += 2) heap.free(nodes[i]);
    ASSERT_NE(heap.allocate(8 * kCell, 512, kFirst), nullptr);
    EXPECT_EQ(f.group.reserved() == reserved, over);
    EXPECT_EQ(f.group.counts().moved != 0, over);
    EXPECT_EQ(broken(f.group), "");
  }
}

// A move makes one stream wait for another.
TEST(Pieces, StreamsThatShareAHeapHaveMoreSlack) {
  for (const bool shared : {false, true}) {
    HeapFixture f;
    PageHeap& heap = *f.heaps[0];
    std::vector<HeapNode*> nodes;
    for (const StreamIndex stream : {kFirst, kSecond}) {
      if (shared || stream == kFirst) heap.free(heap.allocate(4 * kCell, 512, stream));
    }
    for (int i = 0; i < 50; ++i) nodes.push_back(heap.allocate(4 * kCell, 512, kFirst));
    ASSERT_EQ(f.group.reserved(), 200 * kCell);
    for (std::size_t i = 0; i < 12; i += 2) heap.free(nodes[i]);
    ASSERT_NE(heap.allocate(24 * kCell, 512, kFirst), nullptr);
    EXPECT_EQ(f.group.reserved(), (shared ? 210 : 200) * kCell);
    EXPECT_EQ(broken(f.group), "");
  }
}

// Behind the host a piece that leaves is held until work has passed: one that is larger than the need moves instead.
TEST(Pieces, ALargerOneMovesRatherThanLeaves) {
  HeapConfig config = HeapFixture::defaults();
  config.slack_percent = 0;
  HeapFixture f(config, 2);
  f.device.lag = 10;
  for (int i = 0; i < 2; ++i) {
    f.group.trim(0, true);
    f.heaps[0]->free(f.heaps[0]->allocate(50 * 8 * MiB, 512, kFirst));
  }
  ASSERT_EQ(f.group.pieces(), 50U) << "pieces of four cells, by the peak before";
  const std::uint64_t released = f.group.counts().released;
  const std::uint64_t reserved = f.group.reserved();
  HeapNode* node = f.heaps[1]->allocate(10 * MiB, 512, kFirst);
  ASSERT_NE(node, nullptr);
  EXPECT_EQ(f.group.counts().moved, 2U);
  EXPECT_EQ(f.group.counts().released, released);
  EXPECT_EQ(f.group.peak_reserved(), reserved);
  // The rest of it serves the next one.
  HeapNode* next = f.heaps[1]->allocate_mapped(6 * MiB, 512, kFirst);
  ASSERT_NE(next, nullptr);
  f.heaps[1]->free(next);
  f.heaps[1]->free(node);
  EXPECT_EQ(broken(f.group), "");
}

TEST(Pieces, AMuchLargerOneStaysWhereOneMayBeMade) {
  HeapFixture f(HeapFixture::defaults(), 2);
  for (int i = 0; i < 2; ++i) {
    f.group.trim(0, true);
    f.heaps[0]->free(f.heaps[0]->allocate(50 * 8 * MiB, 512, kFirst));
  }
  ASSERT_EQ(f.group.pieces(), 50U);
  ASSERT_NE(f.heaps[1]->allocate(MiB, 512, kFirst), nullptr);
  EXPECT_EQ(f.group.counts().moved, 0U);
  EXPECT_EQ(f.group.pieces(), 51U);
  EXPECT_EQ(broken(f.group), "");
}

TEST(Pieces, NoneLeaveWhileOthersAreAboutTo) {
  HeapFixture f(HeapFixture::defaults(), 2);
  f.device.lag = 10;
  f.heaps[0]->free(f.heaps[0]->allocate(4 * kPiece, 512, kFirst));
  f.heaps[1]->hold(true);  // Takes no pieces of others.
  for (int i = 0; i < 2; ++i) {
    ASSERT_NE(f.heaps[1]->allocate(kPiece, 512, kFirst), nullptr);
    EXPECT_EQ(f.group.counts().released, 1U);
  }
  EXPECT_EQ(f.group.reserved(), 6 * kPiece);
  f.device.now += 10;
  ASSERT_NE(f.heaps[1]->allocate(kPiece, 512, kFirst), nullptr);
  EXPECT_EQ(f.group.counts().released, 2U);
  f.heaps[1]->hold(false);
  EXPECT_EQ(broken(f.group), "");
}

// One run, that two streams freed: the piece of the stream itself moves, without a wait.
TEST(Pieces, AStreamMovesItsOwnPartOfARun) {
  HeapFixture f(HeapFixture::defaults(), 2);
  HeapNode* low = f.heaps[0]->allocate(kPiece, 512, kFirst);
  HeapNode* high = f.heaps[0]->allocate(kPiece, 512, kSecond);
  ASSERT_EQ(high->offset, low->offset + kPiece);
  f.heaps[0]->free(low);
  f.heaps[0]->free(high);
  HeapNode* node = f.heaps[1]->allocate(kPiece, 512, kSecond);
  ASSERT_NE(node, nullptr);
  EXPECT_EQ(f.group.counts().moved, 1U);
  EXPECT_TRUE(f.backings[0]->shows(0));
  EXPECT_EQ(f.device.orders, Orders{});
  f.heaps[1]->free(node);
  EXPECT_EQ(broken(f.group), "");
}

TEST(Pieces, OfAHeldHeapStay) {
  HeapFixture f(HeapFixture::defaults(), 2);
  PageHeap& held = *f.heaps[0];
  held.free(held.allocate(4 * kPiece, 512, kFirst));
  held.hold(true);
  EXPECT_EQ(f.group.wholly_free(), 0U);
  EXPECT_EQ(f.group.trim(0, true), 0U);
  held.for_each_piece([](Piece, bool live) { EXPECT_TRUE(live); });
  HeapNode* other = f.heaps[1]->allocate(2 * kPiece, 512, kFirst);
  ASSERT_NE(other, nullptr);
  EXPECT_EQ(f.group.counts().moved, 0U);
  EXPECT_EQ(held.mapped(), 4 * kPiece);
  EXPECT_EQ(broken(f.group), "");
  // It takes none either.
  f.heaps[1]->free(other);
  HeapNode* more = held.allocate(5 * kPiece, 512, kFirst);
  ASSERT_NE(more, nullptr);
  EXPECT_EQ(f.group.counts().moved, 0U);
  held.free(more);
  held.hold(false);
  EXPECT_EQ(f.group.wholly_free(), f.group.reserved());
  f.group.trim(0, true);
  EXPECT_EQ(f.group.reserved(), 0U);
}

// A piece that can not move is not kept free of blocks.
TEST(Pieces, OfAHeldHeapArePinnedByNobody) {
  for (const bool hold : {false, true}) {
    HeapFixture f;
    PageHeap& heap = *f.heaps[0];
    heap.free(heap.allocate(4 * kPiece, 512, kFirst));
    HeapNode* low = heap.allocate_mapped(kPiece, 512, kFirst);
    HeapNode* wall = heap.allocate_mapped(kPiece, 512, kFirst);
    HeapNode* part = heap.allocate_mapped(1 * MiB, 512, kFirst);
    ASSERT_EQ(part->offset, low->offset + 2 * kPiece);
    const std::uint64_t at = low->offset;
    heap.free(low);
    heap.hold(hold);
    EXPECT_EQ(heap.left_at(at, 1 * MiB, kFirst), hold ? 3 * MiB : UINT64_MAX);
    HeapNode* node = heap.allocate_mapped(1 * MiB, 512, kFirst);
    EXPECT_EQ(node->offset, hold ? at : part->offset + 1 * MiB);
    for (HeapNode* n : {node, part, wall}) heap.free(n);
  }
}

TEST(Runs, AskOnlyForThePartThatIsTaken) {
  HeapFixture f;
  PageHeap& heap = *f.heaps[0];
  const RunOfTwo run(heap, 4 * kPiece, kFirst, kSecond);
  f.device.orders.clear();
  EXPECT_EQ(heap.left_at(run.of_low, kPiece, kFirst), 3 * kPiece);
  EXPECT_GT(heap.left_at(run.of_high, kPiece, kFirst), 1 * GiB);
  HeapNode* low = heap.allocate_at(run.of_low, kPiece, kFirst);
  HeapNode* high = heap.allocate_at(run.of_high + kPiece, kPiece, kSecond);
  ASSERT_TRUE(low != nullptr && high != nullptr);
  EXPECT_EQ(f.device.orders, Orders{});
  for (HeapNode* node : {low, high}) heap.free(node);
  EXPECT_EQ(broken(f.group), "");
}

// Who took a part of a run and freed it is all that the next one waits for there.
TEST(Runs, ForgetWhoFreedAPartThatWasTaken) {
  for (const std::uint64_t at : {std::uint64_t{0}, 3 * kPiece}) {
    HeapFixture f;
    PageHeap& heap = *f.heaps[0];
    heap.free(heap.allocate(4 * kPiece, 512, kFirst));
    HeapNode* node = heap.allocate_at(at, kPiece, kSecond);
    ASSERT_NE(node, nullptr);
    heap.free(node);
    node = heap.allocate_at(at, kPiece, kThird);
    ASSERT_NE(node, nullptr);
    EXPECT_EQ(f.device.orders, (Orders{{kFirst, kSecond}, {kSecond, kThird}})) << at;
    heap.free(node);
    EXPECT_EQ(broken(f.group), "");
  }
}

// The first stream looks at the low end first, others at the high end; the other end where that one must be waited for.
TEST(Runs, ServeEachStreamWhereItIsReady) {
  for (const bool swapped : {false, true}) {
    HeapFixture f;
    PageHeap& heap = *f.heaps[0];
    heap.free(heap.allocate(4 * kPiece, 512, kFirst));
    HeapNode* low = heap.allocate_at(0, 2 * kPiece, swapped ? kSecond : kFirst);
    HeapNode* high = heap.allocate_at(2 * kPiece, 2 * kPiece, swapped ? kFirst : kSecond);
    heap.free(low);
    heap.free(high);
    f.device.orders.clear();
    HeapNode* first = heap.allocate_mapped(kPiece, 512, kFirst);
    HeapNode* second = heap.allocate_mapped(kPiece, 512, kSecond);
    EXPECT_EQ(first->offset, swapped ? 3 * kPiece : 0);
    EXPECT_EQ(second->offset, swapped ? 0 : 3 * kPiece);
    EXPECT_EQ(f.device.orders, Orders{});
    for (HeapNode* node : {first, second}) heap.free(node);
  }
}

TEST(Runs, ServeOtherStreamsFromTheTop) {
  HeapFixture f;
  PageHeap& heap = *f.heaps[0];
  heap.free(heap.allocate(4 * kPiece, 512, kFirst));
  HeapNode* second = heap.allocate_mapped(kPiece, 512, kSecond);
  EXPECT_EQ(second->offset, 3 * kPiece);
  HeapNode* first = heap.allocate_mapped(kPiece, 512, kFirst);
  EXPECT_EQ(first->offset, 0U);
  for (HeapNode* node : {first, second}) heap.free(node);
}

// However many runs of a captured stream are nearer in size, and whichever end of the other run is ready.
TEST(Runs, TheOnlyReadyEndIsFound) {
  for (const bool low_is_ready : {false, true}) {
    for (const StreamIndex by : {kFirst, kThird}) {
      HeapFixture f;
      PageHeap& heap = *f.heaps[0];
      heap.free(heap.allocate(80 * kPiece, 512, kSecond));
      std::vector<HeapNode*> captured, walls;
      HeapNode* low = heap.allocate_at(0, 2 * kPiece, low_is_ready ? by : kSecond);
      HeapNode* high = heap.allocate_at(2 * kPiece, 2 * kPiece, low_is_ready ? kSecond : by);
      walls.push_back(heap.allocate_at(4 * kPiece, kPiece, kSecond));
      for (std::uint64_t at = 5 * kPiece; at < 80 * kPiece; at += 2 * kPiece) {
        captured.push_back(heap.allocate_at(at, kPiece, kSecond));
        if (at + kPiece < 80 * kPiece) walls.push_back(heap.allocate_at(at + kPiece, kPiece, kSecond));
      }
      for (HeapNode* node : captured) heap.free(node);
      heap.free(low);
      heap.free(high);
      f.device.unordered.insert(kSecond);
      HeapNode* node = heap.allocate_mapped(kPiece, 512, by);
      ASSERT_NE(node, nullptr);
      EXPECT_EQ(node->offset / (2 * kPiece), low_is_ready ? 0U : 1U);
      EXPECT_EQ(broken(f.group), "");
    }
  }
}

// A block goes to the end of a run where it keeps no free piece from moving, unless that is too far.
TEST(Runs, ServeAtTheEndThatPinsNothing) {
  for (const bool nearer : {false, true}) {
    HeapFixture f;
    PageHeap& heap = *f.heaps[0];
    heap.free(heap.allocate(4 * kPiece, 512, kFirst));
    HeapNode* run = heap.allocate_mapped(9 * MiB, 512, kFirst);
    HeapNode* wall = heap.allocate_at(9 * MiB, 2 * MiB, kFirst);
    HeapNode* small = heap.allocate_at(11 * MiB, 1 * MiB, kFirst);
    HeapNode* rest = heap.allocate_at(12 * MiB, 4 * MiB, kFirst);
    ASSERT_TRUE(run->offset == 0 && wall != nullptr && small != nullptr && rest != nullptr);
    heap.free(run);
    if (nearer) heap.free(small);
    HeapNode* node = heap.allocate_mapped(1 * MiB, 512, kFirst);
    EXPECT_EQ(node->offset, nearer ? 11 * MiB : 8 * MiB);
    for (HeapNode* n : {node, wall, rest}) heap.free(n);
  }
}

// Under a tight limit low addresses matter more than what is left of the run.
TEST(Runs, UnderATightLimitTheLowestServes) {
  for (const bool tight : {false, true}) {
    HeapConfig config = HeapFixture::defaults();
    config.tight = tight;
    HeapFixture f(config);
    PageHeap& heap = *f.heaps[0];
    std::vector<HeapNode*> nodes, walls;
    for (int i = 0; i < 10; ++i) {
      nodes.push_back(heap.allocate(i == 0 ? 3 * MiB : 1 * MiB, 512, kFirst));
      walls.push_back(heap.allocate(512, 512, kFirst));
    }
    for (HeapNode* node : nodes) heap.free(node);
    HeapNode* node = heap.allocate_mapped(1 * MiB, 512, kFirst);
    EXPECT_EQ(node->offset == 0, tight);
    heap.free(node);
    for (HeapNode* wall : walls) heap.free(wall);
  }
}

}  // namespace
}  // namespace cistern::core
