// plan(): answers, statuses, budgets, determinism, and problems whose best peak is known.
#include "cistern/plan.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "cistern/error.hpp"
#include "plan/control.hpp"
#include "plan_generators.hpp"

namespace cistern {
namespace {

using test::buffer;

PlanOptions with_budget(std::uint64_t nodes, std::uint64_t seed = 1, unsigned threads = 1) {
  PlanOptions options;
  options.node_budget = nodes;
  options.seed = seed;
  options.threads = threads;
  return options;
}

TEST(Plan, PlansNothingAndOneBuffer) {
  const PlanResult none = plan({});
  EXPECT_EQ(none.peak, 0);
  EXPECT_EQ(none.status, PlanStatus::optimal);
  const PlanResult one = plan({{buffer(3, 9, 77)}, {}});
  EXPECT_EQ(one.peak, 77);
  EXPECT_EQ(one.offsets, std::vector<std::int64_t>{0});
  EXPECT_EQ(one.status, PlanStatus::optimal);
}

TEST(Plan, ReusesMemoryOfTheDead) {
  const PlanResult r =
      plan({{buffer(0, 3, 4), buffer(3, 9, 4), buffer(0, 9, 4), buffer(9, 21, 4), buffer(0, 21, 4)}, {}});
  EXPECT_EQ(r.peak, 12);
  EXPECT_EQ(r.status, PlanStatus::optimal);
}

TEST(Plan, DecidesCapacities) {
  const PlanProblem p{{buffer(0, 3, 4), buffer(2, 9, 4), buffer(0, 9, 4)}, {}};
  PlanOptions options;
  options.capacity = 12;
  EXPECT_EQ(plan(p, options).status, PlanStatus::optimal);
  options.capacity = 100;
  EXPECT_LE(plan(p, options).peak, 100);
  options.capacity = 11;
  const PlanResult r = plan(p, options);
  EXPECT_EQ(r.status, PlanStatus::infeasible);
  EXPECT_FALSE(validate_plan(p, r.offsets));
  options.capacity = 0;
  EXPECT_EQ(plan(p, options).status, PlanStatus::infeasible);
}

// A problem that needs more than the most bytes live at once: only a search can tell.
TEST(Plan, TellsInfeasibleFromTimeout) {
  PlanProblem found;
  std::int64_t live = 0;
  for (std::uint64_t seed = 1; seed < 20000 && found.buffers.empty(); ++seed) {
    std::mt19937_64 random(seed);
    PlanProblem p;
    for (int k = 0; k < 14; ++k) {
      // One draw a statement: compilers differ in the order of arguments.
      const std::int64_t lower = test::pick(random, 0, 10);
      const std::int64_t size = test::pick(random, 1, 9);
      const std::int64_t length = test::pick(random, 1, 6);
      p.buffers.push_back(buffer(lower, lower + length, size));
    }
    const PlanResult r = plan(p, with_budget(100000));
    if (r.status != PlanStatus::optimal || r.peak == plan_lower_bound(p)) continue;
    found = p;
    live = plan_lower_bound(p);
  }
  ASSERT_FALSE(found.buffers.empty());
  PlanOptions options = with_budget(100000);
  options.capacity = live;
  const PlanResult no = plan(found, options);
  EXPECT_EQ(no.status, PlanStatus::infeasible);
  EXPECT_GT(no.lower_bound, live);
  options.node_budget = 1;
  EXPECT_EQ(plan(found, options).status, PlanStatus::timeout);
}

TEST(Plan, KeepsAlignmentFixedOffsetsAndGaps) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    std::mt19937_64 random(seed);
    PlanProblem p;
    for (int k = 0; k < 40; ++k) {
      const std::int64_t lower = test::pick(random, 0, 30);
      PlanBuffer b = buffer(lower, test::pick(random, lower + 1, 40), test::pick(random, 1, 100));
      if (random() % 3 == 0) b.alignment = std::int64_t{1} << (random() % 6);
      if (seed % 3 != 0 && random() % 3 == 0) b.hint = test::pick(random, 0, 1000);
      if (seed % 2 == 0 && random() % 4 == 0 && b.upper - b.lower > 2) {
        b.gaps.push_back({b.lower + 1, b.upper - 1, b.size / 3, b.size});
      }
      if (random() % 8 == 0) b.offset = test::pick(random, 0, 20) * b.alignment;
      p.buffers.push_back(b);
      if (check_problem(p)) p.buffers.back().offset.reset();
    }
    const PlanResult r = plan(p, with_budget(20000));
    const auto fault = validate_plan(p, r.offsets, r.peak);
    EXPECT_FALSE(fault) << "seed " << seed << ": " << fault->buffer << " " << fault->text;
    EXPECT_GE(r.peak, r.lower_bound);
  }
}

TEST(Plan, FindsTheBestPeakOfCutRectangles) {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    for (const PlanProblem& p : {test::guillotine(seed, 40, 1000, 1000), test::pinwheel(seed, 41, 1000, 1000)}) {
      PlanOptions options;
      options.deadline = std::chrono::seconds(20);
      const PlanResult r = plan(p, options);
      EXPECT_EQ(r.peak, 1000) << seed;
      EXPECT_EQ(r.status, PlanStatus::optimal) << seed;
    }
  }
}

