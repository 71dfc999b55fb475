// The allocator over the Metal driver and the stand-in: objects kept with blocks, residency in batches, caps, GPU
// progress, whole buffers, private storage.
#include <sys/mman.h>

#include <cstring>
#include <thread>

#include "allocator/metal_fixture.hpp"
#include "cistern/error.hpp"

namespace cistern::allocation {
namespace {

TEST_F(MetalAllocator, PtrIsTheObjectAndRawPtrItsContents) {
  start();
  for (const std::size_t bytes : {std::size_t{257}, std::size_t{5000}, 100_KiB, 3_MiB, 40_MiB}) {
    const Buffer b = malloc(bytes);
    EXPECT_EQ(b.offset(), 0u) << bytes;
    EXPECT_EQ(b.raw_ptr(), contents(b)) << bytes;
    std::memset(b.raw_ptr(), 1, bytes);
    allocator().free(b);
  }
  // The smallest share their segment's buffer: no object is made for any of them.
  const Buffer first = malloc(16);
  const std::uint64_t before = figures().objects_made;
  std::vector<Buffer> small;
  for (int i = 0; i < 200; ++i) small.push_back(malloc(100));
  EXPECT_LE(figures().objects_made, before + 1) << "a segment at most";
  for (const Buffer& b : small) {
    EXPECT_EQ(static_cast<char*>(contents(b)) + b.offset(), b.raw_ptr());
    std::memset(b.raw_ptr(), 2, 100);
    allocator().free(b);
  }
  allocator().free(first);
}

TEST_F(MetalAllocator, OffsetsInsteadOfObjects) {
  MetalConfig config;
  config.block_objects = false;
  start(config);
  const Buffer a = malloc(1_MiB), b = malloc(1_MiB), c = malloc(100);
  for (const Buffer& buffer : {a, b, c}) {
    EXPECT_EQ(static_cast<char*>(contents(buffer)) + buffer.offset(), buffer.raw_ptr());
  }
  EXPECT_EQ(figures().objects, allocator().stats().handles);
  for (const Buffer& buffer : {a, b, c}) allocator().free(buffer);
}

TEST_F(MetalAllocator, ReuseOfABlockMakesNoObject) {
  start();
  Buffer b = malloc(8_MiB);
  void* const object = b.ptr();
  allocator().free(b);
  const std::uint64_t made = figures().objects_made, calls = driver().calls();
  for (int i = 0; i < 100; ++i) {
    b = malloc(8_MiB);
    EXPECT_EQ(b.ptr(), object);
    allocator().free(b);
  }
  EXPECT_EQ(figures().objects_made, made);
  EXPECT_EQ(driver().calls(), calls);
}

TEST_F(MetalAllocator, SplitsAndMergesDropObjectsAfterTheWorkIsDone) {
  FrontConfig front;
  front.idle_objects = 0;
  start({}, {{"MANUAL", "1"}}, front);
  const Buffer whole = malloc(8_MiB);
  control().launch_fill(library().queue(1), whole.ptr(), 0, 8_MiB, 1, 0);  // The command buffer does not retain it.
  allocator().free(whole);
  // Other blocks in the same place; the old object must live until the work is done.
  std::vector<Buffer> parts;
  for (int i = 0; i < 4; ++i) parts.push_back(malloc(2_MiB));
  for (const Buffer& part : parts) allocator().free(part);
  const Buffer other = malloc(7_MiB);
  const std::size_t before = figures().objects;
  EXPECT_GE(before, 6u) << "none of the five is gone while work is pending";
  control().complete_all();
  allocator().free(other);
  const Buffer last = malloc(6_MiB);
  EXPECT_LT(figures().objects, before);
  control().complete_all();
  allocator().free(last);
}

// A loop of hundreds of sizes in irregular order: few objects are made, and fewer as time goes on.
TEST_F(MetalAllocator, AnIrregularLoopMakesFewObjects) {
  start();
  constexpr std::size_t kBuffers = 1750;
  const auto token = [&] {
    std::vector<Buffer> live;
    for (std::size_t i = 0; i < kBuffers; ++i) {
      live.push_back(malloc(100 + (i * 7919) % 60000 + (i % 50 == 0 ? 2_MiB + i * 512 : 0)));
      if (i % 3 == 2) {
        allocator().free(live[live.size() - 3]);
        live.erase(live.end() - 3);
      }
      if (live.size() > 300) {
        for (std::size_t k = 0; k < 150; ++k) allocator().free(live[k]);
        live.erase(live.begin(), live.begin() + 150);
      }
    }
    for (const Buffer& b : live) allocator().free(b);
  };
  for (int i = 0; i < 10; ++i) token();
  const std::uint64_t made = figures().objects_made;
  for (int i = 0; i < 10; ++i) token();
  EXPECT_LE(figures().objects_made - made, 10 * kBuffers / 8);
}

TEST_F(MetalAllocator, TheCapOnObjectsEvictsFirstAndThenThrows) {
  MetalConfig config;
  config.max_objects = 40;
  start(config);
  // Idle objects and those in caches give way.
  for (int round = 0; round < 5; ++round) {
    std::vector<Buffer> all;
    for (std::size_t i = 0; i < 20; ++i)
      all.push_back(malloc(20_KiB + 4096 * (i + static_cast<std::size_t>(round) * 31)));
    EXPECT_LE(allocator().stats().objects, 40u);
    for (const Buffer& b : all) allocator().free(b);
  }
  std::vector<Buffer> all;
  std::string text;
  try {
    for (int i = 0; i < 100; ++i) all.push_back(malloc(64_KiB));
  } catch (const out_of_memory& error) {
    text = error.what();
  }
  EXPECT_GE(all.size(), 16u);
  EXPECT_LE(allocator().stats().objects, 40u);
  EXPECT_NE(text.find("Resource limit (40) exceeded"), std::string::npos) << text;
  const std::size_t active = allocator().stats().active;
  EXPECT_EQ(active, all.size() * 64_KiB) << "the failure changed nothing";
  for (const Buffer& b : all) allocator().free(b);
  allocator().free(malloc(1_MiB));
}

TEST_F(MetalAllocator, OversizeIsRefusedWithTheFiguresUnchanged) {
  start({}, {{"MAX_BUFFER", "67108864"}});
  const Buffer b = malloc(1_MiB);
  const Stats before = allocator().stats();
  EXPECT_THROW(malloc(65_MiB), out_of_memory);
  EXPECT_THROW(malloc(SIZE_MAX), invalid_argument);
  const Stats after = allocator().stats();
  EXPECT_EQ(after.active, before.active);
  EXPECT_EQ(after.peak_active, before.peak_active);
  EXPECT_EQ(after.live_buffers, before.live_buffers);
  allocator().free(b);
}

TEST_F(MetalAllocator, TheDefaultLimitsAreThoseOfTheDevice) {
  start({}, {{"MEMORY", "34359738368"}, {"WORKING_SET", "22906492245"}});
  const Stats s = allocator().stats();
  EXPECT_EQ(s.memory_limit, std::size_t{34359738368} / 100 * 95);
  EXPECT_EQ(s.cache_limit, s.memory_limit);
  EXPECT_EQ(s.wired_limit, 0u);
  start({}, {{"MEMORY", "68719476736"}, {"WORKING_SET", "8589934592"}});
  EXPECT_EQ(allocator().stats().memory_limit, std::size_t{8589934592} / 2 * 3);
}

TEST_F(MetalAllocator, ThreadsDoNotOvershootTheLimit) {
  start();
  allocator().set_memory_limit(64_MiB);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (std::size_t i = 0; i < 200; ++i) {
        try {
          const Buffer b = allocator().malloc(3_MiB + i * 4096);
          EXPECT_LE(allocator().stats().reserved, 64_MiB);
          allocator().free(b);
        } catch (const out_of_memory&) {
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(allocator().stats().peak_reserved, 64_MiB);
}

TEST_F(MetalAllocator, AnotherQueueWaitsForTheMemoryOfOne) {
  start({}, {{"MANUAL", "1"}});
  allocator().set_memory_limit(16_MiB);
  const Buffer first = malloc(12_MiB, 1);
  control().launch_fill(library().queue(1), first.ptr(), 0, 12_MiB, 5, 1);
  control().launch_check(library().queue(1), first.ptr(), 0, 12_MiB, 5, 1);
  allocator().free(first);
  const Buffer second = malloc(12_MiB, 2);
  control().launch_fill(library().queue(2), second.ptr(), 0, 12_MiB, 9, 1);
  control().complete(library().queue(2));
  control().complete_all();
  EXPECT_EQ(control().mismatches(), 0u);
  allocator().free(second);
}

TEST_F(MetalAllocator, AFreeSegmentGoesToAnotherQueueWithItsObject) {
  start({}, {{"MANUAL", "1"}});
  const Buffer first = malloc(12_MiB, 1);
  void* const object = first.ptr();
  control().launch_fill(library().queue(1), object, 0, 12_MiB, 5, 0);
  control().launch_check(library().queue(1), object, 0, 12_MiB, 5, 0);
  allocator().free(first);
  queue(2);
  const Stats before = allocator().stats();
  const Buffer second = malloc(12_MiB, 2);
  EXPECT_EQ(second.ptr(), object);
  const Stats after = allocator().stats();
  EXPECT_EQ(after.handles_created, before.handles_created);
  EXPECT_EQ(after.reserved, before.reserved);
  EXPECT_EQ(after.objects, before.objects);
  EXPECT_EQ(after.host_waits, before.host_waits) << "the second queue waits, not the host";
  control().launch_fill(library().queue(2), object, 0, 12_MiB, 9, 0);
  control().complete(library().queue(2));
  EXPECT_GT(control().pending(), 2u) << "the first queue has not been there";
  control().complete_all();
  EXPECT_EQ(control().mismatches(), 0u);
  allocator().free(second);
}

TEST_F(MetalAllocator, ClearCacheDuringRunningWorkIsSafe) {
  start({}, {{"LAG_US", "2000"}});
  for (int i = 0; i < 10; ++i) {
    const Buffer b = malloc(8_MiB);
    control().launch_fill(library().queue(1), b.ptr(), 0, 8_MiB, 3, 0);
    control().launch_check(library().queue(1), b.ptr(), 0, 8_MiB, 3, 0);
    allocator().free(b);
    allocator().clear_cache();
  }
  EXPECT_EQ(control().mismatches(), 0u);
  EXPECT_EQ(allocator().stats().reserved, 0u);
}

TEST_F(MetalAllocator, ANilOfTheDriverIsRetriedAfterAFlush) {
  start({}, {{"MEMORY", "268435456"}, {"MAX_BUFFER", "268435456"}});
  allocator().set_memory_limit(SIZE_MAX);
  const Buffer a = malloc(150_MiB), b = malloc(30_MiB);
  allocator().free(a);
  const Buffer c = malloc(200_MiB);  // Only without the first segment.
  control().fail("newHeapWithDescriptor:", 1, 1);
  const Buffer d = malloc(20_MiB);
  EXPECT_EQ(control().injected(), 1u);
  EXPECT_THROW(malloc(100_MiB), out_of_memory);
  for (const Buffer& buffer : {b, c, d}) allocator().free(buffer);
}

TEST_F(MetalAllocator, EveryNilIsSurvivedAndNothingIsLost) {
  for (std::uint64_t n = 1; n < 300; ++n) {
    start({}, {{"LAG_US", "0"}});
    control().fail("*", n, 1);
    std::vector<Buffer> all;
    for (std::size_t i = 0; i < 12; ++i) {
      try {
        all.push_back(malloc(i % 3 == 0 ? 3_MiB : 1000 * (i + 1), 1 + static_cast<int>(i % 2)));
      } catch (const out_of_memory&) {
      } catch (const invalid_argument&) {  // A queue that the driver could not take in.
      }
      if (i % 4 == 3 && !all.empty()) {
        allocator().free(all.back());
        all.pop_back();
      }
    }
    allocator().before_submit();
    for (const Buffer& b : all) allocator().free(b);
    allocator().clear_cache();
    expect_sound(allocator());
    EXPECT_EQ(allocator().stats().active, 0u);
    if (control().injected() == 0) {
      EXPECT_GT(n, 10u);
      break;
    }
  }
}

// --- Residency ------------------------------------------------------------------------------------------------------

TEST_F(MetalAllocator, CachedMemoryDoesNotTakeTheWiredBudgetFromLiveMemory) {
  start();
  allocator().set_wired_limit(64_MiB);
  const Buffer old = malloc(60_MiB, 1);
  allocator().before_submit();
  EXPECT_GE(control().resident_bytes(), 60_MiB);
  allocator().free(old);
  const Buffer fresh = malloc(64_MiB, 1);
  allocator().before_submit();
  EXPECT_EQ(figures().wired, 64_MiB);
  EXPECT_EQ(control().resident_bytes(), 64_MiB);
  allocator().free(fresh);
}

TEST_F(MetalAllocator, WithoutBatchesEveryChangeIsMadeReal) {
  start();
  allocator().set_wired_limit(1024_MiB);
  const Buffer a = malloc(20_MiB);
  EXPECT_EQ(control().resident_bytes(), figures().wired);
  EXPECT_GE(control().resident_bytes(), 20_MiB);
  allocator().free(a);
  EXPECT_THROW(allocator().set_wired_limit(SIZE_MAX), invalid_argument);
  EXPECT_EQ(allocator().stats().wired_limit, 1024_MiB);
  allocator().clear_cache();
  EXPECT_EQ(control().resident_bytes(), 0u);
  EXPECT_EQ(control().allocated_bytes(), 0u);
}

// --- Other kinds of devices -----------------------------------------------------------------------------------------

TEST_F(MetalAllocator, WholeBuffersWhereHeapsDoNotWork) {
  start({}, {{"NAME", "Apple Paravirtual device"}, {"LAG_US", "0"}});
  const Buffer a = malloc(5000);
  EXPECT_EQ(a.raw_ptr(), contents(a));
  EXPECT_EQ(a.offset(), 0u);
  void* const object = a.ptr();
  allocator().free(a);
  control().complete_all();
  const Buffer b = malloc(5000);
  EXPECT_EQ(b.ptr(), object) << "kept and used again";
  allocator().free(b);
  EXPECT_GT(allocator().stats().cached, 0u);
  allocator().clear_cache();
  EXPECT_EQ(allocator().stats().reserved, 0u);
}

TEST_F(MetalAllocator, WholeBuffersWaitForTheirWork) {
  start({}, {{"NAME", "Apple Paravirtual device"}, {"MANUAL", "1"}});
  const Buffer a = malloc(1_MiB, 1);
  control().launch_fill(library().queue(1), a.ptr(), 0, 1_MiB, 1, 1);
  void* const object = a.ptr();
  allocator().free(a);
  const Buffer b = malloc(1_MiB, 2);
  EXPECT_NE(b.ptr(), object) << "still in use by the first queue";
  control().complete_all();
  const Buffer c = malloc(1_MiB, 2);
  EXPECT_EQ(c.ptr(), object);
  allocator().free(b);
  allocator().free(c);
  control().complete_all();
}

TEST_F(MetalAllocator, PrivateStorageIsStagedForTheHost) {
  MetalConfig config;
  config.storage = MetalStorage::private_;
  start(config);
  for (const std::size_t bytes : {std::size_t{200}, std::size_t{3000}, 2_MiB}) {
    const Buffer b = malloc(bytes);
    const Buffer other = malloc(bytes);
    control().launch_fill(library().queue(1), b.ptr(), b.offset(), bytes / 4 * 4, 77, 1);
    void* const object = b.ptr();
    void* const host = b.raw_ptr();
    EXPECT_NE(b.ptr(), object) << "the memory moved";
    EXPECT_EQ(contents(b), host);
    EXPECT_EQ(b.offset(), 0u);
    control().launch_check(library().queue(1), b.ptr(), 0, bytes / 4 * 4, 77, 1);
    control().complete_all();
    EXPECT_EQ(control().mismatches(), 0u) << bytes;
    EXPECT_EQ(b.raw_ptr(), host);
    allocator().free(b);
    allocator().free(other);
    expect_sound(allocator());
  }
}

TEST_F(MetalAllocator, ViewsEndWhereTheyBegan) {
  start();
  void* const mapped = mmap(nullptr, 1_MiB, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  auto* const page = reinterpret_cast<char*>((reinterpret_cast<std::uintptr_t>(mapped) + 16383) / 16384 * 16384);
  const Stats before = allocator().stats();
  for (int i = 0; i < 1000; ++i) {
    const Buffer view = allocator().make_buffer(page, 100000);
    ASSERT_TRUE(view);
    EXPECT_EQ(view.raw_ptr(), page);
    EXPECT_EQ(contents(view), page);
    EXPECT_EQ(view.size(), 100000u);
    allocator().release(view);
  }
  const Stats after = allocator().stats();
  EXPECT_EQ(after.active, before.active);
  EXPECT_EQ(after.objects, before.objects);
  EXPECT_EQ(after.reserved, before.reserved);
  EXPECT_FALSE(allocator().make_buffer(page + 100, 1000)) << "not a page";
  munmap(mapped, 1_MiB);
}

}  // namespace
}  // namespace cistern::allocation
