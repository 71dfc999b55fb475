// Large tables are zero, and cost memory only where they are touched, whatever the C library has left over.
#include "core/zeroed_array.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "core/units.hpp"

namespace cistern::core {
namespace {

// Pages of 4 KiB; 0 where the system does not tell.
std::uint64_t resident_pages() {
  std::ifstream file("/proc/self/statm");
  std::uint64_t size = 0, resident = 0;
  file >> size >> resident;
  return resident;
}

// Leaves memory that was used with the C library: a block small enough to come from its heap.
void use_and_free(std::size_t bytes) {
  for (int i = 0; i < 3; ++i) {
    void* const block = std::malloc(bytes);
    ASSERT_NE(block, nullptr);
    std::memset(block, 0xA5, bytes);
    std::free(block);
  }
}

TEST(ZeroedArray, IsZeroAfterUsedMemory) {
  for (const std::size_t count : {std::size_t{1}, std::size_t{1000}, std::size_t{100'000}, std::size_t{3'000'000}}) {
    use_and_free(count * sizeof(std::uint64_t));
    ZeroedArray<std::uint64_t> array(count);
    EXPECT_TRUE(std::all_of(array.begin(), array.begin() + count, [](std::uint64_t v) { return v == 0; })) << count;
    array[count - 1] = 7;
    EXPECT_EQ(array[count - 1], 7U);
  }
}

TEST(ZeroedArray, CostsNothingUntouched) {
  if (resident_pages() == 0) GTEST_SKIP() << "no /proc/self/statm";
  use_and_free(32 * MiB);
  const std::uint64_t before = resident_pages();
  const ZeroedArray<std::uint64_t> array(3 * MiB);
  EXPECT_EQ(array[2 * MiB], 0U);
  EXPECT_LT(resident_pages(), before + 256) << "24 MiB were asked for";
}

}  // namespace
}  // namespace cistern::core
