// One thread: sizes, reuse, figures, lookup, views, random operations against a simple model.
#include "allocator/device_allocator.hpp"

#include <cstring>
#include <map>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "allocator/allocator_fixture.hpp"
#include "allocator/thread_state.hpp"
#include "cistern/error.hpp"

namespace cistern::allocation {
namespace {

TEST(DeviceAllocator, GivesAlignedWritableMemoryOfEnoughSize) {
  const auto a = make_cpu();
  for (const std::size_t bytes :
       {1UL, 63UL, 64UL, 65UL, 8192UL, 8193UL, 100000UL, 1UL << 20, (3UL << 20) + 1, 64UL << 20}) {
    const Buffer b = a->malloc(bytes);
    ASSERT_TRUE(b.live());
    EXPECT_GE(b.size(), bytes);
    EXPECT_LE(b.size(), bytes + bytes / 8 + 64);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(b.ptr()) % 64, 0U);
    EXPECT_EQ(b.raw_ptr(), b.ptr());
    EXPECT_EQ(a->size(b), b.size());
    EXPECT_EQ(b.offset(), 0U);
    EXPECT_EQ(b.device(), Device::cpu());
    std::memset(b.ptr(), 0x5A, b.size());
    expect_sound(*a);
    a->free(b);
    EXPECT_FALSE(b.live());
    EXPECT_EQ(b.size(), 0U);
    EXPECT_EQ(b.ptr(), nullptr);
    expect_sound(*a);
  }
  EXPECT_EQ(a->stats().active, 0U);
}

TEST(DeviceAllocator, AnEmptyBufferIsValid) {
  const auto a = make_cpu();
  const Buffer b = a->malloc(0);
  const Buffer c = a->malloc(0);
  EXPECT_TRUE(b.live());
  EXPECT_EQ(b.size(), 0U);
  EXPECT_NE(b.ptr(), c.ptr());
  EXPECT_EQ(a->stats().live_buffers, 2U);
  EXPECT_EQ(a->stats().active, 0U);
  EXPECT_EQ(a->find(b.ptr()), b);
  a->free(b);
  a->free_raw(c.ptr());
  EXPECT_EQ(a->stats().live_buffers, 0U);
  const Buffer d = a->malloc(64);  // The same memory, with its full size.
  EXPECT_EQ(d.size(), 64U);
  a->free(d);
  a->free(Buffer());
  expect_sound(*a);
}

TEST(DeviceAllocator, SizesThatNoDeviceHasAreRefused) {
  const auto a = make_cpu();
  for (const std::size_t bytes : {SIZE_MAX, SIZE_MAX - 1, SIZE_MAX - 63, SIZE_MAX / 2 + 1}) {
    EXPECT_THROW(a->malloc(bytes), invalid_argument);
  }
  EXPECT_THROW(a->malloc(SIZE_MAX / 2), out_of_memory);
  EXPECT_THROW(a->malloc(std::size_t{1} << 50), out_of_memory);
  a->free(a->malloc(100));
  // Those that no limit refuses are looked for.
  a->set_memory_limit(SIZE_MAX);
  for (unsigned log = 50; log < 63; ++log) EXPECT_THROW(a->malloc(std::size_t{1} << log), out_of_memory) << log;
  expect_sound(*a);
  a->free(a->malloc(100));
}

TEST(DeviceAllocator, MemoryIsReusedAndHandlesAreNot) {
  const auto a = make_cpu();
  for (const std::size_t bytes : {100UL, 5000UL, 70000UL, 1UL << 20}) {
    const Buffer first = a->malloc(bytes);
    void* ptr = first.ptr();
    a->free(first);
    const Buffer second = a->malloc(bytes);
    EXPECT_EQ(second.ptr(), ptr);
    EXPECT_NE(first, second);
    EXPECT_FALSE(first.live());
    EXPECT_THROW(a->free(first), invalid_argument);
    EXPECT_TRUE(second.live());
    a->free(second);
  }
}

TEST(DeviceAllocator, FreshMemoryIsZero) {
  const auto a = make_cpu();
  const Buffer b = a->malloc(5_MiB);
  const auto* bytes = static_cast<const unsigned char*>(b.ptr());
  for (std::size_t i = 0; i < b.size(); i += 4096) ASSERT_EQ(bytes[i], 0);
  a->free(b);
}

TEST(DeviceAllocator, FindLeadsBackToLiveBuffersOnly) {
  const auto a = make_cpu();
  std::vector<Buffer> buffers;
  for (const std::size_t bytes : {10UL, 200UL, 8192UL, 8200UL, 30000UL, 3UL << 20}) buffers.push_back(a->malloc(bytes));
  for (const Buffer& b : buffers) {
    EXPECT_EQ(a->find(b.ptr()), b);
    EXPECT_FALSE(a->find(static_cast<char*>(b.ptr()) + 1));
  }
  EXPECT_FALSE(a->find(nullptr));
  int local = 0;
  EXPECT_FALSE(a->find(&local));
  for (const Buffer& b : buffers) {
    void* ptr = b.ptr();
    a->free_raw(ptr);
    EXPECT_FALSE(a->find(ptr));
    EXPECT_THROW(a->free_raw(ptr), invalid_argument);
  }
  a->free_raw(nullptr);
  expect_sound(*a);
}

TEST(DeviceAllocator, SmallBlocksAreFetchedAFewAtFirst) {
  const auto a = make_cpu();
  const auto held = [&] {
    std::uint64_t bytes = 0;
    for (const core::ThreadCache* cache : thread_state.record->caches) {
      if (cache != nullptr && cache->front == a.get()) bytes += cache->held();
    }
    return bytes;
  };
  std::vector<Buffer> buffers{a->malloc(100)};
  const std::size_t bytes = buffers[0].size();
  EXPECT_EQ(held(), 3 * bytes);
  for (int i = 0; i < 4; ++i) buffers.push_back(a->malloc(100));
  EXPECT_EQ(held(), 15 * bytes);
  for (const Buffer& b : buffers) a->free(b);
}

// The lock's holder may wait for work that waits for the thread that asks.
TEST(DeviceAllocator, FindWaitsForNoLock) {
  const auto a = make_cpu();
  std::vector<Buffer> buffers;
  for (const std::size_t bytes : {200UL, 30000UL, 1UL << 20, 3UL << 20}) buffers.push_back(a->malloc(bytes));
  const Buffer gone = a->malloc(5 << 20);
  void* const address = gone.ptr();
  buffers.push_back(a->malloc(7 << 20));
  a->free(gone);
  int local = 0;
  const Buffer view = a->make_buffer(&local, sizeof local);
  const auto look = [&] {
    for (const Buffer& b : buffers) EXPECT_EQ(a->find(b.ptr()), b);
    EXPECT_FALSE(a->find(address));
    EXPECT_FALSE(a->find(&local));
  };
  {
    const Central::Lock lock(a->central());
    std::thread(look).join();
  }
  look();
  buffers.push_back(a->malloc(9 << 20));
  std::thread(look).join();
  for (const Buffer& b : buffers) a->free(b);
  a->release(view);
  expect_sound(*a);
}

TEST(DeviceAllocator, TheFirstQuestionsComeWhileOthersAllocate) {
  for (int round = 0; round < 20; ++round) {
    const auto a = make_cpu();
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < 3; ++t) {
      threads.emplace_back([&a, t] {
        std::vector<Buffer> mine;
        for (std::size_t i = 0; i < 60; ++i) {
          mine.push_back(a->malloc(i % 2 == 0 ? (100 + 37 * i + t) << 10 : 100 + 300 * i));
          if (i >= 20 * t) {
            EXPECT_EQ(a->find(mine[i / 2].ptr()), mine[i / 2]);
          }
        }
        for (const Buffer& b : mine) a->free_raw(b.ptr());
      });
    }
    for (std::thread& t : threads) t.join();
    EXPECT_EQ(a->stats().live_buffers, 0U);
    expect_sound(*a);
  }
}

