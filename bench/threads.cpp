// Two threads against one: hot pairs on each, and a producer that allocates what a consumer frees.
// The time of an item is wall time over all items of all threads, so perfect scaling halves it. What the machine itself
// gives to a second thread is measured beside it with a loop of arithmetic that shares nothing.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cistern/allocator.hpp>
#include <string>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <sched.h>
#endif

#include "foreign.hpp"
#include "suite.hpp"

namespace cistern::bench {
namespace {

constexpr std::size_t kBytes = 256;

// Puts the calling thread on one processor of those that it may use, by turns: otherwise two threads sometimes share
// one for milliseconds.
void settle(unsigned thread) {
#if defined(__linux__)
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  unsigned left = thread % static_cast<unsigned>(CPU_COUNT(&allowed));
  for (unsigned cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed) || left-- != 0) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof one, &one);
    return;
  }
#else
  (void)thread;
#endif
}

// Runs body(thread) on `threads` threads at once and returns the seconds from the first start to the last end, without
// the making and ending of threads. prepare() runs on each before that.
template <class Prepare, class Body>
double run_threads(unsigned threads, Prepare prepare, Body body) {
  using Clock = std::chrono::steady_clock;
  struct alignas(128) Times {
    Clock::time_point start, end;
  };
  std::atomic<unsigned> ready{0};
  std::atomic<bool> go{false};
  std::vector<Times> times(threads);
  std::vector<std::thread> workers;
  for (unsigned t = 0; t < threads; ++t) {
    workers.emplace_back([&, t] {
      settle(t);
      prepare();
      ready.fetch_add(1);
      while (!go.load()) std::this_thread::yield();
      const Clock::time_point start = Clock::now();
      body(t);
      times[t] = {start, Clock::now()};
    });
  }
  while (ready.load() != threads) std::this_thread::yield();
  go.store(true);
  for (std::thread& w : workers) w.join();
  Times all = times.front();
  for (const Times& t : times) all = {std::min(all.start, t.start), std::max(all.end, t.end)};
  return std::chrono::duration<double>(all.end - all.start).count();
}

// One slot ring between one producer and one consumer. Each side looks at the other's index only when it has to, so
// that the ring costs little of what is measured (3 ns an item).
template <class Block>
class Ring {
 public:
  void push(Block block) {
    const std::size_t at = head_.load(std::memory_order_relaxed);
    while (at - seen_tail_ == kSlots) {
      seen_tail_ = tail_.load(std::memory_order_acquire);
      if (at - seen_tail_ == kSlots) std::this_thread::yield();
    }
    slots_[at % kSlots] = block;
    head_.store(at + 1, std::memory_order_release);
  }
  Block pop() {
    const std::size_t at = tail_.load(std::memory_order_relaxed);
    while (at == seen_head_) {
      seen_head_ = head_.load(std::memory_order_acquire);
      if (at == seen_head_) std::this_thread::yield();
    }
    Block block = slots_[at % kSlots];
    tail_.store(at + 1, std::memory_order_release);
    return block;
  }

 private:
  static constexpr std::size_t kSlots = 1024;
  std::array<Block, kSlots> slots_{};
  alignas(128) std::atomic<std::size_t> head_{0};  // With what the producer knows of the other side,
  std::size_t seen_tail_ = 0;
  alignas(128) std::atomic<std::size_t> tail_{0};  // and the consumer.
  std::size_t seen_head_ = 0;
};

template <class Take, class Give>
void hot_pairs(benchmark::State& state, unsigned threads, Take take, Give give) {
  constexpr int kPairs = 2000000;
  const auto pairs = [&](int count) {
    for (int i = 0; i < count; ++i) {
      auto block = take(kBytes);
      benchmark::DoNotOptimize(block);
      give(block);
    }
  };
  for (auto _ : state) {
    state.SetIterationTime(run_threads(
        threads, [&] { pairs(1000); }, [&](unsigned) { pairs(kPairs); }));
  }
  state.SetItemsProcessed(state.iterations() * kPairs * threads);
}

// With one thread it fills the ring and empties it in turns.
template <class Block, class Take, class Give>
void hand_over(benchmark::State& state, unsigned threads, Take take, Give give) {
  constexpr int kBlocks = 256 * 1024;
  Ring<Block> ring;
  for (auto _ : state) {
    const auto body = [&](unsigned thread) {
      if (threads == 1) {
        for (int i = 0; i < kBlocks; i += 512) {
          for (int k = 0; k < 512; ++k) ring.push(take(kBytes));
          for (int k = 0; k < 512; ++k) give(ring.pop());
        }
      } else if (thread == 0) {
        for (int i = 0; i < kBlocks; ++i) ring.push(take(kBytes));
      } else {
        for (int i = 0; i < kBlocks; ++i) give(ring.pop());
      }
    };
    state.SetIterationTime(run_threads(
        threads, [] {}, body));
  }
  state.SetItemsProcessed(state.iterations() * kBlocks);
}

}  // namespace

void add_threads(Suite& suite) {
  // About as long as a pair.
  const auto count = [](std::size_t n) {
    for (int i = 0; i < 12; ++i) benchmark::DoNotOptimize(n *= 3);
    return n;
  };
  Allocator* a = &allocator(Device::cpu());
  const auto take = [a](std::size_t n) { return a->malloc(n); };
  const auto give = [a](Buffer b) { a->free(b); };
  for (unsigned threads : {2U, 1U}) {
    const std::string suffix = "-" + std::to_string(threads);
    suite.add({"threads/pair", "cistern" + suffix, "pair",
               [=](benchmark::State& s) { hot_pairs(s, threads, take, give); }, true});
    for (const ForeignAllocator& f : foreign_allocators()) {
      suite.add({"threads/pair", f.name + suffix, "pair",
                 [=](benchmark::State& s) { hot_pairs(s, threads, f.malloc, f.free); }, true});
    }
    suite.add({"threads/pair", "arithmetic" + suffix, "pair",
               [=](benchmark::State& s) { hot_pairs(s, threads, count, [](std::size_t) {}); }, true});
  }
  for (unsigned threads : {2U, 1U}) {
    const std::string suffix = "-" + std::to_string(threads);
    suite.add({"threads/hand-over", "cistern" + suffix, "block",
               [=](benchmark::State& s) { hand_over<Buffer>(s, threads, take, give); }, true});
    for (const ForeignAllocator& f : foreign_allocators()) {
      suite.add({"threads/hand-over", f.name + suffix, "block",
                 [=](benchmark::State& s) { hand_over<void*>(s, threads, f.malloc, f.free); }, true});
    }
  }
}

}  // namespace cistern::bench
