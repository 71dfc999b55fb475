// Size classes: every size fits its class, waste is bounded, slabs hold enough.
#include "core/size_class.hpp"

#include <gtest/gtest.h>

namespace cistern::core {
namespace {

TEST(SizeClasses, EachSizeGetsTheSmallestClassThatFits) {
  for (const std::size_t alignment : {8U, 64U, 256U, 512U, 1024U}) {
    const SizeClasses classes(alignment);
    ASSERT_EQ(classes.largest(), SizeClasses::kLargest);
    ASSERT_LE(classes.count(), SizeClasses::kMaxClasses);
    EXPECT_EQ(classes.size(classes.count() - 1), SizeClasses::kLargest);
    for (std::size_t bytes = 1; bytes <= classes.largest(); ++bytes) {
      const std::size_t index = classes.index(bytes);
      ASSERT_LT(index, classes.count());
      ASSERT_GE(classes.size(index), bytes);
      ASSERT_TRUE(index == 0 || classes.size(index - 1) < bytes);
    }
  }
}

TEST(SizeClasses, SizesAreAlignedAndWasteIsBounded) {
  for (const std::size_t alignment : {64U, 512U}) {
    const SizeClasses classes(alignment);
    for (std::size_t i = 0; i < classes.count(); ++i) {
      EXPECT_EQ(classes.size(i) % alignment, 0U);
      if (i > 0 && classes.size(i) > 8 * alignment) {
        EXPECT_LE(static_cast<double>(classes.size(i) - classes.size(i - 1)),
                  0.125 * static_cast<double>(classes.size(i)));
      }
    }
  }
}

TEST(SizeClasses, SlabsAreWholeGranulesAndNotTooCrowded) {
  const SizeClasses classes(64);
  for (std::size_t i = 0; i < classes.count(); ++i) {
    EXPECT_EQ(classes.slab_bytes(i) % 8192, 0U);
    EXPECT_LE(classes.slab_bytes(i), 65536U);
    EXPECT_GE(classes.per_slab(i), 8U);
    EXPECT_LE(classes.per_slab(i), SizeClasses::kMaxPerSlab);
  }
}

TEST(SizeClasses, CoarseDevicesHaveNone) {
  EXPECT_EQ(SizeClasses(2048).largest(), 0U);
  EXPECT_EQ(SizeClasses(16384).count(), 0U);
}

}  // namespace
}  // namespace cistern::core