TEST(DeviceAllocator, FiguresFollowEachStep) {
  const auto a = make_cpu();
  const Buffer small = a->malloc(1000), large = a->malloc(10_MiB);
  Stats s = a->stats();
  EXPECT_EQ(s.active, small.size() + large.size());
  EXPECT_EQ(s.live_buffers, 2U);
  EXPECT_GE(s.reserved, s.active);
  EXPECT_EQ(s.cached, s.reserved - s.active);
  EXPECT_EQ(s.peak_active, s.active);
  EXPECT_GT(s.total_memory, 0U);
  EXPECT_EQ(s.memory_limit, s.total_memory / 10 * 8);
  EXPECT_EQ(s.cache_limit, s.memory_limit);
  EXPECT_GT(s.driver_calls, 0U);
  a->free(large);
  a->free(small);
  s = a->stats();
  EXPECT_EQ(s.active, 0U);
  EXPECT_GE(s.peak_active, 10_MiB + 1000);
  EXPECT_EQ(s.cached, s.reserved);
  a->clear_cache();
  s = a->stats();
  EXPECT_EQ(s.reserved, 0U);
  EXPECT_EQ(s.handles, 0U);
  EXPECT_GE(s.peak_reserved, 10_MiB);
  a->reset_peaks();
  EXPECT_EQ(a->stats().peak_active, 0U);
  EXPECT_EQ(a->stats().peak_reserved, 0U);
  expect_sound(*a);
}

