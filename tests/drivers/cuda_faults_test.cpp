// Each call into the vendor's library fails once: nothing is lost, nothing is used wrongly, and it works the next time.
#include <unistd.h>

#include <array>
#include <functional>
#include <thread>
#include <utility>

#include "drivers/cuda/cuda_device.hpp"
#include "drivers/cuda_fixture.hpp"

namespace cistern::drivers {
namespace {

// Undoes steps in reverse order; one that fails is tried once more, as an allocator does at its next chance.
class Undo {
 public:
  Undo() = default;
  Undo(const Undo&) = delete;
  Undo& operator=(const Undo&) = delete;
  ~Undo() {
    for (; !steps_.empty(); steps_.pop_back()) {
      if (steps_.back()() == Status::ok) continue;
      EXPECT_EQ(steps_.back()(), Status::ok);
    }
  }
  void add(std::function<Status()> step) { steps_.push_back(std::move(step)); }

 private:
  std::vector<std::function<Status()>> steps_;
};

#define CISTERN_TRY(call)                                                  \
  do {                                                                     \
    if (const Status status = (call); status != Status::ok) return status; \
  } while (false)

class CudaFaults : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (!IsSkipped()) restart({{"DEVICES", "2"}, {"LAG_US", "20"}});
  }

  // Runs `work` with call 1, 2, 3 ... failing, until none fails any more.
  void each_call_fails(const std::function<Status()>& work) {
    for (const cuda::Result result : {cuda::kOutOfMemory, cuda::kInvalidValue}) {
      std::uint64_t n = 1;
      for (;; ++n) {
        const std::uint64_t before = control().injected();
        control().fail("*", n, result, 1);
        const Status seen = work();
        const bool injected = control().injected() != before;
        control().fail("*", 0, result, 0);
        ASSERT_EQ(library().violations(), std::vector<std::string>{}) << "call " << n;
        ASSERT_EQ(library().leaks(), std::vector<std::string>{}) << "call " << n;
        int mode = cuda::kCaptureGlobal;
        library().api.exchange_capture_mode(&mode);
        ASSERT_EQ(mode, cuda::kCaptureGlobal) << "call " << n;
        if (!injected) {
          EXPECT_EQ(seen, Status::ok);
          break;
        }
        EXPECT_NE(seen, Status::unsupported) << "call " << n;
      }
      EXPECT_GT(n, 10u);
    }
  }
};

TEST_F(CudaFaults, Start) {
  for (const CudaMode mode : {CudaMode::automatic, CudaMode::segments, CudaMode::stream_ordered}) {
    each_call_fails([&] {
      std::string why;
      const auto driver = make_cuda_driver(0, {.mode = mode}, &why);
      if (driver != nullptr) return Status::ok;
      EXPECT_FALSE(why.empty());
      return Status::failed;
    });
  }
  EXPECT_EQ(library().leaks(true), std::vector<std::string>{}) << "the hold on the context";
}

TEST_F(CudaFaults, VirtualMemory) {
  void* const s0 = library().stream(1);
  void* const s1 = library().stream(2);
  const auto driver = make();
  each_call_fails([&]() -> Status {
    const std::size_t cell = driver->capabilities().granularity;
    Address base = 0;
    Physical whole{}, part{};
    Event event{};
    Undo undo;
    CISTERN_TRY(driver->reserve(8 * cell, base));
    undo.add([&] { return driver->unreserve(base, 8 * cell); });
    CISTERN_TRY(driver->create(4 * cell, whole));
    undo.add([&] { return driver->destroy(whole); });
    CISTERN_TRY(driver->create(cell, part));
    undo.add([&] { return driver->destroy(part); });
    CISTERN_TRY(driver->map(base, whole, 4 * cell));
    undo.add([&] { return driver->unmap(base, 4 * cell); });
    undo.add([&] { return driver->synchronize_device(); });
    CISTERN_TRY(driver->fill(base, 1, 4096, s0));
    CISTERN_TRY(driver->record(s0, event));
    undo.add([&] { return driver->release(event), Status::ok; });
    CISTERN_TRY(driver->wait(s1, event));
    CISTERN_TRY(driver->copy(base, base + cell, 4096, s1));
    CISTERN_TRY(driver->order(s1, s0));
    CISTERN_TRY(driver->synchronize(event));
    CISTERN_TRY(driver->synchronize_device());
    CISTERN_TRY(driver->map(base + 4 * cell, part, cell));
    undo.add([&] { return driver->unmap(base + 4 * cell, cell); });
    int handle = -1;
    CISTERN_TRY(driver->export_piece(part, handle));
    undo.add([=] { return close(handle) == 0 ? Status::ok : Status::failed; });
    Physical imported{};
    CISTERN_TRY(driver->import_piece(handle, cell, imported));
    undo.add([&, imported] { return driver->destroy(imported); });
    return driver->stream_id(s0) != 0 ? Status::ok : Status::failed;
  });
}

