// A decode loop of 1,750 buffers a token over Metal: after the first tokens nothing is asked of the driver. Prints a
// line a token, which is the table in docs/metal.md, with what MLX's policy makes of the same loop beside it.
#include <cstdio>

#include "allocator/metal_fixture.hpp"
#include "cistern/buffer_pool.hpp"
#include "core/buffer_cache.hpp"

namespace cistern::allocation {
namespace {

constexpr std::size_t kLayers = 50, kPerLayer = 35;  // 1,750 buffers a token.
constexpr std::size_t kWeights = 30, kWeightBytes = 6_MiB;
constexpr int kTokens = 24, kWarm = 6;  // From then on the loop is in its steady state.

// Sizes of one layer: small state, projections, one large intermediate.
constexpr std::size_t bytes_of(std::size_t i) {
  if (i % 7 == 0) return 300 + 1000 * i;
  if (i % 5 == 0) return 40_KiB * (i + 1);
  return i == 33 ? 3_MiB : 2048 * (1 + i % 4);
}

// Most buffers live for five others, one a layer until the token's end. `end` stands for the submission.
template <class Handle, class Malloc, class Free, class End>
void token(Malloc malloc, Free free, End end) {
  std::vector<Handle> until_end, lately;
  for (std::size_t layer = 0; layer < kLayers; ++layer) {
    for (std::size_t i = 0; i < kPerLayer; ++i) {
      (i == 11 ? until_end : lately).push_back(malloc(bytes_of(i)));
      if (lately.size() > 5) {
        free(lately.front());
        lately.erase(lately.begin());
      }
    }
  }
  end();
  for (Handle& handle : lately) free(handle);
  for (Handle& handle : until_end) free(handle);
}

// What a token cost.
struct Cost {
  std::uint64_t calls = 0, objects = 0, commits = 0;
};

class MetalDecode : public MetalAllocator {
 protected:
  Cost since_start() {
    const MetalFigures now = figures();
    return {driver().calls(), now.objects_made, now.residency_commits};
  }
  template <class Run>
  std::vector<Cost> run(Run one_token) {
    std::vector<Cost> out;
    for (int i = 0; i < kTokens; ++i) {
      const Cost before = since_start();
      one_token();
      const Cost after = since_start();
      out.push_back({after.calls - before.calls, after.objects - before.objects, after.commits - before.commits});
    }
    return out;
  }
  static void print(const char* who, const std::vector<Cost>& costs) {
    std::printf("%-22s token  driver calls  objects made  residency commits\n", who);
    for (std::size_t i = 0; i < costs.size(); ++i) {
      if (i > 4 && i + 1 < costs.size()) continue;
      std::printf("%-22s %5zu  %12llu  %12llu  %17llu\n", "", i + 1, static_cast<unsigned long long>(costs[i].calls),
                  static_cast<unsigned long long>(costs[i].objects), static_cast<unsigned long long>(costs[i].commits));
    }
  }
  static void expect_silent(const std::vector<Cost>& costs) {
    for (std::size_t i = 0; i < costs.size(); ++i) {
      SCOPED_TRACE("token " + std::to_string(i + 1));
      EXPECT_TRUE(i == 0 || costs[i].commits <= 1) << costs[i].commits << " while it warms up";
      if (i < static_cast<std::size_t>(kWarm)) continue;
      EXPECT_EQ(costs[i].calls, 0u);
      EXPECT_EQ(costs[i].objects, 0u);
      EXPECT_EQ(costs[i].commits, 0u);
    }
  }
  std::vector<Buffer> weights() {
    std::vector<Buffer> out;
    for (std::size_t i = 0; i < kWeights; ++i) out.push_back(malloc(kWeightBytes));
    return out;
  }
  void free_all(const std::vector<Buffer>& all) {
    for (const Buffer& buffer : all) allocator().free(buffer);
  }
};

TEST_F(MetalDecode, TheAllocatorIsSilentInTheSteadyState) {
  start();
  allocator().set_wired_limit(driver().capabilities().recommended_working_set);
  const std::vector<Buffer> held = weights();
  const std::vector<Cost> costs = run([&] {
    token<Buffer>([&](std::size_t bytes) { return malloc(bytes); }, [&](Buffer& b) { allocator().free(b); },
                  [&] { allocator().before_submit(); });
  });
  print("cistern", costs);
  expect_silent(costs);
  free_all(held);
}

// A program that never says when it submits gets a commit at each change of the segments, and no more than that.
TEST_F(MetalDecode, WithoutBatchesTheSteadyStateIsTheSame) {
  start();
  allocator().set_wired_limit(driver().capabilities().recommended_working_set);
  const std::vector<Buffer> held = weights();
  const std::vector<Cost> costs = run([&] {
    token<Buffer>([&](std::size_t bytes) { return malloc(bytes); }, [&](Buffer& b) { allocator().free(b); }, [] {});
  });
  print("without before_submit", costs);
  expect_silent(costs);
  free_all(held);
}

TEST_F(MetalDecode, OffsetsMakeNoObjectsAtAll) {
  MetalConfig config;
  config.block_objects = false;
  start(config);
  allocator().set_wired_limit(driver().capabilities().recommended_working_set);
  const std::vector<Buffer> held = weights();
  const std::vector<Cost> costs = run([&] {
    token<Buffer>([&](std::size_t bytes) { return malloc(bytes); }, [&](Buffer& b) { allocator().free(b); },
                  [&] { allocator().before_submit(); });
  });
  print("offsets", costs);
  expect_silent(costs);
  free_all(held);
}

// The arena pool, as mlx-native uses it: everything comes back at the token's end.
TEST_F(MetalDecode, ThePoolIsSilentFromTheSecondTokenOn) {
  start();
  allocator().set_wired_limit(driver().capabilities().recommended_working_set);
  const std::vector<Buffer> held = weights();
  {
    BufferPool pool(allocator(), queue(1));
    const std::vector<Cost> costs = run([&] {
      token<TypedBuffer>([&](std::size_t bytes) { return pool.alloc(bytes, DType::u8, Shape{bytes}); },
                         [](TypedBuffer& b) { b.reset(); }, [&] { allocator().before_submit(); });
      pool.reset();
    });
    print("pool", costs);
    expect_silent(costs);
    EXPECT_EQ(costs[1].calls, 0u);
  }
  free_all(held);
}

// GPU work runs behind the host while the loop goes on: the same.
TEST_F(MetalDecode, WorkBehindTheHostChangesNothing) {
  start({}, {{"LAG_US", "5000"}});
  allocator().set_wired_limit(driver().capabilities().recommended_working_set);
  const std::vector<Buffer> held = weights();
  const std::vector<Cost> costs = run([&] {
    Buffer last;
    token<Buffer>([&](std::size_t bytes) { return last = malloc(bytes); }, [&](Buffer& b) { allocator().free(b); },
                  [&] {
                    allocator().before_submit();
                    control().launch_fill(library().queue(1), last.ptr(), last.offset(), 256, 1, 0);
                  });
  });
  expect_silent(costs);
  free_all(held);
}

// What is compared with: whole buffers, an object and a commit for every miss.
TEST_F(MetalDecode, TheReferenceMakesACommitForEveryMiss) {
  MetalConfig config;
  config.memory = MetalMemory::whole_buffers;
  start(config);
  drivers::Driver& d = driver();
  ASSERT_EQ(d.set_wired_limit(d.capabilities().recommended_working_set), drivers::Status::ok);
  struct Whole {
    void* buffer;
    std::size_t capacity;
  };
  core::BufferCache cache(16_KiB, SIZE_MAX, [&](void* buffer, std::size_t capacity) {
    d.free_host(drivers::HostKind::unified, buffer, capacity);
    d.commit_residency();
  });
  const auto make = [&](std::size_t bytes) {
    if (const auto taken = cache.take(bytes); taken.buffer != nullptr) return Whole{taken.buffer, taken.capacity};
    Whole made{nullptr, cache.rounded(bytes)};
    EXPECT_EQ(d.allocate_host(drivers::HostKind::unified, made.capacity, made.buffer), drivers::Status::ok);
    d.commit_residency();
    return made;
  };
  const auto give = [&](Whole& whole) { cache.put(whole.buffer, whole.capacity); };
  std::vector<Whole> held;
  for (std::size_t i = 0; i < kWeights; ++i) held.push_back(make(kWeightBytes));
  const std::vector<Cost> costs = run([&] { token<Whole>(make, give, [] {}); });
  print("MLX's rule", costs);
  EXPECT_GT(costs[0].commits, 50u);
  EXPECT_EQ(costs[0].commits, costs[0].objects);
  for (Whole& whole : held) give(whole);
  cache.clear();
}

}  // namespace
}  // namespace cistern::allocation
