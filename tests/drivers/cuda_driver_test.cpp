// Modes, what a device lacks, contexts, streams, sharing, errors, and the end.
#include "drivers/cuda/cuda_driver.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <thread>

#include "drivers/cuda_fixture.hpp"

namespace cistern::drivers {
namespace {

class CudaDriverTest : public CudaTest {};

TEST_F(CudaDriverTest, VirtualMemoryWhereThereIsSome) {
  const auto driver = make();
  const Capabilities& c = driver->capabilities();
  EXPECT_TRUE(c.virtual_memory && c.double_mapping && c.asynchronous && c.exportable && c.rdma && c.can_copy);
  EXPECT_FALSE(c.whole_buffers || c.host_accessible);
  EXPECT_EQ(c.granularity, std::size_t{2} << 20);
  EXPECT_EQ(c.alignment, 512u);
}

TEST_F(CudaDriverTest, SegmentsWhereThereIsNone) {
  for (const char* const key : {"WITHOUT", "REFUSE"}) {
    restart({{key, "virtual_memory"}});
    const auto driver = make();
    EXPECT_FALSE(driver->capabilities().virtual_memory || driver->capabilities().whole_buffers);
    Segment segment;
    ASSERT_EQ(driver->create_segment(4 << 20, segment), Status::ok) << driver->error_text();
    EXPECT_EQ(driver->fill(segment.base, 1, segment.bytes, nullptr), Status::ok);
    EXPECT_EQ(driver->synchronize_device(), Status::ok);
    EXPECT_EQ(driver->destroy_segment(segment), Status::ok);
    std::string why;
    EXPECT_EQ(make_cuda_driver(0, {.mode = CudaMode::virtual_memory}, &why), nullptr);
    EXPECT_TRUE(contains(why, "virtual memory")) << why;
  }
}

TEST_F(CudaDriverTest, WhatTheDevicePromisesAndRefusesIsLeftOut) {
  restart({{"REFUSE", "rdma"}});
  EXPECT_TRUE(make()->capabilities().exportable);
  EXPECT_FALSE(make()->capabilities().rdma);
  restart({{"REFUSE", "rdma posix"}});
  const auto driver = make();
  EXPECT_FALSE(driver->capabilities().exportable || driver->capabilities().rdma);
  const Mapped mapped(*driver, 1);
  int handle = -1;
  EXPECT_EQ(driver->export_piece(mapped.piece(), handle), Status::unsupported);
}

TEST_F(CudaDriverTest, AFullDeviceIsNotADeviceThatCannot) {
  restart({{"MEMORY", "16777216"}});
  const auto first = make();
  Physical all{};
  ASSERT_EQ(first->create(16777216, all), Status::ok);
  const auto second = make();
  EXPECT_TRUE(second->capabilities().virtual_memory && second->capabilities().rdma);
  Physical more{};
  EXPECT_EQ(second->create(2 << 20, more), Status::out_of_memory);
  EXPECT_TRUE(contains(second->error_text(), "cuMemCreate") && contains(second->error_text(), "OUT_OF_MEMORY"));
  EXPECT_EQ(first->destroy(all), Status::ok);
}

TEST_F(CudaDriverTest, UnifiedMemoryIsManagedOnlyWhereEveryDeviceIsConcurrent) {
  void* ptr = nullptr;
  {
    const auto driver = make();
    ASSERT_EQ(driver->allocate_host(HostKind::unified, 100, ptr), Status::ok);
    EXPECT_EQ(control().calls("cuMemAllocManaged"), 1u);
    EXPECT_EQ(driver->free_host(HostKind::unified, ptr, 100), Status::ok);
  }
  restart({{"WITHOUT", "concurrent"}});
  {
    const auto driver = make();
    ASSERT_EQ(driver->allocate_host(HostKind::unified, 100, ptr), Status::ok);
    EXPECT_EQ(control().calls("cuMemAllocManaged"), 0u);
    EXPECT_EQ(control().calls("cuMemHostAlloc"), 1u);
    EXPECT_EQ(driver->free_host(HostKind::unified, ptr, 100), Status::ok);
  }
}

TEST_F(CudaDriverTest, BothKindsOfUnifiedMemoryWork) {
  for (const CudaUnified unified : {CudaUnified::managed, CudaUnified::pinned}) {
    const auto driver = make({.unified = unified});
    void* ptr = nullptr;
    ASSERT_EQ(driver->allocate_host(HostKind::unified, 5000, ptr), Status::ok) << driver->error_text();
    EXPECT_EQ(driver->fill(address(ptr), 7, 5000, library().stream(1)), Status::ok);
    EXPECT_EQ(driver->synchronize_device(), Status::ok);
    EXPECT_EQ(static_cast<unsigned char*>(ptr)[4999], 7);
    EXPECT_EQ(driver->free_host(HostKind::unified, ptr, 5000), Status::ok);
  }
  restart({{"WITHOUT", "managed"}});
  std::string why;
  EXPECT_EQ(make_cuda_driver(0, {.unified = CudaUnified::managed}, &why), nullptr);
  EXPECT_TRUE(contains(why, "managed")) << why;
}

TEST_F(CudaDriverTest, ThePoolModeAllocatesInStreamOrderAndPutsTheThresholdBack) {
  std::uint64_t threshold = 12345;
  cuda::Pool pool = nullptr;
  library().in_context(0, [&] { library().api.default_pool(&pool, 0); });
  library().api.pool_set(pool, cuda::kReleaseThreshold, &threshold);
  {
    const auto driver = make({.mode = CudaMode::stream_ordered});
    EXPECT_TRUE(driver->capabilities().whole_buffers && driver->capabilities().ordered_buffers);
    library().api.pool_get(pool, cuda::kReleaseThreshold, &threshold);
    EXPECT_EQ(threshold, UINT64_MAX);
    Address a = 0, b = 0;
    void* const s = library().stream(1);
    ASSERT_EQ(driver->allocate_ordered(3 << 20, s, a), Status::ok) << driver->error_text();
    ASSERT_EQ(driver->allocate_ordered(0, s, b), Status::ok);
    EXPECT_NE(a, b);
    EXPECT_EQ(driver->fill(a, 1, 3 << 20, s), Status::ok);
    PoolFigures figures;
    ASSERT_EQ(driver->pool_figures(figures), Status::ok);
    EXPECT_GE(figures.used, std::size_t{3} << 20);
    EXPECT_GE(figures.reserved, figures.used);
    EXPECT_EQ(driver->free_ordered(a, s), Status::ok);
    EXPECT_EQ(driver->free_ordered(b, s), Status::ok);
    EXPECT_EQ(driver->synchronize_device(), Status::ok);
    ASSERT_EQ(driver->pool_figures(figures), Status::ok);
    EXPECT_EQ(figures.used, 0u);
    EXPECT_GT(figures.reserved, 0u) << "kept by the threshold";
    EXPECT_EQ(driver->trim_pool(0), Status::ok);
    ASSERT_EQ(driver->pool_figures(figures), Status::ok);
    EXPECT_EQ(figures.reserved, 0u);
    EXPECT_EQ(driver->allocate_ordered(std::size_t{1} << 50, s, a), Status::out_of_memory);
  }
  library().api.pool_get(pool, cuda::kReleaseThreshold, &threshold);
  EXPECT_EQ(threshold, 12345u);
  restart({{"WITHOUT", "pools"}});
  std::string why;
  EXPECT_EQ(make_cuda_driver(0, {.mode = CudaMode::stream_ordered}, &why), nullptr);
  EXPECT_TRUE(contains(why, "pools")) << why;
}

TEST_F(CudaDriverTest, AnyThreadMayCallAndKeepsItsOwnContextAndMode) {
  restart({{"DEVICES", "2"}});
  const auto driver = make({}, 1);
  const auto work = [&] {
    const Mapped mapped(*driver, 2);
    EXPECT_EQ(driver->fill(mapped.at(), 1, mapped.bytes(), nullptr), Status::ok) << driver->error_text();
    Event event{};
    EXPECT_EQ(driver->record(nullptr, event), Status::ok);
    EXPECT_EQ(driver->synchronize(event), Status::ok);
    driver->release(event);
  };
  std::thread([&] {
    // No context at all.
    work();
    cuda::Context current = nullptr;
    library().api.context_current(&current);
    EXPECT_EQ(current, nullptr);
  }).join();
  library().in_context(0, [&] {
    // Another device's, and a mode of the thread's own.
    cuda::Context before = nullptr, after = nullptr;
    int mode = cuda::kCaptureThreadLocal;
    library().api.context_current(&before);
    library().api.exchange_capture_mode(&mode);
    work();
    library().api.exchange_capture_mode(&mode);
    EXPECT_EQ(mode, cuda::kCaptureThreadLocal);
    library().api.context_current(&after);
    EXPECT_EQ(after, before);
  });
}

TEST_F(CudaDriverTest, DevicesAreApart) {
  restart({{"DEVICES", "2"}, {"MEMORY", "16777216"}});
  const auto zero = make({}, 0), one = make({}, 1);
  Physical a{}, b{};
  ASSERT_EQ(zero->create(16777216, a), Status::ok);
  ASSERT_EQ(one->create(16777216, b), Status::ok) << "each has its own memory";
  EXPECT_EQ(zero->destroy(b), Status::failed) << "a piece of the other";
  EXPECT_EQ(one->destroy(b), Status::ok);
  EXPECT_EQ(zero->destroy(a), Status::ok);
}

TEST_F(CudaDriverTest, TheLegacyStreamHasTwoHandlesAndThePerThreadOneIsPerThread) {
  restart({{"DEVICES", "2"}});
  const auto driver = make(), other = make({}, 1);
  void* const legacy = reinterpret_cast<void*>(cuda::kLegacyStream);
  void* const mine = reinterpret_cast<void*>(cuda::kPerThreadStream);
  const std::uint64_t id = driver->stream_id(nullptr);
  EXPECT_NE(id, 0u);
  EXPECT_EQ(driver->stream_id(legacy), id);
  EXPECT_NE(driver->stream_id(mine), id);
  EXPECT_EQ(driver->stream_id(mine), driver->stream_id(mine));
  EXPECT_NE(other->stream_id(nullptr), id);
  EXPECT_NE(other->stream_id(mine), driver->stream_id(mine));
  std::uint64_t theirs = 0;
  std::thread([&] { theirs = driver->stream_id(mine); }).join();
  EXPECT_NE(theirs, driver->stream_id(mine));
  std::thread([&] { EXPECT_NE(driver->stream_id(mine), theirs) << "not even a later thread's"; }).join();
}

TEST_F(CudaDriverTest, ARecycledHandleIsAnotherStream) {
  const auto driver = make();
  const cuda::Stream first = library().make_stream();
  const std::uint64_t id = driver->stream_id(first);
  library().destroy_stream(first);
  const cuda::Stream second = library().make_stream();
  ASSERT_EQ(first, second) << "the stand-in recycles";
  EXPECT_NE(driver->stream_id(second), id);
  library().destroy_stream(second);
}

TEST_F(CudaDriverTest, NothingIsLeftBehind) {
  // Neither events nor the hold on the context.
  auto driver = make();
  Event event{};
  ASSERT_EQ(driver->record(nullptr, event), Status::ok);
  EXPECT_EQ(driver->synchronize(event), Status::ok);
  driver->release(event);
  driver.reset();
  EXPECT_EQ(library().leaks(true), std::vector<std::string>{});
}

TEST_F(CudaDriverTest, AStreamOfAnotherDeviceIsRefused) {
  restart({{"DEVICES", "2"}});
  const auto driver = make();
  EXPECT_EQ(driver->stream_id(library().stream(1, 1)), 0u);
  EXPECT_TRUE(contains(driver->error_text(), "device 1")) << driver->error_text();
  EXPECT_NE(driver->stream_id(library().stream(1, 0)), 0u);
}

TEST_F(CudaDriverTest, APeerReachesWhatIsMappedBeforeAndAfter) {
  restart({{"DEVICES", "2"}, {"LAG_US", "0"}});
  const auto owner = make({}, 0), peer = make({}, 1);
  const Mapped before(*owner, 1);
  ASSERT_EQ(owner->enable_peer(1), Status::ok) << owner->error_text();
  EXPECT_EQ(owner->enable_peer(1), Status::ok) << "again";
  const Mapped after(*owner, 1);
  for (const Mapped* const mapped : {&before, &after}) {
    EXPECT_EQ(peer->fill(mapped->at(), 9, mapped->bytes(), library().stream(1, 1)), Status::ok);
  }
  EXPECT_EQ(peer->synchronize_device(), Status::ok) << peer->error_text();
  EXPECT_EQ(owner->enable_peer(0), Status::ok) << "itself";
  EXPECT_EQ(owner->enable_peer(2), Status::failed) << "not there";
}

TEST_F(CudaDriverTest, APeerThatCannotReachIsUnsupported) {
  restart({{"DEVICES", "2"}, {"WITHOUT", "peers"}});
  EXPECT_EQ(make()->enable_peer(1), Status::unsupported);
}

TEST_F(CudaDriverTest, AnExportedPieceIsTheSameMemory) {
  const auto driver = make(), other = make();
  const Mapped mapped(*driver, 1);
  int handle = -1;
  ASSERT_EQ(driver->export_piece(mapped.piece(), handle), Status::ok) << driver->error_text();
  ASSERT_GE(handle, 0);
  Physical imported{};
  ASSERT_EQ(other->import_piece(handle, mapped.bytes(), imported), Status::ok) << other->error_text();
  close(handle);
  Address base = 0;
  ASSERT_EQ(other->reserve(mapped.bytes(), base), Status::ok);
  ASSERT_EQ(other->map(base, imported, mapped.bytes()), Status::ok);
  std::array<unsigned char, 100> bytes{};
  EXPECT_EQ(driver->fill(mapped.at(), 42, 100, nullptr), Status::ok);
  EXPECT_EQ(other->copy(address(bytes.data()), base, 100, nullptr), Status::ok);
  EXPECT_EQ(other->synchronize_device(), Status::ok);
  EXPECT_EQ(bytes[99], 42);
  EXPECT_EQ(other->unmap(base, mapped.bytes()), Status::ok);
  EXPECT_EQ(other->destroy(imported), Status::ok);
  EXPECT_EQ(other->unreserve(base, mapped.bytes()), Status::ok);
  EXPECT_EQ(other->import_piece(-1, mapped.bytes(), imported), Status::failed);
}

TEST_F(CudaDriverTest, MemoryThatIsRegisteredInPartIsRefused) {
  const auto driver = make();
  alignas(4096) static std::array<unsigned char, 16384> memory;
  void *part = nullptr, *whole = nullptr;
  ASSERT_EQ(driver->wrap(memory.data(), 4096, part), Status::ok) << driver->error_text();
  EXPECT_EQ(driver->wrap(memory.data(), memory.size(), whole), Status::failed);
  driver->unwrap(part);
  EXPECT_EQ(control().calls("cuMemHostUnregister"), 1u);
  ASSERT_EQ(driver->wrap(memory.data(), memory.size(), whole), Status::ok) << driver->error_text();
  EXPECT_EQ(driver->fill(address(whole) + 8192, 5, 100, nullptr), Status::ok);
  EXPECT_EQ(driver->synchronize_device(), Status::ok);
  driver->unwrap(whole);
  EXPECT_EQ(control().calls("cuMemHostUnregister"), 2u);
}

TEST_F(CudaDriverTest, WrappedHostMemoryIsRegisteredOnceAndDeviceMemoryNotAtAll) {
  const auto driver = make();
  alignas(4096) static std::array<unsigned char, 65536> memory;
  void *whole = nullptr, *part = nullptr;
  ASSERT_EQ(driver->wrap(memory.data(), memory.size(), whole), Status::ok) << driver->error_text();
  ASSERT_EQ(driver->wrap(memory.data() + 4096, 100, part), Status::ok);
  EXPECT_EQ(control().calls("cuMemHostRegister"), 1u);
  driver->unwrap(whole);
  EXPECT_EQ(driver->fill(address(part), 5, 100, nullptr), Status::ok) << "still registered";
  EXPECT_EQ(driver->synchronize_device(), Status::ok) << driver->error_text();
  EXPECT_EQ(memory[4096], 5);
  driver->unwrap(part);
  EXPECT_EQ(control().calls("cuMemHostUnregister"), 1u);
  driver->unwrap(part);
  const Mapped mapped(*driver, 1);
  void* device = nullptr;
  ASSERT_EQ(driver->wrap(reinterpret_cast<void*>(mapped.at()), 512, device), Status::ok);
  EXPECT_EQ(address(device), mapped.at());
  driver->unwrap(device);
  EXPECT_EQ(control().calls("cuMemHostRegister"), 1u);
}

TEST_F(CudaDriverTest, MemoryInfoSeesOtherUsers) {
  restart({{"MEMORY", "1073741824"}});
  const auto driver = make();
  std::size_t free = 0, total = 0;
  ASSERT_EQ(driver->memory_info(free, total), Status::ok);
  EXPECT_EQ(total, 1073741824u);
  EXPECT_EQ(free, total);
  const Mapped mapped(*driver, 4);
  ASSERT_EQ(driver->memory_info(free, total), Status::ok);
  EXPECT_EQ(free, total - mapped.bytes());
}

TEST_F(CudaDriverTest, ADeadKernelIsReportedAndNothingIsPendingAfterIt) {
  expect_violations();
  expect_leaks();
  control().set_manual(1);
  const auto driver = make();
  Mapped mapped(*driver, 1);
  mapped.abandon();
  cuda::Stream stream = library().stream(1);
  library().in_context(0, [&] { EXPECT_EQ(control().launch_touch(stream, mapped.at(), 512, 1), cuda::kSuccess); });
  Event event{};
  ASSERT_EQ(driver->record(stream, event), Status::ok);
  EXPECT_EQ(driver->unmap(mapped.at(), mapped.bytes()), Status::ok) << "returns at once";
  EXPECT_FALSE(driver->passed(event));
  EXPECT_EQ(driver->synchronize_device(), Status::failed);
  EXPECT_TRUE(contains(driver->error_text(), "CUDA_ERROR_ILLEGAL_ADDRESS")) << driver->error_text();
  EXPECT_TRUE(driver->passed(event));
  EXPECT_EQ(driver->synchronize(event), Status::failed);
  EXPECT_EQ(driver->record(stream, event), Status::failed);
}

TEST_F(CudaDriverTest, AnEventThatCannotBeAskedForHasNotPassed) {
  const auto driver = make();
  Event event{};
  ASSERT_EQ(driver->record(nullptr, event), Status::ok);
  EXPECT_EQ(driver->synchronize(event), Status::ok);
  for (const char* const call : {"cuEventQuery", "cuCtxPushCurrent", "cuThreadExchangeStreamCaptureMode"}) {
    control().fail(call, 1, cuda::kOutOfMemory, 1);
    EXPECT_FALSE(driver->passed(event)) << call;
    EXPECT_TRUE(contains(driver->error_text(), call)) << driver->error_text();
  }
  EXPECT_TRUE(driver->passed(event));
  driver->release(event);
}

TEST_F(CudaDriverTest, AfterTheVendorsDriverHasEndedGivingBackIsHarmless) {
  expect_leaks();
  auto driver = make();
  Mapped mapped(*driver, 1);
  mapped.abandon();
  void *host = nullptr, *object = nullptr;
  static std::array<unsigned char, 4096> memory;
  Event event{};
  ASSERT_EQ(driver->allocate_host(HostKind::unified, 10, host), Status::ok);
  ASSERT_EQ(driver->wrap(memory.data(), memory.size(), object), Status::ok);
  ASSERT_EQ(driver->record(nullptr, event), Status::ok);
  control().end();
  EXPECT_TRUE(driver->passed(event));
  EXPECT_EQ(driver->synchronize(event), Status::ok);
  EXPECT_EQ(driver->synchronize_device(), Status::ok);
  driver->release(event);
  EXPECT_EQ(driver->unmap(mapped.at(), mapped.bytes()), Status::ok);
  EXPECT_EQ(driver->destroy(mapped.piece()), Status::ok);
  EXPECT_EQ(driver->unreserve(mapped.at(), mapped.bytes()), Status::ok);
  EXPECT_EQ(driver->free_host(HostKind::unified, host, 10), Status::ok);
  driver->unwrap(object);
  Physical piece{};
  EXPECT_EQ(driver->create(mapped.bytes(), piece), Status::failed);
  EXPECT_TRUE(contains(driver->error_text(), "DEINITIALIZED")) << driver->error_text();
  driver.reset();
  restart();
}

TEST_F(CudaDriverTest, AForkedChildIsToldWhy) {
  const auto driver = make();
  const Mapped mapped(*driver, 1);
  const pid_t child = fork();
  if (child == 0) {
    Address base = 0;
    Event event{};
    std::string why;
    const bool right = driver->reserve(mapped.bytes(), base) == Status::failed &&
                       contains(driver->error_text(), "fork") && driver->record(nullptr, event) == Status::failed &&
                       driver->unmap(mapped.at(), mapped.bytes()) == Status::failed &&
                       driver->stream_id(reinterpret_cast<void*>(64)) == 0 &&
                       make_cuda_driver(0, {}, &why) == nullptr && contains(why, "fork") && list_cuda_devices().empty();
    _exit(right ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

}  // namespace
}  // namespace cistern::drivers
