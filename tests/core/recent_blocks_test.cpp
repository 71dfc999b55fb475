// Which of the blocks that came back lately serve a request without a search.
#include "core/recent_blocks.hpp"

#include <gtest/gtest.h>

#include <array>
#include <set>

namespace cistern::core {
namespace {

class RecentBlocksTest : public testing::Test {
 protected:
  // A block at `address` over a live node whose neighbour below is in `state`.
  Block* make(std::uint64_t bytes, std::uint64_t address = 4096, NodeState below = NodeState::live, bool idle = false) {
    HeapNode& before = nodes_[2 * used_];
    HeapNode& node = nodes_[2 * used_ + 1];
    Block& block = blocks_[used_++];
    before.state = below;
    before.idle = idle;
    node.prev = &before;
    block.home = &node;
    block.capacity = bytes;
    block.address = address;
    return &block;
  }

  RecentBlocks recent_{true};
  std::array<Block, 32> blocks_{};
  std::array<HeapNode, 64> nodes_{};
  std::size_t used_ = 0;
};

TEST_F(RecentBlocksTest, GivesTheNewestOfExactlyTheSize) {
  Block* first = make(1 << 20);
  Block* other = make(2 << 20);
  Block* second = make(1 << 20);
  for (Block* block : {first, other, second}) EXPECT_EQ(recent_.put(block), nullptr);
  EXPECT_EQ(recent_.take((1 << 20) + 64, 64), nullptr);
  EXPECT_EQ(recent_.take(1 << 20, 64), second);
  EXPECT_EQ(recent_.take(1 << 20, 64), first);
  EXPECT_EQ(recent_.take(1 << 20, 64), nullptr);
  EXPECT_EQ(recent_.take_newest(), other);
  EXPECT_TRUE(recent_.empty());
  EXPECT_EQ(recent_.take_newest(), nullptr);
}

TEST_F(RecentBlocksTest, PassesOverBlocksThatASearchWouldMoveDown) {
  EXPECT_EQ(recent_.put(make(1 << 20, 4096, NodeState::run)), nullptr);
  EXPECT_EQ(recent_.put(make(1 << 20, 4096, NodeState::live, true)), nullptr);
  EXPECT_EQ(recent_.take(1 << 20, 64), nullptr);
  Block* good = make(1 << 20);
  EXPECT_EQ(recent_.put(good), nullptr);
  EXPECT_EQ(recent_.take(1 << 20, 64), good);
}

// Where the host runs ahead stretches of memory lie between addresses that pieces left.
TEST_F(RecentBlocksTest, AfterAddressesThatShowNothingOnlyBehindTheHost) {
  RecentBlocks at_once(false);
  for (const NodeState below : {NodeState::gap, NodeState::stale}) {
    Block* const block = make(1 << 20, 4096, below);
    EXPECT_EQ(recent_.put(block), nullptr);
    EXPECT_EQ(recent_.take(1 << 20, 64), block);
    EXPECT_EQ(at_once.put(block), nullptr);
    EXPECT_EQ(at_once.take(1 << 20, 64), nullptr);
  }
}

TEST_F(RecentBlocksTest, RespectsTheAlignment) {
  Block* odd = make(1 << 20, 4096 + 512);
  Block* even = make(1 << 20, 8192);
  EXPECT_EQ(recent_.put(even), nullptr);
  EXPECT_EQ(recent_.put(odd), nullptr);
  EXPECT_EQ(recent_.take(1 << 20, 4096), even);
  EXPECT_EQ(recent_.take(1 << 20, 4096), nullptr);
  EXPECT_EQ(recent_.take(1 << 20, 512), odd);
}

TEST_F(RecentBlocksTest, PushesTheOldestOutAndLosesNone) {
  std::set<Block*> out;
  for (std::size_t i = 0; i < 20; ++i) {
    Block* oldest = recent_.put(make((i + 1) << 20));
    EXPECT_EQ(oldest, i < RecentBlocks::kMost ? nullptr : &blocks_[i - RecentBlocks::kMost]);
    if (oldest != nullptr) out.insert(oldest);
  }
  while (Block* block = recent_.take_newest()) out.insert(block);
  EXPECT_EQ(out.size(), 20U);
}

}  // namespace
}  // namespace cistern::core
