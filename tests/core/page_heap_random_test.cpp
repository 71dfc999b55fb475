// Random sequences of operations on heaps, replayable from a seed, against simple models of what is live and of stream
// order.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/order_model.hpp"
#include "core/page_heap.hpp"
#include "core/page_heap_fixture.hpp"
#include "sanitizers.hpp"

namespace cistern::core {
namespace {

// A random workload: printable operations, replayable from the seed, checked against a list of live blocks.
struct Walk {
  HeapConfig config = {.range_bytes = 1 * GiB};
  int heaps = 1;
  std::uint16_t streams = 1;
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
  HeapFixture f(walk.config, walk.heaps);
  f.device.lag = walk.lag;
  f.device.fail_at = walk.fail_at;
  std::mt19937_64 random(seed);
  OrderModel order_model(f.device, walk.config.cell_bytes, walk.streams);
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
      // At first one stream alone: others come when only it has freed memory.
      const std::uint16_t streams = step < walk.steps / 4 ? std::uint16_t{1} : walk.streams;
      const StreamIndex stream{static_cast<std::uint16_t>(random() % streams)};
      HeapNode* node = f.heaps[heap]->allocate(size, alignment, stream);
      if (node == nullptr) {
        ++result.refused;
      } else {
        EXPECT_EQ(node->size, size);
        EXPECT_EQ(node->offset % alignment, 0U);
        EXPECT_EQ(order_model.allocated(*node, *f.backings[heap]), "") << "step " << step;
        live.push_back({node, size, node->offset, heap});
        live_bytes += size;
      }
    } else if (dice < 98 && !live.empty()) {
      std::swap(live[random() % live.size()], live.back());
      order_model.freed(*live.back().node, *f.backings[live.back().heap]);
      f.heaps[live.back().heap]->free(live.back().node);
      live_bytes -= live.back().size;
      live.pop_back();
    } else if (dice == 98) {
      f.group.trim(random() % (64 * MiB), random() % 4 == 0);
    } else {
      f.group.collect();
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

constexpr std::uint64_t kLongSteps = kSanitized ? 200'000 : 10'000'000;

TEST(PageHeapRandom, Long) {
  const std::uint64_t steps = from_environment("CISTERN_RANDOM_STEPS", kLongSteps);
  const std::uint64_t seed = from_environment("CISTERN_RANDOM_SEED", std::random_device{}());
  std::printf("seed %llu, %llu operations\n", static_cast<unsigned long long>(seed),
              static_cast<unsigned long long>(steps));
  Walk walk{.config = {.range_bytes = 1 * GiB}, .heaps = 2, .streams = 6, .lag = 500};
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
  for (std::uint64_t seed = 1; seed <= 8; ++seed) run_walk(seed, {.heaps = 2, .streams = 2, .lag = 700});
}

TEST(PageHeapRandom, StreamsShareAHeap) {
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    run_walk(seed, {.streams = static_cast<std::uint16_t>(seed), .lag = seed % 2 * 700});
    run_walk(seed, {.config = {.range_bytes = 1 * GiB, .limit_bytes = 200 * MiB, .tight = true},
                    .streams = 3,
                    .lag = seed % 2 * 300});
  }
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
    const std::uint16_t streams = seed % 4 < 2 ? 1 : 4;
    run_walk(seed, {.config = config, .heaps = streams == 1 ? 1 : 2, .streams = streams, .lag = seed % 2 * 200});
  }
  config.limit_bytes = 200 * MiB;
  Walk walk{.config = config, .heaps = 2, .streams = 3, .lag = 300, .steps = 200, .check_every = 5};
  const std::uint64_t calls = run_walk(7, walk).calls;
  ASSERT_GT(calls, 20U);
  for (walk.fail_at = 1; walk.fail_at <= calls; ++walk.fail_at) run_walk(7, walk);
}

TEST(PageHeapRandom, EveryBackingCallMayFail) {
  Walk walk{.config = {.range_bytes = 512 * MiB, .limit_bytes = 200 * MiB, .tight = true},
            .heaps = 2,
            .streams = 3,
            .lag = 300,
            .steps = 200,
            .check_every = 5};
  const std::uint64_t calls = run_walk(42, walk).calls;
  ASSERT_GT(calls, 50U);
  for (walk.fail_at = 1; walk.fail_at <= calls; ++walk.fail_at) run_walk(42, walk);
}

}  // namespace
}  // namespace cistern::core
