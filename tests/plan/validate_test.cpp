// The validator and the checks of problems: each fault is found, and no fault is found where there is none.
#include <gtest/gtest.h>

#include "cistern/plan.hpp"
#include "plan_generators.hpp"

namespace cistern {
namespace {

using test::buffer;

PlanProblem two() { return {{buffer(0, 4, 10), buffer(2, 6, 5)}, {}}; }

TEST(ValidatePlan, AcceptsBoxesThatTouch) {
  EXPECT_FALSE(validate_plan(two(), {0, 10}));
  EXPECT_FALSE(validate_plan(two(), {5, 0}));
  EXPECT_FALSE(validate_plan({{buffer(0, 4, 10), buffer(4, 6, 10)}, {}}, {0, 0}));  // lives are half open
  EXPECT_FALSE(validate_plan({}, {}));
}

TEST(ValidatePlan, FindsOverlap) {
  for (const std::int64_t o : {0, 4, 9}) EXPECT_TRUE(validate_plan(two(), {0, o})) << o;
  EXPECT_TRUE(validate_plan(two(), {4, 0}));
  const auto fault = validate_plan(two(), {3, 3});
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->buffer, 1u);
  EXPECT_NE(fault->text.find("buffer 0"), std::string::npos);
}

TEST(ValidatePlan, FindsOverlapAgainstThePrecedingAndTheFollowing) {
  const PlanProblem p{{buffer(0, 9, 4), buffer(0, 9, 4), buffer(3, 5, 2)}, {}};
  EXPECT_FALSE(validate_plan(p, {0, 6, 4}));
  EXPECT_TRUE(validate_plan(p, {0, 6, 3}));
  EXPECT_TRUE(validate_plan(p, {0, 6, 5}));
}

TEST(ValidatePlan, FindsBadOffsets) {
  PlanProblem p = two();
  p.buffers[1].alignment = 4;
  EXPECT_TRUE(validate_plan(p, {0, 10}));
  EXPECT_FALSE(validate_plan(p, {0, 12}));
  EXPECT_TRUE(validate_plan(p, {0, 12}, 16));
  EXPECT_FALSE(validate_plan(p, {0, 12}, 17));
  EXPECT_TRUE(validate_plan(p, {-1, 12}));
  EXPECT_TRUE(validate_plan(p, {0}));
  EXPECT_TRUE(validate_plan(p, {0, 12, 30}));
  EXPECT_TRUE(validate_plan(p, {INT64_MAX, 0}));
  p.buffers[0].offset = 8;
  EXPECT_TRUE(validate_plan(p, {0, 12}));
  EXPECT_FALSE(validate_plan(p, {8, 0}));
}

TEST(ValidatePlan, LetsBuffersShareGaps) {
  PlanProblem p{{buffer(0, 10, 8), buffer(3, 6, 4)}, {}};
  EXPECT_TRUE(validate_plan(p, {0, 2}));
  p.buffers[0].gaps = {{3, 6, 2, 6}};
  EXPECT_FALSE(validate_plan(p, {0, 2}));
  EXPECT_TRUE(validate_plan(p, {0, 1}));
  EXPECT_TRUE(validate_plan(p, {0, 3}));
  p.buffers[1].upper = 7;
  EXPECT_TRUE(validate_plan(p, {0, 2}));
  p.buffers[0].gaps = {{3, 5, 0, 6}, {5, 7, 2, 4}, {4, 8, 4, 8}};  // windows of one time add up
  EXPECT_FALSE(validate_plan(p, {0, 2}));
}

TEST(CheckProblem, FindsEachFault) {
  const auto faulty = [](auto change) {
    PlanProblem p = two();
    change(p.buffers[1]);
    const auto fault = check_problem(p);
    return fault && fault->buffer == 1 && !fault->text.empty();
  };
  EXPECT_FALSE(check_problem(two()));
  EXPECT_TRUE(faulty([](PlanBuffer& b) { b.lower = -1; }));
  EXPECT_TRUE(faulty([](PlanBuffer& b) { b.upper = b.lower; }));
  EXPECT_TRUE(faulty([](PlanBuffer& b) { b.upper = b.lower - 1; }));
  EXPECT_TRUE(faulty([](PlanBuffer& b) { b.size = 0; }));
  EXPECT_TRUE(faulty([](PlanBuffer& b) { b.size = -1; }));
  EXPECT_TRUE(faulty([](PlanBuffer& b) { b.size = INT64_MAX; }));
  EXPECT_TRUE(faulty([](PlanBuffer& b) { b.size = std::int64_t{1} << 62; }));  // with the other it is too much
  EXPECT_TRUE(faulty([](PlanBuffer& b) { b.alignment = 0; }));
  EXPECT_TRUE(faulty([](PlanBuffer& b) { b.alignment = INT64_MAX; }));
  EXPECT_TRUE(faulty([](PlanBuffer& b) { b.offset = -1; }));
  EXPECT_TRUE(faulty([](PlanBuffer& b) { b.offset = INT64_MAX; }));
  EXPECT_TRUE(faulty([](PlanBuffer& b) { b.offset = 6, b.alignment = 4; }));
  EXPECT_TRUE(faulty([](PlanBuffer& b) { b.hint = -1; }));
  EXPECT_TRUE(faulty([](PlanBuffer& b) { b.gaps = {{1, 3, 0, 1}}; }));
  EXPECT_TRUE(faulty([](PlanBuffer& b) { b.gaps = {{3, 3, 0, 1}}; }));
  EXPECT_TRUE(faulty([](PlanBuffer& b) { b.gaps = {{3, 4, 0, 6}}; }));
  EXPECT_TRUE(faulty([](PlanBuffer& b) { b.gaps = {{3, 4, 2, 1}}; }));
  EXPECT_FALSE(faulty([](PlanBuffer& b) { b.gaps = {{3, 4, 2, 2}}; }));
}

TEST(CheckProblem, FindsFaultsBetweenBuffers) {
  PlanProblem p = two();
  p.buffers[0].offset = 0;
  p.buffers[1].offset = 9;
  const auto fault = check_problem(p);
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->buffer, 1u);
  p.buffers[1].offset = 10;
  EXPECT_FALSE(check_problem(p));
  p.ids = {"a"};
  EXPECT_TRUE(check_problem(p));
  p.ids = {"a", "a"};
  EXPECT_TRUE(check_problem(p));
  p.ids = {"a", "b"};
  EXPECT_FALSE(check_problem(p));
}

}  // namespace
}  // namespace cistern
