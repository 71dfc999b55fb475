// The skyline heuristic and its tree: answers compared with plain loops, valid plans under every rule, and that
// comparing boxes pays.
#include "plan/skyline.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "plan/orders.hpp"
#include "plan_generators.hpp"

namespace cistern {
namespace {

using planner::Bytes;
using planner::Skyline;
using planner::SpanTree;
using planner::Strip;
using test::pick;

// Lives of up to `longest`, one part.
PlanProblem lives(std::uint64_t seed, std::int64_t count, std::int64_t longest, bool aligned) {
  std::mt19937_64 random(seed);
  PlanProblem problem;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t start = pick(random, 0, count);
    problem.buffers.push_back(test::buffer(start, start + pick(random, 2, longest), pick(random, 1, 1 << 20)));
    if (aligned) problem.buffers.back().alignment = pick(random, 1, 64);
  }
  return problem;
}

Strip largest_part(const PlanProblem& problem) {
  planner::Decomposition whole = planner::decompose(problem);
  return *std::max_element(whole.parts.begin(), whole.parts.end(),
                           [](const Strip& x, const Strip& y) { return x.boxes() < y.boxes(); });
}

struct Placed {
  bool done = false;
  std::vector<Bytes> offsets;
};

Placed place(const Strip& strip, planner::Order order, Bytes slack, std::size_t compared, Bytes filler = 0) {
  const PlanOptions options;
  const planner::Control control(options);
  Skyline skyline(strip);
  const Skyline::Rule rule{planner::lower_bound(strip), slack, compared, filler};
  Placed out;
  out.done = skyline.place(planner::ranks_of(planner::order_of(strip, order)), INT64_MAX, rule, control, out.offsets);
  return out;
}

// The buffers of a strip as a problem of their own, for the validator.
PlanProblem problem_of(const Strip& strip) {
  PlanProblem out;
  for (std::size_t b = 0; b < strip.size.size(); ++b) {
    out.buffers.push_back(test::buffer(strip.first[b], strip.last[b], strip.size[b]));
    out.buffers.back().alignment = strip.alignment[b];
  }
  return out;
}

TEST(SpanTree, FindsWhatALoopFinds) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const Strip strip = largest_part(lives(seed, pick(random, 2, 300), 40, false));
    std::vector<std::int32_t> ranks(strip.size.size());
    for (std::size_t b = 0; b < ranks.size(); ++b) ranks[b] = static_cast<std::int32_t>(b);
    std::shuffle(ranks.begin(), ranks.end(), random);
    SpanTree tree(strip);
    tree.reset(ranks);
    std::vector<char> gone(ranks.size(), 0);
    for (int round = 0; round < 200; ++round) {
      const auto from = static_cast<std::int32_t>(pick(random, 0, strip.sections - 1));
      const auto to = static_cast<std::int32_t>(pick(random, from + 1, strip.sections));
      const auto section = static_cast<std::int32_t>(pick(random, from - 1, to - 1));
      const std::int32_t wanted = section < from ? -1 : section;
      std::vector<std::int32_t> expected;
      for (std::int32_t b = 0; b < strip.boxes(); ++b) {
        const auto i = static_cast<std::size_t>(b);
        if (gone[i] != 0 || strip.first[i] < from || strip.last[i] > to) continue;
        if (wanted < 0 || (strip.first[i] <= wanted && wanted < strip.last[i])) expected.push_back(b);
      }
      std::sort(expected.begin(), expected.end(), [&](std::int32_t x, std::int32_t y) {
        return ranks[static_cast<std::size_t>(x)] < ranks[static_cast<std::size_t>(y)];
      });
      EXPECT_EQ(tree.best_inside(from, to, wanted), expected.empty() ? -1 : expected[0]);
      const auto count = static_cast<std::size_t>(pick(random, 1, SpanTree::kFew));
      std::int32_t few[SpanTree::kFew];
      const std::size_t found = tree.few_inside(from, to, wanted, count, few);
      expected.resize(std::min(count, expected.size()));
      EXPECT_EQ(std::vector<std::int32_t>(few, few + found), expected);
      const auto out = static_cast<std::size_t>(pick(random, 0, strip.boxes() - 1));
      EXPECT_EQ(tree.holds(static_cast<std::int32_t>(out)), gone[out] == 0);
      if (gone[out] == 0) {
        tree.erase(static_cast<std::int32_t>(out));
        gone[out] = 1;
      } else if (round % 3 == 0) {
        tree.put_back(static_cast<std::int32_t>(out), ranks[out]);
        gone[out] = 0;
      }
    }
  }
}

TEST(Skyline, IsValidUnderEveryRule) {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    std::mt19937_64 random(seed);
    const Strip strip = largest_part(lives(seed, pick(random, 2, 400), pick(random, 3, 60), seed % 2 == 0));
    const PlanProblem problem = problem_of(strip);
    for (const planner::Order order : planner::kOrders) {
      for (const Bytes slack : {Bytes{-1}, Bytes{1} << 18, Skyline::kAlways}) {
        for (const std::size_t compared : {std::size_t{1}, std::size_t{2}, SpanTree::kFew}) {
          for (const Bytes filler : {Bytes{0}, Bytes{1} << 18, Bytes{1} << 21}) {  // The last: all of them.
            SCOPED_TRACE(testing::Message()
                         << "seed " << seed << " slack " << slack << " compared " << compared << " filler " << filler);
            const Placed placed = place(strip, order, slack, compared, filler);
            ASSERT_TRUE(placed.done);
            ASSERT_FALSE(validate_plan(problem, placed.offsets));
          }
        }
      }
    }
  }
}

// In sum over several problems: a single one may be lucky either way.
TEST(Skyline, ComparingBoxesWastesLess) {
  double plain = 0;
  double compared = 0;
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    const Strip strip = largest_part(lives(seed, 20000, 200, false));
    const auto bound = static_cast<double>(planner::lower_bound(strip));
    const auto waste = [&](std::size_t count) {
      const Placed placed = place(strip, planner::Order::width, Skyline::kAlways, count);
      return static_cast<double>(planner::peak_of(strip, placed.offsets)) / bound - 1;
    };
    plain += waste(1);
    compared += waste(8);
  }
  EXPECT_LT(compared, 0.9 * plain) << plain << ' ' << compared;
}

// Lives with a long tail, where comparing alone leaves most.
TEST(Skyline, FillersWasteLess) {
  double plain = 0;
  double filled = 0;
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    std::mt19937_64 random(seed);
    std::exponential_distribution<double> life(1.0 / 150);
    PlanProblem problem;
    for (int i = 0; i < 20000; ++i) {
      const std::int64_t start = pick(random, 0, 20000);
      const auto end = start + 1 + static_cast<std::int64_t>(life(random));
      problem.buffers.push_back(test::buffer(start, end, pick(random, 1, 1 << 20)));
    }
    const Strip strip = largest_part(problem);
    const auto bound = static_cast<double>(planner::lower_bound(strip));
    const auto waste = [&](Bytes filler) {
      const Placed placed = place(strip, planner::Order::width, Skyline::kAlways, 8, filler);
      return static_cast<double>(planner::peak_of(strip, placed.offsets)) / bound - 1;
    };
    plain += waste(0);
    filled += waste(Bytes{1} << 18);
  }
  EXPECT_LT(filled, 0.95 * plain) << plain << ' ' << filled;
}

}  // namespace
}  // namespace cistern
