// The functions that PyTorch calls, over the CUDA stand-in, with PyTorch's own C++ types: pools and their uses, failed
// captures, streams, exceptions.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <functional>
#include <set>
#include <thread>
#include <utility>

#include "cistern/torch.h"
#include "drivers/cuda_fixture.hpp"

namespace cistern {
namespace {

using PoolId = std::pair<unsigned long long, unsigned long long>;

// The library is opened as Python opens it.
class Adapter {
 public:
  Adapter() : library_(dlopen(CISTERN_TORCH_LIBRARY, RTLD_NOW | RTLD_LOCAL)) {
    if (library_ == nullptr) throw std::runtime_error(dlerror());
  }
  template <class Function>
  Function* get(const char* name) const {
    auto* const found = reinterpret_cast<Function*>(dlsym(library_, name));
    if (found == nullptr) throw std::runtime_error(std::string("no ") + name);
    return found;
  }

 private:
  void* library_;
};

// One adapter lives as long as the process, and so does its stand-in.
class TorchAdapter : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (!library().usable() || !library().is_standin()) return;
    if (adapter_ == nullptr) {
      library().restart({{"LAG_US", "50"}, {"DEVICES", "2"}});
      drivers::cuda::Context context = nullptr;
      ASSERT_EQ(library().api.primary_retain(&context, 0), 0);
      ASSERT_EQ(library().api.context_push(context), 0);
      adapter_ = new Adapter;
    }
  }
  void SetUp() override {
    if (adapter_ == nullptr) GTEST_SKIP() << "needs the stand-in";
  }
  void TearDown() override {
    if (adapter_ == nullptr) return;
    reset();
    cistern_torch_figures figures = read();
    EXPECT_EQ(figures.count[0].current + figures.count[1].current, 0);
    EXPECT_EQ(pools().size(), 0U);
  }

  static standin::CudaLibrary& library() { return standin::CudaLibrary::get(); }
  static void* alloc(std::ptrdiff_t size, void* stream = nullptr) {
    return adapter_->get<decltype(cistern_torch_alloc)>("cistern_torch_alloc")(size, 0, stream);
  }
  static void free(void* ptr, std::ptrdiff_t size, void* stream = nullptr) {
    adapter_->get<decltype(cistern_torch_free)>("cistern_torch_free")(ptr, size, 0, stream);
  }
  static cistern_status stream_destroyed(int device, void* stream) {
    return adapter_->get<decltype(cistern_torch_stream_destroyed)>("cistern_torch_stream_destroyed")(device, stream);
  }
  static void reset() { adapter_->get<decltype(cistern_torch_reset)>("cistern_torch_reset")(); }
  static void begin(PoolId id, std::function<bool(void*)> filter) {
    adapter_->get<void(int, PoolId, std::function<bool(void*)>)>("cistern_torch_begin_pool")(0, id, std::move(filter));
  }
  static void end(PoolId id) { adapter_->get<void(int, PoolId)>("cistern_torch_end_pool")(0, id); }
  static void release(PoolId id) { adapter_->get<void(int, PoolId)>("cistern_torch_release_pool")(0, id); }
  static std::uint64_t newest_begin() {
    return adapter_->get<decltype(cistern_torch_newest_begin)>("cistern_torch_newest_begin")();
  }
  static int abort_begin(std::uint64_t number) {
    return adapter_->get<decltype(cistern_torch_abort_begin)>("cistern_torch_abort_begin")(number);
  }
  static int abort() { return adapter_->get<decltype(cistern_torch_abort_pools)>("cistern_torch_abort_pools")(0); }
  static cistern_torch_figures read() {
    cistern_torch_figures figures{};
    figures.struct_size = sizeof figures;
    adapter_->get<decltype(cistern_torch_get_figures)>("cistern_torch_get_figures")(0, &figures);
    return figures;
  }
  // PyTorch's ids of the pools that have memory.
  static std::set<PoolId> pools() {
    cistern_torch_snapshot* snapshot = nullptr;
    adapter_->get<decltype(cistern_torch_take_snapshot)>("cistern_torch_take_snapshot")(&snapshot);
    std::size_t count = 0;
    const auto* segments = adapter_->get<decltype(cistern_torch_segments)>("cistern_torch_segments")(snapshot, &count);
    std::set<PoolId> found;
    for (std::size_t i = 0; i < count; ++i) {
      const PoolId id{segments[i].pool_first, segments[i].pool_second};
      if (id != PoolId{0, 0}) found.insert(id);
    }
    adapter_->get<decltype(cistern_torch_drop_snapshot)>("cistern_torch_drop_snapshot")(snapshot);
    return found;
  }

