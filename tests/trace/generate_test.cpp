// Synthetic traces: valid, the same every time, different by seed, and of the shape that their name promises.
#include "trace/generate.hpp"

#include <gtest/gtest.h>

#include <set>

#include "cistern/error.hpp"
#include "trace/support.hpp"

namespace cistern::trace {
namespace {

class Generate : public testing::TestWithParam<Workload> {};

TEST_P(Generate, IsValidAndDeterministic) {
  const Trace a = generate(GetParam());
  trace_test::expect_consistent(a);
  EXPECT_EQ(a.name, name_of(GetParam()));
  EXPECT_GE(a.events.size(), 10'000u);
  EXPECT_LE(a.events.size(), 300'000u);
  EXPECT_GT(a.duration_us, 0u);
  EXPECT_TRUE(a.events == generate(GetParam()).events);
  EXPECT_FALSE(a.events == generate(GetParam(), {.seed = 2}).events);
}

TEST_P(Generate, ScaleMakesItLonger) {
  const std::size_t small = generate(GetParam(), {.seed = 1, .scale = 0.1}).events.size();
  const std::size_t large = generate(GetParam(), {.seed = 1, .scale = 0.5}).events.size();
  EXPECT_LT(small, large);
}

TEST_P(Generate, BadScales) {
  for (const double scale : {0.0, -1.0, 1e9, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_THROW(generate(GetParam(), {.seed = 1, .scale = scale}), invalid_argument);
  }
}

INSTANTIATE_TEST_SUITE_P(All, Generate, testing::ValuesIn(all_workloads().begin(), all_workloads().end()),
                         [](const auto& p) { return std::string(name_of(p.param)); });

// Pinned so that a change of the generators, or a compiler that computes differently, does not go unseen.
TEST(GenerateTraces, AreTheSameOnEveryPlatform) {
  std::uint64_t hash = 14695981039346656037u;  // FNV-1a.
  const auto mix = [&](std::uint64_t v) { hash = (hash ^ v) * 1099511628211u; };
  for (const Workload workload : all_workloads()) {
    for (const TraceEvent& e : generate(workload, {.seed = 42, .scale = 0.1}).events) {
      mix(e.size);
      mix(e.time_us);
      mix(e.id);
      mix(e.stream);
      mix(static_cast<std::uint64_t>(e.kind));
    }
  }
  EXPECT_EQ(hash, 13033307056132808408u);
}

TEST(GenerateTraces, TwoStreamsUseTwo) {
  std::set<std::uint16_t> used;
  for (const TraceEvent& e : generate(Workload::two_streams).events) used.insert(e.stream);
  EXPECT_EQ(used.size(), 2u);
}

TEST(GenerateTraces, GraphSizesAreIrregular) {
  std::set<std::uint64_t> sizes;
  const Trace t = generate(Workload::graph);
  for (const TraceEvent& e : t.events) sizes.insert(e.size);
  EXPECT_GT(sizes.size(), t.events.size() / 10);
}

}  // namespace
}  // namespace cistern::trace
