// Two threads against one: hot pairs on each, and a producer that allocates what a consumer frees.
// The time of an item is wall time over all items of all threads, so perfect scaling halves it.
#include <array>
#include <atomic>
#include <chrono>
#include <cistern/allocator.hpp>
#include <string>
#include <thread>
#include <vector>

#include "foreign.hpp"
#include "suite.hpp"

namespace cistern::bench {
namespace {

constexpr std::size_t kBytes = 256;

// Runs body(thread) on `threads` threads at once and returns the seconds from the common start to the last end.
template <class Body>
double run_threads(unsigned threads, Body body) {
  std::atomic<unsigned> ready{0};
  std::atomic<bool> go{false};
  std::vector<std::thread> workers;
  for (unsigned t = 0; t < threads; ++t) {
    workers.emplace_back([&, t] {
      ready.fetch_add(1);
      while (!go.load()) std::this_thread::yield();
      body(t);
    });
  }
  while (ready.load() != threads) std::this_thread::yield();
  const auto start = std::chrono::steady_clock::now();
  go.store(true);
  for (std::thread& w : workers) w.join();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// One slot ring between one producer and one consumer.
template <class Block>
class Ring {
 public:
  void push(Block block) {
    while (head_.load(std::memory_order_relaxed) - tail_.load(std::memory_order_acquire) == kSlots)
      std::this_thread::yield();
    const std::size_t at = head_.load(std::memory_order_relaxed);
    slots_[at % kSlots] = block;
    head_.store(at + 1, std::memory_order_release);
  }
  Block pop() {
    while (tail_.load(std::memory_order_relaxed) == head_.load(std::memory_order_acquire)) std::this_thread::yield();
    const std::size_t at = tail_.load(std::memory_order_relaxed);
    Block block = slots_[at % kSlots];
    tail_.store(at + 1, std::memory_order_release);
    return block;
  }

 private:
  static constexpr std::size_t kSlots = 1024;
  std::array<Block, kSlots> slots_{};
  alignas(64) std::atomic<std::size_t> head_{0};
  alignas(64) std::atomic<std::size_t> tail_{0};
};

template <class Take, class Give>
void hot_pairs(benchmark::State& state, unsigned threads, Take take, Give give) {
  constexpr int kPairs = 400000;
  for (auto _ : state) {
    state.SetIterationTime(run_threads(threads, [&](unsigned) {
      for (int i = 0; i < kPairs; ++i) {
        auto block = take(kBytes);
        benchmark::DoNotOptimize(block);
        give(block);
      }
    }));
  }
  state.SetItemsProcessed(state.iterations() * kPairs * threads);
}

// With one thread it fills the ring and empties it in turns.
template <class Block, class Take, class Give>
void hand_over(benchmark::State& state, unsigned threads, Take take, Give give) {
  constexpr int kBlocks = 256 * 1024;
  Ring<Block> ring;
  for (auto _ : state) {
    state.SetIterationTime(run_threads(threads, [&](unsigned thread) {
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
    }));
  }
  state.SetItemsProcessed(state.iterations() * kBlocks);
}

}  // namespace

void add_threads(Suite& suite) {
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
