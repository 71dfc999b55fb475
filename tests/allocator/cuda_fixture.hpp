// For the tests of the allocator over the CUDA driver: a fresh stand-in and an allocator, checked at the test's end.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "allocator/allocator_fixture.hpp"
#include "drivers/cuda/cuda_driver.hpp"
#include "standin/cuda/cuda_library.hpp"

namespace cistern::allocation {

class CudaAllocator : public ::testing::Test {
 protected:
  using Settings = std::map<std::string, std::string>;

  void SetUp() override {
    if (!library().is_standin()) GTEST_SKIP() << "needs the stand-in: " << library().why();
  }
  void TearDown() override {
    if (!library().is_standin()) return;
    if (allocator_ != nullptr) expect_sound(*allocator_);
    allocator_.reset();
    control().complete_all();
    EXPECT_EQ(library().violations(), std::vector<std::string>{});
    EXPECT_EQ(library().leaks(), std::vector<std::string>{});
  }
  static standin::CudaLibrary& library() { return standin::CudaLibrary::get(); }
  static const standin::Controls& control() { return library().control; }

  void start(const drivers::CudaConfig& config = {}, const Settings& settings = {}) {
    allocator_.reset();
    library().restart(settings);
    std::string why;
    auto made = drivers::make_cuda_driver(0, config, &why);
    ASSERT_NE(made, nullptr) << why;
    allocator_ = std::make_unique<DeviceAllocator>(Device::cuda(0), std::move(made));
  }
  DeviceAllocator& allocator() { return *allocator_; }
  drivers::Driver& driver() { return allocator_->driver(); }
  static void* native(int i) { return library().stream(i); }
  Stream stream(int i) { return allocator_->stream(native(i)); }
  Buffer malloc(std::size_t bytes, int i) { return allocator_->malloc(bytes, stream(i)); }

  std::unique_ptr<DeviceAllocator> allocator_;
};

}  // namespace cistern::allocation
