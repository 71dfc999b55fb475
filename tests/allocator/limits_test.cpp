// Limits hold, and say what happened when they do not leave room.
#include <gmock/gmock.h>

#include <atomic>
#include <thread>
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

std::string refusal(DeviceAllocator& a, std::size_t bytes) {
  try {
    a.free(a.malloc(bytes));
  } catch (const out_of_memory& error) {
    return error.what();
  }
  ADD_FAILURE() << bytes << " bytes were had";
  return {};
}

TEST(MemoryLimit, BelowOnePieceTheErrorNamesThePiece) {
  const auto a = make_cpu();
  const std::string piece = "memory is mapped in pieces of 2.0 MiB (2097152 B), the limit has room for ";
  a->set_memory_limit(2_MiB - 1);
  EXPECT_THAT(refusal(*a, 100), HasSubstr(piece + "0 of them"));
  a->set_memory_limit(5_MiB);
  const Buffer b = a->malloc(3_MiB);
  EXPECT_THAT(refusal(*a, 2_MiB), HasSubstr(piece + "2 of them"));
  a->free(b);
  EXPECT_THAT(refusal(*a, 16_MiB), testing::Not(HasSubstr("piece of"))) << "too much by bytes alone";
}

TEST(MemoryLimit, NoLimitIsSaidInWords) {
  drivers::ModelConfig config;
  config.total_memory = 64_MiB;
  Model m(config);
  m->set_memory_limit(SIZE_MAX);
  const std::string text = refusal(*m, 1024_MiB);
  EXPECT_THAT(text, HasSubstr(", limit none, active"));
  EXPECT_THAT(text, testing::Not(HasSubstr("has room for")));
  m->set_memory_limit(SIZE_MAX - 1);
  EXPECT_THAT(refusal(*m, 1024_MiB), HasSubstr("limit 16777215.9 TiB (18446744073709551614 B), active"));
}

TEST(MemoryLimit, TheErrorTellsViewsApart) {
  const auto a = make_cpu();
  std::vector<char> memory(3_MiB);
  a->set_memory_limit(4_MiB);
  EXPECT_THAT(refusal(*a, 8_MiB), testing::Not(HasSubstr("views")));
  const Buffer view = a->make_buffer(memory.data(), memory.size());
  EXPECT_THAT(refusal(*a, 8_MiB), HasSubstr("active 3.0 MiB (3145728 B) (3.0 MiB (3145728 B) of it views)"));
  a->release(view);
  std::vector<char> more(8_MiB);
  const Buffer large = a->make_buffer(more.data(), more.size());
  EXPECT_NO_THROW(a->free(a->malloc(2_MiB))) << "views are not against the limit";
  a->release(large);
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

// With small blocks, whose slab has room, and large ones; by the host's way and by a stream's.
void expect_nothing_more(DeviceAllocator& a, std::size_t limit) {
  const Stats before = a.stats();
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{64}, std::size_t{1000}, 100_KiB, 3_MiB}) {
    try {
      a.malloc(bytes);
      ADD_FAILURE() << bytes << " bytes were given under a limit of " << limit;
    } catch (const out_of_memory& error) {
      EXPECT_EQ(error.limit(), limit);
    }
    EXPECT_THROW(a.malloc(bytes, a.stream(nullptr)), out_of_memory) << bytes;
  }
  EXPECT_EQ(a.stats().active, before.active);
  EXPECT_LE(a.stats().reserved, before.reserved);
  expect_sound(a);
}

void expect_limits_below_live_hold(DeviceAllocator& a) {
  std::vector<Buffer> live;
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{64}, std::size_t{1000}, 100_KiB, 3_MiB}) {
    live.push_back(a.malloc(bytes));
    live.push_back(a.malloc(bytes, a.stream(nullptr)));
  }
  // What this thread keeps is given back with the limit.
  for (int i = 0; i < 8; ++i) a.free(a.malloc(64));
  const std::size_t first = a.set_memory_limit(0);
  expect_nothing_more(a, 0);
  EXPECT_EQ(a.set_memory_limit(1_MiB), 0U);
  expect_nothing_more(a, 1_MiB);
  const std::size_t active = a.stats().active;
  a.set_memory_limit(active);
  EXPECT_THROW(a.malloc(1), out_of_memory);
  // Within the limit again, even if `reserved` is not: what is mapped may serve.
  a.set_memory_limit(active + 64_KiB);
  a.free(a.malloc(1, a.stream(nullptr)));
  for (const Buffer& b : live) {
    EXPECT_TRUE(b.live());
    a.free(b);
  }
  a.set_memory_limit(first);
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, 3_MiB}) a.free(a.malloc(bytes));
  expect_sound(a);
}

