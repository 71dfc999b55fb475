// Limits hold, and say what happened when they do not leave room.
#include <gmock/gmock.h>

#include <vector>

#include "allocator/allocator_fixture.hpp"
#include "cistern/error.hpp"
#include "cistern/memory.hpp"

namespace cistern::allocation {
namespace {

using testing::HasSubstr;

TEST(MemoryLimit, IsNeverPassedAndTheAllocatorStaysUsable) {
  const auto a = make_cpu();
  EXPECT_EQ(a->set_memory_limit(64_MiB), a->stats().total_memory / 10 * 8);
  std::vector<Buffer> buffers;
  EXPECT_THROW(for (;;) buffers.push_back(a->malloc(3_MiB)), out_of_memory);
  EXPECT_GE(buffers.size(), 20U);
  EXPECT_LE(a->stats().peak_reserved, 64_MiB);
  a->free(buffers.back());
  buffers.pop_back();
  buffers.push_back(a->malloc(2_MiB));
  EXPECT_THROW(a->malloc(65_MiB), out_of_memory);
  for (const Buffer& b : buffers) a->free(b);
  const Buffer whole = a->malloc(64_MiB);
  EXPECT_LE(a->stats().peak_reserved, 64_MiB);
  a->free(whole);
  EXPECT_EQ(a->set_memory_limit(1_MiB), 64_MiB);
  expect_sound(*a);
}

TEST(MemoryLimit, HoldsForTheFirstPagesOfHostMemory) {
  Model m;
  m->set_memory_limit(4096);
  const Buffer b = m->malloc(8);
  EXPECT_LE(m->stats().reserved, 4096U);
  m->free(b);
  m->set_memory_limit(8_MiB);
  m->free(m->malloc(8));
  std::vector<Buffer> buffers;
  EXPECT_THROW(for (;;) buffers.push_back(m->malloc(64_KiB, m.stream(0))), out_of_memory);
  EXPECT_LE(m->stats().peak_reserved, 8_MiB);
  for (const Buffer& each : buffers) m->free(each);
}

TEST(MemoryLimit, EvictsBeforeItThrows) {
  const auto a = make_cpu();
  a->set_memory_limit(32_MiB);
  for (int round = 0; round < 20; ++round) {
    std::vector<Buffer> buffers;
    const std::size_t bytes = 1 + static_cast<std::size_t>(round) * 50000;
    for (int i = 0; i < 20; ++i) buffers.push_back(a->malloc(bytes));
    for (const Buffer& b : buffers) a->free(b);
    const Buffer large = a->malloc(30_MiB);
    a->free(large);
    expect_sound(*a);
  }
  EXPECT_LE(a->stats().peak_reserved, 32_MiB);
}

TEST(MemoryLimit, LoweredBelowWhatIsReservedGivesBackFirst) {
  const auto a = make_cpu();
  const Buffer keep = a->malloc(4_MiB);
  a->free(a->malloc(100_MiB));
  a->set_memory_limit(16_MiB);
  EXPECT_LE(a->stats().reserved, 16_MiB);
  EXPECT_THROW(a->malloc(16_MiB), out_of_memory);
  const Buffer more = a->malloc(8_MiB);
  a->free(more);
  a->free(keep);
  expect_sound(*a);
}

TEST(MemoryLimit, TheTextSaysAll) {
  const auto a = make_cpu();
  a->set_memory_limit(16_MiB);
  std::string text;
  Buffer big;
  {
    const ScopedTag tag("weights");
    big = a->malloc(8_MiB);
  }
  try {
    a->malloc(100_MiB);
  } catch (const out_of_memory& error) {
    text = error.what();
    EXPECT_EQ(error.requested(), 100_MiB);
    EXPECT_EQ(error.limit(), 16_MiB);
  }
  for (const char* part : {"cpu", "asked for 100.0 MiB", "limit 16.0 MiB", "active 8.0 MiB", "cached", "reserved",
                           "largest free range", "weights 8.0 MiB"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  a->free(big);
}

TEST(MemoryLimit, CallbacksMayFreeMemory) {
  const auto a = make_cpu();
  a->set_memory_limit(32_MiB);
  std::vector<Buffer> hoard;
  for (int i = 0; i < 7; ++i) hoard.push_back(a->malloc(4_MiB));
  int calls = 0;
  const std::uint64_t id = add_out_of_memory_callback([&](Device device, std::size_t bytes) {
    EXPECT_EQ(device, Device::cpu());
    EXPECT_EQ(bytes, 16_MiB);
    ++calls;
    if (hoard.empty()) return false;
    a->free(hoard.back());  // No lock of the allocator is held.
    hoard.pop_back();
    return true;
  });
  const Buffer b = a->malloc(16_MiB);
  EXPECT_GE(calls, 1);
  EXPECT_FALSE(hoard.empty());
  a->free(b);
  for (const Buffer& h : hoard) a->free(h);
  hoard.clear();
  const Buffer c = a->malloc(32_MiB);
  calls = 0;
  EXPECT_THROW(a->malloc(16_MiB), out_of_memory);
  EXPECT_EQ(calls, 1);
  remove_out_of_memory_callback(id);
  EXPECT_THROW(a->malloc(16_MiB), out_of_memory);
  EXPECT_EQ(calls, 1);
  a->free(c);
  EXPECT_THROW(add_out_of_memory_callback(nullptr), invalid_argument);
}

TEST(MemoryLimit, ACallbackThatFreesNothingEndsTheAttempts) {
  const auto a = make_cpu();
  a->set_memory_limit(8_MiB);
  int calls = 0;
  const std::uint64_t id = add_out_of_memory_callback([&](Device, std::size_t) { return ++calls > 0; });
  EXPECT_THROW(a->malloc(16_MiB), out_of_memory);
  EXPECT_EQ(calls, 1);
  remove_out_of_memory_callback(id);
}

TEST(CacheLimit, HoldsAtOnceAfterAFree) {
  const auto a = make_cpu();
  EXPECT_EQ(a->set_cache_limit(0), a->stats().memory_limit);
  for (const std::size_t bytes : {100UL, 5000UL, 100000UL, 1UL << 20, 8UL << 20}) {
    const Buffer b = a->malloc(bytes);
    a->free(b);
    EXPECT_EQ(a->stats().cached, 0U) << bytes;
    EXPECT_EQ(a->stats().reserved, 0U) << bytes;
    expect_sound(*a);
  }
  a->set_cache_limit(16_MiB);
  std::vector<Buffer> buffers;
  for (int i = 0; i < 20; ++i) buffers.push_back(a->malloc(4_MiB));
  for (const Buffer& b : buffers) {
    a->free(b);
    EXPECT_LE(a->stats().cached, 16_MiB);
  }
  EXPECT_GT(a->stats().cached, 0U);
  EXPECT_EQ(a->set_cache_limit(1_MiB), 16_MiB);
  EXPECT_LE(a->stats().cached, 1_MiB);
  a->set_cache_limit(SIZE_MAX);
  const Buffer big = a->malloc(64_MiB);
  a->free(big);
  EXPECT_GE(a->stats().cached, 64_MiB);
  expect_sound(*a);
}

TEST(CacheLimit, SmallBuffersCountToo) {
  const auto a = make_cpu();
  a->set_cache_limit(0);
  std::vector<Buffer> buffers;
  for (int i = 0; i < 5000; ++i) buffers.push_back(a->malloc(1 + static_cast<std::size_t>(i)));
  for (const Buffer& b : buffers) a->free(b);
  EXPECT_EQ(a->stats().cached, 0U);
  expect_sound(*a);
}

TEST(WiredLimit, IsKept) {
  const auto a = make_cpu();
  EXPECT_EQ(a->set_wired_limit(5), 0U);
  EXPECT_EQ(a->stats().wired_limit, 5U);
  EXPECT_EQ(a->set_wired_limit(0), 5U);
}

}  // namespace
}  // namespace cistern::allocation
