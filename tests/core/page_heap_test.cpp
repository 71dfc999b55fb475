// Tests of PageHeap and HeapGroup against a fake backing that enforces the rules of mapping.
#include "core/page_heap.hpp"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "core/order_model.hpp"
#include "core/page_heap_fixture.hpp"

namespace cistern::core {
namespace {

TEST(PageHeap, PlacesMapsAndReuses) {
  HeapFixture f;
  HeapNode* a = f.heaps[0]->allocate(1 * MiB, 512, kFirst);
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(a->size, 1 * MiB);
  EXPECT_EQ(a->state, NodeState::live);
  EXPECT_GE(f.group.reserved(), kCell);
  const std::uint64_t offset = a->offset;
  const std::uint64_t created = f.group.counts().created;
  f.heaps[0]->free(a);
  EXPECT_EQ(f.group.live(), 0U);
  HeapNode* b = f.heaps[0]->allocate_mapped(1 * MiB, 512, kFirst);
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->offset, offset);
  EXPECT_EQ(f.group.counts().created, created);
  EXPECT_EQ(broken(f.group), "");
}

TEST(PageHeap, MappedOnlyNeverCallsTheBacking) {
  HeapFixture f;
  EXPECT_EQ(f.heaps[0]->allocate_mapped(512, 512, kFirst), nullptr);
  EXPECT_EQ(f.device.calls, 0U);
}

TEST(PageHeap, SplitsAndMergesAtFineAlignment) {
  HeapFixture f;
  std::vector<HeapNode*> nodes;
  for (int i = 0; i < 8; ++i) nodes.push_back(f.heaps[0]->allocate(100 * KiB, 512, kFirst));
  for (int i = 0; i < 8; i += 2) f.heaps[0]->free(nodes[static_cast<std::size_t>(i)]);
  EXPECT_EQ(broken(f.group), "");
  for (int i = 1; i < 8; i += 2) f.heaps[0]->free(nodes[static_cast<std::size_t>(i)]);
  EXPECT_EQ(broken(f.group), "");
  EXPECT_EQ(f.group.wholly_free(), f.group.reserved());
}

TEST(PageHeap, HonoursAlignment) {
  HeapFixture f;
  HeapNode* small = f.heaps[0]->allocate(512, 512, kFirst);
  HeapNode* aligned = f.heaps[0]->allocate(64 * KiB, 64 * KiB, kFirst);
  EXPECT_EQ(aligned->offset % (64 * KiB), 0U);
  HeapNode* cell = f.heaps[0]->allocate(4 * MiB, 4 * MiB, kFirst);
  EXPECT_EQ(cell->offset % (4 * MiB), 0U);
  EXPECT_EQ(broken(f.group), "");
  for (HeapNode* n : {small, aligned, cell}) f.heaps[0]->free(n);
}

TEST(PageHeap, MovesFreePiecesBeforeItMakesNewOnes) {
  HeapFixture f;
  // Two large blocks with a small one between them: the freed ends cannot be joined, their pieces must move.
  HeapNode* left = f.heaps[0]->allocate(64 * MiB, 512, kFirst);
  HeapNode* wall = f.heaps[0]->allocate(64 * KiB, 512, kFirst);
  HeapNode* right = f.heaps[0]->allocate(64 * MiB, 512, kFirst);
  HeapNode* end = f.heaps[0]->allocate(64 * KiB, 512, kFirst);
  f.heaps[0]->free(left);
  f.heaps[0]->free(right);
  const std::uint64_t before = f.group.reserved();
  HeapNode* large = f.heaps[0]->allocate(120 * MiB, 512, kFirst);
  ASSERT_NE(large, nullptr);
  EXPECT_GT(f.group.counts().moved, 0U);
  EXPECT_LT(f.group.reserved(), before + 120 * MiB / 4);
  EXPECT_EQ(broken(f.group), "");
  for (HeapNode* n : {wall, end, large}) f.heaps[0]->free(n);
}

TEST(PageHeap, OldAddressStaysStaleUntilWorkPassed) {
  HeapFixture f;
  f.device.lag = 100;
  HeapNode* left = f.heaps[0]->allocate(64 * MiB, 512, kFirst);
  HeapNode* wall = f.heaps[0]->allocate(64 * KiB, 512, kFirst);
  f.heaps[0]->free(left);
  HeapNode* large = f.heaps[0]->allocate(96 * MiB, 512, kFirst);
  ASSERT_GT(f.group.counts().moved, 0U);
  EXPECT_EQ(f.device.waits, 0U);
  bool stale = false;
  for (std::uint32_t c = 0; c < 32; ++c) stale |= f.backings[0]->shows(c);
  EXPECT_TRUE(stale);
  f.group.collect();
  EXPECT_TRUE(f.backings[0]->shows(0));
  f.device.now += 100;
  f.group.collect();
  EXPECT_EQ(broken(f.group), "");
  f.heaps[0]->free(wall);
  f.heaps[0]->free(large);
}

TEST(PageHeap, LimitHoldsAndFailureChangesNothing) {
  HeapFixture f(HeapFixture::limited(64 * MiB));
  HeapNode* a = f.heaps[0]->allocate(40 * MiB, 512, kFirst);
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(f.heaps[0]->allocate(40 * MiB, 512, kFirst), nullptr);
  EXPECT_LE(f.group.reserved(), 64 * MiB);
  EXPECT_EQ(f.group.live(), 40 * MiB);
  EXPECT_EQ(broken(f.group), "");
  f.heaps[0]->free(a);
  HeapNode* all = f.heaps[0]->allocate(64 * MiB, 512, kFirst);
  ASSERT_NE(all, nullptr);
  EXPECT_EQ(f.group.reserved(), 64 * MiB);
  f.heaps[0]->free(all);
}

TEST(PageHeap, TrimReturnsEverythingFree) {
  HeapFixture f;
  HeapNode* a = f.heaps[0]->allocate(100 * MiB, 512, kFirst);
  HeapNode* b = f.heaps[0]->allocate(100 * MiB, 512, kFirst);
  f.heaps[0]->free(a);
  EXPECT_GE(f.group.trim(0, false), 80 * MiB);
  EXPECT_EQ(f.group.wholly_free(), 0U);
  EXPECT_EQ(broken(f.group), "");
  f.heaps[0]->free(b);
  f.group.trim(0, false);
  EXPECT_EQ(f.group.reserved(), 0U);
  EXPECT_TRUE(f.device.pieces.empty());
}

TEST(PageHeap, TrimUnderRunningWorkWaitsOrLeavesLater) {
  HeapFixture f;
  f.device.lag = 50;
  f.heaps[0]->free(f.heaps[0]->allocate(64 * MiB, 512, kFirst));
  f.group.trim(0, false);
  EXPECT_GT(f.group.reserved(), 0U);
  EXPECT_EQ(f.device.waits, 0U);
  f.device.now += 50;
  f.group.trim(0, false);
  EXPECT_EQ(f.group.reserved(), 0U);
  f.heaps[0]->free(f.heaps[0]->allocate(64 * MiB, 512, kFirst));
  f.group.trim(0, true);
  EXPECT_EQ(f.group.reserved(), 0U);
  EXPECT_GT(f.device.waits, 0U);
}

TEST(PageHeap, NothingIsUnmappedWhenTheHostCannotWait) {
  HeapFixture f(HeapFixture::limited(64 * MiB));
  f.device.lag = 50;
  f.device.wait_fails = true;
  f.heaps[0]->free(f.heaps[0]->allocate(48 * MiB, 512, kFirst));
  const std::uint64_t held = f.group.reserved();
  f.group.trim(0, true);
  EXPECT_EQ(f.group.reserved(), held);
  EXPECT_TRUE(f.backings[0]->shows(0));
  EXPECT_EQ(f.heaps[0]->allocate(64 * MiB, 512, kFirst), nullptr);
  EXPECT_TRUE(f.backings[0]->shows(0));
  EXPECT_EQ(broken(f.group), "");
  f.device.now += 1000;
  f.device.wait_fails = false;
  f.group.trim(0, true);
  EXPECT_EQ(f.group.reserved(), 0U);
}

// An operation costs the same whatever its bytes: a large heap makes large pieces.
TEST(PageHeap, PiecesGrowWithTheHeap) {
  HeapConfig config;
  config.range_bytes = 512 * GiB;
  HeapFixture f(config);
  std::vector<HeapNode*> nodes;
  for (int i = 0; i < 100; ++i) nodes.push_back(f.heaps[0]->allocate(1 * GiB, 512, kFirst));
  EXPECT_LE(f.group.counts().created, 2000U) << "of 64 MiB in the end; of 32 MiB each it would be 3200";
  for (HeapNode* n : nodes) f.heaps[0]->free(n);
  EXPECT_EQ(broken(f.group), "");
}

constexpr StreamIndex kCompute{0}, kCopy{1};

TEST(PageHeap, AStreamTakesItsOwnMemoryBeforeThatOfOthers) {
  HeapFixture f;
  HeapNode* mine = f.heaps[0]->allocate(8 * MiB, 512, kCompute);
  HeapNode* wall = f.heaps[0]->allocate(512, 512, kCompute);
  HeapNode* other = f.heaps[0]->allocate(6 * MiB, 512, kCopy);
  const std::uint64_t own = mine->offset;
  f.heaps[0]->free(mine);
  f.heaps[0]->free(other);
  // The other stream's memory would fit better.
  HeapNode* again = f.heaps[0]->allocate(6 * MiB, 512, kCompute);
  ASSERT_NE(again, nullptr);
  EXPECT_GE(again->offset, own);
  EXPECT_LT(again->offset, own + 8 * MiB);
  EXPECT_TRUE(f.device.orders.empty());
  // Then that, after a wait; no piece is made or moved for it.
  const std::uint64_t changes = f.group.gauge().changes;
  HeapNode* more = f.heaps[0]->allocate(5 * MiB, 512, kCompute);
  ASSERT_NE(more, nullptr);
  EXPECT_EQ(f.device.orders, (std::vector{std::pair{kCopy, kCompute}}));
  EXPECT_EQ(f.group.gauge().changes, changes);
  for (HeapNode* node : {wall, again, more}) f.heaps[0]->free(node);
}

TEST(PageHeap, AStreamTakesItsOwnPartOfARun) {
  HeapFixture f;
  PageHeap& heap = *f.heaps[0];
  const RunOfTwo run(heap, 16 * MiB, kCompute, kCopy);
  ASSERT_EQ(run.of_high, run.of_low + 8 * MiB);
  ASSERT_EQ(f.device.orders, (std::vector{std::pair{kCompute, kCopy}}));
  // Each end is in the order of one of them.
  HeapNode* high = heap.allocate_mapped(6 * MiB, 512, kCopy);
  EXPECT_GE(high->offset, run.of_high);
  HeapNode* low = heap.allocate_mapped(6 * MiB, 512, kCompute);
  EXPECT_EQ(low->offset, run.of_low);
  EXPECT_EQ(f.device.orders.size(), 1U);
  // What is left lies across the border.
  HeapNode* rest = heap.allocate_mapped(4 * MiB, 512, kCompute);
  ASSERT_NE(rest, nullptr);
  EXPECT_EQ(f.device.orders.size(), 2U);
  EXPECT_EQ(f.device.orders.back(), (std::pair{kCopy, kCompute}));
  for (HeapNode* node : {low, high, rest}) heap.free(node);
  EXPECT_EQ(broken(f.group), "");
}

TEST(PageHeap, MovedMemoryIsWaitedForWhereItServes) {
  HeapFixture f;
  f.device.lag = 1000;
  HeapNode* piece = f.heaps[0]->allocate(64 * MiB, 512, kCopy);
  HeapNode* wall = f.heaps[0]->allocate(64 * KiB, 512, kCompute);
  f.heaps[0]->free(piece);
  HeapNode* large = f.heaps[0]->allocate(96 * MiB, 512, kCompute);
  ASSERT_NE(large, nullptr);
  EXPECT_GT(f.group.counts().moved, 0U);
  EXPECT_EQ(f.device.orders, (std::vector{std::pair{kCopy, kCompute}}));
  EXPECT_EQ(f.device.waits, 0U);
  f.heaps[0]->free(wall);
  f.heaps[0]->free(large);
}

// Nothing can be recorded on a stream that is being captured: what it freed stays its own, or leaves; others get other
// memory.
TEST(PageHeap, WhatCannotBeWaitedForIsLeftAlone) {
  HeapFixture f;
  OrderModel order(f.device, kCell, 2);
  HeapNode* captured = f.heaps[0]->allocate(32 * MiB, 512, kCopy);
  EXPECT_EQ(order.allocated(*captured, *f.backings[0]), "");
  order.freed(*captured, *f.backings[0]);
  f.heaps[0]->free(captured);
  f.device.unordered.insert(kCopy);
  for (int i = 0; i < 4; ++i) {
    HeapNode* node = f.heaps[0]->allocate(16 * MiB, 512, kCompute);
    ASSERT_NE(node, nullptr);
    EXPECT_EQ(order.allocated(*node, *f.backings[0]), "");
  }
  EXPECT_EQ(f.group.counts().moved, 0U);
  EXPECT_NE(f.heaps[0]->allocate(16 * MiB, 512, kCopy), nullptr);
  EXPECT_EQ(broken(f.group), "");
}

// The first request of a second stream, while the first one is being captured.
TEST(PageHeap, TheFirstRequestOfAStreamGetsNothingThatItCannotWaitFor) {
  HeapFixture f;
  OrderModel order(f.device, kCell, 2);
  HeapNode* first = f.heaps[0]->allocate(4 * MiB, 512, kCompute);
  EXPECT_EQ(order.allocated(*first, *f.backings[0]), "");
  order.freed(*first, *f.backings[0]);
  f.heaps[0]->free(first);
  f.device.unordered.insert(kCompute);
  HeapNode* other = f.heaps[0]->allocate(2 * MiB, 512, kCopy);
  ASSERT_NE(other, nullptr);
  EXPECT_EQ(order.allocated(*other, *f.backings[0]), "");
}

// Memory of several streams side by side, one of which cannot be waited for: there is always another place.
TEST(PageHeap, RequestsAreServedHoweverManyStreamsFreedBesideACapturedOne) {
  constexpr std::uint64_t kStreams = 5, kMost = 25;
  constexpr StreamIndex kCaptured{kStreams};
  std::uint64_t served = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    HeapFixture f;
    std::mt19937_64 random(seed);
    const auto up_to = [&](std::uint64_t most) { return random() % most + 1; };
    std::vector<HeapNode*> live;
    for (int round = 0; round < 20; ++round) {
      for (int i = 0; i < 6; ++i) {
        f.heaps[0]->free(f.heaps[0]->allocate(align_up(up_to(24 * MiB), 512), 512, kCaptured));
      }
      f.device.unordered.insert(kCaptured);
      for (int step = 0; step < 200; ++step) {
        if (live.size() < kMost && random() % 2 != 0) {
          const std::uint64_t bytes = align_up(up_to(random() % 2 != 0 ? 24 * MiB : 2 * MiB), 512);
          HeapNode* node =
              f.heaps[0]->allocate(bytes, 512, StreamIndex{static_cast<std::uint16_t>(random() % kStreams)});
          ASSERT_NE(node, nullptr) << "seed " << seed << ", " << served << " were served";
          live.push_back(node);
          ++served;
        } else if (!live.empty()) {
          std::swap(live[random() % live.size()], live.back());
          f.heaps[0]->free(live.back());
          live.pop_back();
        }
      }
      f.device.unordered.clear();
    }
    EXPECT_EQ(broken(f.group), "");
  }
}

