// Misuse over the CUDA driver: the error names the fault, nothing changes, and the allocator goes on. Runs over the
// vendor's library, too (CISTERN_CUDA_LIBRARY=libcuda.so.1), with the checks of bytes done by copies.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "allocator/cuda_misuse_fixture.hpp"
#include "allocator/second_allocator.hpp"

namespace cistern::allocation {
namespace {

using drivers::CudaMode;
using drivers::Status;

TEST_F(CudaMisuse, DoubleFree) {
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{100}, 100_KiB, 5_MiB}) {
    const Buffer device = allocator_->malloc(bytes, stream(1)), unified = allocator_->malloc(bytes);
    allocator_->free(device);
    refused([&] { allocator_->free(device); }, "double free");
    refused([&] { allocator_->free(device, stream(2)); }, "free");
    refused([&] { allocator_->record_use(device, stream(2)); }, "free");
    refused([&] { static_cast<void>(device.raw_ptr()); }, "free");
    allocator_->free(unified);
    refused([&] { allocator_->free(unified); }, "double free");
  }
}

TEST_F(CudaMisuse, ForeignPointers) {
  int local = 0;
  const Buffer b = allocator_->malloc(100_KiB, stream(1));
  auto* const start_of = static_cast<char*>(b.ptr());
  refused([&] { allocator_->free_raw(&local); }, "no live buffer");
  refused([&] { allocator_->free_raw(start_of + 512); }, "no live buffer");
  refused([&] { allocator_->free_raw(reinterpret_cast<void*>(~std::uintptr_t{0} & ~std::uintptr_t{511})); }, "no live");
  EXPECT_FALSE(allocator_->find(start_of + 1));
  allocator_->free_raw(b.ptr());
  refused([&] { allocator_->free_raw(start_of); }, "no live buffer");
}

TEST_F(CudaMisuse, AnotherDevicesBuffersAndStreams) {
  const auto cpu = make_cpu();
  const Buffer of_cpu = cpu->malloc(100), of_gpu = allocator_->malloc(5000, stream(1));
  refused([&] { allocator_->free(of_cpu); }, "belongs to another allocator");
  refused([&] { cpu->free(of_gpu); }, "belongs to another allocator");
  refused([&] { static_cast<void>(allocator_->malloc(100, cpu->stream(nullptr))); }, "stream of cpu");
  refused([&] { allocator_->free(of_gpu, cpu->stream(nullptr)); }, "stream of cpu");
  refused([&] { allocator_->record_use(of_gpu, cpu->stream(nullptr)); }, "stream of cpu");
  cpu->free(of_cpu);
  allocator_->free(of_gpu);
}

TEST_F(CudaMisuse, DestroyedStreams) {
  const drivers::cuda::Stream native = library().make_stream();
  const Stream gone = allocator_->stream(native);
  const Buffer b = allocator_->malloc(1_MiB, gone), c = allocator_->malloc(700, gone);
  EXPECT_EQ(allocator_->driver().fill(address(b), 1, 1_MiB, native), Status::ok);
  allocator_->free(c);
  allocator_->stream_destroyed(gone);
  library().destroy_stream(native);
  refused([&] { static_cast<void>(allocator_->malloc(100, gone)); }, "destroyed");
  refused([&] { allocator_->record_use(b, gone); }, "destroyed");
  refused([&] { allocator_->free(b, gone); }, "destroyed");
  refused([&] { allocator_->stream_destroyed(gone); }, "destroyed");
  // What it left is freed and used by others.
  allocator_->free(b);
  const Buffer d = allocator_->malloc(1_MiB, stream(2));
  EXPECT_EQ(allocator_->driver().fill(address(d), 2, 1_MiB, library().stream(2)), Status::ok);
  EXPECT_EQ(static_cast<unsigned char*>(d.raw_ptr())[1_MiB - 1], 2);
  allocator_->free(d);
}

TEST_F(CudaMisuse, ViewsAndOwnedBuffers) {
  std::vector<unsigned char> memory(1_MiB, 3);
  const Buffer view = allocator_->make_buffer(memory.data(), memory.size());
  const Buffer owned = allocator_->malloc(5000, stream(1));
  refused([&] { allocator_->release(owned); }, "not a view");
  if (view) {
    refused([&] { allocator_->free(view); }, "view");
    allocator_->release(view);
    refused([&] { allocator_->release(view); }, "freed");
  }
  refused([&] { static_cast<void>(allocator_->make_buffer(nullptr, 10)); }, "null");
  allocator_->free(owned);
}

TEST_F(CudaMisuse, SizesThatNothingHas) {
  refused([&] { static_cast<void>(allocator_->malloc(SIZE_MAX, stream(1))); }, "no device has");
  refused([&] { static_cast<void>(allocator_->malloc(SIZE_MAX - 511)); }, "no device has");
  const Stats before = allocator_->stats();
  EXPECT_THROW(static_cast<void>(allocator_->malloc(std::size_t{1} << 45, stream(1))), out_of_memory);
  EXPECT_EQ(allocator_->stats().active, before.active);
}

