// Graph capture: nothing that the driver calls ends one.
#include <array>
#include <atomic>
#include <thread>

#include "drivers/cuda_fixture.hpp"

namespace cistern::drivers {
namespace {

class CudaCapture : public CudaTest {
 protected:
  bool needs_standin() const override { return false; }

  // Everything that an allocator does, but for device-wide waits.
  static void allocate_and_free(Driver& driver, void* s0, void* s1) {
    const std::size_t cell = driver.capabilities().granularity;
    Address base = 0;
    Physical whole{}, part{};
    void *host = nullptr, *pinned = nullptr, *object = nullptr;
    static std::array<unsigned char, 4096> memory;
    Event a{}, b{};
    EXPECT_EQ(driver.reserve(4 * cell, base), Status::ok);
    EXPECT_EQ(driver.create(2 * cell, whole), Status::ok);
    EXPECT_EQ(driver.create(cell, part), Status::ok);
    EXPECT_EQ(driver.map(base, whole, 2 * cell), Status::ok);
    EXPECT_EQ(driver.fill(base, 1, 2 * cell, s0), Status::ok);
    EXPECT_EQ(driver.record(s0, a), Status::ok) << driver.error_text();
    EXPECT_EQ(driver.wait(s1, a), Status::ok) << driver.error_text();
    EXPECT_EQ(driver.copy(base, base + cell, 100, s1), Status::ok);
    EXPECT_EQ(driver.record(s1, b), Status::ok);
    driver.passed(b);
    EXPECT_EQ(driver.synchronize(a), Status::ok);
    EXPECT_EQ(driver.synchronize(b), Status::ok);
    EXPECT_EQ(driver.map(base + 2 * cell, part, cell), Status::ok);
    EXPECT_EQ(driver.unmap(base + 2 * cell, cell), Status::ok);
    EXPECT_EQ(driver.unmap(base, 2 * cell), Status::ok);
    EXPECT_EQ(driver.allocate_host(HostKind::unified, 1000, host), Status::ok);
    EXPECT_EQ(driver.allocate_host(HostKind::pinned, 1000, pinned), Status::ok);
    EXPECT_EQ(driver.wrap(memory.data(), memory.size(), object), Status::ok);
    driver.unwrap(object);
    EXPECT_EQ(driver.free_host(HostKind::unified, host, 1000), Status::ok);
    EXPECT_EQ(driver.free_host(HostKind::pinned, pinned, 1000), Status::ok);
    driver.release(a);
    driver.release(b);
    EXPECT_EQ(driver.destroy(whole), Status::ok);
    EXPECT_EQ(driver.destroy(part), Status::ok);
    EXPECT_EQ(driver.unreserve(base, 4 * cell), Status::ok);
    EXPECT_NE(driver.stream_id(s0), 0u);
    std::size_t free = 0, total = 0;
    EXPECT_EQ(driver.memory_info(free, total), Status::ok);
  }