// At a limit, with the larger free pieces those of a stream that is being captured.
TEST(PageHeap, PiecesThatCannotBeWaitedForAreNoVictims) {
  HeapFixture f(HeapFixture::limited(64 * MiB));
  constexpr StreamIndex kThird{2};
  std::vector<HeapNode*> captured, own;
  while (HeapNode* node = f.heaps[0]->allocate(2 * kCell, 512, captured.size() < 5 ? kCopy : kThird)) {
    (captured.size() < 5 ? captured : own).push_back(node);
  }
  ASSERT_GT(own.size(), 4U);
  for (HeapNode* node : captured) f.heaps[0]->free(node);
  for (std::size_t i = 0; i < own.size(); i += 2) f.heaps[0]->free(own[i]);
  f.device.unordered.insert(kCopy);
  EXPECT_NE(f.heaps[0]->allocate(3 * kCell, 512, kCompute), nullptr);
  EXPECT_EQ(broken(f.group), "");
}

// However many runs of a captured stream are nearer in size.
TEST(PageHeap, TheOnlyReadyRunIsFound) {
  HeapFixture f(HeapFixture::limited(64 * MiB));
  std::vector<HeapNode*> captured, walls;
  HeapNode* const own = f.heaps[0]->allocate(3 * MiB, 512, kCompute);
  while (HeapNode* node = f.heaps[0]->allocate(5 * MiB / 2, 512, kCopy)) {
    captured.push_back(node);
    if (HeapNode* wall = f.heaps[0]->allocate(512, 512, kCompute)) walls.push_back(wall);
  }
  for (HeapNode* node : captured) f.heaps[0]->free(node);
  f.heaps[0]->free(own);
  f.device.unordered.insert(kCopy);
  EXPECT_NE(f.heaps[0]->allocate(2 * MiB + 512, 512, kCompute), nullptr);
}

