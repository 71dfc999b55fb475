// Tests of PageHeap and HeapGroup against a fake backing that enforces the rules of mapping.
#include "core/page_heap.hpp"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "core/fake_backing.hpp"

namespace cistern::core {
namespace {

constexpr std::uint64_t kCell = 2 * MiB;

std::string broken(const HeapGroup& group) {
  std::string text;
  for (const auto& message : group.check_invariants()) text += message + "\n";
  return text;
}

struct Fixture {
  explicit Fixture(HeapConfig config = defaults(), int heap_count = 1) : group(config) {
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

TEST(PageHeap, PlacesMapsAndReuses) {
  Fixture f;
  HeapNode* a = f.heaps[0]->allocate(1 * MiB, 512);
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(a->size, 1 * MiB);
  EXPECT_EQ(a->state, NodeState::live);
  EXPECT_GE(f.group.reserved(), kCell);
  const std::uint64_t offset = a->offset;
  const std::uint64_t created = f.group.counts().created;
  f.heaps[0]->free(a);
  EXPECT_EQ(f.group.live(), 0U);
  HeapNode* b = f.heaps[0]->allocate_mapped(1 * MiB, 512);
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->offset, offset);
  EXPECT_EQ(f.group.counts().created, created);
  EXPECT_EQ(broken(f.group), "");
}

TEST(PageHeap, MappedOnlyNeverCallsTheBacking) {
  Fixture f;
  EXPECT_EQ(f.heaps[0]->allocate_mapped(512, 512), nullptr);
  EXPECT_EQ(f.device.calls, 0U);
}

TEST(PageHeap, SplitsAndMergesAtFineAlignment) {
  Fixture f;
  std::vector<HeapNode*> nodes;
  for (int i = 0; i < 8; ++i) nodes.push_back(f.heaps[0]->allocate(100 * KiB, 512));
  for (int i = 0; i < 8; i += 2) f.heaps[0]->free(nodes[static_cast<std::size_t>(i)]);
  EXPECT_EQ(broken(f.group), "");
  for (int i = 1; i < 8; i += 2) f.heaps[0]->free(nodes[static_cast<std::size_t>(i)]);
  EXPECT_EQ(broken(f.group), "");
  EXPECT_EQ(f.group.wholly_free(), f.group.reserved());
}

TEST(PageHeap, HonoursAlignment) {
  Fixture f;
  HeapNode* small = f.heaps[0]->allocate(512, 512);
  HeapNode* aligned = f.heaps[0]->allocate(64 * KiB, 64 * KiB);
  EXPECT_EQ(aligned->offset % (64 * KiB), 0U);
  HeapNode* cell = f.heaps[0]->allocate(4 * MiB, 4 * MiB);
  EXPECT_EQ(cell->offset % (4 * MiB), 0U);
  EXPECT_EQ(broken(f.group), "");
  for (HeapNode* n : {small, aligned, cell}) f.heaps[0]->free(n);
}

TEST(PageHeap, MovesFreePiecesBeforeItMakesNewOnes) {
  Fixture f;
  // Two large blocks with a small one between them: the freed ends cannot be joined, their pieces must move.
  HeapNode* left = f.heaps[0]->allocate(64 * MiB, 512);
  HeapNode* wall = f.heaps[0]->allocate(64 * KiB, 512);
  HeapNode* right = f.heaps[0]->allocate(64 * MiB, 512);
  HeapNode* end = f.heaps[0]->allocate(64 * KiB, 512);
  f.heaps[0]->free(left);
  f.heaps[0]->free(right);
  const std::uint64_t before = f.group.reserved();
  HeapNode* large = f.heaps[0]->allocate(120 * MiB, 512);
  ASSERT_NE(large, nullptr);
  EXPECT_GT(f.group.counts().moved, 0U);
  EXPECT_LT(f.group.reserved(), before + 120 * MiB / 4);
  EXPECT_EQ(broken(f.group), "");
  for (HeapNode* n : {wall, end, large}) f.heaps[0]->free(n);
}

TEST(PageHeap, OldAddressStaysStaleUntilWorkPassed) {
  Fixture f;
  f.device.lag = 100;
  HeapNode* left = f.heaps[0]->allocate(64 * MiB, 512);
  HeapNode* wall = f.heaps[0]->allocate(64 * KiB, 512);
  f.heaps[0]->free(left);
  HeapNode* large = f.heaps[0]->allocate(96 * MiB, 512);
  ASSERT_GT(f.group.counts().moved, 0U);
  EXPECT_EQ(f.device.waits, 0U);
  bool stale = false;
  for (std::uint32_t c = 0; c < 32; ++c) stale |= f.backings[0]->shows(c);
  EXPECT_TRUE(stale);
  f.heaps[0]->collect();
  EXPECT_TRUE(f.backings[0]->shows(0));
  f.device.now += 100;
  f.heaps[0]->collect();
  EXPECT_EQ(broken(f.group), "");
  f.heaps[0]->free(wall);
  f.heaps[0]->free(large);
}

TEST(PageHeap, LimitHoldsAndFailureChangesNothing) {
  Fixture f(Fixture::limited(64 * MiB));
  HeapNode* a = f.heaps[0]->allocate(40 * MiB, 512);
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(f.heaps[0]->allocate(40 * MiB, 512), nullptr);
  EXPECT_LE(f.group.reserved(), 64 * MiB);
  EXPECT_EQ(f.group.live(), 40 * MiB);
  EXPECT_EQ(broken(f.group), "");
  f.heaps[0]->free(a);
  HeapNode* all = f.heaps[0]->allocate(64 * MiB, 512);
  ASSERT_NE(all, nullptr);
  EXPECT_EQ(f.group.reserved(), 64 * MiB);
  f.heaps[0]->free(all);
}

TEST(PageHeap, SplitsAPieceThatFewBytesPin) {
  // Pieces of four cells under the limit, each kept by one small block; the large block fits only if they are split.
  Fixture f(Fixture::limited(512 * MiB));
  std::vector<HeapNode*> pins;
  std::vector<HeapNode*> fill;
  // The last cell stays free for the splits; a request that finds nothing else would take it.
  while (f.group.reserved() + 10 * MiB <= 512 * MiB) {
    fill.push_back(f.heaps[0]->allocate(7 * MiB, 512));
    pins.push_back(f.heaps[0]->allocate(1 * MiB, 512));
    ASSERT_NE(pins.back(), nullptr);
  }
  for (HeapNode* n : fill) f.heaps[0]->free(n);
  const std::uint64_t free_bytes = 512 * MiB - f.group.live();
  HeapNode* large = f.heaps[0]->allocate(free_bytes / 2 / kCell * kCell, 512);
  ASSERT_NE(large, nullptr);
  EXPECT_GT(f.group.counts().split, 0U);
  EXPECT_LE(f.group.reserved(), 512 * MiB);
  EXPECT_EQ(broken(f.group), "");
}

TEST(PageHeap, PinnedBlocksKeepTheirPieces) {
  Fixture f(Fixture::limited(128 * MiB));
  std::vector<HeapNode*> pins;
  std::vector<HeapNode*> fill;
  while (HeapNode* n = f.heaps[0]->allocate(3 * MiB, 512)) {
    fill.push_back(n);
    HeapNode* pin = f.heaps[0]->allocate(1 * MiB, 512);
    if (pin == nullptr) break;
    f.heaps[0]->pin(pin);
    pins.push_back(pin);
  }
  for (HeapNode* n : fill) f.heaps[0]->free(n);
  f.heaps[0]->allocate(64 * MiB, 512);
  EXPECT_EQ(f.group.counts().split, 0U);
  EXPECT_EQ(broken(f.group), "");
}

TEST(PageHeap, TrimReturnsEverythingFree) {
  Fixture f;
  HeapNode* a = f.heaps[0]->allocate(100 * MiB, 512);
  HeapNode* b = f.heaps[0]->allocate(100 * MiB, 512);
  f.heaps[0]->free(a);
  EXPECT_GE(f.group.trim(0, false), 80 * MiB);
  EXPECT_EQ(f.group.wholly_free(), 0U);
  EXPECT_EQ(broken(f.group), "");
  f.heaps[0]->free(b);
  f.group.trim(0, false);
  EXPECT_EQ(f.group.reserved(), 0U);
  EXPECT_TRUE(f.device.pieces.empty());
}

TEST(PageHeap, TrimUnderRunningWorkWaitsOrLeavesLater) {
  Fixture f;
  f.device.lag = 50;
  f.heaps[0]->free(f.heaps[0]->allocate(64 * MiB, 512));
  f.group.trim(0, false);
  EXPECT_GT(f.group.reserved(), 0U);
  EXPECT_EQ(f.device.waits, 0U);
  f.device.now += 50;
  f.group.trim(0, false);
  EXPECT_EQ(f.group.reserved(), 0U);
  f.heaps[0]->free(f.heaps[0]->allocate(64 * MiB, 512));
  f.group.trim(0, true);
  EXPECT_EQ(f.group.reserved(), 0U);
  EXPECT_GT(f.device.waits, 0U);
}

TEST(PageHeap, NothingIsUnmappedWhenTheHostCannotWait) {
  Fixture f(Fixture::limited(64 * MiB));
  f.device.lag = 50;
  f.device.wait_fails = true;
  f.heaps[0]->free(f.heaps[0]->allocate(48 * MiB, 512));
  const std::uint64_t held = f.group.reserved();
  f.group.trim(0, true);
  EXPECT_EQ(f.group.reserved(), held);
  EXPECT_TRUE(f.backings[0]->shows(0));
  EXPECT_EQ(f.heaps[0]->allocate(64 * MiB, 512), nullptr);
  EXPECT_TRUE(f.backings[0]->shows(0));
  EXPECT_EQ(broken(f.group), "");
  f.device.now += 1000;
  f.device.wait_fails = false;
  f.group.trim(0, true);
  EXPECT_EQ(f.group.reserved(), 0U);
}

TEST(HeapGroup, HeapsLendEachOtherPieces) {
  Fixture f(Fixture::defaults(), 2);
  f.heaps[0]->free(f.heaps[0]->allocate(256 * MiB, 512));
  const std::uint64_t before = f.group.reserved();
  HeapNode* other = f.heaps[1]->allocate(200 * MiB, 512);
  ASSERT_NE(other, nullptr);
  EXPECT_LE(f.group.reserved(), before + before / 25);
  EXPECT_GT(f.group.counts().moved, 0U);
  EXPECT_EQ(broken(f.group), "");
}

TEST(PageHeap, SegmentsAreNeverCrossed) {
  HeapConfig config = Fixture::defaults();
  config.virtual_memory = false;
  config.segment_bytes = 16 * MiB;
  Fixture f(config);
  std::vector<HeapNode*> nodes;
  for (int i = 0; i < 40; ++i) {
    nodes.push_back(f.heaps[0]->allocate(1536 * KiB, 512));
    ASSERT_NE(nodes.back(), nullptr);
  }
  HeapNode* large = f.heaps[0]->allocate(40 * MiB, 512);
  ASSERT_NE(large, nullptr);
  EXPECT_EQ(f.group.counts().moved, 0U);
  EXPECT_EQ(broken(f.group), "");
  for (HeapNode* n : nodes) f.heaps[0]->free(n);
  f.heaps[0]->free(large);
  f.group.trim(0, false);
  EXPECT_EQ(f.group.reserved(), 0U);
}

// A random workload: printable operations, replayable from the seed, checked against a list of live blocks.
struct Walk {
  HeapConfig config = {.range_bytes = 1 * GiB};
  int heaps = 1;
  std::uint64_t lag = 0;
  std::uint64_t fail_at = 0;
  int steps = 3000;
  int check_every = 25;
};

struct WalkResult {
  std::uint64_t calls = 0;
  std::uint64_t refused = 0;
};

WalkResult run_walk(std::uint64_t seed, const Walk& walk) {
  SCOPED_TRACE("seed " + std::to_string(seed) + ", failing call " + std::to_string(walk.fail_at));
  Fixture f(walk.config, walk.heaps);
  f.device.lag = walk.lag;
  f.device.fail_at = walk.fail_at;
  std::mt19937_64 random(seed);
  struct Live {
    HeapNode* node;
    std::uint64_t size;
    std::uint64_t offset;
    std::size_t heap;
  };
  std::vector<Live> live;
  std::uint64_t live_bytes = 0;
  WalkResult result;
  for (int step = 0; step < walk.steps; ++step) {
    f.device.now += random() % 20;
    const std::uint64_t dice = random() % 100;
    if (dice < 55 && live.size() < 300) {
      const std::size_t heap = random() % f.heaps.size();
      std::uint64_t size = std::uint64_t{512} << (random() % 16);
      size = align_up(size + random() % size, 512);
      const std::uint64_t alignment = dice < 5 ? 8 * KiB : 512;
      HeapNode* node = f.heaps[heap]->allocate(size, alignment);
      if (node == nullptr) {
        ++result.refused;
      } else {
        EXPECT_EQ(node->size, size);
        EXPECT_EQ(node->offset % alignment, 0U);
        live.push_back({node, size, node->offset, heap});
        live_bytes += size;
      }
    } else if (dice < 98 && !live.empty()) {
      std::swap(live[random() % live.size()], live.back());
      f.heaps[live.back().heap]->free(live.back().node);
      live_bytes -= live.back().size;
      live.pop_back();
    } else if (dice == 98) {
      f.group.trim(random() % (64 * MiB), random() % 4 == 0);
    } else {
      f.heaps[random() % f.heaps.size()]->collect();
    }
    if (step % walk.check_every == 0) {
      const std::string problem = broken(f.group);
      EXPECT_EQ(problem, "") << "step " << step;
      if (!problem.empty()) return result;
      EXPECT_EQ(f.group.live(), live_bytes);
      EXPECT_EQ(f.group.reserved(), f.device.cells() * kCell);
      std::map<std::pair<std::size_t, std::uint64_t>, std::uint64_t> order;
      for (const Live& b : live) {
        EXPECT_EQ(b.node->offset, b.offset) << "a live block never moves";
        order[{b.heap, b.offset}] = b.offset + b.size;
      }
      std::uint64_t end = 0;
      std::size_t heap = 0;
      for (const auto& [key, stop] : order) {
        if (key.first == heap) {
          EXPECT_GE(key.second, end) << "live blocks do not overlap";
        }
        heap = key.first;
        end = stop;
      }
    }
  }
  result.calls = f.device.calls;
  for (const Live& b : live) f.heaps[b.heap]->free(b.node);
  f.group.trim(0, true);
  EXPECT_EQ(f.group.reserved(), 0U);
  EXPECT_TRUE(f.device.pieces.empty());
  EXPECT_EQ(broken(f.group), "");
  return result;
}

// 10^7 operations in a plain build, fewer under sanitizers; CISTERN_RANDOM_STEPS asks for more, CISTERN_RANDOM_SEED
// repeats.
std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kLongSteps = 200'000;
#elif defined(__has_feature)
constexpr std::uint64_t kLongSteps =
    __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) ? 200'000 : 10'000'000;
#else
constexpr std::uint64_t kLongSteps = 10'000'000;
#endif

TEST(PageHeapRandom, Long) {
  const std::uint64_t steps = from_environment("CISTERN_RANDOM_STEPS", kLongSteps);
  const std::uint64_t seed = from_environment("CISTERN_RANDOM_SEED", std::random_device{}());
  std::printf("seed %llu, %llu operations\n", static_cast<unsigned long long>(seed),
              static_cast<unsigned long long>(steps));
  Walk walk{.config = {.range_bytes = 1 * GiB}, .heaps = 2, .lag = 500};
  walk.check_every = 20'000;
  for (std::uint64_t part = 0; part < 4; ++part) {
    walk.config.limit_bytes = part % 2 == 0 ? UINT64_MAX : 400 * MiB;
    walk.lag = part / 2 * 500;
    walk.steps = static_cast<int>(std::min<std::uint64_t>(steps / 4, INT32_MAX));
    run_walk(seed + part, walk);
  }
}

TEST(PageHeapRandom, Plain) {
  for (std::uint64_t seed = 1; seed <= 8; ++seed) run_walk(seed, {});
}

TEST(PageHeapRandom, TwoHeapsBehindTheHost) {
  for (std::uint64_t seed = 1; seed <= 8; ++seed) run_walk(seed, {.heaps = 2, .lag = 700});
}

TEST(PageHeapRandom, UnderALimit) {
  std::uint64_t refused = 0;
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    refused += run_walk(seed, {.config = {.range_bytes = 1 * GiB, .limit_bytes = 300 * MiB, .tight = true},
                               .heaps = 2,
                               .lag = seed % 2 * 300})
                   .refused;
  }
  EXPECT_GT(refused, 0U);
}

TEST(PageHeapRandom, Segments) {
  HeapConfig config = {.range_bytes = 1 * GiB};
  config.virtual_memory = false;
  config.segment_bytes = 32 * MiB;
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    run_walk(seed, {.config = config, .heaps = seed % 4 < 2 ? 1 : 3, .lag = seed % 2 * 200});
  }
  config.limit_bytes = 200 * MiB;
  Walk walk{.config = config, .heaps = 2, .lag = 300, .steps = 200, .check_every = 5};
  const std::uint64_t calls = run_walk(7, walk).calls;
  ASSERT_GT(calls, 20U);
  for (walk.fail_at = 1; walk.fail_at <= calls; ++walk.fail_at) run_walk(7, walk);
}

TEST(PageHeapRandom, EveryBackingCallMayFail) {
  Walk walk{.config = {.range_bytes = 512 * MiB, .limit_bytes = 200 * MiB, .tight = true},
            .heaps = 2,
            .lag = 300,
            .steps = 200,
            .check_every = 5};
  const std::uint64_t calls = run_walk(42, walk).calls;
  ASSERT_GT(calls, 50U);
  for (walk.fail_at = 1; walk.fail_at <= calls; ++walk.fail_at) run_walk(42, walk);
}

}  // namespace
}  // namespace cistern::core
