// The allocator over the CUDA driver and the stand-in: unified memory, small blocks, moves to the host, staging, the
// device's own pool, poisoning, segments, several devices, names of streams.
#include <cstring>
#include <map>
#include <thread>
#include <vector>

#include "allocator/cuda_fixture.hpp"
#include "allocator/registry.hpp"
#include "allocator/second_allocator.hpp"
#include "cistern/error.hpp"

namespace cistern::allocation {
namespace {

using drivers::CudaConfig;
using drivers::CudaMode;
using drivers::CudaUnified;

std::uint64_t number(const Buffer& b) { return reinterpret_cast<std::uintptr_t>(b.ptr()); }

// --- Unified memory -------------------------------------------------------------------------------------------------

class CudaUnifiedMemory : public CudaAllocator, public testing::WithParamInterface<CudaUnified> {
 protected:
  const char* vendor_call() const {
    return GetParam() == CudaUnified::managed ? "cuMemAllocManaged" : "cuMemHostAlloc";
  }
};

TEST_P(CudaUnifiedMemory, HostAndDeviceReachIt) {
  start({.unified = GetParam()});
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{8}, std::size_t{9}, std::size_t{5000}, 100_KiB, 3_MiB}) {
    const Buffer b = allocator().malloc(bytes);
    EXPECT_GE(b.size(), bytes);
    EXPECT_EQ(b.raw_ptr(), b.ptr());
    std::memset(b.raw_ptr(), 3, bytes);
    EXPECT_EQ(driver().fill(number(b), 7, bytes, native(1)), drivers::Status::ok);
    EXPECT_EQ(driver().synchronize_device(), drivers::Status::ok);
    EXPECT_EQ(static_cast<unsigned char*>(b.raw_ptr())[bytes - 1], 7);
    EXPECT_EQ(allocator().find(b.ptr()), b);
    allocator().free(b);
    EXPECT_FALSE(allocator().find(number(b) != 0 ? b.ptr() : nullptr));
  }
  EXPECT_GT(control().calls(vendor_call()), 0u);
}

TEST_P(CudaUnifiedMemory, ScalarsAreServedByFourPagesWithoutACall) {
  start({.unified = GetParam()});
  allocator().free(allocator().malloc(100));
  const std::uint64_t before = driver().calls();
  std::vector<Buffer> scalars;
  for (std::size_t i = 0; i < 8192; ++i) scalars.push_back(allocator().malloc(i % 9));
  EXPECT_EQ(driver().calls(), before) << "four pages of 16 KiB hold 8192 scalars";
  std::map<std::uint64_t, bool> pages;
  for (const Buffer& b : scalars) pages[number(b) / HostBuffers::kTinyPage] = true;
  EXPECT_LE(pages.size(), HostBuffers::kTinyPages + 1) << "one more where the pages are not aligned";
  expect_sound(allocator());
  scalars.push_back(allocator().malloc(8));
  EXPECT_GE(scalars.back().size(), 8u) << "and one more is served, too";
  for (const Buffer& b : scalars) allocator().free(b);
  const std::uint64_t full = driver().calls();
  for (int i = 0; i < 20000; ++i) allocator().free(allocator().malloc(4));
  EXPECT_EQ(driver().calls(), full);
}

TEST_P(CudaUnifiedMemory, SmallBlocksShareSlabsAndSlabsGoBack) {
  start({.unified = GetParam()});
  std::vector<Buffer> live;
  for (std::size_t i = 0; i < 1000; ++i) live.push_back(allocator().malloc(16 + i * 8));
  EXPECT_LT(control().calls(vendor_call()), 64u) << "not a call a buffer";
  std::map<std::uint64_t, std::uint64_t> ends;
  for (const Buffer& b : live) {
    EXPECT_EQ(number(b) % driver().capabilities().alignment, 0u);
    ends[number(b)] = number(b) + b.size();
  }
  std::uint64_t end = 0;
  for (const auto& [from, to] : ends) {
    EXPECT_GE(from, end) << "two blocks overlap";
    end = to;
  }
  expect_sound(allocator());
  for (const Buffer& b : live) allocator().free(b);
  allocator().clear_cache();
  EXPECT_EQ(allocator().stats().reserved, 0u);
  allocator().free(allocator().malloc(1));
  EXPECT_EQ(allocator().stats().reserved, HostBuffers::kTinyPages * HostBuffers::kTinyPage);
}

