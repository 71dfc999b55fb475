// PyTorch's own caching allocator under the same work as Cistern's: hot pairs on one and on several threads, and the
// events of a trace. Compiled by torch_round.py against the PyTorch of the machine, loaded by it after CUDA was started
// there. Figures only; no state but PyTorch's. One caller at a time.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <thread>
#include <vector>

namespace {

namespace caching = c10::cuda::CUDACachingAllocator;

// As torch_round.py packs it.
struct Op {
  std::uint64_t bytes;
  std::uint32_t slot;
  std::uint16_t stream;
  std::uint8_t free;
  std::uint8_t unused;
};
static_assert(sizeof(Op) == 16);

std::uint64_t now_ns() {
  return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}

}  // namespace

// Nanoseconds a pair, the median of seven runs.
extern "C" double torch_pairs(std::uint64_t bytes, std::uint64_t count) {
  std::vector<double> all;
  for (int run = 0; run < 7; ++run) {
    const std::uint64_t start = now_ns();
    for (std::uint64_t i = 0; i < count; ++i) caching::raw_delete(caching::raw_alloc(bytes));
    all.push_back(static_cast<double>(now_ns() - start) / static_cast<double>(count));
  }
  std::sort(all.begin(), all.end());
  return all[3];
}

// Millions of pairs a second of all threads together.
extern "C" double torch_threads(unsigned threads, std::uint64_t bytes, std::uint64_t count) {
  std::atomic<unsigned> ready{0};
  std::atomic<bool> go{false};
  std::vector<std::thread> all;
  std::vector<std::uint64_t> starts(threads), ends(threads);
  for (unsigned t = 0; t < threads; ++t) {
    all.emplace_back([&, t] {
      for (int i = 0; i < 100; ++i) caching::raw_delete(caching::raw_alloc(bytes));
      ++ready;
      while (!go.load(std::memory_order_acquire)) {
      }
      starts[t] = now_ns();
      for (std::uint64_t i = 0; i < count; ++i) caching::raw_delete(caching::raw_alloc(bytes));
      ends[t] = now_ns();
    });
  }
  while (ready != threads) std::this_thread::yield();
  go.store(true, std::memory_order_release);
  for (std::thread& thread : all) thread.join();
  const std::uint64_t span =
      *std::max_element(ends.begin(), ends.end()) - *std::min_element(starts.begin(), starts.end());
  return static_cast<double>(threads * count) * 1e3 / static_cast<double>(span);
}

// Nanoseconds an event of each pass, into `out`; -1 where an allocation failed. What is alive at the end is freed
// between passes, not counted.
extern "C" void torch_replay(const Op* ops, std::uint64_t count, std::uint32_t slots, unsigned streams, unsigned passes,
                             double* out) {
  std::vector<void*> live(slots);
  std::vector<c10::cuda::CUDAStream> all;
  for (unsigned i = 0; i < streams; ++i) {
    all.push_back(i == 0 ? c10::cuda::getDefaultCUDAStream() : c10::cuda::getStreamFromPool());
  }
  for (unsigned pass = 0; pass < passes; ++pass) {
    const std::uint64_t start = now_ns();
    try {
      for (const Op* op = ops; op != ops + count; ++op) {
        void*& at = live[op->slot];
        if (op->free != 0) {
          if (at != nullptr) caching::raw_delete(at);
          at = nullptr;
        } else {
          at = caching::raw_alloc_with_stream(op->bytes, all[op->stream]);
        }
      }
      out[pass] = static_cast<double>(now_ns() - start) / static_cast<double>(count);
    } catch (const std::exception&) {
      out[pass] = -1;
    }
    for (void*& at : live) {
      if (at != nullptr) caching::raw_delete(at);
      at = nullptr;
    }
  }
}
