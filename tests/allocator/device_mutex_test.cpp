// The device's lock: one thread at a time, whether the first one is alone or not; who lets others in waits for a turn
// of theirs, and for nobody where nobody waits.
#include "allocator/device_mutex.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

#include "allocator/process_barrier.hpp"

namespace cistern::allocation {
namespace {

TEST(DeviceMutex, OneThreadAtATimeHasIt) {
  DeviceMutex mutex;
  long count = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 20000; ++i) {
        {
          const std::lock_guard lock(mutex);
          ++count;
        }
        if (i % 100 == t) mutex.let_others_in();
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(count, 80000);
}

// The first thread goes in and out alone all the while that another one comes, some by lock() and some by try_lock().
TEST(DeviceMutex, TheFirstThreadIsSeenOutsideBeforeAnotherOneEnters) {
  for (int round = 0; round < 300; ++round) {
    DeviceMutex mutex;
    long count = 0;
    std::atomic<bool> started{false};
    std::thread first([&] {
      for (int i = 0; i < 2000; ++i) {
        const std::lock_guard lock(mutex);
        ++count;
        started = true;
      }
    });
    while (!started) std::this_thread::yield();
    int entered = 0;
    for (int i = 0; i < 20 + round; ++i) {
      const std::unique_lock lock =
          round % 2 == 0 ? std::unique_lock(mutex) : std::unique_lock(mutex, std::try_to_lock);
      if (!lock.owns_lock()) continue;
      ++count;
      ++entered;
    }
    first.join();
    const std::lock_guard lock(mutex);
    ASSERT_EQ(count, 2000 + entered);
  }
}

// Whether the first thread is alone or not.
TEST(DeviceMutex, LockingWaitsUntilTheOtherThreadIsOutside) {
  DeviceMutex mutex;
  for (int round = 0; round < 2; ++round) {
    std::atomic<bool> entered{false};
    mutex.lock();
    std::thread other([&] {
      const std::lock_guard lock(mutex);
      entered = true;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    EXPECT_FALSE(entered);
    mutex.unlock();
    other.join();
    EXPECT_TRUE(entered);
  }
}

TEST(DeviceMutex, TryingWaitsForNobodyAndLeavesItUsable) {
  DeviceMutex mutex;
  const auto tried_elsewhere = [&] {
    bool owned = false;
    std::thread([&] { owned = std::unique_lock(mutex, std::try_to_lock).owns_lock(); }).join();
    return owned;
  };
  mutex.lock();
  EXPECT_FALSE(mutex.try_lock());  // From within itself.
  EXPECT_FALSE(tried_elsewhere());
  EXPECT_FALSE(tried_elsewhere());
  mutex.unlock();
  EXPECT_TRUE(tried_elsewhere());
  EXPECT_TRUE(mutex.try_lock());
  EXPECT_FALSE(tried_elsewhere());
  mutex.unlock();
  EXPECT_TRUE(tried_elsewhere());
}

TEST(DeviceMutex, OnlyTheFirstThreadLocksAlone) {
  if (!barrier_on_all_threads()) GTEST_SKIP() << "the system has no barrier on all threads";
  DeviceMutex mutex;
  EXPECT_FALSE(mutex.lock_alone());  // Nobody is the first yet.
  mutex.lock();
  EXPECT_FALSE(mutex.lock_alone());
  mutex.unlock();
  ASSERT_TRUE(mutex.lock_alone());
  mutex.unlock();
  std::thread([&] {
    EXPECT_FALSE(mutex.lock_alone());
    const std::lock_guard lock(mutex);
    EXPECT_FALSE(mutex.lock_alone());
  }).join();
  EXPECT_FALSE(mutex.lock_alone());
}

// Both take turns of the same length for ever: were the waiting one never let in, this would not end.
TEST(DeviceMutex, AThreadThatWaitsHasItsTurns) {
  DeviceMutex mutex;
  std::atomic<int> turns{0};
  std::thread other([&] {
    while (turns < 200) {
      const std::lock_guard lock(mutex);
      ++turns;
    }
  });
  while (turns < 200) {
    {
      const std::lock_guard lock(mutex);
      for (int i = 0; i < 20000; ++i) turns.load();
    }
    mutex.let_others_in();
  }
  other.join();
  EXPECT_GE(turns, 200);
}

}  // namespace
}  // namespace cistern::allocation