TEST_P(CudaUnifiedMemory, RawPtrMovesOnceAfterTheStreamsWork) {
  start({.unified = GetParam()}, {{"LAG_US", "3000"}});
  for (const std::size_t bytes : {std::size_t{600}, 100_KiB, 5_MiB}) {
    const Buffer b = malloc(bytes, 1);
    const std::uint64_t device = number(b);
    EXPECT_EQ(driver().fill(device, 9, bytes, native(1)), drivers::Status::ok);
    // Another stream changes it, in the order that record_use() and the program's own event give.
    std::uint64_t waits = control().host_waits();
    auto* const host = static_cast<unsigned char*>(b.raw_ptr());
    EXPECT_GE(control().host_waits(), waits);
    EXPECT_EQ(host[0], 9);
    EXPECT_EQ(host[bytes - 1], 9);
    EXPECT_NE(number(b), device);
    EXPECT_EQ(b.ptr(), host) << "for every copy of the handle";
    const std::uint64_t calls = driver().calls();
    EXPECT_EQ(b.raw_ptr(), host);
    EXPECT_EQ(driver().calls(), calls) << "once";
    EXPECT_EQ(allocator().find(host), b);
    EXPECT_FALSE(allocator().find(reinterpret_cast<void*>(device)));
    expect_sound(allocator());
    allocator().free(b);
  }
}

TEST_P(CudaUnifiedMemory, TwoThreadsAskingForRawPtrGetOne) {
  start({.unified = GetParam()}, {{"LAG_US", "300"}});
  for (int round = 0; round < 50; ++round) {
    const std::size_t bytes = round % 2 == 0 ? 700 : 200_KiB;
    const Buffer b = malloc(bytes, 1);
    EXPECT_EQ(driver().fill(number(b), static_cast<std::uint8_t>(round), bytes, native(1)), drivers::Status::ok);
    const std::uint64_t copies = control().calls("cuMemcpyAsync");
    void* seen[4] = {};
    std::vector<std::thread> threads;
    for (void*& at : seen) threads.emplace_back([&at, b] { at = b.raw_ptr(); });
    for (std::thread& t : threads) t.join();
    for (void* const at : seen) EXPECT_EQ(at, seen[0]);
    EXPECT_EQ(control().calls("cuMemcpyAsync"), copies + 1);
    EXPECT_EQ(static_cast<unsigned char*>(seen[0])[bytes - 1], static_cast<std::uint8_t>(round));
    allocator().free(b);
  }
}

TEST_P(CudaUnifiedMemory, AMoveThatFailsSaysWhyAndChangesNothing) {
  start({.unified = GetParam()});
  const Buffer b = malloc(100_KiB, 1);
  EXPECT_EQ(driver().fill(number(b), 9, 100_KiB, native(1)), drivers::Status::ok);
  const std::uint64_t before = number(b);
  control().fail("cuMemcpyAsync", 1, drivers::cuda::kInvalidValue, 1);
  try {
    static_cast<void>(b.raw_ptr());
    ADD_FAILURE() << "the copy failed";
  } catch (const driver_error& error) {
    EXPECT_NE(std::string(error.what()).find("cuMemcpyAsync"), std::string::npos) << error.what();
  }
  EXPECT_EQ(number(b), before);
  expect_sound(allocator());
  EXPECT_EQ(static_cast<unsigned char*>(b.raw_ptr())[100_KiB - 1], 9) << "the next attempt works";
  allocator().free(b);
}

