// For tests of the allocator that run over the vendor's library, too (CISTERN_CUDA_LIBRARY=libcuda.so.1). At the end
// memory is still had, and the books are sound.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "allocator/allocator_fixture.hpp"
#include "cistern/error.hpp"
#include "drivers/cuda/cuda_driver.hpp"
#include "standin/cuda/cuda_library.hpp"

namespace cistern::allocation {

class CudaMisuse : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!library().usable()) GTEST_SKIP() << library().why();
    start({});
  }
  void TearDown() override {
    if (allocator_ == nullptr) return;
    works();
    expect_sound(*allocator_);
    allocator_.reset();
    if (!library().is_standin()) return;
    EXPECT_EQ(library().violations(), std::vector<std::string>{});
    EXPECT_EQ(library().leaks(), std::vector<std::string>{});
  }
  static standin::CudaLibrary& library() { return standin::CudaLibrary::get(); }

  void start(const drivers::CudaConfig& config, const std::map<std::string, std::string>& settings = {}) {
    allocator_.reset();
    if (library().is_standin()) library().restart(settings);
    std::string why;
    auto made = drivers::make_cuda_driver(0, config, &why);
    ASSERT_NE(made, nullptr) << why;
    allocator_ = std::make_unique<DeviceAllocator>(Device::cuda(0), std::move(made));
  }
  Stream stream(int i) { return allocator_->stream(library().stream(i)); }
  static std::uint64_t address(const Buffer& b) { return reinterpret_cast<std::uintptr_t>(b.ptr()); }

  // The call throws invalid_argument with this in its text, and leaves the figures as they were.
  void refused(const std::function<void()>& call, const std::string& part) {
    const Stats before = allocator_->stats();
    try {
      call();
      ADD_FAILURE() << "not refused: " << part;
    } catch (const invalid_argument& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
    const Stats after = allocator_->stats();
    EXPECT_EQ(after.active, before.active) << part;
    EXPECT_EQ(after.live_buffers, before.live_buffers) << part;
  }
  // Memory is still had, used by the device, and read back.
  void works() {
    for (const std::size_t bytes : {std::size_t{700}, 3_MiB}) {
      const Buffer b = allocator_->malloc(bytes, stream(1));
      EXPECT_EQ(allocator_->driver().fill(address(b), 0x5A, bytes, library().stream(1)), drivers::Status::ok)
          << allocator_->driver().error_text();
      EXPECT_EQ(static_cast<unsigned char*>(b.raw_ptr())[bytes - 1], 0x5A);
      allocator_->free(b);
    }
  }

  std::unique_ptr<DeviceAllocator> allocator_;
};

}  // namespace cistern::allocation
