// Tests of RunBins: every bin in use, and random changes against a plain search.
#include "core/run_bins.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>
#include <vector>

namespace cistern::core {
namespace {

// The first of a plain search through all nodes is in the same bin, and the list has all of them from there on.
void expect_found(const RunBins& bins, const std::vector<HeapNode*>& nodes, std::uint64_t size) {
  std::uint32_t least = UINT32_MAX;
  std::size_t count = 0;
  for (const HeapNode* node : nodes) {
    const std::uint32_t bin = RunBins::bin_of(node->size);
    if (bin < RunBins::bin_of(size)) continue;
    least = std::min(least, bin);
    ++count;
  }
  const HeapNode* found = bins.first_from(size);
  ASSERT_EQ(found == bins.end(), count == 0) << size;
  if (count != 0) {
    ASSERT_EQ(RunBins::bin_of(found->size), least) << size;
  }
  for (std::uint32_t bin = least; found != bins.end(); found = found->bin_next, --count) {
    ASSERT_GT(count, 0U);
    ASSERT_GE(RunBins::bin_of(found->size), bin) << "small bins first";
    bin = RunBins::bin_of(found->size);
  }
  EXPECT_EQ(count, 0U);
}

TEST(RunBins, TheEndIsFollowedByItself) {
  RunBins bins;
  EXPECT_EQ(bins.first_from(64), bins.end());
  EXPECT_EQ(bins.end()->bin_next, bins.end());
  EXPECT_EQ(bins.end()->size, 0U);
  EXPECT_EQ(bins.largest(), nullptr);
}

TEST(RunBins, EveryBinMayBeInUse) {
  std::vector<std::uint64_t> sizes;
  for (std::uint64_t units = 1; units < 16; ++units) sizes.push_back(64 * units);
  for (unsigned log = 4; log < 58; ++log) {
    for (std::uint64_t step = 16; step < 32; ++step) sizes.push_back(64 * (step << (log - 4)));
  }
  std::deque<HeapNode> made(sizes.size());
  std::vector<HeapNode*> nodes;
  RunBins bins;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    made[i].size = sizes[i];
    bins.insert(&made[i]);
    nodes.push_back(&made[i]);
    EXPECT_EQ(bins.first_from(sizes[i]), &made[i]);
    EXPECT_EQ(bins.largest(), &made[i]);
  }
  for (std::size_t i = 0; i < sizes.size(); ++i) EXPECT_EQ(bins.first_from(sizes[i]), &made[i]);
  std::shuffle(nodes.begin(), nodes.end(), std::mt19937_64(1));
  while (!nodes.empty()) {
    const std::uint64_t size = nodes.back()->size;
    bins.remove(nodes.back());
    nodes.pop_back();
    expect_found(bins, nodes, size);
  }
}

TEST(RunBins, RandomChanges) {
  std::mt19937_64 random(7);
  std::deque<HeapNode> made(200);
  std::vector<HeapNode*> in, out;
  for (HeapNode& node : made) out.push_back(&node);
  RunBins bins;
  const auto any_size = [&] { return 64 + (random() >> (random() % 50 + 8)) / 64 * 64; };
  for (int step = 0; step < 5000; ++step) {
    std::vector<HeapNode*>& from = in.empty() || (!out.empty() && random() % 2 == 0) ? out : in;
    std::swap(from[random() % from.size()], from.back());
    HeapNode* const node = from.back();
    if (&from == &out) {
      node->size = any_size();
      bins.insert(node);
      in.push_back(node);
      out.pop_back();
    } else if (random() % 2 == 0) {
      bins.resize(node, any_size());
    } else {
      bins.remove(node);
      out.push_back(node);
      in.pop_back();
    }
    expect_found(bins, in, any_size());
    expect_found(bins, in, 0);
    std::uint64_t largest = 0;
    for (const HeapNode* run : in) largest = std::max(largest, run->size);
    const HeapNode* found = bins.largest();
    EXPECT_EQ(found == nullptr ? 0 : found->size, largest);
  }
}

// Also one that no range has: nothing is found, and nothing else is read.
TEST(RunBins, EverySizeHasABin) {
  RunBins bins;
  HeapNode node;
  node.size = std::uint64_t{1} << 40;
  bins.insert(&node);
  for (unsigned log = 41; log < 64; ++log) EXPECT_EQ(bins.first_from(std::uint64_t{1} << log), bins.end());
  EXPECT_EQ(bins.first_from(UINT64_MAX), bins.end());
}

}  // namespace
}  // namespace cistern::core