TEST(MemoryLimit, BelowWhatIsLiveHandsOutNothingMore) {
  const auto cpu = make_cpu();
  expect_limits_below_live_hold(*cpu);
  Model m;
  expect_limits_below_live_hold(*m);
  DeviceAllocator plain(Device::cpu(), drivers::make_cpu_driver(drivers::CpuMode::system));
  expect_limits_below_live_hold(plain);
}

TEST(MemoryLimit, OtherThreadsGetNoMoreThanTheirCachesHold) {
  const auto a = make_cpu();
  const Buffer pin = a->malloc(64);
  std::atomic<int> stage{0};
  std::size_t given = 0;
  std::thread other([&] {
    std::vector<Buffer> live;
    for (int i = 0; i < 100; ++i) live.push_back(a->malloc(64));
    for (const Buffer& b : live) a->free(b);
    stage = 1;
    while (stage != 2) std::this_thread::yield();
    live.clear();
    EXPECT_THROW(for (;;) live.push_back(a->malloc(64)), out_of_memory);
    given = live.size() * 64;
    for (const Buffer& b : live) a->free(b);
  });
  while (stage != 1) std::this_thread::yield();
  a->set_memory_limit(0);
  const std::size_t reserved = a->stats().reserved;
  stage = 2;
  other.join();
  EXPECT_LE(given, 64_KiB);
  EXPECT_LE(a->stats().reserved, reserved);
  a->free(pin);
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

TEST(MemoryLimit, WhatACallbackThrowsPassesThrough) {
  const auto a = make_cpu();
  a->set_memory_limit(8_MiB);
  const std::uint64_t id = add_out_of_memory_callback([](Device, std::size_t) -> bool { throw 7; });
  EXPECT_THROW(a->malloc(16_MiB), int);
  remove_out_of_memory_callback(id);
  EXPECT_THROW(a->malloc(16_MiB), out_of_memory);
  a->free(a->malloc(4_MiB));
  expect_sound(*a);
}

// What was held before the cache was cleared is no measure for what comes.
TEST(ClearCache, EndsAPhase) {
  Model m;
  const Stream s = m.stream(1);
  m->free(m->malloc(2048_MiB, s));
  m->clear_cache();
  std::vector<Buffer> live;
  for (int i = 0; i < 20; ++i) live.push_back(m->malloc(2_MiB, s));
  const std::size_t reserved = m->stats().reserved;
  for (std::size_t i = 0; i < live.size(); i += 2) m->free(live[i]);
  m->free(m->malloc(16_MiB, s));
  EXPECT_EQ(m->stats().reserved, reserved);
  for (std::size_t i = 1; i < live.size(); i += 2) m->free(live[i]);
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

// A piece that two blocks share is kept by either, so that those of large blocks have ends of their own.
TEST(MemoryLimit, OfAFullDeviceEverySecondBlockMakesRoomForOneLarge) {
  for (std::size_t i = 0; i < 12; ++i) {
    const std::size_t bytes = std::array{6_MiB, 8_MiB, 24_MiB, 33_MiB, 97_MiB, 50_MiB + 300_KiB}[i / 2];
    Model model({.total_memory = 8192_MiB});
    model->set_memory_limit(8192_MiB);
    std::vector<Buffer> live;
    EXPECT_THROW(for (;;) live.push_back(model->malloc(bytes, model.stream(0))), out_of_memory);
    for (std::size_t at = i % 2; at < live.size(); at += 2) model->free(live[at]);
    const std::size_t free = 8192_MiB - model->stats().active;
    EXPECT_NO_THROW(model->free(model->malloc(free / 10 * 9, model.stream(0)))) << bytes;
  }
}

}  // namespace
}  // namespace cistern::allocation
