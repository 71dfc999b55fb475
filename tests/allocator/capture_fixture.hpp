// For tests of captures over the CUDA stand-in: a program's own context, graphs, kernels that write and check patterns.
#pragma once

#include "allocator/cuda_fixture.hpp"
#include "cistern/capture.hpp"

namespace cistern::allocation {

namespace cuda = drivers::cuda;
using drivers::CudaConfig;
using drivers::CudaMode;

class CapturePools : public CudaAllocator {
 protected:
  void SetUp() override {
    CudaAllocator::SetUp();
    if (!IsSkipped()) start();
  }
  void start(const CudaConfig& config = {}, const Settings& settings = {}) {
    CudaAllocator::start(config, settings);
    enter_context();
  }
  DeviceAllocator& a() { return *allocator_; }

  static cuda::Stream native(const Stream& s) { return static_cast<cuda::Stream>(s.native()); }
  static std::uint64_t at(const Buffer& b) { return reinterpret_cast<std::uintptr_t>(b.ptr()); }
  static void fill(const Stream& s, const Buffer& b, std::uint64_t pattern) {
    ASSERT_EQ(control().launch_fill(native(s), at(b), b.size(), pattern), 0);
  }
  static void check(const Stream& s, const Buffer& b, std::uint64_t pattern) {
    ASSERT_EQ(control().launch_check(native(s), at(b), b.size(), pattern), 0);
  }
  static void begin(const Stream& s, int mode = cuda::kCaptureGlobal) {
    ASSERT_EQ(library().program.begin(native(s), mode), 0);
  }
  // The executable graph; null when the capture was broken.
  static void* end(const Stream& s) {
    void *graph = nullptr, *executable = nullptr;
    if (library().program.end(native(s), &graph) != 0) return nullptr;
    EXPECT_EQ(library().program.instantiate(&executable, graph, 0), 0);
    EXPECT_EQ(library().program.destroy(graph), 0);
    return executable;
  }
  static void launch(void* executable, const Stream& s) {
    ASSERT_EQ(library().program.launch(executable, native(s)), 0);
  }
  static void destroy(void* executable) { ASSERT_EQ(library().program.destroy_executable(executable), 0); }
};

}  // namespace cistern::allocation