TEST(DeviceAllocator, ViewsAreCountedAndNeverCached) {
  const auto a = make_cpu();
  std::vector<char> memory(1000);
  const Buffer view = a->make_buffer(memory.data() + 1, 999);
  ASSERT_TRUE(view);
  EXPECT_EQ(view.ptr(), memory.data() + 1);
  EXPECT_EQ(view.raw_ptr(), memory.data() + 1);
  EXPECT_EQ(view.size(), 999U);
  EXPECT_EQ(a->stats().active, 999U);
  EXPECT_EQ(a->stats().views, 999U);
  EXPECT_EQ(a->stats().cached, 0U);
  EXPECT_THROW(a->free(view), invalid_argument);
  EXPECT_TRUE(view.live());
  expect_sound(*a);
  a->release(view);
  EXPECT_FALSE(view.live());
  EXPECT_THROW(a->release(view), invalid_argument);
  EXPECT_EQ(a->stats().active, 0U);
  EXPECT_EQ(a->stats().reserved, 0U);
  const Buffer owned = a->malloc(10);
  EXPECT_THROW(a->release(owned), invalid_argument);
  EXPECT_TRUE(owned.live());
  a->free(owned);
  EXPECT_FALSE(a->make_buffer(nullptr, 0));
  EXPECT_THROW(a->make_buffer(nullptr, 1), invalid_argument);
  EXPECT_THROW(a->make_buffer(memory.data(), SIZE_MAX), invalid_argument);
  EXPECT_THROW(a->make_buffer(reinterpret_cast<void*>(UINTPTR_MAX - 99), 101), invalid_argument) << "wraps";
  a->release(Buffer());
  expect_sound(*a);
}

// Sequences of operations against a map of what is live; every byte stays as written.
class RandomOperations : public testing::TestWithParam<std::uint64_t> {};

TEST_P(RandomOperations, AgreeWithASimpleModel) {
  std::mt19937_64 random(GetParam());
  const auto a = make_cpu();
  struct Live {
    Buffer buffer;
    unsigned char mark;
  };
  std::vector<Live> live;
  std::map<std::uintptr_t, std::size_t> ranges;
  std::size_t active = 0;
  const auto check = [&](const Live& l) {
    const auto* bytes = static_cast<const unsigned char*>(l.buffer.ptr());
    ASSERT_EQ(bytes[0], l.mark);
    ASSERT_EQ(bytes[l.buffer.size() - 1], l.mark);
    ASSERT_EQ(bytes[l.buffer.size() / 2], l.mark);
  };
  for (int step = 0; step < 12000; ++step) {
    if (live.empty() || random() % 100 < (live.size() < 400 ? 55U : 45U)) {
      const std::size_t bytes = 1 + random() % (std::size_t{1} << (4 + random() % 17));
      const Live l{a->malloc(bytes), static_cast<unsigned char>(random())};
      ASSERT_GE(l.buffer.size(), bytes);
      auto* start = static_cast<unsigned char*>(l.buffer.ptr());
      start[0] = start[l.buffer.size() - 1] = start[l.buffer.size() / 2] = l.mark;
      const auto [at, fresh] = ranges.emplace(reinterpret_cast<std::uintptr_t>(start), l.buffer.size());
      ASSERT_TRUE(fresh);
      ASSERT_TRUE(at == ranges.begin() || std::prev(at)->first + std::prev(at)->second <= at->first);
      ASSERT_TRUE(std::next(at) == ranges.end() || at->first + at->second <= std::next(at)->first);
      active += l.buffer.size();
      live.push_back(l);
    } else {
      std::swap(live[random() % live.size()], live.back());
      check(live.back());
      const Buffer b = live.back().buffer;
      live.pop_back();
      active -= b.size();
      ranges.erase(reinterpret_cast<std::uintptr_t>(b.ptr()));
      if (random() % 8 == 0) {
        a->free_raw(b.ptr());
      } else {
        a->free(b);
      }
      if (random() % 64 == 0) {
        EXPECT_THROW(a->free(b), invalid_argument);
      }
    }
    if (random() % 2000 == 0) a->clear_cache();
    ASSERT_EQ(a->stats().active, active);
    ASSERT_EQ(a->stats().live_buffers, live.size());
    if (step % 500 == 0) expect_sound(*a);
  }
  for (const Live& l : live) {
    check(l);
    a->free(l.buffer);
  }
  a->clear_cache();
  EXPECT_EQ(a->stats().reserved, 0U);
  expect_sound(*a);
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomOperations, testing::Range<std::uint64_t>(1, 5));

TEST(DeviceAllocator, HandlesOutliveTheAllocator) {
  Buffer b;
  {
    const auto a = make_cpu();
    b = a->malloc(100);
  }
  EXPECT_FALSE(b.live());
  EXPECT_EQ(b.ptr(), nullptr);
  EXPECT_THROW(b.raw_ptr(), invalid_argument);
  EXPECT_THROW(cistern::free(b), invalid_argument);
}

TEST(DeviceAllocator, ManyAllocatorsLiveSideBySide) {
  std::vector<std::unique_ptr<DeviceAllocator>> all;
  for (int i = 0; i < 40; ++i) all.push_back(make_cpu());  // More heaps than a thread has quick slots.
  std::vector<Buffer> buffers;
  for (const auto& a : all) {
    for (int i = 0; i < 100; ++i) a->free(a->malloc(100));
    buffers.push_back(a->malloc(100));
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_THROW(all[(i + 1) % all.size()]->free(buffers[i]), invalid_argument);
    all[i]->free(buffers[i]);
    expect_sound(*all[i]);
  }
}

}  // namespace
}  // namespace cistern::allocation
