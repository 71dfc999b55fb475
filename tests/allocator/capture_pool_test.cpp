// Capture pools over the CUDA stand-in, which replays graphs on real bytes, lists every broken rule, and breaks a
// capture when somebody else's call would; random sequences on the model device.
#include <algorithm>
#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "allocator/capture_fixture.hpp"
#include "cistern/error.hpp"

namespace cistern::allocation {
namespace {

// Takes and gives back memory of all sizes, so that pieces move and leave.
void churn(DeviceAllocator& a, const Stream& s, std::uint64_t seed, int steps) {
  std::mt19937_64 random(seed);
  std::vector<Buffer> live;
  for (int i = 0; i < steps; ++i) {
    if (live.size() < 30 && random() % 2 == 0) {
      live.push_back(a.malloc(1 + random() % (std::size_t{1} << (8 + random() % 16)), s));
    } else if (!live.empty()) {
      std::swap(live[random() % live.size()], live.back());
      a.free(live.back());
      live.pop_back();
    }
  }
  for (const Buffer& b : live) a.free(b);
}

TEST_F(CapturePools, ReplaysFindTheirMemoryWhateverHappensInBetween) {
  for (const CudaMode mode : {CudaMode::virtual_memory, CudaMode::segments}) {
    start({.mode = mode}, {{"MEMORY", "268435456"}});
    const Stream s = stream(1), other = stream(2);
    const Buffer earlier = a().malloc(3_MiB, s);
    const void* const before = earlier.ptr();
    a().free(earlier);
    const std::uint64_t pool = a().make_pool();
    EXPECT_EQ(a().pool_bytes(pool), 0U);
    a().begin_pool(pool, s);
    begin(s);
    const Buffer result = a().malloc(3_MiB, s), small = a().malloc(700, s);
    EXPECT_NE(result.ptr(), before) << "cached memory of the stream is not the graph's";
    const Buffer first = a().malloc(9_MiB, s);
    const void* const scratch = first.ptr();
    fill(s, first, 1);
    a().free(first);
    const Buffer again = a().malloc(9_MiB, s);
    EXPECT_EQ(again.ptr(), scratch) << "in the order of the captured stream";
    fill(s, again, 2);
    check(s, again, 2);
    fill(s, result, 3);
    fill(s, small, 4);
    a().free(again);
    void* const graph = end(s);
    a().end_pool(pool);
    ASSERT_NE(graph, nullptr);
    const std::size_t held = a().pool_bytes(pool);
    EXPECT_GE(held, 12_MiB);
    for (int round = 0; round < 5; ++round) {
      churn(a(), s, 10U + static_cast<unsigned>(round), 300);
      churn(a(), other, 20U + static_cast<unsigned>(round), 300);
      if (round == 2) a().clear_cache();
      if (round == 3) a().set_memory_limit(40_MiB);
      const Buffer elsewhere = a().malloc(9_MiB, round % 2 == 0 ? s : other);
      EXPECT_NE(elsewhere.ptr(), scratch);
      fill(round % 2 == 0 ? s : other, elsewhere, 7);
      launch(graph, other);
      check(other, result, 3);
      check(other, small, 4);
      check(round % 2 == 0 ? s : other, elsewhere, 7);
      a().free(elsewhere);
      EXPECT_EQ(a().pool_bytes(pool), held);
      expect_sound(a());
    }
    control().complete_all();
    EXPECT_EQ(control().mismatches(), 0U);
    a().free(result);
    a().free(small);
    launch(graph, other);  // Still the pool's.
    destroy(graph);
    a().release_pool(pool);
    EXPECT_EQ(a().pool_bytes(pool), 0U);
    a().clear_cache();
    EXPECT_EQ(a().stats().reserved, 0U);
    EXPECT_EQ(a().stats().active, 0U);
  }
}

TEST_F(CapturePools, APoolServesSeveralGraphsAndIsReused) {
  const Stream s = stream(1);
  const std::uint64_t pool = a().make_pool();
  std::vector<void*> graphs;
  const void* first = nullptr;
  for (int i = 0; i < 3; ++i) {
    a().begin_pool(pool, s);
    begin(s);
    const Buffer b = a().malloc(5_MiB, s);
    if (first == nullptr) first = b.ptr();
    EXPECT_EQ(b.ptr(), first);
    fill(s, b, static_cast<std::uint64_t>(i));
    a().free(b);
    graphs.push_back(end(s));
    a().end_pool(pool);
  }
  for (void* graph : graphs) launch(graph, s);
  for (void* graph : graphs) destroy(graph);
  a().release_pool(pool);
  EXPECT_EQ(a().stats().reserved, 0U) << "the pages of a pool go back when it is released";
  // The next pool takes the heap over.
  for (int i = 0; i < 10; ++i) {
    const std::uint64_t next = a().make_pool();
    a().begin_pool(next, s);
    a().free(a().malloc(5_MiB, s));
    a().end_pool(next);
    a().release_pool(next);
  }
  EXPECT_EQ(a().stats().reserved, 0U);
}

TEST_F(CapturePools, AnAbortedCaptureGivesEverythingBack) {
  expect_violations();  // The program breaks its own capture.
  const Stream s = stream(1);
  for (int round = 0; round < 3; ++round) {
    const std::uint64_t pool = a().make_pool();
    a().begin_pool(pool, s);
    begin(s);
    const Buffer kept = a().malloc(5_MiB, s), dropped = a().malloc(3_MiB, s);
    fill(s, dropped, 1);
    EXPECT_NE(library().api.context_synchronize(), 0);
    a().free(dropped);
    EXPECT_EQ(end(s), nullptr);
    a().end_pool(pool);
    a().release_pool(pool);
    expect_sound(a());
    // What still lives is ordinary memory now.
    EXPECT_TRUE(kept.live());
    fill(s, kept, 9);
    a().free(kept);
    a().free(a().malloc(5_MiB, s));
    a().clear_cache();
    EXPECT_EQ(a().stats().reserved, 0U);
    EXPECT_EQ(a().stats().handles, 0U);
  }
}

TEST_F(CapturePools, NobodyEndsACaptureByAllocatingAllTheWhile) {
  start({}, {{"MEMORY", "134217728"}});
  const Stream s = stream(1), two = stream(2), three = stream(3);
  std::atomic<bool> stop{false};
  std::atomic<int> rounds{0};
  std::thread other([&] {
    for (std::uint64_t seed = 0; !stop; ++seed) {
      churn(a(), seed % 2 == 0 ? two : three, seed, 60);
      const Buffer b = a().malloc(2_MiB, two);
      a().record_use(b, three);
      a().free(b);
      if (seed % 3 == 0) a().clear_cache();
      ++rounds;
    }
  });
  for (int i = 0; i < 10; ++i) {
    const std::uint64_t pool = a().make_pool();
    a().begin_pool(pool, s);
    begin(s);
    const int start = rounds;
    Buffer b = a().malloc(4_MiB, s);
    fill(s, b, 5);
    while (rounds < start + 2) {
      a().free(b);
      b = a().malloc(4_MiB, s);
      std::this_thread::yield();
    }
    fill(s, b, 6);
    void* const graph = end(s);
    ASSERT_NE(graph, nullptr) << "the capture was ended";
    a().end_pool(pool);
    launch(graph, s);
    check(s, b, 6);
    a().free(b);
    destroy(graph);
    a().release_pool(pool);
  }
  stop = true;
  other.join();
  control().complete_all();
  EXPECT_EQ(control().mismatches(), 0U);
}

TEST_F(CapturePools, MarksWaitForTheEndOfACaptureOnStreamsThatWereNotNamed) {
  start({}, {{"MANUAL", "1"}});
  const Stream s = stream(1), other = stream(2);
  const Buffer used = a().malloc(20_MiB, other);
  fill(s, a().malloc(64, s), 1);  // Work on the stream before its capture.
  fill(other, used, 2);
  const std::uint64_t pool = a().make_pool();
  a().begin_pool(pool, [&](void* stream) { return stream == s.native(); });
  begin(s);
  a().free(used);
  EXPECT_EQ(a().set_memory_limit(1_MiB), a().stats().total_memory / 100 * 95) << "pieces leave when they may";
  EXPECT_GE(a().stats().reserved, 20_MiB) << "not while the capture hides what runs on its stream";
  control().complete_all();
  a().clear_cache();
  EXPECT_GE(a().stats().reserved, 20_MiB);
  destroy(end(s));
  a().end_pool(pool);
  control().complete_all();
  a().clear_cache();
  EXPECT_LE(a().stats().reserved, 2_MiB);
  a().release_pool(pool);
}

TEST_F(CapturePools, TheWorkOfANamedStreamIsMarkedBeforeItsCapture) {
  start({}, {{"MANUAL", "1"}});
  const Stream s = stream(1), other = stream(2);
  const Buffer used = a().malloc(20_MiB, other);
  fill(s, used, 1);
  const std::uint64_t pool = a().make_pool();
  a().begin_pool(pool, s);
  begin(s);
  a().record_use(used, s);
  a().free(used);
  control().complete(native(other));
  a().clear_cache();
  EXPECT_GE(a().stats().reserved, 20_MiB) << "used by work on the captured stream that is pending";
  destroy(end(s));
  a().end_pool(pool);
  const Buffer next = a().malloc(20_MiB, other);
  a().begin_pool(pool, s);
  begin(s);
  a().free(next);
  a().clear_cache();
  EXPECT_EQ(a().stats().reserved, 0U);
  destroy(end(s));
  a().end_pool(pool);
  a().release_pool(pool);
}

TEST_F(CapturePools, AReleaseDuringAnotherCaptureIsMadeGoodAfterIt) {
  const Stream s = stream(1), other = stream(2);
  const std::uint64_t first = a().make_pool(), second = a().make_pool();
  a().begin_pool(first, s);
  begin(s);
  a().free(a().malloc(8_MiB, s));
  void* const graph = end(s);
  a().end_pool(first);
  a().begin_pool(second, other);
  begin(other);
  a().release_pool(first);
  EXPECT_GE(a().stats().reserved, 8_MiB);
  destroy(end(other));
  a().end_pool(second);
  EXPECT_EQ(a().stats().reserved, 0U);
  destroy(graph);
  a().release_pool(second);
}

TEST_F(CapturePools, StreamsOfOneCaptureHaveHeapsOfTheirOwn) {
  const Stream s = stream(1), side = stream(2), outside = stream(3);
  const std::uint64_t pool = a().make_pool();
  const std::vector<void*> captured{s.native(), side.native()};
  a().begin_pool(pool,
                 [&](void* native) { return std::find(captured.begin(), captured.end(), native) != captured.end(); });
  begin(s);
  const Buffer one = a().malloc(2_MiB, s);
  const Buffer two = a().malloc(2_MiB, side), three = a().malloc(2_MiB, outside);
  const void *const first = one.ptr(), *const second = two.ptr();
  a().free(one);
  const Buffer four = a().malloc(2_MiB, side);
  EXPECT_NE(four.ptr(), first) << "no order between the two streams is known";
  // Used on the other stream of the capture, which no event can tell of yet.
  a().record_use(two, s);
  a().free(two);
  const Buffer five = a().malloc(2_MiB, side);
  EXPECT_NE(five.ptr(), second);
  EXPECT_EQ(a().pool_bytes(pool) % 2_MiB, 0U);
  std::size_t segments = 0;
  for (const MemorySegment& segment : a().map()) {
    std::uintptr_t next = segment.address;
    for (const MemoryRange& range : segment.ranges) {
      EXPECT_EQ(range.address, next);
      next += range.bytes;
    }
    EXPECT_EQ(next, segment.address + segment.bytes);
    segments += segment.capture_pool == pool ? 1 : 0;
  }
  EXPECT_EQ(segments, 2U);
  destroy(end(s));
  a().end_pool(pool);
  for (const Buffer& b : {three, four, five}) a().free(b);
  EXPECT_THROW(four.raw_ptr(), invalid_argument);
  a().release_pool(pool);
}

TEST_F(CapturePools, GraphMemoryDoesNotMoveToTheHost) {
  const Stream s = stream(1);
  const std::uint64_t pool = a().make_pool();
  a().begin_pool(pool, s);
  const Buffer b = a().malloc(1_MiB, s), small = a().malloc(100, s);
  a().end_pool(pool);
  for (const Buffer& fixed : {b, small}) {
    const void* const before = fixed.ptr();
    try {
      a().host_pointer(fixed);
      ADD_FAILURE() << "moved";
    } catch (const invalid_argument& e) {
      EXPECT_NE(std::string(e.what()).find("graph memory"), std::string::npos) << e.what();
    }
    EXPECT_EQ(fixed.ptr(), before);
  }
  a().release_pool(pool);
  EXPECT_NE(a().host_pointer(b), nullptr) << "ordinary memory now";
  a().free(b);
  a().free(small);
}

TEST_F(CapturePools, PoolsTakeNoNumberOfThreadCaches) {
  const Stream s = stream(1);
  std::vector<std::uint64_t> pools;
  for (std::size_t i = 0; i < kInlineHeaps; ++i) {
    pools.push_back(a().make_pool());
    a().begin_pool(pools.back(), s);
    a().free(a().malloc(1_MiB, s));
    a().end_pool(pools.back());
  }
  EXPECT_LT(a().central().streams().at(stream(2).slot())->number.load(), kInlineHeaps)
      << "a stream keeps the short way";
  for (const std::uint64_t pool : pools) a().release_pool(pool);
}

TEST_F(CapturePools, MisuseIsNamed) {
  const Stream s = stream(1);
  const std::uint64_t pool = a().make_pool();
  EXPECT_THROW(a().end_pool(pool), invalid_argument);
  a().begin_pool(pool, s);
  EXPECT_THROW(a().begin_pool(pool, s), invalid_argument);
  EXPECT_THROW(a().release_pool(pool), invalid_argument);
  a().end_pool(pool);
  EXPECT_THROW(a().begin_pool(pool, CaptureFilter{}), invalid_argument);
  a().release_pool(pool);
  EXPECT_THROW(a().release_pool(pool), invalid_argument);
  EXPECT_THROW(a().begin_pool(pool, s), invalid_argument);
  EXPECT_THROW(a().end_pool(pool + 100), invalid_argument);
  EXPECT_THROW(make_capture_pool(Device::cpu()), invalid_argument);
  const DeviceAllocator ordered(Device::cuda(0), make({.mode = CudaMode::stream_ordered}));
  EXPECT_THROW(const_cast<DeviceAllocator&>(ordered).make_pool(), invalid_argument);
}

TEST_F(CapturePools, AnAllocatorMayGoWithOpenPools) {
  const Stream s = stream(1);
  a().begin_pool(a().make_pool(), s);
  EXPECT_TRUE(a().malloc(5_MiB, s).live());
  const std::uint64_t closed = a().make_pool();
  a().begin_pool(closed, stream(2));
  EXPECT_TRUE(a().malloc(500, stream(2)).live());
  a().end_pool(closed);
}

TEST_F(CapturePools, EveryFailingCallLeavesThePoolSound) {
  for (std::uint64_t n = 1; n < 400; ++n) {
    start({}, {{"LAG_US", "0"}});
    const Stream s = stream(1);
    const std::uint64_t pool = a().make_pool();
    const std::uint64_t injected = control().injected();
    control().fail("*", n, cuda::kOutOfMemory, 1);
    try {
      a().begin_pool(pool, s);
      const Buffer b = a().malloc(5_MiB, s);
      a().free(a().malloc(300, s));
      a().free(b);
      a().end_pool(pool);
      a().release_pool(pool);
    } catch (const std::exception&) {
      // Said so; the rest is checked below.
    }
    const bool reached = control().injected() != injected;
    control().fail("*", 0, 0, 0);
    expect_sound(a());
    a().clear_cache();
    if (!reached) return;
  }
  ADD_FAILURE() << "never came to the end";
}

TEST(CapturePoolsOnTheModel, RandomSequencesBreakNoRule) {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    drivers::ModelConfig config;
    config.manual = true;
    config.total_memory = 512_MiB;
    Model m(config);
    std::mt19937_64 random(seed);
    std::vector<Stream> streams;
    for (std::uintptr_t i = 0; i < 3; ++i) streams.push_back(m.stream(i));
    struct Live {
      Buffer buffer;
      std::size_t home;
    };
    std::vector<Live> live;
    std::vector<std::uint64_t> pools;
    std::uint64_t open = 0;
    for (int step = 0; step < 4000; ++step) {
      const std::uint64_t what = random() % 100;
      if (what < 50 && live.size() < 80) {
        const std::size_t home = random() % streams.size();
        const std::size_t bytes = 1 + random() % (std::size_t{1} << (8 + random() % 15));
        try {
          live.push_back({m->malloc(bytes, streams[home]), home});
          m.driver->touch(streams[home].native(), reinterpret_cast<std::uintptr_t>(live.back().buffer.ptr()),
                          live.back().buffer.size());
        } catch (const out_of_memory&) {
          m.driver->complete_all();
        }
      } else if (what < 92 && !live.empty()) {
        std::swap(live[random() % live.size()], live.back());
        m->free(live.back().buffer);
        live.pop_back();
      } else if (what < 94 && open == 0) {
        if (pools.empty() || random() % 2 == 0) pools.push_back(m->make_pool());
        open = pools[random() % pools.size()];
        m->begin_pool(open, streams[random() % streams.size()]);
      } else if (what < 97 && open != 0) {
        m->end_pool(std::exchange(open, 0));
      } else if (what < 98 && open == 0 && !pools.empty()) {
        m->release_pool(pools.back());
        pools.pop_back();
      } else if (what == 98) {
        m->clear_cache();
      } else {
        m.driver->complete(streams[random() % 3].native());
      }
      if (step % 20 == 0) expect_sound(*m);
    }
    if (open != 0) m->end_pool(open);
    for (const Live& l : live) m->free(l.buffer);
    for (const std::uint64_t pool : pools) m->release_pool(pool);
    m.driver->complete_all();
    m->clear_cache();
    m->flush_thread_caches();
    m->clear_cache();
    EXPECT_EQ(m->stats().reserved, 0U);
    expect_sound(*m);
  }
}

}  // namespace
}  // namespace cistern::allocation
