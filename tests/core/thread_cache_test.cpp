// Bins and their bound; claims by other threads, with and without races.
#include "core/thread_cache.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <thread>
#include <vector>

namespace cistern::core {
namespace {

class ThreadCacheTest : public testing::Test {
 protected:
  ThreadCacheTest() { cache_.set_up(classes_); }
  Block* make(std::uint64_t bytes) {
    blocks_.push_back(std::make_unique<Block>());
    Block* block = blocks_.back().get();
    block->capacity = bytes;
    if (bytes <= classes_.largest()) {
      block->bin = classes_.index(bytes);
      block->capacity = classes_.size(block->bin);
      block->flags = kBlockSlab;
    }
    return block;
  }
  static auto budget(std::uint64_t bytes) {
    return [bytes] { return bytes; };
  }
  static std::size_t length(const Chain& chain) {
    std::size_t n = 0;
    for (Block* block = chain.head; block != nullptr; block = block->next) ++n;
    return n;
  }

  SizeClasses classes_{64};
  ThreadCache cache_;
  std::vector<std::unique_ptr<Block>> blocks_;
};

TEST_F(ThreadCacheTest, HeldBlocksComeBackLastInFirstOut) {
  Chain spill;
  Block* a = make(256);
  Block* b = make(256);
  cache_.hold(a, spill);
  cache_.hold(b, spill);
  EXPECT_TRUE(cache_.check_invariants());
  EXPECT_EQ(cache_.held(), 512U);
  Bin& bin = cache_.bins[classes_.index(256)];
  EXPECT_EQ(ThreadCache::pop(bin), b);
  EXPECT_EQ(ThreadCache::pop(bin), a);
  EXPECT_EQ(ThreadCache::pop(bin), nullptr);
  EXPECT_EQ(spill.head, nullptr);
}

TEST_F(ThreadCacheTest, ExactSizesGetBinsOfTheirOwn) {
  Chain spill;
  EXPECT_EQ(cache_.find_exact(100 << 10), nullptr);
  cache_.hold(make(100 << 10), spill);
  cache_.hold(make(101 << 10), spill);
  ASSERT_NE(cache_.find_exact(100 << 10), nullptr);
  EXPECT_NE(cache_.find_exact(100 << 10), cache_.find_exact(101 << 10));
  // More sizes than there are bins: old ones leave, nothing is lost.
  for (std::uint64_t kib = 102; kib < 402; ++kib) cache_.hold(make(kib << 10), spill);
  EXPECT_TRUE(cache_.check_invariants());
  cache_.flush(spill);
  EXPECT_EQ(length(spill), blocks_.size());
  EXPECT_EQ(cache_.held(), 0U);
}

// Where memory is looked for again and again, most of a large refill would go back unused.
TEST_F(ThreadCacheTest, RefillsGrowUntilTheCacheIsFlushed) {
  Chain spill;
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(cache_.refill(0, 64), 4U);
    EXPECT_EQ(cache_.refill(0, 64), 16U);
    EXPECT_EQ(cache_.refill(1, 10), 4U) << "each class for itself";
    EXPECT_EQ(cache_.refill(1, 10), 10U);
    for (int i = 0; i < 300; ++i) EXPECT_EQ(cache_.refill(0, 64), 64U);
    EXPECT_EQ(cache_.refill(2, 1), 1U);
    cache_.flush(spill);
  }
  EXPECT_EQ(spill.head, nullptr);
}

TEST_F(ThreadCacheTest, TheBoundHoldsAndKeepsTheLastBlock) {
  std::mt19937_64 random(5);
  Chain spill;
  for (int i = 0; i < 2000; ++i) {
    cache_.hold(make(std::uint64_t{64} << (random() % 14)), spill);
    cache_.bound(budget(1 << 20), spill);
    ASSERT_LE(cache_.held(), 1U << 20);
  }
  EXPECT_TRUE(cache_.check_invariants());
  cache_.flush(spill);
  EXPECT_EQ(length(spill), blocks_.size());
  Block* whole = make(1 << 20);
  cache_.hold(whole, spill);
  cache_.bound(budget(1 << 20), spill);
  EXPECT_EQ(ThreadCache::pop(*cache_.find_exact(1 << 20)), whole);
}

TEST_F(ThreadCacheTest, OfASizeAboveTheBudgetTheNewestBlockStaysUnlessItIsVeryLarge) {
  Chain spill;
  cache_.hold(make(512 << 10), spill);
  Block* newest = make(512 << 10);
  cache_.hold(newest, spill);
  cache_.bound(budget(256 << 10), spill);
  EXPECT_EQ(cache_.held(), 512U << 10);
  EXPECT_EQ(cache_.find_exact(512 << 10)->head, newest);
  EXPECT_GE(cache_.account.bytes, cache_.account.low);
  cache_.hold(make(3 << 20), spill);
  cache_.bound(budget(256 << 10), spill);
  EXPECT_EQ(cache_.held(), 0U);
  EXPECT_TRUE(cache_.check_invariants());
}

TEST_F(ThreadCacheTest, TheBudgetIsAskedForWhenTheOldOneIsFull) {
  Chain spill;
  int asked = 0;
  const auto growing = [&] { return std::uint64_t{256 << 10} << asked++; };
  for (int i = 0; i < 8; ++i) {
    cache_.hold(make(64 << 10), spill);
    cache_.bound(growing, spill);
  }
  EXPECT_EQ(asked, 2);
  EXPECT_EQ(cache_.held(), 512U << 10);
  EXPECT_EQ(spill.head, nullptr);
}

TEST_F(ThreadCacheTest, TheWatermarkSaysWhenTheBinsAreFull) {
  Chain spill;
  cache_.add_live(1 << 20, 16);
  cache_.hold(make(64 << 10), spill);
  cache_.bound(budget(256 << 10), spill);
  // As the fast path does it: blocks become held one by one.
  int frees = 0;
  while (cache_.account.bytes >= cache_.account.low) {
    cache_.account.add(-(64 << 10), -1);
    ++frees;
  }
  EXPECT_EQ(frees, 4);  // 256 KiB, of which 64 are held, and one more.
}

TEST_F(ThreadCacheTest, ForgettingLeavesAnEmptyCache) {
  Chain spill;
  cache_.hold(make(64), spill);
  cache_.hold(make(64 << 10), spill);
  cache_.forget();
  EXPECT_EQ(cache_.held(), 0U);
  EXPECT_TRUE(cache_.check_invariants());
}

TEST_F(ThreadCacheTest, AClaimedBlockIsFoundInTheInboxOnce) {
  Block* block = make(64);
  block->owner = cache_.owner_of_bin(0);
  block->serial = 5;
  EXPECT_EQ(claim(block, &cache_, 5), Claim::done);
  EXPECT_EQ(claim(block, &cache_, 5), Claim::double_free);
  EXPECT_NE(block->owner & kAttention, 0U);
  Chain freed;
  LateFrees late;
  cache_.complete(cache_.take_inbox(), nullptr, freed, late);
  EXPECT_EQ(length(freed), 1U);
  EXPECT_EQ(late.count, 0);
  EXPECT_EQ(block->serial, 6U);
  EXPECT_EQ(block->remote, 0U);
}

// Lists of different lengths, an empty one, and one alone.
TEST_F(ThreadCacheTest, TheInboxGivesEveryBlockOnceWhateverListItWasIn) {
  constexpr std::size_t kBlocks = 256;
  const std::unique_ptr<Block[]> blocks(new Block[kBlocks]);
  std::mt19937_64 random(7);
  for (std::size_t round = 0; round < 200; ++round) {
    std::size_t pushed = 0;
    for (std::size_t i = 0; i < kBlocks; ++i) {
      const std::size_t lane = i % ThreadCache::kLanes;
      if ((round >> lane) % 2 == 0 || random() % (1 + lane * 8) != 0) continue;
      Block& block = blocks[i];
      block.owner = cache_.owner_of_bin(0);
      block.serial = block.serial + 1;
      ASSERT_EQ(claim(&block, &cache_, block.serial), Claim::done);
      ++pushed;
    }
    EXPECT_EQ(cache_.inbox_empty(), pushed == 0);
    Block* const taken = cache_.take_inbox();
    EXPECT_TRUE(cache_.inbox_empty());
    Chain freed;
    LateFrees late;
    cache_.complete(taken, nullptr, freed, late);
    ASSERT_EQ(length(freed), pushed);
    ASSERT_EQ(late.count, 0);
    for (std::size_t i = 0; i < kBlocks; ++i) ASSERT_EQ(blocks[i].serial % 2, 0U);
  }
}

TEST_F(ThreadCacheTest, WhatDifferentThreadsWriteIsApart) {
  const auto pair_of_lines = [this](const void* field) {
    return (reinterpret_cast<std::uintptr_t>(field) - reinterpret_cast<std::uintptr_t>(&cache_)) / 128;
  };
  const std::uintptr_t own = pair_of_lines(&cache_.account), others = pair_of_lines(&cache_.inbox);
  EXPECT_NE(own, others);
  EXPECT_EQ(others, pair_of_lines(&cache_.inbox.back()));
  for (const void* read : {static_cast<const void*>(&cache_.thread), static_cast<const void*>(&cache_.fast_thread),
                           static_cast<const void*>(&cache_.front)}) {
    EXPECT_NE(pair_of_lines(read), own);
    EXPECT_NE(pair_of_lines(read), others);
  }
}

TEST_F(ThreadCacheTest, ALostClaimIsCountedAndALaterOneWins) {
  Block* block = make(64);
  block->owner = cache_.owner_of_bin(0);
  block->serial = 5;
  claim(block, &cache_, 5);
  block->serial = 7;  // The owner freed it at the same instant, and handed it out again.
  Chain freed;
  LateFrees late;
  cache_.complete(cache_.take_inbox(), nullptr, freed, late);
  EXPECT_EQ(freed.head, nullptr);
  EXPECT_EQ(late.count, 1);
  claim(block, &cache_, 7);
  block->serial = 9;
  EXPECT_EQ(claim(block, &cache_, 9), Claim::over_stale);  // Without a second link.
  cache_.complete(cache_.take_inbox(), nullptr, freed, late);
  EXPECT_EQ(length(freed), 1U);
  EXPECT_EQ(late.count, 1);
  EXPECT_TRUE(cache_.inbox_empty());
}

TEST_F(ThreadCacheTest, ABlockInUseStaysInTheInbox) {
  Block* block = make(64);
  block->owner = cache_.owner_of_bin(0);
  block->serial = 5;
  claim(block, &cache_, 5);
  Chain freed;
  LateFrees late;
  cache_.complete(cache_.take_inbox(), block, freed, late);
  EXPECT_EQ(freed.head, nullptr);
  EXPECT_FALSE(cache_.inbox_empty());
}

TEST_F(ThreadCacheTest, AValidClaimFollowsTheBlockToItsOwner) {
  ThreadCache other;
  other.set_up(classes_);
  Block* block = make(64);
  block->owner = cache_.owner_of_bin(0);
  block->serial = 5;
  claim(block, &cache_, 5);
  block->serial = 7;
  block->owner = other.owner_of_bin(0);  // Moved on while an old claim kept it linked here.
  EXPECT_EQ(claim(block, &other, 7), Claim::over_stale);
  Chain freed;
  LateFrees late;
  cache_.complete(cache_.take_inbox(), nullptr, freed, late);
  EXPECT_EQ(freed.head, nullptr);
  other.complete(other.take_inbox(), nullptr, freed, late);
  EXPECT_EQ(length(freed), 1U);
}

TEST_F(ThreadCacheTest, OfManyThreadsOneWinsEachBlock) {
  constexpr std::size_t kBlocks = 2000;
  for (std::size_t i = 0; i < kBlocks; ++i) {
    Block* block = make(64);
    block->owner = cache_.owner_of_bin(0);
    block->serial = 1;
  }
  std::atomic<std::size_t> won{0}, lost{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (const auto& block : blocks_) ++(claim(block.get(), &cache_, 1) == Claim::done ? won : lost);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(won, kBlocks);
  EXPECT_EQ(lost, 3 * kBlocks);
  Chain freed;
  LateFrees late;
  cache_.complete(cache_.take_inbox(), nullptr, freed, late);
  EXPECT_EQ(length(freed), kBlocks);
}

}  // namespace
}  // namespace cistern::core
