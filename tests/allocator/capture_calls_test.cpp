// What the allocator does by itself while a stream is captured: no wait of it ends the capture, and nothing that it
// submits becomes a node of the graph, which would be run again at each launch.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "allocator/capture_fixture.hpp"
#include "allocator/second_allocator.hpp"
#include "cistern/error.hpp"

namespace cistern::allocation {
namespace {

class CaptureCalls : public CapturePools {
 protected:
  // Announced to the device's allocator; memory of the staging allocator is another driver's.
  void begin_announced(const Stream& s) {
    pool_ = a().make_pool();
    a().begin_pool(pool_, s);
    begin(s);
  }
  void* end_announced(const Stream& s) {
    void* const graph = end(s);
    EXPECT_NE(graph, nullptr) << "the capture was ended";
    a().end_pool(pool_);
    return graph;
  }
  void drop(void* graph) {
    if (graph != nullptr) destroy(graph);
    a().release_pool(pool_);
  }
  std::unique_ptr<SecondAllocator> staging() {
    return std::make_unique<SecondAllocator>(a(), make({.mode = CudaMode::pinned_host}));
  }
  Stream fresh() { return a().stream(library().make_stream(0, cuda::kStreamNonBlocking)); }

  std::uint64_t pool_ = 0;
};

// --- Staging memory --------------------------------------------------------------------------------------------------

TEST_F(CaptureCalls, ClearingTheCacheOfStagingMemoryDoesNotEndACapture) {
  const auto host = staging();
  const Stream s = fresh();
  host->free(host->malloc(1_MiB, s));
  begin_announced(s);
  host->clear_cache();
  drop(end_announced(s));
}

TEST_F(CaptureCalls, StagingMemoryAtItsLimitDoesNotEndACapture) {
  const auto host = staging();
  host->set_memory_limit(4_MiB);
  const Stream s = fresh();
  const Buffer b = host->malloc(3_MiB);
  begin_announced(s);
  EXPECT_THROW(host->malloc(3_MiB), out_of_memory);
  drop(end_announced(s));
  host->free(b);
}

// --- Moves to the host -----------------------------------------------------------------------------------------------

TEST_F(CaptureCalls, AMoveToTheHostIsNoNodeOfTheGraph) {
  const Stream s = fresh(), other = fresh();
  const Buffer b = a().malloc(3_MiB, s);
  fill(s, b, 5);
  begin_announced(s);
  const std::uint64_t before = control().calls("cuMemcpyAsync");
  EXPECT_THROW(static_cast<void>(a().host_pointer(b)), driver_error);
  EXPECT_EQ(control().calls("cuMemcpyAsync"), before);
  void* const graph = end_announced(s);
  ASSERT_NE(graph, nullptr);
  // What the copy would have gone to serves somebody else when the graph runs.
  a().free(a().malloc(1_MiB));
  control().complete_all();
  const Buffer host = a().malloc(3_MiB);
  auto* const bytes = static_cast<unsigned char*>(host.raw_ptr());
  std::fill_n(bytes, 3_MiB, static_cast<unsigned char>(7));
  launch(graph, other);
  control().complete_all();
  EXPECT_EQ(std::count(bytes, bytes + 3_MiB, 7), static_cast<std::ptrdiff_t>(3_MiB)) << "the graph wrote there";
  a().free(host);
  a().free(b);
  drop(graph);
}

TEST_F(CaptureCalls, AMoveToTheHostIsRefusedFromTheAnnouncementOn) {
  const Stream s = fresh();
  const Buffer b = a().malloc(3_MiB, s);
  const std::uint64_t pool = a().make_pool();
  a().begin_pool(pool, s);
  // Another thread might begin the capture now.
  EXPECT_THROW(static_cast<void>(a().host_pointer(b)), driver_error);
  EXPECT_EQ(control().calls("cuMemcpyAsync"), 0u);
  a().end_pool(pool);
  EXPECT_NO_THROW(static_cast<void>(a().host_pointer(b)));
  a().free(b);
  a().release_pool(pool);
}

// --- Captures that nobody announced ----------------------------------------------------------------------------------

// Their streams are known, so that what waits can see them.
TEST_F(CaptureCalls, ACaptureThatNobodyAnnouncedOutlastsEveryCall) {
  using Call = std::function<void(const Stream& captured, const Stream& other, Buffer& used)>;
  std::unique_ptr<SecondAllocator> host;
  const std::vector<std::pair<const char*, Call>> calls = {
      {"clear_cache", [&](auto&, auto&, auto&) { a().clear_cache(); }},
      {"set_memory_limit", [&](auto&, auto&, auto&) { a().set_memory_limit(8_MiB); }},
      {"set_cache_limit", [&](auto&, auto&, auto&) { a().set_cache_limit(0); }},
      {"malloc at the limit",
       [&](auto&, auto& other, auto&) {
         a().set_memory_limit(64_MiB);
         try {
           a().free(a().malloc(60_MiB, other));
         } catch (const out_of_memory&) {
           // It cannot wait now.
         }
       }},
      {"malloc of what no device has",
       [&](auto&, auto& other, auto&) { EXPECT_THROW(a().malloc(std::size_t{9} << 30, other), out_of_memory); }},
      {"a pool that comes and goes",
       [&](auto&, auto& other, auto&) {
         const std::uint64_t pool = a().make_pool();
         a().begin_pool(pool, other);
         a().free(a().malloc(100'000, other));
         a().end_pool(pool);
         a().release_pool(pool);
       }},
      {"stream_destroyed",
       [&](auto& captured, auto&, auto&) { EXPECT_THROW(a().stream_destroyed(captured), driver_error); }},
      {"free on another stream",
       [&](auto&, auto& other, auto& used) {
         a().free(std::exchange(used, {}), other);
         a().free(a().malloc(5_MiB, other));
       }},
      {"record_use by another stream",
       [&](auto&, auto& other, auto& used) {
         a().record_use(used, other);
         a().free(std::exchange(used, {}));
         a().free(a().malloc(5_MiB, other));
       }},
      {"raw_ptr", [&](auto&, auto&, auto& used) { EXPECT_THROW(a().host_pointer(used), driver_error); }},
      {"staging",
       [&](auto&, auto& other, auto&) {
         host->free(host->malloc(3_MiB, other));
         host->clear_cache();
       }},
  };
  for (const CudaMode mode : {CudaMode::virtual_memory, CudaMode::segments}) {
    for (const auto& [name, call] : calls) {
      host.reset();
      start({.mode = mode}, {{"LAG_US", "2000"}});
      host = staging();
      const Stream captured = fresh(), other = fresh();
      Buffer used = a().malloc(5_MiB, captured);
      fill(captured, used, 1);
      for (int i = 0; i < 6; ++i) {
        const Stream& s = i % 2 != 0 ? captured : other;
        const Buffer b = a().malloc(7_MiB, s);
        fill(s, b, 2);
        a().free(b);
      }
      begin(captured);
      call(captured, other, used);
      void* const graph = end(captured);
      EXPECT_NE(graph, nullptr) << name << " ended it";
      if (graph != nullptr) destroy(graph);
      a().free(used);
    }
  }
}

// --- Frees -----------------------------------------------------------------------------------------------------------

TEST_F(CaptureCalls, PoisonIsNoNodeOfTheGraph) {
  MemoryOptions options;
  options.poison_on_free = true;
  a().set_options(options);
  const Stream s = fresh();
  const Buffer b = a().malloc(3_MiB, s);
  const std::uint64_t address = at(b);
  fill(s, b, 5);
  begin_announced(s);
  a().free(b);
  const std::uint64_t before = control().calls("cuMemsetD8Async");
  a().map();  // The holder of the lock takes it back.
  EXPECT_EQ(control().calls("cuMemsetD8Async"), before);
  void* const graph = end_announced(s);
  ASSERT_NE(graph, nullptr);
  const Buffer next = a().malloc(3_MiB, s);
  EXPECT_EQ(at(next), address);
  fill(s, next, 9);
  launch(graph, s);
  check(s, next, 9);
  control().complete_all();
  EXPECT_EQ(control().mismatches(), 0u) << "the graph poisoned live memory";
  a().free(next);
  drop(graph);
}

TEST_F(CaptureCalls, WaitsThatACaptureForbidsAreNotCounted) {
  const Stream s = fresh(), other = fresh();
  const Buffer b = a().malloc(4_MiB, s);
  a().record_use(b, other);
  begin_announced(s);
  a().free(b);
  a().map();
  const std::uint64_t waits = a().stats().host_waits, calls = control().calls("cuCtxSynchronize");
  for (int i = 0; i < 10; ++i) a().map();
  EXPECT_EQ(control().calls("cuCtxSynchronize"), calls);
  EXPECT_EQ(a().stats().host_waits, waits);
  drop(end_announced(s));
}

}  // namespace
}  // namespace cistern::allocation
