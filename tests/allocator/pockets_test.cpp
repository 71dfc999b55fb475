// The large block that a thread keeps for its next request: no lock, and nobody goes without because of it.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <thread>
#include <vector>

#include "allocator/allocator_fixture.hpp"
#include "allocator/process_barrier.hpp"
#include "cistern/error.hpp"
#include "cistern/memory.hpp"

namespace cistern::allocation {
namespace {

// A thread that freed a buffer last and sleeps until this object is gone.
class Sleeper {
 public:
  Sleeper(DeviceAllocator& a, std::size_t bytes)
      : thread_([&a, bytes, this] {
          a.free(a.malloc(bytes));
          sync_.arrive_and_wait();
          sync_.arrive_and_wait();
        }) {
    sync_.arrive_and_wait();
  }
  ~Sleeper() {
    sync_.arrive_and_wait();
    thread_.join();
  }
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;

 private:
  std::barrier<> sync_{2};
  std::thread thread_;
};

// Runs `before` on a thread, then `then` while the device's lock is held by another: it does not end if that waits for
// it.
template <class Before, class Then>
void run_without_lock(DeviceAllocator& a, Before before, Then then) {
  std::barrier sync(2);
  std::thread other([&] {
    before();
    sync.arrive_and_wait();
    sync.arrive_and_wait();
    then();
    sync.arrive_and_wait();
  });
  sync.arrive_and_wait();
  {
    const Central::Lock lock(a.central());
    sync.arrive_and_wait();
    sync.arrive_and_wait();
  }
  other.join();
}

class Pockets : public testing::Test {
 protected:
  void SetUp() override {
    if (!barrier_on_all_threads()) GTEST_SKIP() << "without a barrier on all threads pockets are small";
  }

