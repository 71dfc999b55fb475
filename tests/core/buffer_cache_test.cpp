// The whole-buffer cache: its rules one by one, and random operations beside a simple cache.
#include "core/buffer_cache.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <random>
#include <sstream>
#include <string>
#include <vector>

namespace cistern::core {
namespace {

constexpr std::size_t kPage = 16384;
constexpr std::size_t kNoCap = std::numeric_limits<std::size_t>::max();

struct Gone {
  void* buffer;
  std::size_t capacity;
  friend bool operator==(const Gone&, const Gone&) = default;
};

// Buffers are numbers here; nobody follows them.
void* name(std::uintptr_t number) { return reinterpret_cast<void*>(number); }

class BufferCacheTest : public ::testing::Test {
 protected:
  BufferCache::Evict evict() {
    return [this](void* buffer, std::size_t capacity) { gone_.push_back({buffer, capacity}); };
  }
  static void expect_sound(const BufferCache& cache) {
    EXPECT_EQ(cache.check_invariants(), std::vector<std::string>{});
  }
  std::vector<Gone> gone_;
};

TEST_F(BufferCacheTest, EmptyCacheHasNothing) {
  BufferCache cache(kPage, kNoCap, evict());
  EXPECT_EQ(cache.take(1).buffer, nullptr);
  EXPECT_EQ(cache.take(0).buffer, nullptr);
  EXPECT_EQ(cache.take(SIZE_MAX).buffer, nullptr);
  EXPECT_EQ(cache.bytes(), 0u);
  expect_sound(cache);
}

TEST_F(BufferCacheTest, TakesTheClosestInTheWindow) {
  BufferCache cache(kPage, kNoCap, evict());
  cache.put(name(1), 10 * kPage);
  cache.put(name(2), 11 * kPage);
  cache.put(name(3), 12 * kPage);
  EXPECT_EQ(cache.take(10 * kPage + 1).buffer, name(2));
  EXPECT_EQ(cache.take(10 * kPage + 1).buffer, name(3)) << "12 pages are below 10 pages + 1 + 2 pages";
  EXPECT_EQ(cache.take(8 * kPage).buffer, nullptr) << "the capacity must be below the size + 2 pages";
  EXPECT_EQ(cache.take(8 * kPage + 1).buffer, name(1));
  EXPECT_EQ(cache.count(), 0u);
  expect_sound(cache);
}

TEST_F(BufferCacheTest, SmallSizesStayBelowTwice) {
  BufferCache cache(kPage, kNoCap, evict());
  cache.put(name(1), 512);
  EXPECT_EQ(cache.take(256).buffer, nullptr);
  EXPECT_EQ(cache.take(513).buffer, nullptr);
  const BufferCache::Taken taken = cache.take(257);
  EXPECT_EQ(taken.buffer, name(1));
  EXPECT_EQ(taken.capacity, 512u);
}

TEST_F(BufferCacheTest, WindowCrossesThePage) {
  BufferCache cache(kPage, kNoCap, evict());
  cache.put(name(1), 2 * kPage);
  EXPECT_EQ(cache.take(kPage).buffer, nullptr);
  cache.put(name(2), kPage);
  EXPECT_EQ(cache.take(kPage / 2).buffer, nullptr);
  EXPECT_EQ(cache.take(kPage / 2 + 1).buffer, name(2));
  EXPECT_EQ(cache.take(kPage + 1).buffer, name(1));
}

TEST_F(BufferCacheTest, MostRecentAmongEquals) {
  BufferCache cache(kPage, kNoCap, evict());
  for (std::uintptr_t i = 1; i <= 3; ++i) cache.put(name(i), kPage);
  EXPECT_EQ(cache.take(kPage).buffer, name(3));
  EXPECT_EQ(cache.take(kPage).buffer, name(2));
  EXPECT_EQ(cache.take(kPage).buffer, name(1));
}

TEST_F(BufferCacheTest, EvictsTheOldestAboveTheCap) {
  BufferCache cache(kPage, 4 * kPage, evict());
  for (std::uintptr_t i = 1; i <= 4; ++i) cache.put(name(i), kPage);
  EXPECT_TRUE(gone_.empty());
  cache.put(name(5), 2 * kPage);
  EXPECT_EQ(gone_, (std::vector<Gone>{{name(1), kPage}, {name(2), kPage}}));
  EXPECT_EQ(cache.bytes(), 4 * kPage);
  EXPECT_EQ(cache.count(), 3u);
  expect_sound(cache);
}

TEST_F(BufferCacheTest, TheOldestCanBeTakenOutWhateverItsSize) {
  BufferCache cache(kPage, kNoCap, evict());
  EXPECT_EQ(cache.take_oldest().buffer, nullptr);
  cache.put(name(1), 3 * kPage);
  cache.put(name(2), kPage);
  cache.put(name(3), 3 * kPage);
  EXPECT_EQ(cache.take(kPage).buffer, name(2));
  EXPECT_EQ(cache.take_oldest().buffer, name(1));
  EXPECT_EQ(cache.bytes(), 3 * kPage);
  const BufferCache::Taken last = cache.take_oldest();
  EXPECT_EQ((Gone{last.buffer, last.capacity}), (Gone{name(3), 3 * kPage}));
  EXPECT_EQ(cache.count(), 0u);
  EXPECT_TRUE(gone_.empty());
  expect_sound(cache);
}

TEST_F(BufferCacheTest, LargerThanTheCapPushesNobodyOut) {
  BufferCache cache(kPage, 4 * kPage, evict());
  cache.put(name(1), kPage);
  cache.put(name(2), 5 * kPage);
  EXPECT_EQ(gone_, (std::vector<Gone>{{name(2), 5 * kPage}}));
  EXPECT_EQ(cache.count(), 1u);
}

TEST_F(BufferCacheTest, CapOfZeroKeepsNothing) {
  BufferCache cache(kPage, 0, evict());
  cache.put(name(1), kPage);
  cache.put(name(2), 0);
  EXPECT_EQ(gone_.size(), 2u);
  EXPECT_EQ(cache.count(), 0u);
}

TEST_F(BufferCacheTest, SetCapTrimsAndReturnsThePrevious) {
  BufferCache cache(kPage, 8 * kPage, evict());
  for (std::uintptr_t i = 1; i <= 4; ++i) cache.put(name(i), 2 * kPage);
  EXPECT_EQ(cache.set_cap(5 * kPage), 8 * kPage);
  EXPECT_EQ(cache.cap(), 5 * kPage);
  EXPECT_EQ(gone_, (std::vector<Gone>{{name(1), 2 * kPage}, {name(2), 2 * kPage}}));
  expect_sound(cache);
}

TEST_F(BufferCacheTest, TrimAndClear) {
  BufferCache cache(kPage, kNoCap, evict());
  for (std::uintptr_t i = 1; i <= 4; ++i) cache.put(name(i), kPage);
  EXPECT_EQ(cache.trim(3 * kPage), kPage);
  EXPECT_EQ(cache.clear(), 3 * kPage);
  EXPECT_EQ(gone_.size(), 4u);
  EXPECT_EQ(cache.clear(), 0u);
  expect_sound(cache);
}

TEST_F(BufferCacheTest, DestructorGivesEverythingBack) {
  {
    BufferCache cache(kPage, kNoCap, evict());
    for (std::uintptr_t i = 1; i <= 100; ++i) cache.put(name(i), i);
  }
  EXPECT_EQ(gone_.size(), 100u);
}

TEST_F(BufferCacheTest, Rounds) {
  BufferCache cache(kPage, kNoCap, evict());
  EXPECT_EQ(cache.rounded(0), 8u);
  EXPECT_EQ(cache.rounded(9), 16u);
  EXPECT_EQ(cache.rounded(kPage - 1), kPage);
  EXPECT_EQ(cache.rounded(kPage), kPage);
  EXPECT_EQ(cache.rounded(kPage + 1), 2 * kPage);
}

TEST_F(BufferCacheTest, CapacitiesNearTheEndOfTheRange) {
  BufferCache cache(kPage, kNoCap, evict());
  cache.put(name(1), SIZE_MAX - 1);
  EXPECT_EQ(cache.take(SIZE_MAX - 2 * kPage + 1).buffer, name(1));
  EXPECT_EQ(cache.take(SIZE_MAX / 2 + 1).buffer, nullptr);
  expect_sound(cache);
}

// The same rules over a plain vector in order of age.
class SimpleCache {
 public:
  SimpleCache(std::size_t page, std::size_t cap) : page_(page), cap_(cap) {}

