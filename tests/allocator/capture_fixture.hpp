// For tests of captures over the CUDA stand-in: a program's own context, graphs, kernels that write and check patterns.
#pragma once

#include <memory>

#include "allocator/allocator_fixture.hpp"
#include "cistern/capture.hpp"
#include "drivers/cuda_fixture.hpp"

namespace cistern::allocation {

namespace cuda = drivers::cuda;
using drivers::CudaConfig;
using drivers::CudaMode;

class CapturePools : public drivers::CudaTest {
 protected:
  void SetUp() override {
    drivers::CudaTest::SetUp();
    if (IsSkipped()) return;
    start();
  }
  void TearDown() override {
    if (a_ != nullptr) expect_sound(*a_);
    a_.reset();
    drivers::CudaTest::TearDown();
  }
  void start(const Settings& settings = {}, const CudaConfig& config = {}) {
    a_.reset();
    restart(settings);
    // The program's own context, current all the time: getting it would end a capture.
    cuda::Context context = nullptr;
    ASSERT_EQ(library().api.primary_retain(&context, 0), 0);
    ASSERT_EQ(library().api.context_push(context), 0);
    a_ = std::make_unique<DeviceAllocator>(Device::cuda(0), make(config));
  }
  DeviceAllocator& a() { return *a_; }
  Stream stream(int i) { return a_->stream(library().stream(i)); }

  static cuda::Stream native(const Stream& s) { return static_cast<cuda::Stream>(s.native()); }
  static std::uint64_t at(const Buffer& b) { return reinterpret_cast<std::uintptr_t>(b.ptr()); }
  static void fill(const Stream& s, const Buffer& b, std::uint64_t pattern) {
    ASSERT_EQ(control().launch_fill(native(s), at(b), b.size(), pattern), 0);
  }
  static void check(const Stream& s, const Buffer& b, std::uint64_t pattern) {
    ASSERT_EQ(control().launch_check(native(s), at(b), b.size(), pattern), 0);
  }
  static void begin(const Stream& s, int mode = cuda::kCaptureGlobal) {
    ASSERT_EQ(library().graph.begin(native(s), mode), 0);
  }
  // The executable graph; null when the capture was broken.
  static void* end(const Stream& s) {
    void *graph = nullptr, *executable = nullptr;
    if (library().graph.end(native(s), &graph) != 0) return nullptr;
    EXPECT_EQ(library().graph.instantiate(&executable, graph, 0), 0);
    EXPECT_EQ(library().graph.destroy(graph), 0);
    return executable;
  }
  static void launch(void* executable, const Stream& s) { ASSERT_EQ(library().graph.launch(executable, native(s)), 0); }
  static void destroy(void* executable) { ASSERT_EQ(library().graph.destroy_executable(executable), 0); }

  std::unique_ptr<DeviceAllocator> a_;
};

}  // namespace cistern::allocation