  static Adapter* adapter_;
};
Adapter* TorchAdapter::adapter_ = nullptr;

TEST_F(TorchAdapter, FailuresAreExceptionsAndNeverNull) {
  try {
    alloc(std::ptrdiff_t{1} << 40);
    ADD_FAILURE() << "no exception";
  } catch (const std::exception& error) {
    EXPECT_EQ(std::string(error.what()).find("CUDA out of memory. cistern: "), 0U) << error.what();
  }
  try {
    alloc(-5);
    ADD_FAILURE() << "no exception";
  } catch (const std::exception& error) {
    EXPECT_STREQ(error.what(), "cistern: asked for -5 bytes on cuda:0: expected 0 or more");
  }
  const auto set =
      adapter_->get<decltype(cistern_torch_set_out_of_memory_handler)>("cistern_torch_set_out_of_memory_handler");
  set([](const char* text) { throw std::domain_error(text); });
  EXPECT_THROW(alloc(std::ptrdiff_t{1} << 40), std::domain_error);
  set(nullptr);
  free(nullptr, 0);
  ::testing::internal::CaptureStderr();
  free(&adapter_, 8);
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("no live buffer"), std::string::npos);
}

TEST_F(TorchAdapter, AFreeOfAnotherSizeChangesNothing) {
  void* const ptr = alloc(5000);
  for (const std::ptrdiff_t wrong : {std::ptrdiff_t{-1}, std::ptrdiff_t{1} << 20}) {
    ::testing::internal::CaptureStderr();
    free(ptr, wrong);
    char address[24];
    std::snprintf(address, sizeof address, "%p", ptr);
    EXPECT_EQ(::testing::internal::GetCapturedStderr(), "cistern: free: buffer " + std::string(address) +
                                                            " (5120 bytes, cuda:0) is freed with size " +
                                                            std::to_string(wrong) + ": expected 0 to 5120\n");
    EXPECT_EQ(read().requested[0].current, 5000);
  }
  free(ptr, 5000);
  EXPECT_EQ(read().requested[0].current, 0);
}

TEST_F(TorchAdapter, AFreeOfASmallerSizeLeavesNothingBehind) {
  for (const std::ptrdiff_t asked : {1000, (1 << 20) + 100}) {
    const int pool = asked < (1 << 20) ? 0 : 1;
    void* const one = alloc(asked);
    void* const two = alloc(asked);
    free(one, 10);
    EXPECT_EQ(read().count[pool].current, 1);
    EXPECT_EQ(read().requested[pool].current, 2 * asked - 10);
    free(two, asked);
    const cistern_torch_figures left = read();
    for (const auto* figures : {left.requested, left.count, left.capacity}) {
      EXPECT_EQ(figures[0].current, 0);
      EXPECT_EQ(figures[1].current, 0);
    }
  }
  // Never less than nothing.
  void* const one = alloc(1);
  void* const two = alloc(1);
  free(one, 500);
  EXPECT_EQ(read().requested[0].current, 0);
  free(two, 1);
  EXPECT_EQ(read().requested[0].current, 0);
}

TEST_F(TorchAdapter, APoolLivesUntilItsLastUseIsReleased) {
  const auto stream = library().stream(1);
  const PoolId id{7, 0};
  void* graphs[2] = {};
  void* kept[2] = {};
  for (int i = 0; i < 2; ++i) {
    begin(id, [=](void* native) { return native == stream; });
    ASSERT_EQ(library().program.begin(stream, drivers::cuda::kCaptureGlobal), 0);
    kept[i] = alloc(3 << 20, stream);
    void* graph = nullptr;
    ASSERT_EQ(library().program.end(stream, &graph), 0);
    ASSERT_EQ(library().program.instantiate(&graphs[i], graph, 0), 0);
    ASSERT_EQ(library().program.destroy(graph), 0);
    end(id);
  }
  EXPECT_EQ(pools(), (std::set<PoolId>{id}));
  release(id);
  reset();
  EXPECT_EQ(pools(), (std::set<PoolId>{id}));
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(library().program.destroy_executable(graphs[i]), 0);
    free(kept[i], 3 << 20, stream);
  }
  release(id);
  EXPECT_EQ(pools().size(), 0U);
  release(id);  // Nothing happens.
}

