// Heaps without virtual memory: segments that go from heap to heap, alignment above the usual.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "core/fake_backing.hpp"
#include "core/page_heap.hpp"

namespace cistern::core {
namespace {

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

TEST_F(Segments, AFreeSegmentServesAnotherHeap) {
  start(2);
  device.lag = 1000;  // Its old work is not done: the new heap waits on the device, the host does not.
  HeapNode* a = heaps[0]->allocate(20 * MiB, 256);
  ASSERT_NE(a, nullptr);
  heaps[0]->free(a);
  HeapNode* b = heaps[1]->allocate(18 * MiB, 256);
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(group->counts().created, 1U);
  EXPECT_EQ(group->counts().moved, 1U);
  EXPECT_EQ(device.waits, 0U);
  EXPECT_EQ(group->reserved(), 20 * MiB);
  EXPECT_EQ(broken(*group), "");
  // It is the second heap's from here on.
  EXPECT_EQ(heaps[0]->allocate_mapped(256, 256), nullptr);
  HeapNode* c = heaps[1]->allocate_mapped(2 * MiB, 256);
  ASSERT_NE(c, nullptr);
  heaps[1]->free(b);
  heaps[1]->free(c);
}

// Back and forth far more often than the range of a heap has room for: the old address serves again.
TEST_F(Segments, LoansDoNotUseUpTheRange) {
  start(2);
  device.lag = 1000;
  for (std::size_t i = 0; i < 1000; ++i) {
    HeapNode* node = heaps[i % 2]->allocate(20 * MiB, 256);
    ASSERT_NE(node, nullptr) << i;
    heaps[i % 2]->free(node);
  }
  EXPECT_EQ(group->counts().created, 1U);
  EXPECT_EQ(device.waits, 0U);
}

TEST_F(Segments, OneMoreThanTwiceAsLargeIsNotLent) {
  start(2);
  heaps[0]->free(heaps[0]->allocate(40 * MiB, 256));
  HeapNode* b = heaps[1]->allocate(10 * MiB, 256);
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(group->counts().moved, 0U);
  heaps[1]->free(b);
}

TEST_F(Segments, OneInUseIsNotLent) {
  start(2);
  HeapNode* a = heaps[0]->allocate(8 * MiB, 256);
  HeapNode* b = heaps[1]->allocate(8 * MiB, 256);
  EXPECT_EQ(group->counts().moved, 0U);
  EXPECT_EQ(group->counts().created, 2U);
  heaps[0]->free(a);
  heaps[1]->free(b);
}

// Other heaps' work is not known to be done when a held heap's memory is used.
TEST_F(Segments, NoneIsLentToAHeldHeap) {
  start(2);
  heaps[0]->free(heaps[0]->allocate(20 * MiB, 256));
  heaps[1]->hold(true);
  HeapNode* b = heaps[1]->allocate(18 * MiB, 256);
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(group->counts().moved, 0U);
  EXPECT_EQ(broken(*group), "");
  heaps[1]->free(b);
  heaps[1]->hold(false);
}

TEST_F(Segments, ALoanThatFailsChangesNothing) {
  start(2);
  heaps[0]->free(heaps[0]->allocate(20 * MiB, 256));
  // The order between the heaps, then showing the segment in the new one.
  for (int call = 1; call <= 2; ++call) {
    device.fail_at = device.calls + static_cast<std::uint64_t>(call);
    HeapNode* b = heaps[1]->allocate(20 * MiB, 256);
    EXPECT_EQ(broken(*group), "");
    ASSERT_NE(b, nullptr) << "a new one serves";
    EXPECT_EQ(group->counts().moved, 0U);
    heaps[1]->free(b);
    group->trim(0, true);
    heaps[0]->free(heaps[0]->allocate(20 * MiB, 256));
  }
}

// Blocks with a large alignment are placed where they fit, however many runs are too crooked for them.
TEST_F(Segments, AlignedBlocksFindTheirPlace) {
  start(1);
  std::vector<HeapNode*> nodes;
  for (int i = 0; i < 60; ++i) {
    nodes.push_back(heaps[0]->allocate(256, 256));
    nodes.push_back(heaps[0]->allocate(96 * KiB, 256));
  }
  for (std::size_t i = 1; i < nodes.size(); i += 2) heaps[0]->free(nodes[i]);  // 60 runs of 96 KiB and a rest.
  const std::uint64_t held = group->reserved();
  std::vector<HeapNode*> aligned;
  for (int i = 0; i < 20; ++i) {
    HeapNode* node = heaps[0]->allocate(96 * KiB - 4096, 64 * KiB);
    ASSERT_NE(node, nullptr);
    EXPECT_EQ(node->offset % (64 * KiB), 0U);
    aligned.push_back(node);
  }
  EXPECT_LE(group->reserved(), held + 4 * MiB) << "no segment for each";
  HeapNode* whole = heaps[0]->allocate(3 * MiB, 4 * MiB);
  ASSERT_NE(whole, nullptr) << "an alignment above a cell";
  EXPECT_EQ(whole->offset % (4 * MiB), 0U);
  heaps[0]->free(whole);
  for (HeapNode* node : aligned) heaps[0]->free(node);
  for (std::size_t i = 0; i < nodes.size(); i += 2) heaps[0]->free(nodes[i]);
}

}  // namespace
}  // namespace cistern::core