  // Captures on the stream while `meanwhile` runs; whether the graph was made.
  template <class Do>
  static bool capture(cuda::Stream stream, int mode, Do meanwhile) {
    bool made = false;
    library().in_context(0, [&] {
      EXPECT_EQ(library().program.begin(stream, mode), cuda::kSuccess);
      meanwhile();
      void* graph = nullptr;
      made = library().program.end(stream, &graph) == cuda::kSuccess;
      if (made) {
        EXPECT_EQ(library().program.destroy(graph), cuda::kSuccess);
      }
    });
    return made;
  }
};

TEST_F(CudaCapture, TheSameThreadAllocatesWhileItCaptures) {
  const auto driver = make();
  void* const s1 = library().stream(1);
  void* const s2 = library().stream(2);
  for (const int mode : {cuda::kCaptureGlobal, cuda::kCaptureThreadLocal, cuda::kCaptureRelaxed}) {
    const cuda::Stream captured = library().make_stream(0, cuda::kStreamNonBlocking);
    EXPECT_TRUE(capture(captured, mode, [&] { allocate_and_free(*driver, s1, s2); })) << mode;
    library().destroy_stream(captured);
  }
}

TEST_F(CudaCapture, AnotherThreadAllocatesAllTheWhile) {
  const auto driver = make();
  void* const s1 = library().stream(1);
  void* const s2 = library().stream(2);
  std::atomic<bool> stop{false};
  std::atomic<int> rounds{0};
  std::thread other([&] {
    while (!stop) {
      allocate_and_free(*driver, s1, s2);
      ++rounds;
    }
  });
  const cuda::Stream captured = library().make_stream(0, cuda::kStreamNonBlocking);
  for (int i = 0; i < 20; ++i) {
    const int start = rounds;
    EXPECT_TRUE(capture(captured, cuda::kCaptureGlobal, [&] {
      while (rounds == start) std::this_thread::yield();
    }));
  }
  stop = true;
  other.join();
  library().destroy_stream(captured);
}

TEST_F(CudaCapture, NothingIsRecordedOnACapturingStream) {
  const auto driver = make();
  const cuda::Stream captured = library().make_stream();
  Event outside{}, event{};
  ASSERT_EQ(driver->record(library().stream(1), outside), Status::ok);
  EXPECT_TRUE(capture(captured, cuda::kCaptureGlobal, [&] {
    EXPECT_EQ(driver->record(captured, event), Status::capturing);
    EXPECT_TRUE(contains(driver->error_text(), "captured")) << driver->error_text();
    EXPECT_EQ(driver->wait(captured, outside), Status::capturing);
    // The stream is not "non-blocking", so the legacy stream would wait for it.
    EXPECT_EQ(driver->record(nullptr, event), Status::capturing);
    EXPECT_EQ(driver->wait(nullptr, outside), Status::capturing);
    EXPECT_EQ(driver->order(captured, library().stream(1)), Status::capturing);
    EXPECT_EQ(driver->order(library().stream(1), captured), Status::capturing);
    EXPECT_EQ(driver->fill(4096, 0, 1, nullptr), Status::capturing);
    EXPECT_EQ(driver->copy(4096, 8192, 1, nullptr), Status::capturing);
    EXPECT_EQ(driver->synchronize_device(), Status::capturing);
    EXPECT_EQ(driver->passed(outside) || driver->synchronize(outside) == Status::ok, true);
  }));
  EXPECT_EQ(event, Event::none);
  EXPECT_EQ(driver->record(captured, event), Status::ok) << "works afterwards";
  EXPECT_EQ(driver->order(captured, library().stream(1)), Status::ok);
  driver->release(event);
  driver->release(outside);
  library().destroy_stream(captured);
}

TEST_F(CudaCapture, AnAnnouncedCaptureHoldsBackDeviceWideWaits) {
  const auto driver = make();
  const cuda::Stream captured = library().make_stream(0, cuda::kStreamNonBlocking);
  driver->begin_capture();
  EXPECT_TRUE(
      capture(captured, cuda::kCaptureGlobal, [&] { EXPECT_EQ(driver->synchronize_device(), Status::capturing); }));
  driver->end_capture();
  EXPECT_EQ(driver->synchronize_device(), Status::ok);
  library().destroy_stream(captured);
}

TEST_F(CudaCapture, ThePoolIsNotAskedOnACapturingStream) {
  const auto driver = make({.mode = CudaMode::stream_ordered});
  const cuda::Stream captured = library().make_stream();
  Address at = 0;
  ASSERT_EQ(driver->allocate_ordered(1000, captured, at), Status::ok);
  EXPECT_TRUE(capture(captured, cuda::kCaptureGlobal, [&] {
    Address other = 0;
    EXPECT_EQ(driver->allocate_ordered(1000, captured, other), Status::capturing);
    EXPECT_EQ(driver->free_ordered(at, captured), Status::capturing);
  }));
  EXPECT_EQ(driver->free_ordered(at, captured), Status::ok);
  library().destroy_stream(captured);
}

TEST_F(CudaCapture, AFillInACaptureRunsAtEachLaunch) {
  restart({{"LAG_US", "0"}});
  const auto driver = make();
  const Mapped mapped(*driver, 1);
  const cuda::Stream stream = library().make_stream();
  void *graph = nullptr, *executable = nullptr;
  library().in_context(0, [&] {
    ASSERT_EQ(library().program.begin(stream, cuda::kCaptureGlobal), cuda::kSuccess);
    EXPECT_EQ(driver->fill(mapped.at(), 3, 512, stream), Status::ok);
    ASSERT_EQ(library().program.end(stream, &graph), cuda::kSuccess);
    ASSERT_EQ(library().program.instantiate(&executable, graph, 0), cuda::kSuccess);
    for (int i = 0; i < 3; ++i) {
      unsigned char seen = 0;
      EXPECT_EQ(driver->fill(mapped.at(), 0, 512, stream), Status::ok);
      ASSERT_EQ(library().program.launch(executable, stream), cuda::kSuccess);
      EXPECT_EQ(driver->copy(address(&seen), mapped.at() + 511, 1, stream), Status::ok);
      EXPECT_EQ(driver->synchronize_device(), Status::ok);
      EXPECT_EQ(seen, 3);
    }
    EXPECT_EQ(library().program.destroy_executable(executable), cuda::kSuccess);
    EXPECT_EQ(library().program.destroy(graph), cuda::kSuccess);
  });
  library().destroy_stream(stream);
}

}  // namespace
}  // namespace cistern::drivers