  Gone take(std::size_t n) {
    std::size_t best = held_.size();
    for (std::size_t i = 0; i < held_.size(); ++i) {
      const std::size_t capacity = held_[i].capacity;
      if (capacity < n || capacity >= std::min(2 * n, n + 2 * page_)) continue;
      if (best == held_.size() || capacity <= held_[best].capacity) best = i;
    }
    if (best == held_.size()) return {nullptr, 0};
    const Gone taken = held_[best];
    held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(best));
    return taken;
  }
  void put(void* buffer, std::size_t capacity, std::vector<Gone>& gone) {
    if (capacity == 0 || capacity > cap_) {
      gone.push_back({buffer, capacity});
      return;
    }
    held_.push_back({buffer, capacity});
    trim(cap_, gone);
  }
  void trim(std::size_t keep, std::vector<Gone>& gone) {
    while (bytes() > keep) {
      gone.push_back(held_.front());
      held_.erase(held_.begin());
    }
  }
  void set_cap(std::size_t cap, std::vector<Gone>& gone) {
    cap_ = cap;
    trim(cap, gone);
  }
  std::size_t bytes() const {
    std::size_t sum = 0;
    for (const Gone& held : held_) sum += held.capacity;
    return sum;
  }
  std::size_t count() const { return held_.size(); }

