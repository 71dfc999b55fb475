// A group of heaps over fake backings, for the tests of PageHeap.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/fake_backing.hpp"
#include "core/page_heap.hpp"

namespace cistern::core {

inline constexpr std::uint64_t kCell = 2 * MiB;
inline constexpr StreamIndex kFirst{0};

inline std::string broken(const HeapGroup& group) {
  std::string text;
  for (const auto& message : group.check_invariants()) text += message + "\n";
  return text;
}

struct HeapFixture {
  explicit HeapFixture(HeapConfig config = defaults(), int heap_count = 1) : group(config) {
    for (int i = 0; i < heap_count; ++i) {
      backings.push_back(std::make_unique<FakeBacking>(device));
      heaps.push_back(&group.add_heap(*backings.back()));
    }
  }
  static HeapConfig defaults() {
    HeapConfig config;
    config.range_bytes = 4 * GiB;
    return config;
  }
  static HeapConfig limited(std::uint64_t bytes) {
    HeapConfig config = defaults();
    config.limit_bytes = bytes;
    config.tight = true;
    return config;
  }

  FakeDevice device;
  std::vector<std::unique_ptr<FakeBacking>> backings;
  HeapGroup group;
  std::vector<PageHeap*> heaps;
};

// A free run of `bytes` in an empty heap whose lower half `low` freed last, and whose upper half `high`: where they
// start. What they wait for is among the orders.
struct RunOfTwo {
  RunOfTwo(PageHeap& heap, std::uint64_t bytes, StreamIndex low, StreamIndex high) {
    heap.free(heap.allocate(bytes, 512, kFirst));
    HeapNode* const lower = heap.allocate_mapped(bytes / 2, 512, low);
    HeapNode* const upper = heap.allocate_mapped(bytes / 2, 512, high);
    of_low = lower->offset;
    of_high = upper->offset;
    heap.free(lower);
    heap.free(upper);
  }

  std::uint64_t of_low = 0, of_high = 0;
};

}  // namespace cistern::core