TEST_F(TorchAdapter, AFailedCaptureIsGivenUp) {
  const auto stream = library().stream(1);
  begin({9, 0}, [=](void* native) { return native == stream; });
  free(alloc(5 << 20, stream), 5 << 20, stream);
  EXPECT_EQ(pools().size(), 1U);
  int elsewhere = -1;
  std::thread([&] { elsewhere = abort(); }).join();
  EXPECT_EQ(elsewhere, 0) << "another thread's capture";
  EXPECT_EQ(abort(), 1);
  EXPECT_EQ(pools().size(), 0U);
  EXPECT_EQ(abort(), 0);
  // The same pool again after a capture that nobody ended.
  begin({9, 0}, [=](void*) { return true; });
  begin({9, 0}, [=](void*) { return true; });
  std::thread([&] { EXPECT_THROW(begin({9, 0}, [=](void*) { return true; }), std::exception); }).join();
  end({9, 0});
  release({9, 0});
  EXPECT_EQ(pools().size(), 0U);
}

TEST_F(TorchAdapter, OnlyThePoolOfTheFailedCaptureIsGivenUp) {
  const auto one = library().stream(1), two = library().stream(2);
  begin({11, 0}, [=](void* native) { return native == one; });
  const std::uint64_t first = newest_begin();
  begin({12, 0}, [=](void* native) { return native == two; });
  const std::uint64_t second = newest_begin();
  EXPECT_NE(first, second);
  std::thread([&] { EXPECT_EQ(newest_begin(), 0U) << "another thread's"; }).join();
  free(alloc(5 << 20, one), 5 << 20, one);
  free(alloc(5 << 20, two), 5 << 20, two);
  EXPECT_EQ(abort_begin(second), 1);
  EXPECT_EQ(abort_begin(second), 0);
  EXPECT_EQ(pools(), (std::set<PoolId>{{11, 0}}));
  // The other still is where the stream's memory comes from.
  void* const kept = alloc(5 << 20, one);
  void* const ordinary = alloc(5 << 20, two);
  EXPECT_EQ(pools(), (std::set<PoolId>{{11, 0}}));
  free(kept, 5 << 20, one);
  free(ordinary, 5 << 20, two);
  end({11, 0});
  EXPECT_EQ(abort_begin(first), 0) << "was ended";
  // A pool that another graph uses stays, without the failed one's use.
  begin({11, 0}, [=](void* native) { return native == one; });
  EXPECT_EQ(abort_begin(newest_begin()), 1);
  EXPECT_EQ(pools(), (std::set<PoolId>{{11, 0}}));
  release({11, 0});
  EXPECT_EQ(pools().size(), 0U);
}

TEST_F(TorchAdapter, MemoryUsedOnAnotherStreamWaitsForIt) {
  const auto one = library().stream(1), two = library().stream(2);
  for (int i = 0; i < 50; ++i) {
    void* const ptr = alloc(1 << 20, one);
    const auto at = reinterpret_cast<std::uintptr_t>(ptr);
    ASSERT_EQ(library().control.launch_fill(one, at, 1 << 20, 3), 0);
    drivers::cuda::EventHandle event = nullptr;
    ASSERT_EQ(library().api.event_create(&event, drivers::cuda::kEventDisableTiming), 0);
    ASSERT_EQ(library().api.event_record(event, one), 0);
    ASSERT_EQ(library().api.stream_wait(two, event, 0), 0);
    ASSERT_EQ(library().control.launch_check(two, at, 1 << 20, 3), 0);
    adapter_->get<decltype(cistern_torch_record_stream)>("cistern_torch_record_stream")(ptr, two);
    free(ptr, 1 << 20, one);
    void* const next = alloc(1 << 20, one);
    ASSERT_EQ(library().control.launch_fill(one, reinterpret_cast<std::uintptr_t>(next), 1 << 20, 4), 0);
    free(next, 1 << 20, one);
    ASSERT_EQ(library().api.event_destroy(event), 0);
  }
  library().control.complete_all();
  EXPECT_EQ(library().control.mismatches(), 0U);
  EXPECT_EQ(library().violations(), std::vector<std::string>{});
}

