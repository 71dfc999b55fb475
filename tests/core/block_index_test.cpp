// From addresses to blocks: exact starts only, far addresses, slabs, readers beside a writer.
#include "core/block_index.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "core/slab.hpp"

namespace cistern::core {
namespace {

constexpr std::uint64_t kGranule = std::uint64_t{1} << BlockIndex::kGranuleBits;
constexpr std::uint64_t kReach = std::uint64_t{1} << BlockIndex::kAddressBits;

// What a block of the heap of pages looks like to the index.
void place(Block& block, std::uint64_t address) {
  block.address = address;
  block.home = &block;
  block.flags = 0;
}

// What giving a block back leaves.
void drop(Block& block) { block.home = nullptr; }
void drop(Slab& slab) {
  slab.block_bytes = 0;
  for (auto& block : slab.blocks) block = nullptr;
}

TEST(BlockIndex, FindsWhatWasInserted) {
  BlockIndex index;
  std::array<Block, 4> blocks;
  const std::array<std::uint64_t, 4> at{kGranule, kReach - kGranule, std::uint64_t{1} << 40, 2 * kGranule};
  EXPECT_EQ(index.find(0), nullptr);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    place(blocks[i], at[i]);
    ASSERT_TRUE(index.insert(&blocks[i]));
    for (std::size_t j = 0; j < blocks.size(); ++j) EXPECT_EQ(index.find(at[j]), j <= i ? &blocks[j] : nullptr);
  }
  EXPECT_EQ(index.find(kGranule + 512), nullptr);
  EXPECT_EQ(index.find(3 * kGranule), nullptr);
}

TEST(BlockIndex, RefusesAddressesOutOfReach) {
  BlockIndex index;
  Block block;
  for (const std::uint64_t address : {kReach, UINT64_MAX - kGranule + 1}) {
    place(block, address);
    EXPECT_FALSE(index.insert(&block));
  }
  EXPECT_EQ(index.find(UINT64_MAX), nullptr);
}

// Against a map: blocks of pages and slabs come and go in a few cells, descriptors serve again elsewhere.
TEST(BlockIndex, FollowsAMap) {
  constexpr std::uint64_t kBase = std::uint64_t{7} << 36, kGranules = 2048, kSlabGranules = 3;
  BlockIndex index;
  std::vector<Block> blocks(300);
  auto slabs = std::make_unique<std::array<Slab, 8>>();
  std::array<Block, 8> first_of_slab;
  std::map<std::uint64_t, Block*> live;  // By granule; those of a slab too, null but the first.
  std::map<std::uint64_t, Slab*> live_slabs;
  std::vector<Block*> spare_blocks;
  std::vector<std::size_t> spare_slabs{0, 1, 2, 3, 4, 5, 6, 7};
  for (Block& block : blocks) spare_blocks.push_back(&block);
  std::mt19937_64 random(20261129);
  const auto below = [&](std::uint64_t n) { return random() % n; };
  for (int step = 0; step < 200000; ++step) {
    const std::uint64_t at = below(4) == 0 ? below(32) : below(kGranules - kSlabGranules);
    const std::uint64_t address = kBase + at * kGranule;
    if (const auto found = live_slabs.find(at); found != live_slabs.end()) {
      drop(*found->second);
      for (std::uint64_t i = 0; i < kSlabGranules; ++i) live.erase(at + i);
      spare_slabs.push_back(static_cast<std::size_t>(found->second - slabs->data()));
      live_slabs.erase(found);
    } else if (const auto block = live.find(at); block != live.end()) {
      if (block->second == nullptr) continue;
      drop(*block->second);
      spare_blocks.push_back(block->second);
      live.erase(block);
    } else if (!spare_slabs.empty() && below(8) == 0 && !live.contains(at + 1) && !live.contains(at + 2)) {
      const std::size_t chosen = spare_slabs.back();
      spare_slabs.pop_back();
      Slab& slab = (*slabs)[chosen];
      Block& block = first_of_slab[chosen];
      place(block, address);
      block.flags = kBlockSlab;
      slab.base = address;
      slab.block_bytes = kGranule;
      slab.blocks[0] = &block;
      ASSERT_TRUE(index.insert(address, kSlabGranules * kGranule, &slab));
      for (std::uint64_t i = 0; i < kSlabGranules; ++i) live[at + i] = i == 0 ? &block : nullptr;
      live_slabs[at] = &slab;
    } else if (!spare_blocks.empty()) {
      const std::size_t chosen = static_cast<std::size_t>(below(spare_blocks.size()));
      Block* const block = spare_blocks[chosen];
      spare_blocks.erase(spare_blocks.begin() + static_cast<std::ptrdiff_t>(chosen));
      place(*block, address);
      ASSERT_TRUE(index.insert(block));
      live[at] = block;
    }
    if (step % 64 != 0) continue;
    for (const auto& [granule, block] : live) {
      ASSERT_EQ(index.find(kBase + granule * kGranule), block) << "step " << step << ", granule " << granule;
    }
  }
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
  drop(*slab);
  EXPECT_EQ(index.find(1 << 20), nullptr);
}

TEST(BlockIndex, ReadersNeedNoLock) {
  BlockIndex index;
  std::array<Block, 64> blocks;
  for (std::size_t i = 0; i < blocks.size(); ++i) place(blocks[i], i * 3 * kGranule);
  std::atomic<std::size_t> known{0};
  std::atomic<bool> stop{false};
  std::thread reader([&] {
    while (!stop) {
      const std::size_t count = known;
      for (std::size_t i = 0; i < blocks.size(); ++i) {
        Block* found = index.find(i * 3 * kGranule);
        ASSERT_TRUE(found == &blocks[i] || (i >= count && found == nullptr));
      }
    }
  });
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    ASSERT_TRUE(index.insert(&blocks[i]));
    known = i + 1;
    std::this_thread::yield();
  }
  stop = true;
  reader.join();
}

// Slots are taken over, and get nodes below, beside blocks that live on: no reader ever misses one of these.
TEST(BlockIndex, ReadersFindWhatLivesWhileOthersComeAndGo) {
  constexpr std::uint64_t kGranules = 1024, kEvery = 61;
  BlockIndex index;
  std::vector<Block> lasting(kGranules / kEvery), passing(40);
  for (std::size_t i = 0; i < lasting.size(); ++i) {
    place(lasting[i], i * kEvery * kGranule);
    ASSERT_TRUE(index.insert(&lasting[i]));
  }
  auto slab = std::make_unique<Slab>();
  std::atomic<bool> stop{false};
  std::thread reader([&] {
    while (!stop) {
      for (std::size_t i = 0; i < lasting.size(); ++i) ASSERT_EQ(index.find(i * kEvery * kGranule), &lasting[i]);
      for (std::uint64_t at = 1; at < kGranules; at += 7) {
        const Block* const found = index.find(at * kGranule);
        ASSERT_TRUE(found == nullptr || found->address % kGranule == 0);
      }
    }
  });
  std::mt19937_64 random(11);
  for (int step = 0; step < 100000; ++step) {
    const std::uint64_t at = random() % (kGranules - 1);
    if (at % kEvery == 0) continue;
    Block& block = passing[random() % passing.size()];
    drop(block);
    place(block, at * kGranule);
    ASSERT_TRUE(index.insert(&block));
    ASSERT_EQ(index.find(at * kGranule), &block);
    if (step % 16 != 0 || (at + 1) % kEvery == 0) continue;
    drop(block);
    ASSERT_TRUE(index.insert(at * kGranule, 2 * kGranule, slab.get()));
  }
  stop = true;
  reader.join();
}

}  // namespace
}  // namespace cistern::core
