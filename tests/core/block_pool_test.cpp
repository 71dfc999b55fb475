// Descriptors: recycling, the way back to the allocator, and life after the pool.
#include "core/block_pool.hpp"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace cistern::core {
namespace {

TEST(BlockPool, HandsOutDistinctBlocksThatLeadToTheOwner) {
  int owner = 0;
  BlockPool pool(&owner, false);
  std::set<Block*> blocks;
  for (std::size_t i = 0; i < 3 * BlockPool::kBlocksPerChunk; ++i) {
    Block* block = pool.take();
    ASSERT_NE(block, nullptr);
    EXPECT_TRUE(blocks.insert(block).second);
    EXPECT_EQ(BlockPool::owner_of(block), &owner);
    EXPECT_EQ(BlockPool::object_of(block), nullptr);
  }
  EXPECT_EQ(pool.used(), blocks.size());
  for (Block* block : blocks) pool.give(block);
  EXPECT_EQ(pool.used(), 0U);
  EXPECT_EQ(pool.bytes(), 3 * BlockPool::kChunkBytes);
}

TEST(BlockPool, GivenBlocksServeAgainWithTheirSerial) {
  BlockPool pool(nullptr, false);
  Block* block = pool.take();
  block->serial = 42;
  pool.give(block);
  EXPECT_EQ(pool.take(), block);
  EXPECT_EQ(block->serial, 42U);
}

TEST(BlockPool, ObjectsAreBesideTheirBlocks) {
  BlockPool pool(nullptr, true);
  Block* a = pool.take();
  Block* b = pool.take();
  BlockPool::object_of(a)->offset = 1;
  BlockPool::object_of(b)->offset = 2;
  EXPECT_EQ(BlockPool::object_of(a)->offset, 1U);
  EXPECT_EQ(BlockPool::object_of(b)->offset, 2U);
}

TEST(BlockPool, BlocksOutliveThePoolAndAreDead) {
  int owner = 0;
  Block* block = nullptr;
  {
    BlockPool pool(&owner, false);
    block = pool.take();
    block->serial = 7;
  }
  EXPECT_EQ(block->serial % 2, 0U);
  EXPECT_GT(block->serial, 7U);
  EXPECT_EQ(BlockPool::owner_of(block), nullptr);
  // The next pool takes the chunk over; serials go on.
  BlockPool next(&owner, true);
  std::vector<Block*> taken;
  for (std::size_t i = 0; i < BlockPool::kBlocksPerChunk; ++i) taken.push_back(next.take());
  EXPECT_EQ(BlockPool::owner_of(taken.front()), &owner);
  EXPECT_NE(BlockPool::object_of(taken.front()), nullptr);
}

}  // namespace
}  // namespace cistern::core