TEST(Plan, AnswersDependOnSeedAndBudgetOnly) {
  for (const PlanProblem& p : {test::pinwheel(3, 121, 10000, 10000), test::guillotine(4, 160, 5000, 8000)}) {
    for (const std::uint64_t budget : {500u, 20000u, 100000u}) {
      for (const bool decide : {false, true}) {
        PlanOptions options = with_budget(budget, 7);
        if (decide) options.capacity = plan_lower_bound(p);
        const PlanResult first = plan(p, options);
        const PlanResult second = plan(p, options);
        options.threads = 3;
        const PlanResult threaded = plan(p, options);
        EXPECT_EQ(first.offsets, second.offsets);
        EXPECT_EQ(first.nodes, second.nodes);
        EXPECT_EQ(first.offsets, threaded.offsets) << budget;
        EXPECT_EQ(first.nodes, threaded.nodes) << budget;
        EXPECT_EQ(first.status, threaded.status);
      }
    }
  }
}

TEST(Plan, IsAnytime) {
  const PlanProblem p = test::pinwheel(9, 201, 100000, 100000);
  PlanOptions options;
  options.deadline = std::chrono::seconds(0);
  const PlanResult at_once = plan(p, options);
  EXPECT_FALSE(validate_plan(p, at_once.offsets));
  EXPECT_EQ(at_once.status, PlanStatus::feasible);
  // The caller may stop it, and sees peaks that only fall.
  options.deadline = std::chrono::seconds(60);
  std::int64_t last = INT64_MAX;
  int calls = 0;
  options.progress = [&](const PlanProgress& progress) {
    EXPECT_LE(progress.peak, last);
    last = progress.peak;
    return ++calls < 3;
  };
  const PlanResult stopped = plan(p, options);
  EXPECT_LE(calls, 4);
  EXPECT_FALSE(validate_plan(p, stopped.offsets));
}

TEST(Plan, HasAUsefulPlanEvenWithoutTime) {
  std::mt19937_64 random(3);
  PlanProblem p;
  for (int k = 0; k < 20000; ++k) {
    const std::int64_t lower = test::pick(random, 0, 40000);
    p.buffers.push_back(buffer(lower, lower + test::pick(random, 1, 300), test::pick(random, 1, 1000)));
    if (k % 3 == 0) p.buffers.back().alignment = 64;
  }
  PlanOptions options;
  options.deadline = std::chrono::seconds(0);
  const PlanResult r = plan(p, options);
  EXPECT_LT(r.peak, 2 * r.lower_bound);
}

TEST(Plan, EndsWithinASmallBudgetOnEveryKind) {
  for (const bool gaps : {false, true}) {
    std::mt19937_64 random(5);
    PlanProblem p;
    for (int k = 0; k < 9000; ++k) {
      const std::int64_t lower = test::pick(random, 0, 20000);
      PlanBuffer b = buffer(lower, lower + test::pick(random, 1, 60), test::pick(random, 1, 1000));
      if (gaps && k % 50 == 0 && b.upper - b.lower > 3) b.gaps.push_back({b.lower + 1, b.lower + 2, 0, b.size});
      p.buffers.push_back(b);
    }
    const PlanResult r = plan(p, with_budget(100000));
    EXPECT_FALSE(validate_plan(p, r.offsets));
    EXPECT_LE(r.peak, r.lower_bound + r.lower_bound / 4);
  }
}

TEST(Plan, RefusesBadProblemsAndOptions) {
  EXPECT_THROW(plan({{buffer(0, 0, 5)}, {}}), invalid_argument);
  try {
    plan({{buffer(0, 1, 5), buffer(3, 2, 5)}, {"x", "why"}});
    FAIL();
  } catch (const invalid_argument& e) {
    EXPECT_NE(std::string(e.what()).find("buffer 'why'"), std::string::npos);
  }
  PlanOptions options;
  options.capacity = -1;
  EXPECT_THROW(plan({}, options), invalid_argument);
  options = {};
  options.deadline = std::chrono::duration<double>(std::nan(""));
  EXPECT_THROW(plan({}, options), invalid_argument);
  options.deadline = std::chrono::seconds(-1);
  EXPECT_THROW(plan({}, options), invalid_argument);
}

TEST(PlanLowerBound, CountsAlignmentAndFixedOffsets) {
  PlanProblem p{{buffer(0, 2, 3), buffer(0, 2, 3), buffer(1, 2, 3)}, {}};
  EXPECT_EQ(plan_lower_bound(p), 9);
  for (PlanBuffer& b : p.buffers) b.alignment = 8;
  EXPECT_EQ(plan_lower_bound(p), 19);
  p.buffers[0].offset = 24;
  EXPECT_EQ(plan_lower_bound(p), 27);
}

// What follows the search ends by the deadline, too.
TEST(Plan, TimeIsKeptForWhatFollowsTheSearch) {
  PlanOptions options;
  options.deadline = std::chrono::seconds(1000);
  planner::Control patient(options);
  EXPECT_FALSE(patient.stopped());
  patient.keep(900);
  EXPECT_FALSE(patient.stopped());
  patient.keep(1001);
  EXPECT_TRUE(patient.stopped());

  // With next to no time for the search: the first plan is given up, the answer is still checked and valid.
  const PlanProblem p = test::guillotine(7, 3000, 4096, 1 << 20);
  options.deadline = std::chrono::duration<double>(1e-6);
  const PlanResult result = plan(p, options);
  EXPECT_FALSE(validate_plan(p, result.offsets).has_value());
}

}  // namespace
}  // namespace cistern
