// Hot pairs of malloc and free in stream order.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <thread>

#include "round.hpp"

namespace cistern::gpu {
namespace {

constexpr int kRepeats = 7;

double median(std::vector<double> all) {
  std::sort(all.begin(), all.end());
  return all[all.size() / 2];
}

template <class Pair>
double ns_a_pair(std::uint64_t pairs, Pair pair) {
  const std::uint64_t start = now_ns();
  for (std::uint64_t i = 0; i < pairs; ++i) pair();
  return static_cast<double>(now_ns() - start) / static_cast<double>(pairs);
}

// Four chains of sixteen additions each in registers: what the machine gives to threads that touch no memory at all.
// Two threads that share one core's units get hardly more than one of them would.
inline void additions() {
  std::uint64_t a = 1, b = 2, c = 3, d = 4;
  for (int i = 0; i < 16; ++i) {
    asm volatile("" : "+r"(a), "+r"(b), "+r"(c), "+r"(d));
    a += 5, b += 7, c += 9, d += 11;
  }
  asm volatile("" : "+r"(a), "+r"(b), "+r"(c), "+r"(d));
}

// Millions of pairs a second of all threads together; the best of three runs, since one stray interrupt slows all.
// `beside`: threads that only add meanwhile.
template <class Pair>
double rate(unsigned threads, Pair pair, unsigned beside = 0) {
  constexpr std::uint64_t kPairs = 2'000'000;
  double best = 0;
  for (int repeat = 0; repeat < 3; ++repeat) {
    std::atomic<unsigned> ready{0};
    std::atomic<bool> go{false}, stop{false};
    std::vector<std::thread> all, others;
    std::vector<std::uint64_t> ends(threads), starts(threads);
    for (unsigned t = 0; t < beside; ++t) {
      others.emplace_back([&] {
        ++ready;
        while (!stop.load(std::memory_order_relaxed)) additions();
      });
    }
    for (unsigned t = 0; t < threads; ++t) {
      all.emplace_back([&, t] {
        for (int i = 0; i < 1000; ++i) pair();
        ++ready;
        while (!go.load(std::memory_order_acquire)) {
        }
        starts[t] = now_ns();
        for (std::uint64_t i = 0; i < kPairs; ++i) pair();
        ends[t] = now_ns();
      });
    }
    while (ready != threads + beside) std::this_thread::yield();
    go.store(true, std::memory_order_release);
    for (std::thread& thread : all) thread.join();
    stop = true;
    for (std::thread& thread : others) thread.join();
    const std::uint64_t span =
        *std::max_element(ends.begin(), ends.end()) - *std::min_element(starts.begin(), starts.end());
    best = std::max(best, static_cast<double>(threads * kPairs) * 1e3 / static_cast<double>(span));
  }
  return best;
}

}  // namespace

void pairs(unsigned threads) {
  Device& gpu = Device::get();
  gpu.keep_pool();
  const NativeStream native = gpu.make_stream();
  const auto allocator = fresh_allocator();
  const Stream stream = allocator->stream(native);
  const auto pair_of = [&](std::size_t bytes) {
    return [&, bytes] { allocator->free(allocator->malloc(bytes, stream)); };
  };
  for (const std::size_t bytes :
       {std::size_t{512}, std::size_t{64} << 10, std::size_t{1} << 20, std::size_t{16} << 20}) {
    const std::string name = std::to_string(bytes);
    const auto pair = pair_of(bytes);
    const auto vendor_pair = [&] { gpu.free_async(gpu.allocate_async(bytes, native), native); };
    pair();
    vendor_pair();
    // By turns, and the ratio of each: shared hosts change their speed in between.
    std::vector<double> own, vendor, times;
    for (int i = 0; i < kRepeats; ++i) {
      own.push_back(ns_a_pair(2'000'000, pair));
      vendor.push_back(ns_a_pair(100'000, vendor_pair));
      times.push_back(vendor.back() / own.back());
    }
    report("pairs", name, "cistern_ns", median(own));
    report("pairs", name, "async_ns", median(vendor));
    report("pairs", name, "async_times", median(times));
    gpu.synchronize();
  }
  for (const std::size_t bytes : {std::size_t{512}, std::size_t{64} << 10, std::size_t{1} << 20}) {
    const std::string name = std::to_string(bytes);
    const auto pair = pair_of(bytes);
    report("threads", name, "cistern_1", rate(1, pair));
    report("threads", name, "cistern_all", rate(threads, pair));
    // One thread on a machine that is as busy: what threads take from each other through the allocator alone.
    report("threads", name, "cistern_beside", rate(1, pair, threads - 1));
  }
  // What the machine gives to threads that share nothing: the same loop over the C library's thread caches.
  const auto library_pair = [] {
    void* volatile at = std::malloc(64);
    std::free(at);
  };
  report("threads", "libc", "libc_1", rate(1, library_pair));
  report("threads", "libc", "libc_all", rate(threads, library_pair));
  report("threads", "registers", "registers_1", rate(1, additions));
  report("threads", "registers", "registers_all", rate(threads, additions));
  report("threads", "all", "threads", threads);
  allocator->stream_destroyed(stream);
  gpu.destroy_stream(native);
}

}  // namespace cistern::gpu
