// Slabs: states, conservation, release.
#include "core/slab.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "core/page_heap.hpp"

namespace cistern::core {
namespace {

class SlabStoreTest : public testing::Test {
 protected:
  Block* take(std::uint8_t bin) {
    Block* block = store_.take(bin);
    if (block != nullptr) return block;
    nodes_.push_back(std::make_unique<HeapNode>());
    next_ += 65536;
    EXPECT_NE(store_.add(bin, nodes_.back().get(), next_), nullptr);
    return store_.take(bin);
  }
  void expect_sound() {
    const auto broken = store_.check_invariants();
    EXPECT_TRUE(broken.empty()) << broken.front();
  }

  SizeClasses classes_{64};
  BlockPool pool_{nullptr, false};
  SlabStore store_{classes_, pool_};
  std::vector<std::unique_ptr<HeapNode>> nodes_;
  std::uint64_t next_ = 0;
};

TEST_F(SlabStoreTest, BlocksOfASlabDoNotOverlap) {
  const std::uint8_t bin = classes_.index(700);
  std::set<std::uint64_t> starts;
  for (std::size_t i = 0; i < classes_.per_slab(bin); ++i) {
    Block* block = take(bin);
    EXPECT_EQ(block->capacity, classes_.size(bin));
    EXPECT_EQ((block->address - 65536) % classes_.size(bin), 0U);
    EXPECT_TRUE(starts.insert(block->address).second);
    EXPECT_EQ(static_cast<Slab*>(block->home)->block_at(block->address), block);
    expect_sound();
  }
  EXPECT_EQ(store_.slabs(), 1U);
  EXPECT_EQ(store_.free_bytes(), 0U);
  EXPECT_EQ(store_.take(bin), nullptr);
}

TEST_F(SlabStoreTest, OneEmptySlabAClassIsKept) {
  const std::uint8_t bin = 0;
  std::vector<Block*> blocks;
  for (std::size_t i = 0; i < 3 * classes_.per_slab(bin); ++i) blocks.push_back(take(bin));
  EXPECT_EQ(store_.slabs(), 3U);
  std::size_t released = 0;
  for (Block* block : blocks) {
    if (Slab* slab = store_.give(block)) {
      EXPECT_NE(store_.release(slab), nullptr);
      ++released;
    }
    expect_sound();
  }
  EXPECT_EQ(released, 2U);
  Slab* last = store_.take_empty();
  ASSERT_NE(last, nullptr);
  store_.release(last);
  EXPECT_EQ(store_.take_empty(), nullptr);
  EXPECT_EQ(store_.slabs(), 0U);
  EXPECT_EQ(pool_.used(), 0U);
  expect_sound();
}

TEST_F(SlabStoreTest, RandomOperationsConserveBlocks) {
  std::mt19937_64 random(7);
  std::vector<Block*> out;
  for (int step = 0; step < 20000; ++step) {
    if (out.empty() || random() % 100 < 52) {
      out.push_back(take(static_cast<std::uint8_t>(random() % classes_.count())));
    } else {
      std::swap(out[random() % out.size()], out.back());
      if (Slab* slab = store_.give(out.back())) store_.release(slab);
      out.pop_back();
    }
    if (step % 500 == 0) expect_sound();
  }
  std::uint64_t sum = store_.free_bytes();
  for (Block* block : out) sum += block->capacity;
  std::uint64_t all = 0;
  store_.for_each([&](const Slab& slab) { all += std::uint64_t{slab.capacity} * slab.block_bytes; });
  EXPECT_EQ(sum, all);
}

}  // namespace
}  // namespace cistern::core
