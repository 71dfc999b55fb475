// DeviceMutex: the lock of one device. Who made slow calls to the driver under it lets a waiting thread have the next
// turn: a plain mutex is taken again by whoever runs, long before a thread that was asleep could, so that a thread
// whose memory grows all the time would keep others out for hundreds of its turns.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <thread>

namespace cistern::allocation {

class DeviceMutex {
 public:
  void lock() {
    if (mutex_.try_lock()) return;
    waiting_.fetch_add(1, std::memory_order_relaxed);
    mutex_.lock();
    turns_.fetch_add(1, std::memory_order_relaxed);
    waiting_.fetch_sub(1, std::memory_order_relaxed);
  }
  bool try_lock() { return mutex_.try_lock(); }
  void unlock() { mutex_.unlock(); }
  // After unlock(): returns when a waiting thread has had a turn, there is none, or it takes long to wake up.
  void let_others_in() {
    if (waiting_.load(std::memory_order_relaxed) != 0) wait_for_a_turn();
  }
  // In a forked child: the threads that waited are not there.
  void forget_waiting() { waiting_.store(0, std::memory_order_relaxed); }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::microseconds kPatience{200};

  [[gnu::noinline, gnu::cold]] void wait_for_a_turn() {
    const std::uint32_t before = turns_.load(std::memory_order_relaxed);
    const Clock::time_point end = Clock::now() + kPatience;
    while (waiting_.load(std::memory_order_relaxed) != 0 && turns_.load(std::memory_order_relaxed) == before &&
           Clock::now() < end) {
      std::this_thread::yield();
    }
  }

  std::mutex mutex_;
  std::atomic<std::uint32_t> waiting_{0};  // Threads asleep for it.
  std::atomic<std::uint32_t> turns_{0};    // That such threads had.
};

}  // namespace cistern::allocation