TEST_F(TorchAdapter, ADestroyedStreamThatWasAnnouncedIsNotTouched) {
  const auto other = library().stream(1);
  for (int i = 0; i < 20; ++i) {
    const auto stream = library().make_stream();
    void* const freed = alloc(2 << 20, stream);
    void* const kept = alloc(3 << 20, stream);
    ASSERT_EQ(library().control.launch_fill(stream, reinterpret_cast<std::uintptr_t>(freed), 2 << 20, 5), 0);
    free(freed, 2 << 20, stream);
    ASSERT_EQ(stream_destroyed(0, stream), CISTERN_OK);
    EXPECT_EQ(stream_destroyed(0, stream), CISTERN_OK) << "is none of the allocator's any more";
    library().destroy_stream(stream);
    void* const next = alloc(2 << 20, other);
    ASSERT_EQ(library().control.launch_fill(other, reinterpret_cast<std::uintptr_t>(next), 2 << 20, 6), 0);
    free(next, 2 << 20, other);
    free(kept, 3 << 20, stream);
  }
  EXPECT_EQ(library().violations(), std::vector<std::string>{});
}

TEST_F(TorchAdapter, AStreamIsNewAfterItWasSaidToBeDestroyed) {
  const auto stream = library().make_stream();
  free(alloc(1 << 20, stream), 1 << 20, stream);
  ASSERT_EQ(stream_destroyed(0, stream), CISTERN_OK);
  free(alloc(1 << 20, stream), 1 << 20, stream);  // What this thread knew of it is forgotten.
  ASSERT_EQ(stream_destroyed(0, stream), CISTERN_OK);
  library().destroy_stream(stream);
  EXPECT_EQ(stream_destroyed(0, nullptr), CISTERN_OK);
  EXPECT_EQ(stream_destroyed(1, library().stream(1, 1)), CISTERN_OK) << "nothing was ever allocated on it";
  EXPECT_EQ(library().violations(), std::vector<std::string>{});
}

TEST_F(TorchAdapter, ADeviceThatIsNotThereIsRefusedByAll) {
  const auto last_error = adapter_->get<decltype(cistern_last_error)>("cistern_last_error");
  const auto try_alloc = adapter_->get<decltype(cistern_torch_try_alloc)>("cistern_torch_try_alloc");
  const auto get_figures = adapter_->get<decltype(cistern_torch_get_figures)>("cistern_torch_get_figures");
  const auto reset_peaks = adapter_->get<decltype(cistern_torch_reset_peaks)>("cistern_torch_reset_peaks");
  const auto reset_accumulated =
      adapter_->get<decltype(cistern_torch_reset_accumulated)>("cistern_torch_reset_accumulated");
  cistern_torch_figures figures{};
  figures.struct_size = sizeof figures;
  for (const int device : {-1, 2, 63, 64}) {
    const std::string text =
        "cistern: device cuda:" + std::to_string(device) + " is not available; there are 2: cuda:0 to cuda:1";
    EXPECT_EQ(get_figures(device, &figures), CISTERN_INVALID_ARGUMENT);
    EXPECT_EQ(last_error(), text);
    EXPECT_EQ(reset_peaks(device), CISTERN_INVALID_ARGUMENT);
    EXPECT_EQ(last_error(), text);
    EXPECT_EQ(reset_accumulated(device), CISTERN_INVALID_ARGUMENT);
    EXPECT_EQ(last_error(), text);
    for (void* const stream : {static_cast<void*>(nullptr), static_cast<void*>(library().stream(1))}) {
      EXPECT_EQ(stream_destroyed(device, stream), CISTERN_INVALID_ARGUMENT);
      EXPECT_EQ(last_error(), text);
    }
    EXPECT_EQ(try_alloc(8, device, nullptr), nullptr);
    EXPECT_EQ(last_error(), text);
  }
  EXPECT_EQ(get_figures(1, &figures), CISTERN_OK) << "nothing was ever allocated on it";
  EXPECT_EQ(figures.count[0].allocated, 0);
}

// After those above: leaves a stream behind that is gone.
TEST_F(TorchAdapter, AStreamWhoseHandleCameBackIsAnotherStream) {
  for (int i = 0; i < 20; ++i) {
    const auto stream = library().make_stream();
    void* const ptr = alloc(2 << 20, stream);
    ASSERT_EQ(library().control.launch_fill(stream, reinterpret_cast<std::uintptr_t>(ptr), 2 << 20, 5), 0);
    free(ptr, 2 << 20, stream);
    library().destroy_stream(stream);
  }
  EXPECT_EQ(library().violations(), std::vector<std::string>{});
}