TEST(HeapGroup, HeapsLendEachOtherPieces) {
  HeapFixture f(HeapFixture::defaults(), 2);
  f.heaps[0]->free(f.heaps[0]->allocate(256 * MiB, 512, kFirst));
  const std::uint64_t before = f.group.reserved();
  HeapNode* other = f.heaps[1]->allocate(200 * MiB, 512, kFirst);
  ASSERT_NE(other, nullptr);
  EXPECT_LE(f.group.reserved(), before + before / 25);
  EXPECT_GT(f.group.counts().moved, 0U);
  EXPECT_EQ(broken(f.group), "");
}

TEST(PageHeap, SegmentsAreNeverCrossed) {
  HeapConfig config = HeapFixture::defaults();
  config.virtual_memory = false;
  config.segment_bytes = 16 * MiB;
  HeapFixture f(config);
  std::vector<HeapNode*> nodes;
  for (int i = 0; i < 40; ++i) {
    nodes.push_back(f.heaps[0]->allocate(1536 * KiB, 512, kFirst));
    ASSERT_NE(nodes.back(), nullptr);
  }
  HeapNode* large = f.heaps[0]->allocate(40 * MiB, 512, kFirst);
  ASSERT_NE(large, nullptr);
  EXPECT_EQ(f.group.counts().moved, 0U);
  EXPECT_EQ(broken(f.group), "");
  for (HeapNode* n : nodes) f.heaps[0]->free(n);
  f.heaps[0]->free(large);
  f.group.trim(0, false);
  EXPECT_EQ(f.group.reserved(), 0U);
}

}  // namespace
}  // namespace cistern::core