TEST_F(CudaFaults, Peers) {
  each_call_fails([&]() -> Status {
    const auto driver = make_cuda_driver(0, {.mode = CudaMode::virtual_memory});
    if (driver == nullptr) return Status::failed;
    const std::size_t cell = driver->capabilities().granularity;
    Address base = 0;
    Physical piece{};
    Undo undo;
    CISTERN_TRY(driver->reserve(cell, base));
    undo.add([&] { return driver->unreserve(base, cell); });
    CISTERN_TRY(driver->create(cell, piece));
    undo.add([&] { return driver->destroy(piece); });
    CISTERN_TRY(driver->map(base, piece, cell));
    undo.add([&] { return driver->unmap(base, cell); });
    return driver->enable_peer(1);
  });
  EXPECT_EQ(library().leaks(true), std::vector<std::string>{});
}

TEST_F(CudaFaults, Buffers) {
  const auto driver = make({.mode = CudaMode::segments});
  alignas(4096) static std::array<unsigned char, 8192> memory;
  each_call_fails([&]() -> Status {
    Segment segment;
    void *unified = nullptr, *pinned = nullptr, *object = nullptr;
    Undo undo;
    CISTERN_TRY(driver->create_segment(4 << 20, segment));
    undo.add([&] { return driver->destroy_segment(segment); });
    CISTERN_TRY(driver->allocate_host(HostKind::unified, 100, unified));
    undo.add([&] { return driver->free_host(HostKind::unified, unified, 100); });
    CISTERN_TRY(driver->allocate_host(HostKind::pinned, 100, pinned));
    undo.add([&] { return driver->free_host(HostKind::pinned, pinned, 100); });
    CISTERN_TRY(driver->wrap(memory.data(), memory.size(), object));
    driver->unwrap(object);
    undo.add([&] { return driver->synchronize_device(); });
    return driver->fill(segment.base, 0, 1000, nullptr);
  });
}

TEST_F(CudaFaults, Pool) {
  void* const stream = library().stream(1);
  const auto driver = make({.mode = CudaMode::stream_ordered});
  each_call_fails([&]() -> Status {
    Address at = 0;
    PoolFigures figures;
    Undo undo;
    CISTERN_TRY(driver->allocate_ordered(10000, stream, at));
    undo.add([&] { return driver->free_ordered(at, stream); });
    CISTERN_TRY(driver->fill(at, 0, 10000, stream));
    CISTERN_TRY(driver->pool_figures(figures));
    return driver->trim_pool(0);
  });
}

class OldDriver : public CudaTest {};

TEST_F(OldDriver, StreamsAreNumberedHere) {
  restart({{"VERSION", "11010"}});
  cuda::CudaApi api;
  std::string why;
  ASSERT_TRUE(cuda::load(std::getenv("CISTERN_CUDA_LIBRARY"), api, why)) << why;
  {
    cuda::CudaDriver pools(api, 0, {.mode = CudaMode::stream_ordered});
    EXPECT_FALSE(pools.start()) << "pools came with 11.2";
  }
  cuda::CudaDriver driver(api, 0, {});
  ASSERT_TRUE(driver.start()) << driver.error_text();
  const cuda::Stream first = library().make_stream();
  const std::uint64_t id = driver.stream_id(first);
  EXPECT_NE(id, 0u);
  EXPECT_EQ(driver.stream_id(first), id);
  EXPECT_NE(driver.stream_id(library().stream(1)), id);
  EXPECT_NE(driver.stream_id(nullptr), id);
  driver.forget_stream(first, id + 1);
  EXPECT_EQ(driver.stream_id(first), id) << "that was another";
  library().destroy_stream(first);
  driver.forget_stream(first, id);
  const cuda::Stream second = library().make_stream();
  ASSERT_EQ(second, first);
  EXPECT_NE(driver.stream_id(second), id);
  library().destroy_stream(second);
}

class CudaThreads : public CudaTest {
 protected:
  bool needs_standin() const override { return false; }
};

TEST_F(CudaThreads, MembersForAnyThreadAreUsedByMany) {
  const auto driver = make();
  std::vector<void*> streams;
  for (int i = 1; i <= 4; ++i) streams.push_back(library().stream(i));
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        Event event{};
        ASSERT_EQ(driver->record(streams[t], event), Status::ok) << driver->error_text();
        EXPECT_EQ(driver->wait(streams[(t + 1) % 4], event), Status::ok);
        if (i % 16 == 0) {
          EXPECT_EQ(driver->synchronize(event), Status::ok);
        }
        driver->passed(event);
        driver->release(event);
        EXPECT_NE(driver->stream_id(streams[t]), 0u);
        void* host = nullptr;
        EXPECT_EQ(driver->allocate_host(HostKind::pinned, 64, host), Status::ok);
        EXPECT_EQ(driver->free_host(HostKind::pinned, host, 64), Status::ok);
        driver->begin_capture();
        driver->end_capture();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace cistern::drivers
