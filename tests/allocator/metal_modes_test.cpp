// Every way in which the allocator can stand on a Metal device: random work with checked content, a failure of every
// call in turn, views, limits. What only one of the ways has is in metal_test.cpp.
#include <sys/mman.h>

#include <cstring>
#include <random>
#include <thread>

#include "allocator/metal_fixture.hpp"
#include "cistern/error.hpp"

namespace cistern::allocation {
namespace {

struct Mode {
  std::string name;
  MetalConfig config;
  std::map<std::string, std::string> settings;
};

std::vector<Mode> modes() {
  MetalConfig offsets, tracked, private_storage, whole, few;
  offsets.block_objects = false;
  tracked.tracked_hazards = true;
  private_storage.storage = MetalStorage::private_;
  whole.memory = MetalMemory::whole_buffers;
  few.max_objects = 200;
  return {
      {"plain", {}, {}},
      {"small_pages", {}, {{"PAGE", "4096"}}},
      {"large_alignment", {}, {{"ALIGN", "1024"}, {"LARGE_ALIGN", "65536"}}},
      {"huge_alignment", {}, {{"LARGE_ALIGN", "2097152"}}},
      {"offsets", offsets, {}},
      {"offsets_small_pages", offsets, {{"PAGE", "4096"}}},
      {"tracked", tracked, {}},
      {"few_objects", few, {}},
      {"private_storage", private_storage, {}},
      {"discrete", {}, {{"WITHOUT", "unified shared_heaps"}, {"PAGE", "4096"}}},
      {"discrete_offsets", offsets, {{"WITHOUT", "unified shared_heaps residency"}, {"PAGE", "4096"}}},
      {"whole_buffers", whole, {}},
      {"virtual_machine", {}, {{"NAME", "Apple Paravirtual device"}, {"WITHOUT", "heaps"}}},
      {"old_system", {}, {{"WITHOUT", "placement residency shared_wait no_copy"}}},
  };
}

class MetalModes : public MetalAllocator, public ::testing::WithParamInterface<Mode> {
 protected:
  void start_mode(std::map<std::string, std::string> more = {}) {
    more.insert(GetParam().settings.begin(), GetParam().settings.end());
    start(GetParam().config, more);
    if (driver().capabilities().residency) allocator().set_wired_limit(256_MiB);
  }
};

std::string name_of(const ::testing::TestParamInfo<Mode>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(Ways, MetalModes, ::testing::ValuesIn(modes()), name_of);

// Each buffer is written by the device and must still have its pattern when it is freed, whatever was done in between.
TEST_P(MetalModes, RandomWorkKeepsEveryByte) {
  for (const unsigned seed : {1u, 2u}) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    start_mode({{"LAG_US", "50"}});
    std::mt19937 random(seed);
    const auto pick = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
    struct Live {
      Buffer buffer;
      std::size_t bytes;
      int queue;
      std::uint64_t pattern;
    };
    std::vector<Live> live;
    for (std::uint64_t step = 0; step < 250; ++step) {
      if (live.size() < 40 && pick(100) < 60) {
        const std::size_t bytes = (4 + pick(std::size_t{1} << (4 + pick(17)))) / 4 * 4;
        const int queue = static_cast<int>(1 + pick(2));
        const Buffer b = malloc(bytes, queue);
        ASSERT_GE(b.size(), bytes);
        ASSERT_EQ(control().launch_fill(library().queue(queue), b.ptr(), b.offset(), bytes, step, 0), 0);
        live.push_back({b, bytes, queue, step});
      } else if (!live.empty()) {
        const std::size_t i = pick(live.size());
        const Live gone = live[i];
        // A look of the host moves private memory; the pattern goes with it.
        if (pick(4) == 0) {
          EXPECT_NE(gone.buffer.raw_ptr(), nullptr);
        }
        ASSERT_EQ(control().launch_check(library().queue(gone.queue), gone.buffer.ptr(), gone.buffer.offset(),
                                         gone.bytes, gone.pattern, 0),
                  0);
        // What raw_ptr() moved is host memory, on which no work may be pending when it is freed.
        control().complete(library().queue(gone.queue));
        allocator().free(gone.buffer);
        live[i] = live.back();
        live.pop_back();
      }
      if (pick(40) == 0) allocator().before_submit();
      if (pick(100) == 0) allocator().clear_cache();
      if (step % 25 == 0) expect_sound(allocator());
    }
    for (const Live& each : live) allocator().free(each.buffer);
    control().complete_all();
    EXPECT_EQ(control().mismatches(), 0u);
    allocator().clear_cache();
    EXPECT_EQ(allocator().stats().active, 0u);
    EXPECT_EQ(allocator().stats().reserved, 0u);
    EXPECT_EQ(control().allocated_bytes(), 0u);
    EXPECT_EQ(control().resident_bytes(), 0u);
    EXPECT_EQ(allocator().stats().objects, 0u);
  }
}

// The nth call that can return nil does so, for every n: what fails says so, the rest goes on, nothing is lost.
TEST_P(MetalModes, EveryNilIsSurvived) {
  void* const mapped = mmap(nullptr, 256_KiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  auto* const page = reinterpret_cast<char*>((reinterpret_cast<std::uintptr_t>(mapped) + 16383) / 16384 * 16384);
  std::uint64_t n = 1;
  for (; n < 1000; ++n) {
    SCOPED_TRACE("call " + std::to_string(n));
    start_mode({{"LAG_US", "0"}});
    control().fail("*", n, 1);
    std::vector<Buffer> all;
    for (std::size_t i = 0; i < 10; ++i) {
      try {
        all.push_back(malloc(i % 3 == 0 ? 3_MiB : 1000 * (i + 1), 1 + static_cast<int>(i % 2)));
      } catch (const out_of_memory&) {
      } catch (const invalid_argument&) {  // A queue that the driver could not take in.
      }
      try {
        if (i % 5 == 2 && !all.empty()) {
          EXPECT_NE(all.back().raw_ptr(), nullptr);
        }
      } catch (const out_of_memory&) {
      } catch (const driver_error&) {  // The copy could not be submitted.
      }
      if (i % 4 == 3 && !all.empty()) {
        allocator().free(all.back());
        all.pop_back();
      }
    }
    const Buffer view = allocator().make_buffer(page, 20000);
    allocator().before_submit();
    allocator().clear_cache();
    if (view) allocator().release(view);
    for (const Buffer& b : all) allocator().free(b);
    expect_sound(allocator());
    EXPECT_EQ(allocator().stats().active, 0u);
    // Usable afterwards.
    const std::uint64_t injected = control().injected();
    control().fail("*", 0, 0);
    allocator().free(malloc(2_MiB));
    allocator().clear_cache();
    EXPECT_EQ(allocator().stats().reserved, 0u);
    EXPECT_EQ(control().allocated_bytes(), 0u);
    ASSERT_EQ(library().violations(), std::vector<std::string>{});
    if (injected == 0) break;
  }
  EXPECT_GT(n, 10u);
  EXPECT_LT(n, 1000u);
  munmap(mapped, 256_KiB);
}

TEST_P(MetalModes, ViewsEndWhereTheyBegan) {
  start_mode();
  void* const mapped = mmap(nullptr, 1_MiB, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  auto* const page = reinterpret_cast<char*>((reinterpret_cast<std::uintptr_t>(mapped) + 16383) / 16384 * 16384);
  const bool possible = static_cast<bool>(allocator().make_buffer(page, 100000)) || GetParam().name != "old_system";
  if (!possible) {
    EXPECT_EQ(allocator().stats().active, 0u) << "null where the system cannot, and no trace of it";
    EXPECT_EQ(allocator().stats().objects, 0u);
    munmap(mapped, 1_MiB);
    return;
  }
  const Stats before = allocator().stats();
  const std::size_t device_bytes = control().allocated_bytes(), live = library().leaks().size();
  for (int i = 0; i < 1000; ++i) {
    const Buffer view = allocator().make_buffer(page, 100000);
    ASSERT_TRUE(view);
    EXPECT_EQ(view.raw_ptr(), page);
    EXPECT_EQ(view.size(), 100000u);
    EXPECT_EQ(view.offset(), 0u);
    EXPECT_EQ(contents(view), page);
    allocator().release(view);
  }
  const Stats after = allocator().stats();
  EXPECT_EQ(after.active, before.active);
  EXPECT_EQ(after.views, before.views);
  EXPECT_EQ(after.objects, before.objects);
  EXPECT_EQ(after.reserved, before.reserved);
  EXPECT_EQ(after.cached, before.cached) << "a view is never cached";
  EXPECT_EQ(control().allocated_bytes(), device_bytes);
  EXPECT_EQ(library().leaks().size(), live);
  EXPECT_FALSE(allocator().make_buffer(page + 100, 1000)) << "not a page";
  munmap(mapped, 1_MiB);
}

// Threads that come and go: each has its pool, and the limit holds at every instant.
TEST_P(MetalModes, ThreadsWorkWithinTheLimit) {
  start_mode({{"LAG_US", "20"}});
  allocator().set_memory_limit(96_MiB);
  for (int i = 1; i <= 3; ++i) queue(i);
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<unsigned>(t));
      std::vector<Buffer> mine;
      for (int i = 0; i < 150; ++i) {
        try {
          mine.push_back(allocator().malloc(1 + random() % 4000000, queue(t + 1)));
        } catch (const out_of_memory&) {
        }
        EXPECT_LE(allocator().stats().reserved, 96_MiB);
        if (mine.size() > 6) {
          allocator().free(mine.front());
          mine.erase(mine.begin());
        }
      }
      for (const Buffer& b : mine) allocator().free(b);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(allocator().stats().peak_reserved, 96_MiB);
  EXPECT_EQ(allocator().stats().active, 0u);
}

TEST_P(MetalModes, EmptyBuffersAndAbsurdSizes) {
  start_mode();
  const Buffer empty = malloc(0);
  EXPECT_TRUE(empty);
  EXPECT_EQ(empty.size(), 0u);
  EXPECT_EQ(allocator().stats().active, 0u);
  allocator().free(empty);
  allocator().free(Buffer());
  EXPECT_THROW(allocator().free(empty), invalid_argument);
  for (const std::size_t bytes : {SIZE_MAX, SIZE_MAX - 4095, SIZE_MAX / 2, std::size_t{1} << 62, 33000_MiB}) {
    EXPECT_THROW(malloc(bytes), std::exception) << bytes;
  }
  EXPECT_EQ(allocator().stats().active, 0u);
  allocator().free(malloc(1));
}

}  // namespace
}  // namespace cistern::allocation