 private:
  std::size_t page_, cap_;
  std::vector<Gone> held_;
};

struct Op {
  enum Kind { take, put, trim, cap } kind;
  std::size_t bytes;
};

std::string to_text(const Op& op) {
  static constexpr const char* kNames[] = {"take", "put", "trim", "cap"};
  return std::string(kNames[op.kind]) + ' ' + std::to_string(op.bytes);
}

std::vector<Op> random_ops(std::uint64_t seed, std::size_t count, bool round) {
  std::mt19937_64 random(seed);
  const std::size_t top = std::size_t{1} << (8 + random() % 16);
  BufferCache rounding(kPage, 0, [](void*, std::size_t) {});
  std::vector<Op> ops;
  for (std::size_t i = 0; i < count; ++i) {
    // Sizes spread over the powers of two.
    std::size_t bytes = random() % (std::size_t{1} << (1 + random() % static_cast<unsigned>(std::bit_width(top))));
    if (round) bytes = rounding.rounded(bytes);
    const auto pick = random() % 100;
    if (pick < 48)
      ops.push_back({Op::take, bytes});
    else if (pick < 98)
      ops.push_back({Op::put, bytes});
    else if (pick < 99)
      ops.push_back({Op::trim, random() % (4 * top)});
    else
      ops.push_back({Op::cap, random() % (16 * top)});
  }
  return ops;
}

void run_beside_the_simple_one(std::uint64_t seed, std::size_t count, bool round) {
  std::vector<Gone> gone, expected;
  BufferCache cache(kPage, kNoCap, [&](void* buffer, std::size_t capacity) { gone.push_back({buffer, capacity}); });
  SimpleCache simple(kPage, kNoCap);
  std::uintptr_t next = 1;
  std::ostringstream log;
  for (const Op& op : random_ops(seed, count, round)) {
    log << to_text(op) << '\n';
    switch (op.kind) {
      case Op::take: {
        const BufferCache::Taken taken = cache.take(op.bytes);
        const Gone wanted = simple.take(op.bytes);
        ASSERT_EQ(taken.buffer, wanted.buffer) << "seed " << seed << '\n' << log.str();
        ASSERT_EQ(taken.capacity, wanted.capacity) << "seed " << seed << '\n' << log.str();
        break;
      }
      case Op::put:
        cache.put(name(next), op.bytes);
        simple.put(name(next), op.bytes, expected);
        ++next;
        break;
      case Op::trim:
        cache.trim(op.bytes);
        simple.trim(op.bytes, expected);
        break;
      case Op::cap:
        cache.set_cap(op.bytes);
        simple.set_cap(op.bytes, expected);
        break;
    }
    ASSERT_EQ(gone, expected) << "seed " << seed << '\n' << log.str();
    gone.clear();
    expected.clear();
    ASSERT_EQ(cache.bytes(), simple.bytes());
    ASSERT_EQ(cache.count(), simple.count());
    ASSERT_EQ(cache.check_invariants(), std::vector<std::string>{}) << "seed " << seed << '\n' << log.str();
  }
}

TEST(BufferCacheRandom, RoundedSizesBesideASimpleCache) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) run_beside_the_simple_one(seed, 800, true);
}

TEST(BufferCacheRandom, AnySizesBesideASimpleCache) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) run_beside_the_simple_one(1000 + seed, 800, false);
}

TEST(BufferCacheRandom, ManyClassesComeAndGo) {
  std::size_t out = 0;
  BufferCache cache(4096, kNoCap, [&](void*, std::size_t) { ++out; });
  std::mt19937_64 random(7);
  for (std::uintptr_t i = 1; i <= 20000; ++i) {
    cache.put(name(i), (1 + random() % 100000) * 4096);
    if (i % 500 == 0) {
      ASSERT_EQ(cache.check_invariants(), std::vector<std::string>{});
      cache.trim(cache.bytes() / 2);
    }
  }
  cache.clear();
  EXPECT_EQ(out, 20000u);
  EXPECT_EQ(cache.check_invariants(), std::vector<std::string>{});
}

}  // namespace
}  // namespace cistern::core
