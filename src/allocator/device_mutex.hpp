// DeviceMutex: the lock of one device.
//
// Does: lets the first thread in and out without a locked instruction until another one comes, from when on it is a
// plain mutex. Lets a waiting thread have the next turn after slow calls to the driver: a plain mutex is taken again by
// whoever runs, long before a thread that was asleep could, so that a thread whose memory grows all the time would keep
// others out for hundreds of its turns. Does not: nest.
//
//   state     who enters                      becomes
//   new       anybody, by the mutex           alone; shared where the system has no barrier
//   alone     the first thread, by `inside_`  closed, when another thread comes
//   closed    nobody                          shared, when the first thread is seen outside
//   shared    anybody, by the mutex
//
// The first thread says that it is inside, then looks whether it may. Who closes that way says so, has all threads see
// it (a barrier on all of them), and then looks whether the thread is inside.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <thread>

#include "allocator/process_barrier.hpp"
#include "allocator/thread_state.hpp"

namespace cistern::allocation {

class DeviceMutex {
 public:
  void lock() {
    if (!lock_alone()) lock_mutex();
  }
  // Waits for nobody.
  bool try_lock() { return lock_alone() || try_lock_mutex(); }
  // Locks where that costs no locked instruction; else false. Part of lock(); for tests by itself.
  bool lock_alone() {
    if (!is_alone() || inside_.load(std::memory_order_acquire)) return false;
    inside_.store(true, std::memory_order_relaxed);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    if (!closed_.load(std::memory_order_acquire)) return true;
    inside_.store(false, std::memory_order_release);
    return false;
  }
  void unlock() {
    if (is_alone() && inside_.load(std::memory_order_relaxed)) {
      inside_.store(false, std::memory_order_release);
    } else {
      mutex_.unlock();
    }
  }
  // After unlock(): returns when a waiting thread has had a turn, there is none, or it takes long to wake up.
  void let_others_in() {
    if (waiting_.load(std::memory_order_relaxed) != 0) wait_for_a_turn();
  }
  // Around fork(), for good: by the mutex, which another thread may hold while it waits for the first one to come out.
  void lock_for_fork() {
    mutex_.lock();
    if (!shared_) share_soon();
  }
  // In a forked child: the threads that waited are not there.
  void forget_waiting() { waiting_.store(0, std::memory_order_relaxed); }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::microseconds kPatience{200};

  bool is_alone() const { return alone_.load(std::memory_order_relaxed) == &thread_state; }

  [[gnu::noinline]] void lock_mutex() {
    if (!mutex_.try_lock()) {
      waiting_.fetch_add(1, std::memory_order_relaxed);
      mutex_.lock();
      turns_.fetch_add(1, std::memory_order_relaxed);
      waiting_.fetch_sub(1, std::memory_order_relaxed);
    }
    if (shared_) return;
    if (become_alone()) return mutex_.unlock();
    share_soon();
  }

  [[gnu::noinline]] bool try_lock_mutex() {
    if (is_alone() && inside_.load(std::memory_order_relaxed)) return false;  // Within itself: nothing is closed.
    if (!mutex_.try_lock()) return false;
    if (shared_) return true;
    const bool alone = become_alone();
    if (!alone && share()) return true;
    mutex_.unlock();
    return alone;
  }

  // pre, of these: the mutex is held, and the state is not shared.
  bool become_alone() {
    if (alone_.load(std::memory_order_relaxed) != nullptr || !barrier_on_all_threads()) return false;
    inside_.store(true, std::memory_order_relaxed);
    alone_.store(&thread_state, std::memory_order_relaxed);
    return true;
  }
  void share_soon() {
    while (!share()) std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  // False while the first thread is inside.
  bool share() {
    if (alone_.load(std::memory_order_relaxed) != nullptr && !closed_.load(std::memory_order_relaxed)) {
      closed_.store(true, std::memory_order_release);
      // It did not fail before. If it does now, this is long enough for a store to be seen.
      if (!barrier_on_all_threads()) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    if (inside_.load(std::memory_order_acquire)) return false;
    alone_.store(nullptr, std::memory_order_relaxed);
    return shared_ = true;
  }

  [[gnu::noinline, gnu::cold]] void wait_for_a_turn() {
    const std::uint32_t before = turns_.load(std::memory_order_relaxed);
    const Clock::time_point end = Clock::now() + kPatience;
    while (waiting_.load(std::memory_order_relaxed) != 0 && turns_.load(std::memory_order_relaxed) == before &&
           Clock::now() < end) {
      std::this_thread::yield();
    }
  }

  std::atomic<const void*> alone_{nullptr};  // The first thread, by its state, which another one may get later.
  std::atomic<bool> inside_{false};          // It is inside.
  std::atomic<bool> closed_{false};          // It may go inside no more.
  bool shared_ = false;                      // Under the mutex.
  std::mutex mutex_;
  std::atomic<std::uint32_t> waiting_{0};  // Threads asleep for it.
  std::atomic<std::uint32_t> turns_{0};    // That such threads had.
};

}  // namespace cistern::allocation