TEST_F(TorchAdapter, AStreamIsNewAfterTheCInterfaceWasToldThatItIsDestroyed) {
  void* const handle = library().make_stream(0, drivers::cuda::kStreamNonBlocking);
  free(alloc(1000, handle), 1000, handle);
  cistern_stream* stream = nullptr;
  ASSERT_EQ(adapter_->get<decltype(cistern_stream_open)>("cistern_stream_open")({CISTERN_CUDA, 0}, handle, &stream), 0);
  ASSERT_EQ(adapter_->get<decltype(cistern_stream_destroyed)>("cistern_stream_destroyed")(stream), 0);
  adapter_->get<decltype(cistern_stream_close)>("cistern_stream_close")(stream);
  EXPECT_NO_THROW(free(alloc(1000, handle), 1000, handle));
  EXPECT_EQ(stream_destroyed(0, handle), CISTERN_OK);
  library().destroy_stream(static_cast<drivers::cuda::Stream>(handle));
}

TEST_F(TorchAdapter, BaseAllocationIsTheBufferAround) {
  const auto base = adapter_->get<decltype(cistern_torch_base_allocation)>("cistern_torch_base_allocation");
  auto* const small = static_cast<char*>(alloc(1000));
  auto* const neighbour = static_cast<char*>(alloc(1000));
  auto* const large = static_cast<char*>(alloc(5 << 20));
  auto* const empty = static_cast<char*>(alloc(0));
  const auto expect = [&](char* at, char* start, std::size_t bytes) {
    std::size_t size = 77;
    EXPECT_EQ(base(at, &size), start);
    EXPECT_EQ(size, bytes);
    EXPECT_EQ(base(at, nullptr), start);
  };
  for (const std::ptrdiff_t at : {0, 1, 1000, 1023}) expect(small + at, small, 1024);
  expect(neighbour + 5, neighbour, 1024);
  for (const std::ptrdiff_t at : {0, 1, (5 << 20) - 1}) expect(large + at, large, 5 << 20);
  expect(empty, empty, 0);
  expect(empty + 1, empty + 1, 0);
  int outside = 0;
  expect(reinterpret_cast<char*>(&outside), reinterpret_cast<char*>(&outside), 0);
  expect(nullptr, nullptr, 0);
  free(neighbour, 1000);
  expect(neighbour + 5, neighbour + 5, 0);
  free(small, 1000);
  free(large, 5 << 20);
  free(empty, 0);
}

TEST_F(TorchAdapter, NullIsTakenAsTheHeaderSays) {
  const auto zero_of = [](auto* function) {
    std::size_t count = 77;
    EXPECT_EQ(function(nullptr, &count), nullptr);
    EXPECT_EQ(count, 0U);
    EXPECT_EQ(function(nullptr, nullptr), nullptr);
  };
  zero_of(adapter_->get<decltype(cistern_torch_segments)>("cistern_torch_segments"));
  zero_of(adapter_->get<decltype(cistern_torch_blocks)>("cistern_torch_blocks"));
  zero_of(adapter_->get<decltype(cistern_torch_events)>("cistern_torch_events"));
  const auto take = adapter_->get<decltype(cistern_torch_take_snapshot)>("cistern_torch_take_snapshot");
  const auto drop = adapter_->get<decltype(cistern_torch_drop_snapshot)>("cistern_torch_drop_snapshot");
  EXPECT_EQ(take(nullptr), CISTERN_INVALID_ARGUMENT);
  drop(nullptr);
  void* const ptr = alloc(1000);
  cistern_torch_snapshot* snapshot = nullptr;
  ASSERT_EQ(take(&snapshot), CISTERN_OK);
  EXPECT_NE(adapter_->get<decltype(cistern_torch_blocks)>("cistern_torch_blocks")(snapshot, nullptr), nullptr);
  drop(snapshot);
  free(ptr, 1000);
  EXPECT_EQ(adapter_->get<decltype(cistern_torch_get_figures)>("cistern_torch_get_figures")(0, nullptr),
            CISTERN_INVALID_ARGUMENT);
  const auto record = adapter_->get<decltype(cistern_torch_record_stream)>("cistern_torch_record_stream");
  record(nullptr, library().stream(1));
  record(&snapshot, nullptr);
}

// Workers of a data loader are forked while other threads are anywhere in the adapter.
TEST_F(TorchAdapter, AForkedChildMayFreeWhatItInherited) {
  void* const mine = alloc(1000);
  std::atomic<bool> stop{false};
  std::thread other([&] {
    while (!stop) free(alloc(1000), 1000);
  });
  bool stuck = false;
  for (int i = 0; i < 400 && !stuck; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(5);
      free(mine, 1000);
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    stuck = !WIFEXITED(status);
  }
  stop = true;
  other.join();
  EXPECT_FALSE(stuck) << "a child waits for a lock that nobody has";
  free(mine, 1000);
}

}  // namespace
}  // namespace cistern
