// For the tests of the allocator over the CUDA driver: a stand-in and an allocator, checked at the test's end.
#pragma once

#include <memory>
#include <utility>

#include "allocator/allocator_fixture.hpp"
#include "drivers/cuda_fixture.hpp"

namespace cistern::allocation {

class CudaAllocator : public drivers::CudaTest {
 protected:
  void TearDown() override {
    if (allocator_ != nullptr) expect_sound(*allocator_);
    allocator_.reset();
    drivers::CudaTest::TearDown();
  }

  void start(const drivers::CudaConfig& config = {}, const Settings& settings = {}) {
    allocator_.reset();
    restart(settings);
    auto made = make(config);
    ASSERT_NE(made, nullptr);
    allocator_ = std::make_unique<DeviceAllocator>(Device::cuda(0), std::move(made));
  }
  // The program's own context, current all the time: getting it would end a capture.
  static void enter_context() {
    drivers::cuda::Context context = nullptr;
    ASSERT_EQ(library().api.primary_retain(&context, 0), 0);
    ASSERT_EQ(library().api.context_push(context), 0);
  }
  DeviceAllocator& allocator() { return *allocator_; }
  drivers::Driver& driver() { return allocator_->driver(); }
  static void* native(int i) { return library().stream(i); }
  Stream stream(int i) { return allocator_->stream(native(i)); }
  Buffer malloc(std::size_t bytes, int i) { return allocator_->malloc(bytes, stream(i)); }

  std::unique_ptr<DeviceAllocator> allocator_;
};

}  // namespace cistern::allocation
