// The streams of the model: one by one, and random work beside the definition.
#include "drivers/model/timeline.hpp"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace cistern::drivers {
namespace {

void* native(std::uintptr_t i) { return reinterpret_cast<void*>(i); }

TEST(Timeline, WithoutLagEverythingIsDoneAtOnce) {
  Timeline line(0, false);
  const auto s = line.stream(native(1));
  const WorkPoint work = line.submit(s);
  EXPECT_TRUE(line.done(work));
  EXPECT_TRUE(line.passed(line.record(s)));
  EXPECT_TRUE(line.idle());
}

TEST(Timeline, AnEventPassesALagAfterItsRecord) {
  Timeline line(100, false);
  const auto s = line.stream(native(1));
  line.advance_to(50);
  const auto event = line.record(s);
  line.advance_to(149.9);
  EXPECT_FALSE(line.passed(event));
  line.advance_to(150);
  EXPECT_TRUE(line.passed(event));
}

TEST(Timeline, ALateRecordOnAnIdleStreamStillTakesALag) {
  Timeline line(100, false);
  const auto s = line.stream(native(1));
  const WorkPoint work = line.submit(s);
  line.advance_to(1000);
  EXPECT_TRUE(line.done(work));
  EXPECT_FALSE(line.passed(line.record(s)));
}

TEST(Timeline, ManualWorkWaitsToBeTold) {
  Timeline line(0, true);
  const auto a = line.stream(native(1)), b = line.stream(native(2));
  const WorkPoint first = line.submit(a), other = line.submit(b);
  line.advance_to(1e9);
  EXPECT_FALSE(line.done(first));
  line.complete(a);
  EXPECT_TRUE(line.done(first));
  EXPECT_FALSE(line.done(other));
  EXPECT_FALSE(line.done(line.submit(a))) << "later work waits for the next time";
  line.complete_all();
  EXPECT_TRUE(line.idle());
}

TEST(Timeline, AWaitHoldsTheStreamUntilTheOtherIsThere) {
  Timeline line(0, true);
  const auto a = line.stream(native(1)), b = line.stream(native(2));
  const auto event = line.record(a);
  EXPECT_TRUE(line.wait(b, event));
  const WorkPoint after = line.submit(b);
  line.complete(b);
  EXPECT_FALSE(line.done(after));
  line.complete(a);
  EXPECT_TRUE(line.done(after));
}

TEST(Timeline, ASlowStreamHoldsAFastOneThatWaits) {
  Timeline line(0, false);
  const auto slow = line.stream(native(1)), fast = line.stream(native(2));
  line.set_lag(slow, 1000);
  line.wait(fast, line.record(slow));
  const WorkPoint after = line.submit(fast);
  EXPECT_FALSE(line.done(after));
  line.advance_to(1000);
  EXPECT_TRUE(line.done(after));
}

TEST(Timeline, OrderDoesNotDependOnTheClock) {
  Timeline line(0, true);
  const auto a = line.stream(native(1)), b = line.stream(native(2)), c = line.stream(native(3));
  const WorkPoint before = line.submit(a);
  const auto event = line.record(a);
  const WorkPoint late = line.submit(a);
  EXPECT_TRUE(line.ordered(before, a));
  EXPECT_FALSE(line.ordered(before, b));
  line.wait(b, event);
  EXPECT_TRUE(line.ordered(before, b));
  EXPECT_FALSE(line.ordered(late, b));
  EXPECT_FALSE(line.ordered(before, c));
  line.wait(c, line.record(b));
  EXPECT_TRUE(line.ordered(before, c)) << "through the stream between";
  EXPECT_FALSE(line.ordered(late, c));
  line.complete_all();
  EXPECT_TRUE(line.ordered(late, c)) << "done is before everything";
}

TEST(Timeline, ForceDoesTheWorkBeforeAndNoOther) {
  Timeline line(500, false);
  const auto a = line.stream(native(1)), b = line.stream(native(2));
  line.wait(b, line.record(a));
  const auto event = line.record(b);
  const WorkPoint later = line.submit(b);
  line.advance_to(100);
  EXPECT_DOUBLE_EQ(line.force(event), 400);
  EXPECT_TRUE(line.passed(event));
  EXPECT_FALSE(line.done(later));
  EXPECT_DOUBLE_EQ(line.force(event), 0);
  EXPECT_DOUBLE_EQ(line.force_all(), 400);
  EXPECT_TRUE(line.idle());
}

TEST(Timeline, ADestroyedStreamsHandleIsAnotherStream) {
  Timeline line(0, true);
  const auto id = line.id(native(1));
  const WorkPoint pending = line.submit(line.stream(native(1)));
  line.destroy_stream(native(1));
  EXPECT_NE(line.id(native(1)), id);
  line.complete(line.stream(native(1)));
  EXPECT_FALSE(line.done(pending));
  line.complete_all();
  EXPECT_TRUE(line.done(pending));
}

TEST(Timeline, IdsAreUniqueInTheProcess) {
  Timeline one(0, false), two(0, false);
  EXPECT_NE(one.id(native(1)), two.id(native(1)));
}

TEST(Timeline, UnknownEventsAreTold) {
  Timeline line(0, false);
  const auto s = line.stream(native(1));
  const auto event = line.record(s);
  EXPECT_TRUE(line.known(event));
  EXPECT_TRUE(line.release(event));
  EXPECT_FALSE(line.release(event));
  EXPECT_FALSE(line.wait(s, event));
  EXPECT_FALSE(line.known(event));
  EXPECT_EQ(line.live_events(), 0u);
}

// Against the definition, worked out anew for every question: work is done when it is due and what it waits for is
// done.
TEST(Timeline, RandomWorkBesideTheDefinition) {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    std::mt19937_64 random(seed);
    constexpr double kLag = 50;
    Timeline line(kLag, false);
    struct Op {
      double due;
      int after;  // Index of the operation waited for, or -1.
    };
    std::vector<std::vector<int>> streams(3);
    std::vector<Op> ops;
    std::vector<std::pair<std::uint64_t, int>> events;
    double now = 0;
    const auto push = [&](std::size_t s, int after) {
      streams[s].push_back(static_cast<int>(ops.size()));
      ops.push_back({now + kLag, after});
      return static_cast<int>(ops.size()) - 1;
    };
    for (int step = 0; step < 300; ++step) {
      const std::size_t s = random() % 3;
      const auto stream = line.stream(native(s));
      switch (random() % 4) {
        case 0:
          line.submit(stream), push(s, -1);
          break;
        case 1:
          events.emplace_back(line.record(stream), push(s, -1));
          break;
        case 2:
          if (!events.empty()) {
            const auto& [event, op] = events[random() % events.size()];
            ASSERT_TRUE(line.wait(stream, event));
            push(s, op);
          }
          break;
        default:
          line.advance_to(now += static_cast<double>(random() % 40));
      }
      std::vector<bool> done(ops.size());
      for (bool progress = true; progress;) {
        progress = false;
        for (const auto& queue : streams) {
          for (const int i : queue) {
            const auto at = static_cast<std::size_t>(i);
            if (done[at]) continue;
            if (ops[at].due > now || (ops[at].after >= 0 && !done[static_cast<std::size_t>(ops[at].after)])) break;
            done[at] = progress = true;
          }
        }
      }
      for (const auto& [event, op] : events) {
        ASSERT_EQ(line.passed(event), done[static_cast<std::size_t>(op)]) << "seed " << seed << " step " << step;
      }
    }
  }
}

}  // namespace
}  // namespace cistern::drivers
