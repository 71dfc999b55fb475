// Bucketing: every size lands in the smallest bucket that holds it.
#include <gtest/gtest.h>

#include <random>

#include "cistern/buffer_pool.hpp"

namespace cistern::detail {
namespace {

void check_size(std::size_t bytes) {
  const std::uint32_t power = power_index(bytes);
  ASSERT_LT(power, kPowerBuckets);
  ASSERT_GE(power_bytes(power), bytes);
  if (power > 0) {
    ASSERT_LT(power_bytes(power - 1), bytes);
  }
  const std::uint32_t step = step_index(bytes);
  ASSERT_LT(step, kStepBuckets);
  ASSERT_GE(step_bytes(step), bytes);
  if (step > 0) {
    ASSERT_LT(step_bytes(step - 1), bytes);
    // Waste of at most one eighth, without overflow.
    ASSERT_LE(step_bytes(step) - bytes, step_bytes(step) / 8) << bytes;
  }
}

TEST(PoolSizesTest, SmallSizesAndAllEdges) {
  for (std::size_t bytes = 0; bytes <= 100000; ++bytes) check_size(bytes);
  for (std::uint32_t i = 0; i < kStepBuckets; ++i) {
    for (std::size_t near : {step_bytes(i) - 1, step_bytes(i), step_bytes(i) + 1}) {
      if (near <= kMaxRequest) check_size(near);
    }
    EXPECT_EQ(step_index(std::min(step_bytes(i), kMaxRequest)), i);
  }
  for (std::uint32_t i = 0; i + 1 < kPowerBuckets; ++i) EXPECT_EQ(power_index(power_bytes(i)), i);
  check_size(kMaxRequest);
}

TEST(PoolSizesTest, RandomSizes) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 200000; ++i) check_size((random() >> 1) >> (random() % 63));
}

}  // namespace
}  // namespace cistern::detail
