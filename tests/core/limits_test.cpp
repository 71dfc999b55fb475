// Limits: setters return what was, the cache limit follows until it is set.
#include "core/limits.hpp"

#include <gtest/gtest.h>

namespace cistern::core {
namespace {

TEST(Limits, SettersReturnThePreviousValue) {
  Limits limits(1000);
  EXPECT_EQ(limits.set_memory(800), 1000U);
  EXPECT_EQ(limits.memory(), 800U);
  EXPECT_EQ(limits.set_wired(5), 0U);
  EXPECT_EQ(limits.set_wired(0), 5U);
}

TEST(Limits, TheCacheLimitFollowsUntilItIsSet) {
  Limits limits(1000);
  EXPECT_EQ(limits.cache(), 1000U);
  EXPECT_FALSE(limits.cache_binds());
  limits.set_memory(800);
  EXPECT_EQ(limits.cache(), 800U);
  EXPECT_EQ(limits.set_cache(100), 800U);
  EXPECT_TRUE(limits.cache_binds());
  limits.set_memory(2000);
  EXPECT_EQ(limits.set_cache(2000), 100U);
  limits.set_memory(500);
  EXPECT_EQ(limits.cache(), 500U);
}

TEST(Limits, ExcessIsWhatIsCachedAboveTheLimit) {
  Limits limits(1000);
  limits.set_cache(100);
  EXPECT_EQ(limits.excess(500, 450), 0U);
  EXPECT_EQ(limits.excess(500, 100), 300U);
  EXPECT_EQ(limits.excess(500, 600), 0U);
}

}  // namespace
}  // namespace cistern::core
