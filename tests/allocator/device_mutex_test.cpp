// The device's lock: who lets others in waits for a turn of theirs, and for nobody where nobody waits.
#include "allocator/device_mutex.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

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
