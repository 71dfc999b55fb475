// For tests of the allocator that run over the vendor's library, too (CISTERN_CUDA_LIBRARY=libcuda.so.1). At the end
// memory is still had, and the books are sound.
#pragma once

#include <functional>
#include <string>

#include "allocator/cuda_fixture.hpp"
#include "cistern/error.hpp"

namespace cistern::allocation {

class CudaMisuse : public CudaAllocator {
 protected:
  bool needs_standin() const override { return false; }
  void SetUp() override {
    CudaAllocator::SetUp();
    if (!IsSkipped()) start();
  }
  void TearDown() override {
    if (allocator_ != nullptr) works();
    CudaAllocator::TearDown();
  }
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
};

}  // namespace cistern::allocation