TEST_P(CudaUnifiedMemory, ZeroedBuffersAreZeroForTheHostAtOnce) {
  start({.unified = GetParam()}, {{"LAG_US", "3000"}});
  allocator().set_options({.zero_on_alloc = true});
  for (int i = 0; i < 3; ++i) {
    const Buffer b = allocator().malloc(100_KiB);
    auto* const bytes = static_cast<unsigned char*>(b.raw_ptr());
    EXPECT_EQ(bytes[0] | bytes[100_KiB - 1], 0);
    std::memset(bytes, 0xAB, 100_KiB);
    control().complete_all();
    EXPECT_EQ(bytes[0] & bytes[100_KiB - 1], 0xAB) << "nothing of ours overwrites it later";
    allocator().free(b);
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, CudaUnifiedMemory, testing::Values(CudaUnified::managed, CudaUnified::pinned),
                         [](const auto& info) { return info.param == CudaUnified::managed ? "managed" : "pinned"; });

TEST_F(CudaAllocator, UnifiedMemoryIsPinnedWhereADeviceHasNoConcurrentAccess) {
  start({}, {{"WITHOUT", "concurrent"}});
  allocator().free(allocator().malloc(100));
  EXPECT_EQ(control().calls("cuMemAllocManaged"), 0u);
  start();
  allocator().free(allocator().malloc(100));
  EXPECT_EQ(control().calls("cuMemHostAlloc"), 0u);
}

// --- Staging --------------------------------------------------------------------------------------------------------

class CudaStaging : public CudaAllocator {
 protected:
  void start_staging(const Settings& settings = {}) {
    start({}, settings);
    auto made = drivers::make_cuda_driver(0, {.mode = CudaMode::pinned_host});
    ASSERT_NE(made, nullptr);
    staging_ = std::make_unique<SecondAllocator>(allocator(), std::move(made));
  }
  void TearDown() override {
    if (staging_ != nullptr) expect_sound(*staging_);
    staging_.reset();
    CudaAllocator::TearDown();
  }
  std::unique_ptr<SecondAllocator> staging_;
};

TEST_F(CudaStaging, ABufferCostsItsOwnSize) {
  start_staging();
  const Buffer b = staging_->malloc(129_MiB, stream(1));
  EXPECT_LE(staging_->stats().reserved, 130_MiB);
  EXPECT_EQ(control().calls("cuMemHostAlloc"), 2u) << "the scalars' pages, and this";
  std::memset(b.raw_ptr(), 1, 129_MiB);
  staging_->free(b);
}

TEST_F(CudaStaging, ABufferServesAgainOnlyAfterTheWork) {
  start_staging({{"MANUAL", "1"}});
  const Buffer device = malloc(1_MiB, 1);
  const Buffer first = staging_->malloc(1_MiB, stream(1));
  const void* const memory = first.ptr();
  std::memset(first.raw_ptr(), 5, 1_MiB);
  EXPECT_EQ(driver().copy(number(device), number(first), 1_MiB, native(1)), drivers::Status::ok);
  staging_->free(first, stream(1));
  const Buffer second = staging_->malloc(1_MiB, stream(1));
  EXPECT_NE(second.ptr(), memory) << "the copy has not read it yet";
  std::memset(second.raw_ptr(), 6, 1_MiB);
  control().complete_all();
  EXPECT_EQ(static_cast<unsigned char*>(device.raw_ptr())[1_MiB - 1], 5);
  const std::uint64_t made = control().calls("cuMemHostAlloc");
  const Buffer third = staging_->malloc(1_MiB, stream(2));
  EXPECT_EQ(third.ptr(), memory) << "now it serves again";
  EXPECT_EQ(control().calls("cuMemHostAlloc"), made);
  for (const Buffer& b : {second, third}) staging_->free(b);
  allocator().free(device);
}

TEST_F(CudaStaging, ADestroyedStreamIsRefusedThereToo) {
  start_staging();
  const Stream s = stream(1);
  staging_->free(staging_->malloc(5000, s));
  staging_->forget(s);
  allocator().stream_destroyed(s);
  EXPECT_THROW(staging_->malloc(5000, s), invalid_argument);
}

// --- The device's own pool ------------------------------------------------------------------------------------------

class CudaPoolMode : public CudaAllocator {};

TEST_F(CudaPoolMode, AllocatesAndFreesInStreamOrder) {
  start({.mode = CudaMode::stream_ordered});
  const Buffer b = malloc(3_MiB, 1);
  EXPECT_EQ(control().calls("cuMemAllocAsync"), 1u);
  EXPECT_EQ(control().calls("cuMemAllocManaged") + control().calls("cuMemHostAlloc"), 0u);
  EXPECT_EQ(driver().fill(number(b), 4, 3_MiB, native(1)), drivers::Status::ok);
  EXPECT_EQ(allocator().find(b.ptr()), b);
  EXPECT_GE(allocator().stats().reserved, 3_MiB);
  expect_sound(allocator());
  allocator().free(b);
  EXPECT_EQ(control().calls("cuMemFreeAsync"), 0u) << "free() itself makes no call";
  const Buffer again = malloc(100, 2);
  EXPECT_EQ(control().calls("cuMemFreeAsync"), 1u);
  allocator().free(again, stream(1));
  EXPECT_THROW(allocator().free(again), invalid_argument);
  allocator().clear_cache();
  EXPECT_EQ(allocator().stats().reserved, 0u);
}

TEST_F(CudaPoolMode, RawPtrMovesAndEmptyBuffersWork) {
  start({.mode = CudaMode::stream_ordered});
  const Buffer b = malloc(100_KiB, 1), empty = malloc(0, 1);
  EXPECT_EQ(empty.size(), 0u);
  EXPECT_EQ(driver().fill(number(b), 4, 100_KiB, native(1)), drivers::Status::ok);
  EXPECT_EQ(static_cast<unsigned char*>(b.raw_ptr())[100_KiB - 1], 4);
  expect_sound(allocator());
  allocator().free(b);
  allocator().free(empty);
}

TEST_F(CudaPoolMode, LimitsHoldAndTheAllocatorStaysUsable) {
  start({.mode = CudaMode::stream_ordered}, {{"MEMORY", "67108864"}});
  allocator().set_memory_limit(40_MiB);
  std::vector<Buffer> live;
  EXPECT_THROW(for (;;) live.push_back(malloc(6_MiB, 1)), out_of_memory);
  EXPECT_EQ(live.size(), 6u);
  EXPECT_LE(allocator().stats().active, 40_MiB);
  allocator().set_memory_limit(1000_MiB);
  EXPECT_THROW(for (;;) live.push_back(malloc(6_MiB, 1)), out_of_memory) << "the device is full";
  expect_sound(allocator());
  for (const Buffer& b : live) allocator().free(b);
  allocator().free(malloc(30_MiB, 2));
}

// The stand-in's pool takes new memory rather than what was freed and may be in use.
TEST_F(CudaPoolMode, AtTheLimitTheHostWaitsForWhatWasFreed) {
  start({.mode = CudaMode::stream_ordered}, {{"LAG_US", "500"}});
  allocator().set_memory_limit(256_MiB);
  for (int i = 0; i < 200; ++i) {
    const Buffer b = malloc((1 + static_cast<std::size_t>(i) % 5) * 9_MiB, 1 + i % 2);
    EXPECT_EQ(driver().fill(number(b), 4, b.size(), native(1 + i % 2)), drivers::Status::ok);
    allocator().free(b);
    EXPECT_LE(control().physical_bytes(0), 256_MiB + 64_MiB) << i;
  }
}

TEST_F(CudaPoolMode, WhatThePoolTookIsSeenAndGivenBack) {
  start({.mode = CudaMode::stream_ordered}, {{"LAG_US", "0"}});
  for (int i = 0; i < 3; ++i) {
    allocator().free(malloc(1_MiB, 1));
    EXPECT_EQ(allocator().stats().reserved, control().physical_bytes(0));
    allocator().clear_cache();
    EXPECT_EQ(control().physical_bytes(0), 0u) << i;
  }
}

TEST_F(CudaPoolMode, WhatThePoolKeepsGoesWhenTheDeviceIsNearlyFull) {
  start({.mode = CudaMode::stream_ordered}, {{"MEMORY", "1073741824"}, {"LAG_US", "0"}});
  std::vector<Buffer> live;
  for (int i = 0; i < 15; ++i) live.push_back(malloc(60_MiB, 1));
  for (const Buffer& b : live) allocator().free(b);
  allocator().free(malloc(512, 1));
  EXPECT_GE(allocator().stats().reserved, 900_MiB) << "the pool keeps it: its release threshold is set";
  // Something else takes the rest of the device: nothing is left for kernels and graphs.
  control().set_memory(0, std::size_t{960} << 20);
  allocator().free(malloc(70_MiB, 1));
  allocator().free(malloc(70_MiB, 2));
  std::size_t free = 0, total = 0;
  ASSERT_EQ(driver().memory_info(free, total), drivers::Status::ok);
  EXPECT_GE(free, total / 64);
}

// --- Freed memory ---------------------------------------------------------------------------------------------------

TEST_F(CudaAllocator, FreedBytesArePoisonedWhateverTheirSize) {
  start();
  MemoryOptions options;
  options.poison_on_free = true;
  allocator().set_options(options);
  for (const std::size_t bytes : {1000_KiB, 40_KiB, std::size_t{1000}}) {
    const Buffer b = malloc(bytes, 1);
    ASSERT_EQ(driver().fill(number(b), 5, bytes, native(1)), drivers::Status::ok);
    const std::uint64_t middle = number(b) + bytes / 2;
    allocator().free(b);
    allocator().map();  // Whoever holds the lock next does it.
    const Buffer other = malloc(bytes, 1);
    unsigned char seen = 0;
    ASSERT_EQ(driver().copy(address(&seen), middle, 1, native(1)), drivers::Status::ok);
    control().complete_all();
    EXPECT_EQ(int{seen}, 0xDE) << bytes;
    allocator().free(other);
  }
}

// --- Segments, devices, streams -------------------------------------------------------------------------------------

TEST_F(CudaAllocator, SegmentsServeWhereThereIsNoVirtualMemory) {
  for (const Settings& settings : {Settings{{"WITHOUT", "virtual_memory"}}, Settings{{"REFUSE", "virtual_memory"}}}) {
    start({}, settings);
    std::vector<Buffer> live;
    for (std::size_t i = 0; i < 40; ++i) live.push_back(malloc(1 + i * 300_KiB, static_cast<int>(i % 3)));
    EXPECT_EQ(control().calls("cuMemCreate") - (settings.contains("REFUSE") ? control().calls("cuMemCreate") : 0), 0u);
    EXPECT_GT(control().calls("cuMemAlloc"), 0u);
    expect_sound(allocator());
    for (const Buffer& b : live) {
      EXPECT_EQ(driver().fill(number(b), 1, b.size(), native(1)), drivers::Status::ok);
    }
    EXPECT_EQ(driver().synchronize_device(), drivers::Status::ok);
    for (const Buffer& b : live) allocator().free(b);
    allocator().clear_cache();
    EXPECT_EQ(allocator().stats().reserved, 0u);
  }
}

TEST_F(CudaAllocator, DevicesAreApart) {
  start({}, {{"DEVICES", "3"}, {"MEMORY", "134217728"}});
  std::vector<std::unique_ptr<DeviceAllocator>> all;
  for (int i = 0; i < 3; ++i) {
    all.push_back(std::make_unique<DeviceAllocator>(Device::cuda(i), drivers::make_cuda_driver(i)));
  }
  all[0]->set_memory_limit(10_MiB);
  std::vector<std::vector<Buffer>> live(3);
  EXPECT_THROW(for (;;) live[0].push_back(all[0]->malloc(4_MiB, all[0]->stream(library().stream(1, 0)))),
               out_of_memory);
  for (std::size_t i = 0; i < 3; ++i) {
    const Stream s = all[i]->stream(library().stream(1, static_cast<int>(i)));
    if (i != 0) live[i].push_back(all[i]->malloc(30_MiB, s));
    // Its memory is the device's own: work of its stream reaches it, and another device's allocator does not know it.
    for (const Buffer& b : live[i]) {
      EXPECT_EQ(all[i]->driver().fill(number(b), 1, b.size(), s.native()), drivers::Status::ok);
      EXPECT_EQ(b.device(), Device::cuda(static_cast<int>(i)));
      EXPECT_THROW(all[(i + 1) % 3]->free(b), invalid_argument);
      EXPECT_FALSE(all[(i + 1) % 3]->find(b.ptr()));
    }
    EXPECT_GE(control().physical_bytes(static_cast<int>(i)), all[i]->stats().active);
    EXPECT_THROW(all[(i + 1) % 3]->stream(library().stream(1, static_cast<int>(i))), invalid_argument);
    EXPECT_THROW(all[(i + 1) % 3]->malloc(512, s), invalid_argument);
  }
  EXPECT_LE(all[0]->stats().reserved, 10_MiB);
  for (std::size_t i = 0; i < 3; ++i) {
    for (const Buffer& b : live[i]) all[i]->free(b);
    expect_sound(*all[i]);
  }
}

TEST_F(CudaAllocator, TheLegacyHandleIsTheDefaultStream) {
  start();
  const Stream legacy = allocator().stream(reinterpret_cast<void*>(1));
  EXPECT_EQ(legacy, allocator().stream(nullptr));
  const Stream mine = allocator().stream(reinterpret_cast<void*>(2));
  EXPECT_NE(mine, legacy);
  std::thread([&] { EXPECT_NE(allocator().stream(reinterpret_cast<void*>(2)), mine) << "per thread"; }).join();
}

TEST_F(CudaAllocator, ARecycledStreamHandleIsAnotherStream) {
  for (const char* const version : {"13000", "11080"}) {
    start({}, {{"VERSION", version}, {"MANUAL", "1"}});
    drivers::cuda::Stream handle = library().make_stream();
    const Stream first = allocator().stream(handle);
    const Buffer b = allocator().malloc(1_MiB, first);
    library().in_context(0, [&] { EXPECT_EQ(control().launch_fill(handle, number(b), 1_MiB, 1), 0); });
    allocator().free(b);
    allocator().stream_destroyed(first);
    library().destroy_stream(handle);
    handle = library().make_stream();
    const Stream second = allocator().stream(handle);
    EXPECT_NE(second, first);
    EXPECT_THROW(allocator().malloc(512, first), invalid_argument);
    const Buffer c = allocator().malloc(1_MiB, second);
    library().in_context(0, [&] {
      EXPECT_EQ(control().launch_fill(handle, number(c), 1_MiB, 2), 0);
      EXPECT_EQ(control().launch_check(handle, number(c), 1_MiB, 2), 0);
    });
    control().complete_all();
    EXPECT_EQ(control().mismatches(), 0u);
    allocator().free(c);
    allocator().stream_destroyed(second);
    library().destroy_stream(handle);
  }
}

}  // namespace
}  // namespace cistern::allocation