  const std::unique_ptr<DeviceAllocator> a_ = make_cpu();
};

TEST_F(Pockets, APairOfAnySizeWaitsForNoLock) {
  for (const std::size_t bytes : {65_KiB, 1_MiB, 100_MiB}) {
    run_without_lock(
        *a_, [&] { a_->free(a_->malloc(bytes)); },
        [&] {
          for (int i = 0; i < 100; ++i) {
            const Buffer b = a_->malloc(bytes);
            EXPECT_EQ(a_->stats().active, bytes);
            a_->free(b);
            EXPECT_THROW(a_->free(b), invalid_argument);
            EXPECT_FALSE(b.live());
          }
        });
    expect_sound(*a_);
  }
  EXPECT_EQ(a_->stats().active, 0U);
}

TEST_F(Pockets, TheirBlocksRaiseThePeak) {
  a_->free(a_->malloc(4_MiB));
  a_->reset_peaks();
  a_->free(a_->malloc(4_MiB));
  EXPECT_EQ(a_->stats().peak_active, 4_MiB);
}

TEST_F(Pockets, AnotherSizeIsPlacedAsIfTheBlockHadBeenFreedAtOnce) {
  const Buffer first = a_->malloc(4_MiB);
  const Buffer guard = a_->malloc(64_KiB + 1);
  const void* const start = first.ptr();
  a_->free(first);
  const Buffer last = a_->malloc(4_MiB);
  ASSERT_EQ(last.ptr(), start);
  a_->free(last);
  const Buffer smaller = a_->malloc(3_MiB);
  EXPECT_EQ(smaller.ptr(), start);
  for (const Buffer& b : {guard, smaller}) a_->free(b);
  expect_sound(*a_);
}

TEST_F(Pockets, ABlockThatCouldMoveDownDoesNotStay) {
  const Buffer lower = a_->malloc(4_MiB);
  const Buffer last = a_->malloc(4_MiB);
  const void* const start = lower.ptr();
  a_->free(lower);
  a_->free(last);
  const Buffer moved = a_->malloc(4_MiB);
  EXPECT_EQ(moved.ptr(), start);
  a_->free(moved);
  expect_sound(*a_);
}

// The thread that had it announced it when it freed it the time before.
TEST_F(Pockets, ABlockThatAnotherThreadFreedIsFoundUnderPressure) {
  a_->set_memory_limit(64_MiB);
  Buffer handed;
  std::barrier sync(2);
  std::thread other([&] {
    a_->free(a_->malloc(40_MiB));
    handed = a_->malloc(40_MiB);
    sync.arrive_and_wait();
    sync.arrive_and_wait();
  });
  sync.arrive_and_wait();
  a_->free(handed);
  EXPECT_NO_THROW(a_->free(a_->malloc(60_MiB)));
  sync.arrive_and_wait();
  other.join();
  expect_sound(*a_);
}

TEST_F(Pockets, MemoryOfASleepingThreadIsFoundUnderPressure) {
  a_->set_memory_limit(64_MiB);
  const Sleeper one(*a_, 40_MiB), other(*a_, 20_MiB);
  const Buffer b = a_->malloc(60_MiB);
  EXPECT_LE(a_->stats().reserved, 64_MiB);
  a_->free(b);
  expect_sound(*a_);
}

TEST_F(Pockets, NewMemoryIsBroughtOnlyWithoutThem) {
  const Sleeper one(*a_, 40_MiB);
  const std::size_t reserved = a_->stats().reserved;
  const Buffer b = a_->malloc(40_MiB);
  EXPECT_EQ(a_->stats().reserved, reserved);
  a_->free(b);
}

TEST_F(Pockets, SmallOnesAreLeftAloneWhenMemoryIsBrought) {
  const Sleeper one(*a_, 1_MiB), other(*a_, 2_MiB);
  const Buffer b = a_->malloc(40_MiB);
  EXPECT_EQ(a_->heap_group()->live(), 41_MiB);
  a_->free(b);
}

TEST_F(Pockets, NothingIsKeptThatHasRoomBeforeIt) {
  const Buffer before = a_->malloc(8_MiB), first = a_->malloc(4_MiB), guard = a_->malloc(64_KiB + 1);
  const void* const place = first.ptr();
  a_->free(before);
  a_->clear_cache();
  a_->free(first);
  const Buffer again = a_->malloc(4_MiB);
  ASSERT_EQ(again.ptr(), place);
  a_->free(again);
  EXPECT_TRUE(a_->central().has_returned());
  a_->free(guard);
  expect_sound(*a_);
}

// The same where work runs behind the host, but addresses that show nothing are no room there.
TEST_F(Pockets, BehindTheHostRoomIsFreeMemory) {
  Model model({.manual = true});
  const Stream first = model.stream(0), from_top = model.stream(1);
  const Buffer before = model->malloc(8_MiB, first), after_gap = model->malloc(4_MiB, first),
               guard = model->malloc(2_MiB, first);
  const void* const place = after_gap.ptr();
  model->free(before);
  model.driver->complete_all();
  model->clear_cache();
  model->free(after_gap);
  const Buffer again = model->malloc(4_MiB, first);
  ASSERT_EQ(again.ptr(), place);
  model->free(again);
  EXPECT_FALSE(model->central().has_returned());

  for (const std::size_t bytes : {32_MiB, 64_MiB}) model->free(model->malloc(bytes, first));
  model->free(model->malloc(8_MiB, from_top));
  EXPECT_TRUE(model->central().has_returned());
  model->free(guard);
  expect_sound(*model);
}

// Calls that must be looked at find its block at its place.
TEST_F(Pockets, ATaggedRequestGetsTheBlock) {
  const Buffer lower = a_->malloc(4_MiB), guard = a_->malloc(64_KiB + 1), hole = a_->malloc(8_MiB);
  const void* const start = lower.ptr();
  a_->free(hole);
  a_->free(lower);
  a_->free(a_->malloc(4_MiB));
  const ScopedTag tag("test pockets");
  const Buffer b = a_->malloc(4_MiB);
  EXPECT_EQ(b.ptr(), start);
  a_->free(b);
  a_->free(guard);
}

TEST_F(Pockets, ClearingTheCacheEmptiesThemAll) {
  const Sleeper one(*a_, 40_MiB), other(*a_, 1_MiB);
  a_->free(a_->malloc(2_MiB));
  a_->clear_cache();
  EXPECT_EQ(a_->stats().reserved, 0U);
  expect_sound(*a_);
}

// One whose block somebody missed stays empty for a while; clearing the cache says nothing of the kind.
TEST_F(Pockets, RestWhereTheirMemoryWasMissing) {
  for (const bool missing : {false, true}) {
    const auto a = make_cpu();
    std::barrier sync(2);
    std::thread other([&] {
      const auto keeps = [&] {
        a->free(a->malloc(2_MiB));
        return !a->central().has_returned();
      };
      EXPECT_TRUE(keeps());
      sync.arrive_and_wait();
      sync.arrive_and_wait();
      EXPECT_EQ(keeps(), !missing);
      for (std::uint32_t i = 1; i < core::Pocket::kFirstRefusals; ++i) EXPECT_EQ(keeps(), !missing);
      EXPECT_TRUE(keeps());
      EXPECT_TRUE(keeps());
    });
    sync.arrive_and_wait();
    if (missing) {
      a->free(a->malloc(60_MiB));
    } else {
      a->clear_cache();
    }
    sync.arrive_and_wait();
    other.join();
    expect_sound(*a);
  }
}

TEST_F(Pockets, AThreadThatEndsGivesItsBack) {
  { const Sleeper one(*a_, 40_MiB); }
  a_->flush_thread_caches();
  EXPECT_EQ(a_->heap_group()->live(), 0U);
}

TEST_F(Pockets, ACacheLimitHoldsForThem) {
  const Sleeper one(*a_, 40_MiB);
  a_->set_cache_limit(8_MiB);
  EXPECT_LE(a_->stats().cached, 8_MiB);
  a_->free(a_->malloc(30_MiB));
  EXPECT_LE(a_->stats().cached, 8_MiB);
  const Sleeper other(*a_, 40_MiB);
  EXPECT_LE(a_->stats().cached, 8_MiB);
  expect_sound(*a_);
}

// There it is looked at whenever the lock is let go, whether or not memory came or went.
TEST_F(Pockets, ACacheLimitHoldsBehindTheHost) {
  Model m;
  m->set_cache_limit(8_MiB);
  const Buffer b = m->malloc(40_MiB, m.stream(1));
  m->free(b);
  m->map();
  EXPECT_LE(m->stats().cached, 8_MiB);
  expect_sound(*m);
}

TEST_F(Pockets, ALimitBelowWhatIsLiveEmptiesThem) {
  const Buffer pin = a_->malloc(40_MiB);
  a_->free(a_->malloc(10_MiB));
  a_->set_memory_limit(30_MiB);
  EXPECT_THROW(a_->malloc(10_MiB), out_of_memory);
  a_->free(pin);
  const Buffer within = a_->malloc(10_MiB);
  a_->free(within);
  EXPECT_LE(a_->stats().reserved, 30_MiB);
  expect_sound(*a_);
}

TEST_F(Pockets, NothingIsKeptWhileMemoryIsAboveItsLimit) {
  const Buffer last = a_->malloc(40_MiB);
  a_->set_memory_limit(30_MiB);
  a_->free(last);
  EXPECT_TRUE(a_->central().has_returned());
  EXPECT_THROW(a_->malloc(40_MiB), out_of_memory);
  a_->free(a_->malloc(10_MiB));
  EXPECT_FALSE(a_->central().has_returned()) << "below it again";
  expect_sound(*a_);
}

TEST_F(Pockets, NothingIsKeptWhileThereIsACacheLimit) {
  const Buffer last = a_->malloc(4_MiB);
  a_->set_cache_limit(8_MiB);
  a_->free(last);
  EXPECT_TRUE(a_->central().has_returned());
  a_->set_cache_limit(a_->stats().memory_limit);
  a_->free(a_->malloc(4_MiB));
  EXPECT_FALSE(a_->central().has_returned());
  expect_sound(*a_);
}

TEST_F(Pockets, AnotherStreamWaitsForItsWork) {
  drivers::ModelConfig config;
  config.manual = true;
  Model m(config);
  const Stream first = m.stream(1), second = m.stream(2);
  const auto use = [&](const Stream& s) {
    const Buffer b = m->malloc(10_MiB, s);
    void* const start = b.ptr();
    EXPECT_TRUE(m.driver->touch(s.native(), reinterpret_cast<std::uintptr_t>(start), b.size()));
    m->free(b);
    return start;
  };
  void* const start = use(first);
  EXPECT_EQ(use(first), start);
  EXPECT_EQ(use(second), start) << "the model reports a violation where the stream does not wait";
  EXPECT_EQ(use(first), start);
  expect_sound(*m);
}

TEST_F(Pockets, TheNextStreamOfAHeapWaitsForTheOneBefore) {
  drivers::ModelConfig config;
  config.manual = true;
  Model m(config);
  for (std::uintptr_t number = 1; number < 4; ++number) {
    const Stream s = m.stream(number);
    for (int i = 0; i < 2; ++i) {
      const Buffer b = m->malloc(10_MiB, s);
      EXPECT_TRUE(m.driver->touch(s.native(), reinterpret_cast<std::uintptr_t>(b.ptr()), b.size()));
      m->free(b);
    }
    m->stream_destroyed(s);
  }
  EXPECT_EQ(m->stats().reserved, 10_MiB);
  const Buffer b = m->malloc(10_MiB, m.stream(0));
  EXPECT_TRUE(m.driver->touch(nullptr, reinterpret_cast<std::uintptr_t>(b.ptr()), b.size()));
  m->free(b);
  expect_sound(*m);
}

// Only some heaps have their caches at hand in a thread.
TEST_F(Pockets, MoreStreamsThanShortWays) {
  Model m;
  for (int round = 0; round < 3; ++round) {
    for (std::uintptr_t number = 1; number <= kInlineHeaps + 8; ++number) {
      const Buffer b = m->malloc(4_MiB, m.stream(number));
      m->free(b);
      EXPECT_THROW(m->free(b), invalid_argument);
    }
  }
  EXPECT_LE(m->stats().reserved, 4_MiB * (kInlineHeaps + 8));
  m->clear_cache();
  EXPECT_EQ(m->stats().reserved, 0U);
  expect_sound(*m);
}

// Many devices or streams: their caches are found in the thread's record, and no lock is taken there either.
TEST_F(Pockets, PairsOfManyStreamsWaitForNoLock) {
  Model m;
  std::vector<Stream> streams;
  for (std::uintptr_t number = 1; number <= kInlineHeaps + 8; ++number) streams.push_back(m.stream(number));
  const auto pairs = [&] {
    for (const Stream& stream : streams) {
      for (const std::size_t bytes : {std::size_t{64}, 40_KiB}) m->free(m->malloc(bytes, stream));
    }
  };
  const auto often = [&] {
    for (int i = 0; i < 3; ++i) pairs();
  };
  run_without_lock(*m, often, pairs);
  // Tagged ones still take the long way.
  {
    const ScopedTag tag("far");
    const Buffer b = m->malloc(2_MiB, streams.back());
    EXPECT_EQ(m->tags().front().active, 2_MiB);
    m->free(b);
  }
  expect_sound(*m);
}

TEST_F(Pockets, AForkedChildFindsThoseOfThreadsThatItHasNot) {
  const Sleeper one(*a_, 40_MiB);
  const pid_t child = fork();
  if (child == 0) {
    a_->clear_cache();
    _exit(a_->stats().reserved == 0 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

// One thread uses its pocket all the while, others need the memory: no block is handed out twice.
TEST_F(Pockets, AreTakenWhileTheirThreadsUseThem) {
  a_->set_memory_limit(64_MiB);
  std::atomic<bool> stop{false};
  std::atomic<int> pairs{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      while (!stop) {
        try {
          const Buffer b = a_->malloc(20_MiB);
          auto* const word = static_cast<std::atomic<unsigned>*>(b.ptr());
          word->store(t);
          for (int i = 0; i < 50; ++i) ASSERT_EQ(word->load(), t);
          a_->free(b);
          ++pairs;
        } catch (const out_of_memory&) {
        }
      }
    });
  }
  int big = 0;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  for (unsigned i = 0; (big < 50 || pairs < 1000) && std::chrono::steady_clock::now() < end; ++i) {
    try {
      const Buffer b = a_->malloc(30_MiB + i % 7 * 1_MiB);
      static_cast<std::atomic<unsigned>*>(b.ptr())->store(7);
      std::this_thread::yield();
      EXPECT_EQ(static_cast<std::atomic<unsigned>*>(b.ptr())->load(), 7U);
      a_->free(b);
      ++big;
    } catch (const out_of_memory&) {
      std::this_thread::yield();
    }
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_GE(pairs, 1000);
  EXPECT_GE(big, 50);
  expect_sound(*a_);
  EXPECT_EQ(a_->stats().active, 0U);
  a_->clear_cache();
  EXPECT_EQ(a_->stats().reserved, 0U);
}

// Others close all pockets and leave small blocks alone: those are not lost when their threads go on.
TEST_F(Pockets, NoneIsLostThatWasClosedWhenItsThreadNeededAnother) {
  for (int round = 0; round < 100; ++round) {
    const auto a = make_cpu();
    std::atomic<bool> stop{false};
    std::barrier start(3);
    std::thread large([&] {
      start.arrive_and_wait();
      while (!stop) a->free(a->malloc(2_MiB));
    });
    std::thread small([&] {
      start.arrive_and_wait();
      while (!stop) {
        a->free(a->malloc(100_KiB));
        a->free(a->malloc(200_KiB));
      }
    });
    start.arrive_and_wait();
    std::vector<Buffer> kept;
    for (int i = 0; i < 300; ++i) kept.push_back(a->malloc(4_MiB));
    stop = true;
    large.join();
    small.join();
    for (const Buffer& b : kept) a->free(b);
    a->clear_cache();
    ASSERT_EQ(a->stats().reserved, 0U);
  }
}

}  // namespace
}  // namespace cistern::allocation
