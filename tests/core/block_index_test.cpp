// From addresses to blocks: exact starts only, far addresses, slabs, readers beside a writer.
#include "core/block_index.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>

#include "core/slab.hpp"

namespace cistern::core {
namespace {

TEST(BlockIndex, FindsWhatWasInserted) {
  BlockIndex index;
  Block near_block, far_block;
  const std::uint64_t far_address = (std::uint64_t{1} << BlockIndex::kAddressBits) - 8192;
  EXPECT_EQ(index.find(0), nullptr);
  ASSERT_TRUE(index.insert(8192, &near_block));
  ASSERT_TRUE(index.insert(far_address, &far_block));
  EXPECT_EQ(index.find(8192), &near_block);
  EXPECT_EQ(index.find(far_address), &far_block);
  EXPECT_EQ(index.find(16384), nullptr);
  index.erase(8192);
  EXPECT_EQ(index.find(8192), nullptr);
  EXPECT_EQ(index.find(far_address), &far_block);
}

TEST(BlockIndex, RefusesAddressesOutOfReach) {
  BlockIndex index;
  Block block;
  EXPECT_FALSE(index.insert(std::uint64_t{1} << BlockIndex::kAddressBits, &block));
  EXPECT_FALSE(index.insert(UINT64_MAX - 8191, &block));
  EXPECT_EQ(index.find(UINT64_MAX), nullptr);
}

TEST(BlockIndex, SlabsAreFoundByExactStart) {
  BlockIndex index;
  auto slab = std::make_unique<Slab>();
  Block first, third;
  slab->base = 1 << 20;
  slab->block_bytes = 192;
  slab->blocks[0] = &first;
  slab->blocks[2] = &third;
  ASSERT_TRUE(index.insert(1 << 20, 16384, slab.get()));
  EXPECT_EQ(index.find(1 << 20), &first);
  EXPECT_EQ(index.find((1 << 20) + 384), &third);
  EXPECT_EQ(index.find((1 << 20) + 192), nullptr);
  EXPECT_EQ(index.find((1 << 20) + 385), nullptr);
  EXPECT_EQ(index.find((1 << 20) + 16000), nullptr);
  index.erase(1 << 20, 16384);
  EXPECT_EQ(index.find(1 << 20), nullptr);
}

TEST(BlockIndex, ReadersNeedNoLock) {
  BlockIndex index;
  Block block;
  std::atomic<bool> stop{false};
  std::thread reader([&] {
    while (!stop) {
      for (std::uint64_t at = 0; at < 64; ++at) {
        Block* found = index.find(at << 24);
        ASSERT_TRUE(found == nullptr || found == &block);
      }
    }
  });
  for (int round = 0; round < 200; ++round) {
    for (std::uint64_t at = 0; at < 64; ++at) ASSERT_TRUE(index.insert(at << 24, &block));
    for (std::uint64_t at = 0; at < 64; ++at) index.erase(at << 24);
  }
  stop = true;
  reader.join();
}

}  // namespace
}  // namespace cistern::core
