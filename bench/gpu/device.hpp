// What the GPU round needs of the vendor's driver besides what the CUDA driver of Cistern uses: modules, launches, host
// functions. Own declarations, loaded at run time. Kernels are text in device.cpp. One device, one thread at a time
// unless a member says otherwise. A call that fails ends the program with its name: a round has no use for less.
#pragma once

#include <cstddef>
#include <cstdint>

#include "drivers/cuda/cuda_api.hpp"

namespace cistern::gpu {

using NativeStream = drivers::cuda::Stream;

class Device {
 public:
  static Device& get();

  NativeStream make_stream();
  void destroy_stream(NativeStream stream);
  // Kernels, in the order of the stream. Any thread. Bytes are rounded down to whole words of 8.
  void spin(NativeStream stream, std::uint64_t nanoseconds);
  void fill(NativeStream stream, std::uint64_t at, std::uint64_t bytes, std::uint64_t key);
  void check(NativeStream stream, std::uint64_t at, std::uint64_t bytes, std::uint64_t key);
  // `later` goes on after what was submitted to `earlier`. Any thread.
  void order(NativeStream earlier, NativeStream later);
  void synchronize();
  // Words that check() found different, after synchronize().
  std::uint64_t mismatches();

  // A pair of the vendor's own in stream order; the pool keeps everything.
  std::uint64_t allocate_async(std::size_t bytes, NativeStream stream);
  void free_async(std::uint64_t at, NativeStream stream);
  void keep_pool();
  std::size_t free_memory();
  // Makes the device's context current on the calling thread.
  void enter();

 private:
  Device();
  void launch(void* function, unsigned blocks, unsigned threads, NativeStream stream, void** arguments);

  const drivers::cuda::CudaApi* api_ = nullptr;
  drivers::cuda::Context context_ = nullptr;
  void* spin_ = nullptr;
  void* fill_ = nullptr;
  void* check_ = nullptr;
  std::uint64_t counter_ = 0;  // Address of a word on the device.
  int (*launch_)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, NativeStream, void**,
                 void**) = nullptr;
};

// Keeps a stream's GPU work a fixed time behind the host: call hold() often.
class Lag {
 public:
  Lag(NativeStream stream, std::uint64_t nanoseconds) : stream_(stream), lag_(nanoseconds) {}
  void hold();

 private:
  NativeStream stream_;
  std::uint64_t lag_;
  std::uint64_t end_ = 0;  // When the spins that were submitted will be done, on the host's clock.
};

std::uint64_t now_ns();

}  // namespace cistern::gpu
