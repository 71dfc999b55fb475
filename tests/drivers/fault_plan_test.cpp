// The small helpers of the drivers: fault plan, aligned memory, error text.
#include "drivers/fault_plan.hpp"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "drivers/aligned_memory.hpp"
#include "drivers/error_text.hpp"

namespace cistern::drivers {
namespace {

TEST(FaultPlan, FailsTheNthOfAKind) {
  FaultPlan plan;
  plan.fail(Call::map, 2, Status::failed);
  EXPECT_EQ(plan.next(Call::map), Status::ok);
  EXPECT_EQ(plan.next(Call::create), Status::ok);
  EXPECT_EQ(plan.next(Call::map), Status::failed);
  EXPECT_EQ(plan.next(Call::map), Status::ok);
  EXPECT_EQ(plan.count(Call::map), 3u);
  EXPECT_EQ(plan.count(Call::any), 4u);
  EXPECT_EQ(plan.injected(), 1u);
}

TEST(FaultPlan, FailsSeveralOfAnyKind) {
  FaultPlan plan;
  plan.fail(Call::any, 2, Status::out_of_memory, 2);
  EXPECT_EQ(plan.next(Call::map), Status::ok);
  EXPECT_EQ(plan.next(Call::create), Status::out_of_memory);
  EXPECT_EQ(plan.next(Call::unmap), Status::out_of_memory);
  EXPECT_EQ(plan.next(Call::unmap), Status::ok);
  plan.fail(Call::any, 1);
  plan.fail(Call::any, 0);
  EXPECT_EQ(plan.next(Call::map), Status::ok);
}

TEST(FaultPlan, EveryKindHasItsName) {
  std::set<std::string> names;
  for (std::size_t i = 0; i < kCallKinds; ++i) names.insert(name(static_cast<Call>(i)));
  EXPECT_EQ(names.size(), kCallKinds);
  EXPECT_STREQ(name(Call::set_wired_limit), "set_wired_limit");
  EXPECT_STREQ(name(Call::any), "any");
}

TEST(AlignedMemory, IsAlignedZeroAndRefusesTooMuch) {
  for (const std::size_t alignment : {16u, 64u, 4096u}) {
    for (const std::size_t bytes : {0u, 1u, 1000u, 100000u}) {
      auto* const ptr = static_cast<unsigned char*>(aligned_calloc(bytes, alignment));
      ASSERT_NE(ptr, nullptr);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(ptr) % alignment, 0u);
      for (std::size_t i = 0; i < bytes; ++i) ASSERT_EQ(ptr[i], 0);
      std::memset(ptr, 1, bytes);
      aligned_free(ptr);
    }
  }
  EXPECT_EQ(aligned_calloc(SIZE_MAX, 64), nullptr);
  EXPECT_EQ(aligned_calloc(SIZE_MAX - 64, 64), nullptr);
  aligned_free(nullptr);
}

TEST(ErrorText, IsCutNotOverrun) {
  ErrorText text;
  EXPECT_STREQ(text.c_str(), "");
  text.set("%s %d", "number", 7);
  EXPECT_STREQ(text.c_str(), "number 7");
  text.set("%s", std::string(5000, 'x').c_str());
  EXPECT_EQ(std::string(text.c_str()), std::string(319, 'x'));
}

}  // namespace
}  // namespace cistern::drivers
