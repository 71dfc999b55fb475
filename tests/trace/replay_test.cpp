// The replay engine: programs made from traces, figures of every policy, failures, limits, checks.
#include "trace/replay.hpp"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "cistern/error.hpp"
#include "trace/replay_check.hpp"

namespace cistern::trace {
namespace {

// Builds a trace by hand; times are one microsecond apart.
class Maker {
 public:
  Maker() { trace_.name = "made"; }
  std::uint32_t allocate(std::uint64_t size, std::uint16_t stream = 0) {
    trace_.events.push_back({size, trace_.events.size(), trace_.allocations, stream, TraceEventKind::allocate});
    return trace_.allocations++;
  }
  void free(std::uint32_t id, std::uint16_t stream = 0) {
    std::uint64_t size = 0;
    for (const TraceEvent& e : trace_.events) {
      if (e.id == id) size = e.size;
    }
    trace_.events.push_back({size, trace_.events.size(), id, stream, TraceEventKind::free});
  }
  Trace& trace() { return trace_; }
  Program program() const { return compile(trace_, "made.csv"); }

 private:
  Trace trace_;
};

Program random_program(std::uint64_t seed, std::size_t events) {
  std::mt19937_64 random(seed);
  Maker maker;
  maker.trace().streams = {0, 9};
  std::vector<std::pair<std::uint32_t, std::uint16_t>> live;
  for (std::size_t i = 0; i < events; ++i) {
    if (live.empty() || random() % 100 < 52) {
      const auto stream = static_cast<std::uint16_t>(random() % 8 == 0);
      live.emplace_back(maker.allocate(random() % (std::uint64_t{1} << (random() % 22)), stream), stream);
    } else {
      const std::size_t k = random() % live.size();
      maker.free(live[k].first, random() % 50 == 0 ? 0 : live[k].second);
      live[k] = live.back();
      live.pop_back();
    }
  }
  return maker.program();
}

TEST(ReplayProgram, SlotsAreUsedAgain) {
  Maker maker;
  const auto a = maker.allocate(100);
  const auto b = maker.allocate(50);
  maker.free(a);
  maker.allocate(120);
  maker.free(b);
  const Program program = maker.program();
  EXPECT_EQ(program.slots, 2U);
  EXPECT_EQ(program.ops[3].slot, program.ops[0].slot);
  EXPECT_EQ(program.peak_live, 170U);
  EXPECT_EQ(program.peak_op, 3U);
  EXPECT_EQ(program.largest, 120U);
  ASSERT_EQ(program.tail.size(), 1U);
  EXPECT_EQ(program.tail[0].slot, program.ops[0].slot);
}

TEST(ReplayProgram, TailIsInIdOrder) {
  Maker maker;
  const auto first = maker.allocate(1);
  for (int i = 0; i < 5; ++i) maker.allocate(2);
  maker.free(first);
  maker.allocate(3);  // Takes the lowest slot, but has the highest id.
  const Program program = maker.program();
  ASSERT_EQ(program.tail.size(), 6U);
  EXPECT_EQ(program.tail.back().slot, program.ops[0].slot);
}

TEST(ReplayProgram, FreesInAnotherStreamAreTold) {
  Maker maker;
  maker.trace().streams = {0, 77};
  const auto a = maker.allocate(1, 1);
  const auto b = maker.allocate(1, 1);
  maker.free(a, 1);
  maker.free(b, 0);
  const Program program = maker.program();
  EXPECT_EQ(program.ops[2].kind, OpKind::free);
  EXPECT_EQ(program.ops[3].kind, OpKind::free_on);
}

TEST(ReplayPolicy, NamesGoBothWays) {
  for (const Policy policy : {Policy::cistern, Policy::pool, Policy::planned, Policy::buffer_cache, Policy::system}) {
    EXPECT_EQ(parse_policy(to_string(policy)), policy);
  }
  EXPECT_FALSE(parse_policy("Cistern"));
}

struct Case {
  Policy policy;
  Device device;
};

class EveryPolicy : public testing::TestWithParam<Case> {};

TEST_P(EveryPolicy, ServesChecksAndDraws) {
  if (!unavailable(GetParam().policy, GetParam().device).empty()) GTEST_SKIP();
  const Program program = random_program(7, 6000);
  ReplayOptions options;
  options.policy = GetParam().policy;
  options.device = GetParam().device;
  options.repeat = 3;
  options.check = true;
  options.curves = true;
  options.touch = true;
  const ReplayResult result = replay(program, options);
  EXPECT_EQ(result.failed, 0U) << result.first_failure;
  ASSERT_TRUE(result.check);
  EXPECT_EQ(result.check->faults, 0U) << (result.check->messages.empty() ? "" : result.check->messages.front());
  EXPECT_EQ(result.check->blocks, 2 * program.allocations);
  EXPECT_TRUE(result.ok());
  EXPECT_EQ(result.events, program.ops.size());
  EXPECT_EQ(result.passes.size(), 3U);
  EXPECT_EQ(result.peak_live, program.peak_live);
  EXPECT_GE(result.peak_reserved, result.peak_live);
  EXPECT_DOUBLE_EQ(result.ratio, static_cast<double>(result.peak_reserved) / static_cast<double>(result.peak_live));
  EXPECT_NEAR(result.ns_per_event, result.seconds * 1e9 / static_cast<double>(result.events), 1e-6);
  ASSERT_TRUE(result.curves);
  EXPECT_EQ(result.curves->lives.size(), program.allocations);
  EXPECT_EQ(*std::max_element(result.curves->live.begin(), result.curves->live.end()), program.peak_live);
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    ASSERT_GE(result.curves->reserved[i], result.curves->live[i]) << "event " << i;
  }
}

TEST_P(EveryPolicy, ThreadsShareOneAllocator) {
  if (!unavailable(GetParam().policy, GetParam().device).empty()) GTEST_SKIP();
  const Program program = random_program(8, 3000);
  ReplayOptions options;
  options.policy = GetParam().policy;
  options.device = GetParam().device;
  options.threads = 3;
  options.repeat = 2;
  const ReplayResult result = replay(program, options);
  EXPECT_EQ(result.failed, 0U) << result.first_failure;
  EXPECT_EQ(result.events, 3 * program.ops.size());
  EXPECT_EQ(result.peak_live, 3 * program.peak_live);
  // The sum is really reached, in each pass, however few processors there are.
  for (const PassFigures& pass : result.passes) EXPECT_GE(pass.peak_reserved, result.peak_live);
  EXPECT_GE(result.ratio, 1.0);
}

// Of threads that run one after another each would find room.
TEST(Replay, ThreadsMeetAtThePeak) {
  Maker maker;
  maker.free(maker.allocate(std::uint64_t{8} << 20));
  for (const Policy policy : {Policy::cistern, Policy::system}) {
    ReplayOptions options;
    options.policy = policy;
    options.device = Device::model();
    options.threads = 3;
    options.repeat = 10;
    options.limit = MemoryLimit{0, 0.7};  // Of two.
    const ReplayResult result = replay(maker.program(), options);
    EXPECT_EQ(result.failed, 10U) << result.first_failure;
    for (const PassFigures& pass : result.passes) EXPECT_EQ(pass.peak_reserved, std::uint64_t{16} << 20);
  }
}

TEST(Replay, AFactorCountsTheLiveBytesOfAllThreads) {
  Maker maker;
  maker.free(maker.allocate(std::uint64_t{8} << 20));
  ReplayOptions options;
  options.device = Device::model();
  options.threads = 3;
  options.limit = MemoryLimit{0, 2.0};
  const ReplayResult result = replay(maker.program(), options);
  EXPECT_EQ(result.limit, std::uint64_t{48} << 20);
  EXPECT_EQ(result.failed, 0U) << result.first_failure;
}

TEST_P(EveryPolicy, ALimitTooSmallFailsEventsAndIsCounted) {
  if (!unavailable(GetParam().policy, GetParam().device).empty()) GTEST_SKIP();
  Maker maker;
  const auto small = maker.allocate(1 << 20);
  const auto large = maker.allocate(std::uint64_t{64} << 20);
  maker.free(small);
  maker.free(large);
  ReplayOptions options;
  options.policy = GetParam().policy;
  options.device = GetParam().device;
  options.limit = MemoryLimit{std::uint64_t{16} << 20, 0};
  options.repeat = 2;
  options.check = true;
  const ReplayResult result = replay(maker.program(), options);
  EXPECT_EQ(result.failed, 2U);  // One a pass; the free of nothing is none.
  EXPECT_FALSE(result.first_failure.empty());
  EXPECT_LE(result.peak_reserved, std::uint64_t{16} << 20);
  EXPECT_EQ(result.check->faults, 0U) << (result.check->messages.empty() ? "" : result.check->messages.front());
  EXPECT_FALSE(result.ok());
}

INSTANTIATE_TEST_SUITE_P(
    All, EveryPolicy,
    testing::Values(Case{Policy::cistern, Device::cpu()}, Case{Policy::pool, Device::cpu()},
                    Case{Policy::planned, Device::cpu()}, Case{Policy::buffer_cache, Device::cpu()},
                    Case{Policy::system, Device::cpu()}, Case{Policy::cistern, Device::model()},
                    Case{Policy::pool, Device::model()}, Case{Policy::planned, Device::model()},
                    Case{Policy::buffer_cache, Device::model()}, Case{Policy::system, Device::model()}),
    [](const auto& info) {
      std::string name = std::string(to_string(info.param.policy)) + "_" + cistern::to_string(info.param.device);
      for (char& c : name) {
        if (c == '-' || c == ':') c = '_';
      }
      return name;
    });

TEST(Replay, ALagKeepsTheRulesOfTheDevice) {
  const Program program = random_program(9, 4000);
  ReplayOptions options;
  options.device = Device::model();
  options.lag_us = 500;
  options.repeat = 2;
  options.check = true;
  const ReplayResult result = replay(program, options);
  EXPECT_TRUE(result.ok()) << result.first_failure
                           << (result.check->messages.empty() ? "" : result.check->messages.front());
}

TEST(Replay, FactorsAreOfThePeak) {
  EXPECT_EQ((MemoryLimit{0, 1.5}).of(1000), 1500U);
  EXPECT_EQ((MemoryLimit{77, 0}).of(1000), 77U);
}

TEST(Replay, ProgressGoesFromNothingToAll) {
  ReplayOptions options;
  options.repeat = 4;
  options.check = true;
  std::vector<double> seen;
  options.progress = [&](double fraction) { seen.push_back(fraction); };
  replay(random_program(1, 300), options);
  ASSERT_FALSE(seen.empty());
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
  EXPECT_DOUBLE_EQ(seen.back(), 1);
}

TEST(Replay, RefusesWhatCannotRun) {
  ReplayOptions options;
  options.repeat = 0;
  EXPECT_THROW(replay(Maker().program(), options), invalid_argument);
  options.repeat = 1;
  options.device = Device::model(-1);
  EXPECT_THROW(replay(Maker().program(), options), invalid_argument);
}

TEST(Replay, AnEmptyTraceIsServed) {
  ReplayOptions options;
  options.check = true;
  options.curves = true;
  const ReplayResult result = replay(Maker().program(), options);
  EXPECT_TRUE(result.ok());
  EXPECT_EQ(result.ns_per_event, 0);
  EXPECT_EQ(result.ratio, 0);
}

// --- The checker itself finds what it is for
// --------------------------------------------------------------------------

class Checker : public testing::Test {
 protected:
  static Op allocate(std::uint32_t slot, std::uint64_t bytes) { return {bytes, slot, 0, OpKind::allocate}; }
  static Op free(std::uint32_t slot) { return {0, slot, 0, OpKind::free}; }
  std::uint64_t at(std::uint64_t offset) { return reinterpret_cast<std::uint64_t>(memory_.data()) + offset; }
  CheckResult found() const {
    CheckResult result;
    checker_.report(result);
    return result;
  }
  static Program slots() {
    Program program;
    program.slots = 4;
    return program;
  }
  std::vector<unsigned char> memory_ = std::vector<unsigned char>(1 << 20);
  BlockChecker checker_{slots(), 1, true, 0};
};

TEST_F(Checker, ContentBlocksAreClean) {
  checker_.allocated(allocate(0, 1001), 10, at(0));
  checker_.allocated(allocate(1, 300000), 11, at(1008));
  checker_.freeing(free(0), 10);
  checker_.allocated(allocate(2, 1008), 12, at(0));
  checker_.freeing(free(1), 11);
  checker_.freeing(free(2), 12);
  checker_.finish();
  EXPECT_EQ(found().faults, 0U);
  EXPECT_EQ(found().blocks, 3U);
}

TEST_F(Checker, Overlaps) {
  checker_.allocated(allocate(0, 100), 10, at(500));
  checker_.allocated(allocate(1, 100), 11, at(401));  // Its last byte.
  checker_.allocated(allocate(2, 100), 12, at(599));  // Its first byte.
  checker_.allocated(allocate(3, 10), 13, at(540));   // Inside.
  EXPECT_EQ(found().faults, 3U);
  EXPECT_NE(found().messages[0].find("overlaps live block 10"), std::string::npos);
}

TEST_F(Checker, NeighboursDoNotOverlap) {
  checker_.allocated(allocate(0, 100), 10, at(500));
  checker_.allocated(allocate(1, 100), 11, at(400));
  checker_.allocated(allocate(2, 100), 12, at(600));
  EXPECT_EQ(found().faults, 0U);
}

TEST_F(Checker, AnyChangedByteOfASmallBlock) {
  for (const std::uint64_t byte : {0U, 1U, 7U, 500U, 999U, 1000U}) {
    checker_.allocated(allocate(0, 1001), 10, at(16));
    memory_[16 + byte] ^= 0x40;
    checker_.freeing(free(0), 10);
  }
  EXPECT_EQ(found().faults, 6U);
}

TEST_F(Checker, AnyClearedPageOfALargeBlock) {
  constexpr std::uint64_t kBytes = 400000;
  unsigned pages = 0;
  for (std::uint64_t page = 0; page + Pattern::kPage <= kBytes; page += Pattern::kPage, ++pages) {
    checker_.allocated(allocate(0, kBytes), 10, at(64));
    std::fill_n(memory_.begin() + static_cast<std::ptrdiff_t>(64 + page), Pattern::kPage, std::uint8_t{0});
    checker_.freeing(free(0), 10);
  }
  EXPECT_EQ(found().faults, pages);
}

TEST_F(Checker, MissingFrees) {
  checker_.allocated(allocate(0, 10), 10, at(0));
  checker_.finish();
  EXPECT_EQ(found().faults, 1U);
}

TEST(ResidentMemory, IsWithinThreePercentAndTheBooks) {
  constexpr std::uint64_t kMiBs = 1 << 20;
  EXPECT_FALSE(resident_fault(0, 0, 0));
  EXPECT_FALSE(resident_fault(100 * kMiBs, 200 * kMiBs, 1000)) << "less is no fault";
  EXPECT_FALSE(resident_fault(103 * kMiBs, 100 * kMiBs, 0));
  EXPECT_FALSE(resident_fault(104 * kMiBs, 100 * kMiBs, 0));
  EXPECT_TRUE(resident_fault(104 * kMiBs + 1, 100 * kMiBs, 0));
  EXPECT_TRUE(resident_fault(3 * kMiBs, kMiBs, 0)) << "not lost among the books of a small trace";
  EXPECT_FALSE(resident_fault(104 * kMiBs + 128000, 100 * kMiBs, 1000));
  EXPECT_TRUE(resident_fault(104 * kMiBs + 128001, 100 * kMiBs, 1000));
  EXPECT_EQ(
      resident_fault(3 * kMiBs, kMiBs, 8),
      "resident memory grew by 3145728 bytes, 2097152 more than the 1048576 bytes reserved; expected at most 3 % and "
      "1049600 more");
}

// Their descriptors alone are more than 3 %.
TEST(Replay, ManyTinyBlocksPassTheCheck) {
  Trace trace;
  trace.name = "tiny";
  const auto count = std::uint32_t{100000};
  trace.allocations = count;
  for (std::uint32_t id = 0; id < count; ++id) trace.events.push_back({32, id, id, 0, TraceEventKind::allocate});
  for (std::uint32_t id = 0; id < count; ++id) trace.events.push_back({32, count + id, id, 0, TraceEventKind::free});
  ReplayOptions options;
  options.check = true;
  for (const unsigned threads : {1U, 3U}) {
    options.threads = threads;
    const ReplayResult result = replay(compile(trace, "tiny.csv"), options);
    EXPECT_TRUE(result.ok()) << (result.check->messages.empty() ? "" : result.check->messages.front());
  }
}

TEST(ReplayCheck, ResidentMemoryFollowsTouching) {
  const auto before = resident_bytes();
  if (!before) GTEST_SKIP();
  std::vector<unsigned char> touched(std::size_t{64} << 20, 1);
  unsigned char* volatile const escaped = touched.data();  // Or a compiler may leave the vector out.
  const auto after = resident_bytes();
  ASSERT_TRUE(after);
  EXPECT_GE(*after - *before, std::uint64_t{60} << 20);
  EXPECT_EQ(escaped[12345], 1);
}

}  // namespace
}  // namespace cistern::trace