// The vendor forbids its own calls in a host function, and waits for it: a free() that made one, or took a lock that is
// held across one, would stand still.
TEST_F(CudaMisuse, FreesFromHostFunctionsWhileAnotherThreadWaits) {
  struct Call {
    DeviceAllocator* allocator;
    Buffer buffer;
    std::atomic<int>* done;
  };
  constexpr int kCalls = 100;
  std::atomic<int> done{0};
  std::vector<Call> calls;
  calls.reserve(kCalls);
  std::thread other([&] {
    while (done < kCalls) {
      allocator_->free(allocator_->malloc(9_MiB, stream(2)));
      allocator_->clear_cache();  // Waits for the device under the lock.
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  const Stream s = stream(1);
  library().in_context(0, [&] {
    for (int i = 0; i < kCalls; ++i) {
      const Buffer b = allocator_->malloc(i % 2 == 0 ? 600 : 3_MiB, s);
      EXPECT_EQ(allocator_->driver().fill(address(b), 1, b.size(), s.native()), Status::ok);
      calls.push_back({allocator_.get(), b, &done});
      const auto function = [](void* argument) {
        const Call& call = *static_cast<Call*>(argument);
        call.allocator->free(call.buffer);
        ++*call.done;
      };
      ASSERT_EQ(library().program.launch_host(library().stream(1), function, &calls.back()), 0);
    }
  });
  other.join();
  EXPECT_EQ(done, kCalls);
  EXPECT_EQ(allocator_->stats().live_buffers, 0u);
}

TEST_F(CudaMisuse, StagingMemory) {
  auto made = drivers::make_cuda_driver(0, {.mode = CudaMode::pinned_host});
  ASSERT_NE(made, nullptr);
  SecondAllocator staging(*allocator_, std::move(made));
  const Buffer host = staging.malloc(129_MiB, stream(1)), device = allocator_->malloc(129_MiB, stream(1));
  EXPECT_LE(staging.stats().reserved, 130_MiB);
  std::memset(host.raw_ptr(), 0x3C, 129_MiB);
  EXPECT_EQ(allocator_->driver().copy(address(device), address(host), 129_MiB, library().stream(1)), Status::ok);
  staging.free(host, stream(1));
  refused([&] { allocator_->free(host); }, "another allocator");
  EXPECT_EQ(static_cast<unsigned char*>(device.raw_ptr())[129_MiB - 1], 0x3C);
  EXPECT_THROW(staging.free(host), invalid_argument);
  allocator_->free(device);
  staging.clear_cache();
  EXPECT_EQ(staging.stats().reserved, 0u);
  expect_sound(staging);
}

TEST_F(CudaMisuse, TwoDevicesAreApart) {
  start({}, {{"DEVICES", "2"}});
  if (drivers::list_cuda_devices().size() < 2) GTEST_SKIP() << "needs two devices";
  DeviceAllocator second(Device::cuda(1), drivers::make_cuda_driver(1));
  const Stream s = stream(1), t = second.stream(library().stream(1, 1));
  second.set_memory_limit(100_MiB);
  const Buffer a = allocator_->malloc(40_MiB, s), b = second.malloc(40_MiB, t);
  EXPECT_EQ(b.device(), Device::cuda(1));
  refused([&] { allocator_->free(b); }, "belongs to another allocator");
  refused([&] { static_cast<void>(allocator_->malloc(100, t)); }, "stream of cuda:1");
  refused([&] { static_cast<void>(allocator_->stream(library().stream(1, 1))); }, "belongs to CUDA device 1");
  EXPECT_FALSE(allocator_->find(b.ptr()));
  EXPECT_THROW(static_cast<void>(second.malloc(80_MiB, t)), out_of_memory) << "its own limit";
  EXPECT_GE(allocator_->stats().active, 40_MiB);
  EXPECT_EQ(second.stats().active, b.size());
  // Once it is a peer, the other device reaches what is mapped already and what comes later.
  const Status peer = allocator_->driver().enable_peer(1);
  EXPECT_TRUE(peer == Status::ok || peer == Status::unsupported) << allocator_->driver().error_text();
  const Buffer later = allocator_->malloc(50_MiB, s);
  for (const Buffer& of_first : {a, later}) {
    if (peer != Status::ok) continue;
    EXPECT_EQ(second.driver().fill(address(of_first), 0x66, of_first.size(), t.native()), Status::ok);
    EXPECT_EQ(second.driver().synchronize_device(), Status::ok) << second.driver().error_text();
    EXPECT_EQ(static_cast<unsigned char*>(of_first.raw_ptr())[of_first.size() - 1], 0x66);
  }
  allocator_->free(a);
  allocator_->free(later);
  second.free(b);
  expect_sound(second);
}

TEST_F(CudaMisuse, TheSameInTheOtherModes) {
  for (const CudaMode mode : {CudaMode::segments, CudaMode::stream_ordered}) {
    start({.mode = mode});
    const Buffer b = allocator_->malloc(2_MiB, stream(1));
    EXPECT_EQ(allocator_->driver().fill(address(b), 4, 2_MiB, library().stream(1)), Status::ok);
    allocator_->free(b, stream(2));
    refused([&] { allocator_->free(b); }, "double free");
    refused([&] { allocator_->free_raw(reinterpret_cast<void*>(16)); }, "no live buffer");
    works();
    expect_sound(*allocator_);
  }
}

}  // namespace
}  // namespace cistern::allocation
