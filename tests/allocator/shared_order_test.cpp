// Order between streams that share a device's memory, over the model device, which knows what work is pending on every
// physical byte and lists each use that did not wait for it.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "allocator/device_allocator.hpp"
#include "drivers/model/model_driver.hpp"

namespace cistern::allocation {
namespace {

constexpr std::size_t M = core::MiB;

class SharedOrder : public ::testing::Test {
 protected:
  SharedOrder() {
    drivers::ModelConfig config;
    config.manual = true;
    config.total_memory = 512 * M;
    auto made = drivers::make_model_driver(config);
    device = made.get();
    allocator = std::make_unique<DeviceAllocator>(Device::model(5), std::move(made));
  }
  void TearDown() override {
    EXPECT_EQ(device->violations(), std::vector<std::string>());
    EXPECT_EQ(allocator->check_invariants(), std::vector<std::string>());
    device->complete_all();
  }
  Stream stream(std::uintptr_t number) { return allocator->stream(reinterpret_cast<void*>(number)); }
  // Work on the stream that uses the whole buffer, pending from now on.
  bool use(const Stream& stream, const Buffer& buffer) {
    return device->touch(stream.native(), reinterpret_cast<std::uintptr_t>(buffer.ptr()), buffer.size());
  }

  drivers::ModelDriver* device = nullptr;
  std::unique_ptr<DeviceAllocator> allocator;
};

TEST_F(SharedOrder, AnotherStreamWaitsOnceForWhatWasFreed) {
  const Stream first = stream(1), second = stream(2);
  const Buffer freed = allocator->malloc(64 * M, first);
  EXPECT_TRUE(use(first, freed));
  allocator->free(freed);
  allocator->free(allocator->malloc(128 * M, first));  // The block leaves the list of recent ones.
  const std::uint64_t calls = allocator->stats().driver_calls;
  std::vector<Buffer> taken;
  for (int i = 0; i < 8; ++i) {
    taken.push_back(allocator->malloc(8 * M, second));
    EXPECT_TRUE(use(second, taken.back()));
  }
  EXPECT_LE(allocator->stats().driver_calls - calls, 3U) << "one event, one wait, and its release";
  EXPECT_EQ(allocator->stats().host_waits, 0U);
  for (const Buffer& buffer : taken) allocator->free(buffer);
}

// No event can be recorded on a stream that is being captured.
TEST_F(SharedOrder, AFirstRequestGetsNothingThatItCannotWaitFor) {
  const Stream first = stream(0), second = stream(1);
  const Buffer freed = allocator->malloc(8 * M, first);
  EXPECT_TRUE(use(first, freed));
  allocator->free(freed);
  allocator->free(allocator->malloc(16 * M, first));
  device->fail(drivers::Call::record, 1, drivers::Status::capturing, 1000);
  const Buffer other = allocator->malloc(4 * M, second);
  device->clear_faults();
  EXPECT_TRUE(use(second, other));
  allocator->free(other);
}

// A block outlives its pool. What others took of its memory still carries the number of the stream that freed it, when
// that number could serve another stream.
TEST_F(SharedOrder, AReleasedPoolsNumberIsKeptUntilItsBlocksAreBack) {
  const Stream captured = stream(1), next = stream(2), third = stream(3), fourth = stream(4);
  const std::uint64_t pool = allocator->make_pool();
  allocator->begin_pool(pool, captured);
  const Buffer block = allocator->malloc(4 * M, captured);
  allocator->end_pool(pool);
  allocator->release_pool(pool);
  EXPECT_TRUE(use(captured, block));
  allocator->free(block);
  const Buffer part = allocator->malloc(2 * M + 512, third);
  EXPECT_TRUE(use(third, part));
  const std::uint64_t other_pool = allocator->make_pool();
  allocator->begin_pool(other_pool, next);
  const Buffer in_pool = allocator->malloc(M, next);
  allocator->end_pool(other_pool);
  const Buffer rest = allocator->malloc(M, fourth);
  EXPECT_TRUE(use(fourth, rest));
  for (const Buffer& buffer : {part, in_pool, rest}) allocator->free(buffer);
}

}  // namespace
}  // namespace cistern::allocation
