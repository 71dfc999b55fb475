// Heaps without virtual memory: segments that serve several streams, alignment above the usual.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/fake_backing.hpp"
#include "core/page_heap.hpp"

namespace cistern::core {
namespace {

constexpr StreamIndex kFirst{0};

std::string broken(const HeapGroup& group) {
  std::string text;
  for (const auto& message : group.check_invariants()) text += message + "\n";
  return text;
}

class Segments : public ::testing::Test {
 protected:
  void start(int heap_count, std::uint64_t limit = UINT64_MAX) {
    HeapConfig config;
    config.cell_bytes = MiB;
    config.alignment = 256;
    config.range_bytes = 2 * GiB;
    config.limit_bytes = limit;
    config.virtual_memory = false;
    group = std::make_unique<HeapGroup>(config);
    for (int i = 0; i < heap_count; ++i) {
      backings.push_back(std::make_unique<FakeBacking>(device));
      heaps.push_back(&group->add_heap(*backings.back()));
    }
  }
  void TearDown() override {
    EXPECT_EQ(broken(*group), "");
    group->trim(0, true);
    EXPECT_EQ(group->reserved(), 0U);
    EXPECT_TRUE(device.pieces.empty());
  }

  FakeDevice device;
  std::vector<std::unique_ptr<FakeBacking>> backings;
  std::unique_ptr<HeapGroup> group;
  std::vector<PageHeap*> heaps;
};

// Its old work is not done: the other stream waits on the device, the host does not.
TEST_F(Segments, AFreeSegmentServesAnotherStream) {
  start(1);
  device.lag = 1000;
  constexpr StreamIndex kSecond{1};
  heaps[0]->free(heaps[0]->allocate(20 * MiB, 256, kFirst));
  HeapNode* b = heaps[0]->allocate(18 * MiB, 256, kSecond);
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(group->counts().created, 1U);
  EXPECT_EQ(device.orders, (std::vector{std::pair{kFirst, kSecond}}));
  EXPECT_EQ(device.waits, 0U);
  HeapNode* c = heaps[0]->allocate_mapped(2 * MiB, 256, kSecond);
  ASSERT_NE(c, nullptr);
  EXPECT_EQ(device.orders.size(), 1U) << "one wait covers all of it";
  heaps[0]->free(b);
  heaps[0]->free(c);
}

// A block keeps a segment from leaving when it is the only one in it.
TEST_F(Segments, ABlockPinsOnlyAFreeSegment) {
  start(1);
  HeapNode* all = heaps[0]->allocate(20 * MiB, 256, kFirst);
  const std::uint64_t at = all->offset;
  heaps[0]->free(all);
  HeapNode* low = heaps[0]->allocate_mapped(8 * MiB, 256, kFirst);
  HeapNode* high = heaps[0]->allocate_mapped(12 * MiB, 256, kFirst);
  ASSERT_EQ(low->offset, at);
  ASSERT_EQ(high->offset, at + 8 * MiB);
  heaps[0]->free(low);
  EXPECT_EQ(heaps[0]->left_at(at, 2 * MiB, kFirst), 6 * MiB);
  EXPECT_EQ(heaps[0]->left_at(at + 2 * MiB, 2 * MiB, kFirst), 6 * MiB);
  heaps[0]->free(high);
  EXPECT_EQ(heaps[0]->left_at(at, 2 * MiB, kFirst), UINT64_MAX);
  EXPECT_EQ(heaps[0]->left_at(at + 2 * MiB, 2 * MiB, kFirst), UINT64_MAX);
  EXPECT_EQ(heaps[0]->left_at(at, 20 * MiB, kFirst), 0U);
}

// Heaps keep their segments: an address in one is no address in another.
TEST_F(Segments, AnotherHeapMakesItsOwn) {
  start(2);
  heaps[0]->free(heaps[0]->allocate(8 * MiB, 256, kFirst));
  HeapNode* b = heaps[1]->allocate(8 * MiB, 256, kFirst);
  EXPECT_EQ(group->counts().moved, 0U);
  heaps[1]->free(b);
}

// Blocks with a large alignment are placed where they fit, however many runs are too crooked for them.
TEST_F(Segments, AlignedBlocksFindTheirPlace) {
  start(1);
  std::vector<HeapNode*> nodes;
  for (int i = 0; i < 60; ++i) {
    nodes.push_back(heaps[0]->allocate(256, 256, kFirst));
    nodes.push_back(heaps[0]->allocate(96 * KiB, 256, kFirst));
  }
  for (std::size_t i = 1; i < nodes.size(); i += 2) heaps[0]->free(nodes[i]);  // 60 runs of 96 KiB and a rest.
  const std::uint64_t held = group->reserved();
  std::vector<HeapNode*> aligned;
  for (int i = 0; i < 20; ++i) {
    HeapNode* node = heaps[0]->allocate(96 * KiB - 4096, 64 * KiB, kFirst);
    ASSERT_NE(node, nullptr);
    EXPECT_EQ(node->offset % (64 * KiB), 0U);
    aligned.push_back(node);
  }
  EXPECT_LE(group->reserved(), held + 4 * MiB) << "no segment for each";
  HeapNode* whole = heaps[0]->allocate(3 * MiB, 4 * MiB, kFirst);
  ASSERT_NE(whole, nullptr) << "an alignment above a cell";
  EXPECT_EQ(whole->offset % (4 * MiB), 0U);
  heaps[0]->free(whole);
  for (HeapNode* node : aligned) heaps[0]->free(node);
  for (std::size_t i = 0; i < nodes.size(); i += 2) heaps[0]->free(nodes[i]);
}

}  // namespace
}  // namespace cistern::core
