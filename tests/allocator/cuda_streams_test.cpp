// Streams that are unlike others: each thread's own default stream, streams that are destroyed or captured meanwhile,
// and frees from their host functions; what streams are known by; errors of the driver. Most of it runs over the
// vendor's library, too.
#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <future>
#include <thread>

#include "allocator/capture_fixture.hpp"
#include "allocator/cuda_fixture.hpp"
#include "allocator/cuda_misuse_fixture.hpp"
#include "allocator/second_allocator.hpp"

namespace cistern::allocation {
namespace {

using drivers::CudaMode;
using drivers::Status;

void* const kMine = reinterpret_cast<void*>(cuda::kPerThreadStream);

class CudaStreams : public CudaMisuse {
 protected:
  void SetUp() override {
    CudaMisuse::SetUp();
    if (!IsSkipped()) enter_context();
  }
  static void fill(void* native, const Buffer& b, unsigned char value) {
    EXPECT_EQ(library().api.fill_async(address(b), value, b.size(), static_cast<cuda::Stream>(native)), 0);
  }
  static void begin(void* native) {
    ASSERT_EQ(library().program.begin(static_cast<cuda::Stream>(native), cuda::kCaptureGlobal), 0);
  }
  static void expect_end(void* native) {
    void* graph = nullptr;
    EXPECT_EQ(library().program.end(static_cast<cuda::Stream>(native), &graph), 0) << "the capture was ended";
    if (graph != nullptr) {
      EXPECT_EQ(library().program.destroy(graph), 0);
    }
  }
  std::unique_ptr<SecondAllocator> staging() {
    auto made = drivers::make_cuda_driver(0, {.mode = CudaMode::pinned_host});
    return made == nullptr ? nullptr : std::make_unique<SecondAllocator>(*allocator_, std::move(made));
  }
};

// --- Each thread's own default stream --------------------------------------------------------------------------------

TEST_F(CudaStreams, TheHandleOfAThreadsOwnStreamNamesOneOfEach) {
  const Stream mine = allocator_->stream(kMine);
  Stream theirs = mine;
  std::thread([&] {
    theirs = allocator_->stream(kMine);
    allocator_->free(allocator_->malloc(1_MiB, theirs));
  }).join();
  EXPECT_NE(theirs, mine);
  EXPECT_EQ(theirs.native(), kMine);
  allocator_->free(allocator_->malloc(1_MiB, mine));
  EXPECT_EQ(allocator_->stream(kMine), mine) << "the other thread's has not taken its place";
  allocator_->stream_destroyed(theirs);
  EXPECT_THROW(allocator_->malloc(1_MiB, theirs), invalid_argument);
  allocator_->free(allocator_->malloc(1_MiB, mine));
}

TEST_F(CudaStreams, MemoryComesInOrderFromOneThreadsOwnStreamToAnothers) {
  start({}, {{"LAG_US", "2000"}});
  enter_context();
  const Stream mine = allocator_->stream(kMine);
  for (int round = 0; round < 5; ++round) {
    Buffer theirs;
    std::barrier sync(2);
    std::thread other([&] {
      const Stream s = allocator_->stream(kMine);
      const Buffer busy = allocator_->malloc(64_MiB, s);
      theirs = allocator_->malloc(6_MiB, s);
      library().in_context(0, [&] {
        for (int i = 0; i < 100; ++i) fill(kMine, busy, 9);
        fill(kMine, theirs, 1);
      });
      sync.arrive_and_wait();
      sync.arrive_and_wait();
      allocator_->free(busy);  // Not before: its memory would be taken first.
      allocator_->stream_destroyed(s);
    });
    sync.arrive_and_wait();
    const void* const memory = theirs.ptr();
    // Freed by another thread: who takes it next waits for the stream of the thread that wrote it.
    allocator_->free(theirs);
    const Buffer next = allocator_->malloc(6_MiB, mine);
    EXPECT_EQ(next.ptr(), memory);
    fill(kMine, next, 2);
    const auto* const bytes = static_cast<unsigned char*>(next.raw_ptr());
    for (std::size_t i = 0; i < 6_MiB; i += 4099) ASSERT_EQ(bytes[i], 2) << i;
    allocator_->free(next);
    sync.arrive_and_wait();
    other.join();
  }
}

// --- Host functions --------------------------------------------------------------------------------------------------

TEST_F(CudaStreams, StagingMemoryIsFreedByAHostFunctionWhileTheDeviceIsWaitedFor) {
  const auto host = staging();
  ASSERT_NE(host, nullptr);
  struct Free {
    SecondAllocator* staging;
    Buffer buffer;
    std::promise<void> may;
  };
  for (int i = 0; i < 20; ++i) {
    Free call{host.get(), host->malloc(1_MiB, stream(1)), {}};
    const auto function = [](void* data) {
      auto& free = *static_cast<Free*>(data);
      free.may.get_future().wait();
      free.staging->free(free.buffer);
    };
    ASSERT_EQ(library().program.launch_host(library().stream(1), function, &call), 0);
    std::thread waits([&] { host->clear_cache(); });
    call.may.set_value();
    waits.join();
    EXPECT_EQ(allocator_->driver().synchronize_device(), Status::ok);
  }
  host->clear_cache();
  EXPECT_EQ(host->stats().active, 0u);
  expect_sound(*host);
}

// --- Captures --------------------------------------------------------------------------------------------------------

TEST_F(CudaStreams, StagingMemoryOnItsStreamDoesNotEndACapture) {
  const auto host = staging();
  ASSERT_NE(host, nullptr);
  const Stream s = stream(1);
  const std::uint64_t pool = allocator_->make_pool();
  allocator_->begin_pool(pool, s);
  begin(s.native());
  const Buffer b = host->malloc(1_MiB, s);
  host->record_use(b, s);
  host->free(b, s);
  expect_end(s.native());
  allocator_->end_pool(pool);
  allocator_->release_pool(pool);
}

TEST_F(CudaStreams, AStreamThatNobodyAnnouncedCanBeNamed) {
  const cuda::Stream fresh = library().make_stream();
  begin(fresh);
  EXPECT_NO_THROW(allocator_->stream(fresh));
  expect_end(fresh);
  allocator_->stream_destroyed(allocator_->stream(fresh));
  library().destroy_stream(fresh);
}

TEST_F(CudaStreams, AStreamIsDestroyedWhileAnotherIsCaptured) {
  const cuda::Stream handle = library().make_stream();
  const Stream s = stream(1), other = allocator_->stream(handle);
  const Buffer b = allocator_->malloc(4_MiB, other);
  fill(handle, b, 1);
  allocator_->free(b);
  const std::uint64_t pool = allocator_->make_pool();
  allocator_->begin_pool(pool, s);
  begin(s.native());
  EXPECT_NO_THROW(allocator_->stream_destroyed(other));
  EXPECT_THROW(allocator_->malloc(4_MiB, other), invalid_argument);
  EXPECT_THROW(allocator_->stream_destroyed(s), driver_error) << "its work cannot be waited for";
  expect_end(s.native());
  allocator_->end_pool(pool);
  allocator_->release_pool(pool);
  library().destroy_stream(handle);
}

TEST_F(CudaStreams, ACaptureThatNobodyAnnouncedIsNotEnded) {
  const Stream s = stream(1), other = stream(2);
  for (int i = 0; i < 6; ++i) {
    const Stream& on = i % 2 != 0 ? s : other;
    const Buffer b = allocator_->malloc(7_MiB, on);
    fill(on.native(), b, 1);
    allocator_->free(b);
  }
  const Buffer used = allocator_->malloc(5_MiB, s);
  fill(s.native(), used, 1);
  begin(s.native());
  allocator_->free(used, other);
  allocator_->clear_cache();
  allocator_->free(allocator_->malloc(200_MiB, other));
  allocator_->set_memory_limit(256_MiB);
  EXPECT_THROW(allocator_->malloc(300_MiB, other), out_of_memory);
  const std::uint64_t pool = allocator_->make_pool();
  allocator_->begin_pool(pool, other);
  allocator_->free(allocator_->malloc(1_MiB, other));
  allocator_->end_pool(pool);
  allocator_->release_pool(pool);
  expect_end(s.native());
  allocator_->set_memory_limit(UINT64_MAX);
}

TEST_F(CudaStreams, WhatMovedToTheHostWaitsForItsStream) {
  for (const std::size_t bytes : {std::size_t{2560}, 1_MiB}) {
    const Stream s = stream(1);
    const Buffer b = allocator_->malloc(bytes, s);
    static_cast<void>(b.raw_ptr());
    const auto nap = [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(30)); };
    ASSERT_EQ(library().program.launch_host(library().stream(1), nap, nullptr), 0);
    fill(s.native(), b, 1);
    allocator_->free(b);
    const Buffer next = allocator_->malloc(bytes);
    auto* const at = static_cast<unsigned char*>(next.raw_ptr());
    std::fill_n(at, bytes, static_cast<unsigned char>(7));
    EXPECT_EQ(library().api.context_synchronize(), 0);
    EXPECT_EQ(std::count(at, at + bytes, 7), static_cast<std::ptrdiff_t>(bytes));
    allocator_->free(next);
  }
}

TEST_F(CudaStreams, CapturesBeginAndEndWhileAnotherThreadAllocates) {
  for (const unsigned flags : {cuda::kStreamNonBlocking, 0u}) {
    const cuda::Stream handle = library().make_stream(0, flags), others = library().make_stream(0, 1);
    const Stream s = allocator_->stream(handle), other = allocator_->stream(others);
    std::atomic<bool> stop{false};
    std::thread thread([&] {
      for (std::size_t i = 1; !stop; ++i) {
        allocator_->free(allocator_->malloc((i % 7 + 1) * 3_MiB, other));
        if (i % 20 == 0) allocator_->clear_cache();
      }
    });
    const std::uint64_t pool = allocator_->make_pool();
    for (int i = 0; i < 100; ++i) {
      allocator_->begin_pool(pool, s);
      begin(handle);
      allocator_->free(allocator_->malloc(1_MiB, s));
      expect_end(handle);
      allocator_->end_pool(pool);
    }
    stop = true;
    thread.join();
    allocator_->release_pool(pool);
    for (const Stream& gone : {s, other}) allocator_->stream_destroyed(gone);
    for (const cuda::Stream gone : {handle, others}) library().destroy_stream(gone);
  }
}

TEST_F(CapturePools, NothingIsRecordedOnAnAnnouncedStreamBeforeItsCaptureBegins) {
  for (const bool blocking : {false, true}) {
    const cuda::Stream handle = library().make_stream(0, blocking ? 0 : cuda::kStreamNonBlocking);
    const Stream s = a().stream(handle), other = stream(2);
    const std::uint64_t pool = a().make_pool();
    const Buffer old = a().malloc(8_MiB, other);
    a().begin_pool(pool, s);
    const std::uint64_t before = control().calls("cuEventRecord");
    a().free(old);
    a().clear_cache();
    // On the other stream, and on the default one unless that waits for the stream.
    EXPECT_EQ(control().calls("cuEventRecord") - before, blocking ? 1u : 2u);
    a().end_pool(pool);
    a().release_pool(pool);
    a().stream_destroyed(s);
    library().destroy_stream(handle);
  }
}

// --- Ids of streams --------------------------------------------------------------------------------------------------

class CudaStreamIds : public CapturePools {
 protected:
  // Streams that come and go, and that the driver is only asked about.
  void let_streams_pass(int count) {
    for (int i = 0; i < count; ++i) {
      const cuda::Stream passing = library().make_stream(0, cuda::kStreamNonBlocking);
      static_cast<void>(driver().stream_id(passing));
      library().destroy_stream(passing);
    }
  }
};

TEST_F(CudaStreamIds, ManyStreamsThatNeverAllocateChangeNoOnesId) {
  const Stream s = a().stream(library().make_stream(0, cuda::kStreamNonBlocking));
  a().free(a().malloc(1_MiB, s));
  let_streams_pass(4200);
  begin(s);
  Stream again = a().stream(nullptr);
  EXPECT_NO_THROW(again = a().stream(s.native()));
  EXPECT_EQ(again, s);
  void* const graph = end(s);
  ASSERT_NE(graph, nullptr) << "the capture was ended";
  destroy(graph);
}

TEST_F(CudaStreamIds, AStreamFirstSeenInItsCaptureKeepsItsId) {
  const cuda::Stream handle = library().make_stream(0, cuda::kStreamNonBlocking);
  ASSERT_EQ(library().program.begin(handle, cuda::kCaptureGlobal), 0);
  const Stream s = a().stream(handle);
  destroy(end(s));
  EXPECT_EQ(a().stream(handle), s);
  let_streams_pass(4200);
  EXPECT_EQ(a().stream(handle), s);
  EXPECT_NO_THROW(a().free(a().malloc(1_MiB, s)));
}

// --- Errors ----------------------------------------------------------------------------------------------------------

TEST_F(CudaAllocator, ABufferThatCannotBeClearedIsNotHandedOut) {
  start();
  MemoryOptions options;
  options.zero_on_alloc = true;
  allocator().set_options(options);
  for (const std::size_t bytes : {std::size_t{100}, 5_MiB}) {
    control().fail("cuMemsetD8Async", 1, cuda::kInvalidValue, 1);
    try {
      static_cast<void>(malloc(bytes, 1));
      ADD_FAILURE() << "not cleared";
    } catch (const driver_error& error) {
      EXPECT_NE(std::string(error.what()).find("cuMemsetD8Async"), std::string::npos) << error.what();
    }
    EXPECT_EQ(allocator().stats().active, 0u);
    allocator().free(malloc(bytes, 1));
  }
}

TEST_F(CudaAllocator, AFailureOfUnifiedMemoryIsNoShortage) {
  start();
  for (const cuda::Result result : {cuda::kIllegalAddress, cuda::kOutOfMemory}) {
    allocator().clear_cache();
    allocator().free(allocator().malloc(8));  // The scalars' pages are there.
    const std::string text = '(' + std::to_string(result) + ')';
    // A shortage is met by giving back what is cached, and once more.
    control().fail("cuMemAllocManaged", 1, result, result == cuda::kOutOfMemory ? 2 : 1);
    try {
      static_cast<void>(allocator().malloc(100_MiB));
      ADD_FAILURE() << "the driver failed";
    } catch (const driver_error& error) {
      EXPECT_EQ(result, cuda::kIllegalAddress);
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    } catch (const out_of_memory& error) {
      EXPECT_EQ(result, cuda::kOutOfMemory);
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    }
    allocator().free(allocator().malloc(100_MiB));
    allocator().set_memory_limit(1024_MiB);
    try {
      static_cast<void>(allocator().malloc(2048_MiB));
      ADD_FAILURE() << "above the limit";
    } catch (const out_of_memory& error) {
      EXPECT_EQ(std::string(error.what()).find("cuMemAllocManaged"), std::string::npos) << error.what();
    }
  }
}

TEST_F(CudaAllocator, AnEarlierFailureIsNotThrownAtARequestBeyondTheLimit) {
  start();
  control().fail("cuMemCreate", 1, cuda::kInvalidValue, 1);
  const Buffer b = malloc(64_MiB, 1);  // The next attempt serves it.
  EXPECT_EQ(control().injected(), 1u);
  allocator().set_memory_limit(32_MiB);
  EXPECT_THROW(static_cast<void>(malloc(1_MiB, 1)), out_of_memory);
  allocator().free(b);
}

}  // namespace
}  // namespace cistern::allocation
