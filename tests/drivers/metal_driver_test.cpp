// The Metal driver over the stand-in: what the conformance suite does not ask.
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "drivers/metal_support.hpp"

namespace cistern::drivers {
namespace {

TEST_F(MetalTest, ASharedHeapIsASegmentAndItsContentsAreTheAddress) {
  start();
  const Capabilities& c = driver().capabilities();
  EXPECT_TRUE(c.host_accessible && c.block_objects && c.asynchronous && c.residency && c.unified_memory);
  EXPECT_FALSE(c.virtual_memory || c.whole_buffers || c.sparse_buffers);
  EXPECT_EQ(c.alignment, 256u);
  EXPECT_EQ(c.max_objects, 499000u);
  EXPECT_EQ(c.page_size, 16384u);
  const Segment s = segment(4 * kMiB);
  void* const block = object(s, kMiB, 1000);
  {
    const objc::AutoreleasePool pool;
    auto* const bytes = static_cast<char*>(metal::contents(static_cast<metal::Buffer*>(block)));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(bytes), s.base + kMiB);
    std::memset(bytes, 1, 1000);
  }
  EXPECT_EQ(driver().destroy_segment(s), Status::failed) << "an object stands over it";
  driver().destroy_object(block);
  drop(s);
}

TEST_F(MetalTest, PagesOf4KiBGiveTheSameAlignmentOfSegments) {
  start({}, {{"PAGE", "4096"}});
  for (int i = 0; i < 4; ++i) {
    const Segment s = segment(kMiB);
    EXPECT_EQ(s.base % 16384, 0u);
    void* const block = object(s, kMiB - 256, 256);
    const objc::AutoreleasePool pool;
    const auto at = [](void* of) {
      return reinterpret_cast<std::uintptr_t>(metal::contents(static_cast<metal::Buffer*>(of)));
    };
    EXPECT_EQ(at(block), s.base + kMiB - 256);
    EXPECT_EQ(at(s.object), s.base) << "offsets count from the segment's start";
    EXPECT_EQ(driver().fill(s.base + 512, 9, 256, nullptr), Status::ok);
    EXPECT_EQ(driver().synchronize_device(), Status::ok);
    EXPECT_EQ(reinterpret_cast<const unsigned char*>(s.base)[511], 0);
    EXPECT_EQ(reinterpret_cast<const unsigned char*>(s.base)[512], 9);
    driver().destroy_object(block);
    drop(s);
  }
}

TEST_F(MetalTest, LayoutsAreWhatTheDeviceAsks) {
  start({}, {{"ALIGN", "1024"}, {"LARGE_ALIGN", "65536"}});
  EXPECT_EQ(driver().capabilities().alignment, 1024u);
  const std::uint64_t before = messages("*");
  std::size_t size = 0, alignment = 0;
  driver().block_layout(1, size, alignment);
  EXPECT_EQ(size, 1024u);
  driver().block_layout(500000, size, alignment);
  EXPECT_EQ(alignment, 1024u);
  driver().block_layout(3 * kMiB + 1, size, alignment);
  EXPECT_EQ(alignment, 65536u);
  EXPECT_EQ(size, 3 * kMiB + 65536);
  EXPECT_EQ(messages("*"), before) << "no message in the steady state";
  const Segment s = segment(8 * kMiB);
  driver().destroy_object(object(s, 65536, size));
  drop(s);
}

TEST_F(MetalTest, BothHazardModesMatchTheirHeaps) {
  for (const bool tracked : {false, true}) {
    MetalConfig config;
    config.tracked_hazards = tracked;
    start(config);
    const Segment s = segment(kMiB);
    driver().destroy_object(object(s, 0, 4096));
    drop(s);
  }
}

TEST_F(MetalTest, PrivateStorageHasAddressesOfItsOwnAndIsCopied) {
  MetalConfig config;
  config.storage = MetalStorage::private_;
  start(config);
  EXPECT_FALSE(driver().capabilities().host_accessible);
  EXPECT_TRUE(driver().capabilities().can_copy);
  const Segment a = segment(kMiB), b = segment(kMiB);
  EXPECT_NE(a.base, b.base);
  EXPECT_GE(a.base, Address{1} << 47);
  void* staging = nullptr;
  ASSERT_EQ(driver().allocate_host(HostKind::unified, 4096, staging), Status::ok);
  std::memset(staging, 7, 4096);
  const auto at = static_cast<Address>(reinterpret_cast<std::uintptr_t>(staging));
  EXPECT_EQ(driver().copy(b.base + 512, at, 4096, nullptr), Status::ok);
  EXPECT_EQ(driver().copy(at, b.base + 512 + 1024, 1024, nullptr), Status::ok);
  EXPECT_EQ(driver().fill(b.base, 3, 1024, nullptr), Status::ok);
  EXPECT_EQ(driver().copy(at + 1024, b.base, 512, nullptr), Status::ok);
  EXPECT_EQ(driver().synchronize_device(), Status::ok);
  const auto* const bytes = static_cast<const std::uint8_t*>(staging);
  EXPECT_EQ(bytes[0], 7);
  EXPECT_EQ(bytes[1024], 3);
  EXPECT_NE(driver().host_object(staging), nullptr);
  EXPECT_EQ(driver().free_host(HostKind::unified, staging, 4096), Status::ok);
  drop(a);
  drop(b);
}

TEST_F(MetalTest, ACopyOfUnknownOrUnevenBytesIsRefused) {
  start();
  const Segment s = segment(kMiB);
  int mine = 0;
  const auto at = static_cast<Address>(reinterpret_cast<std::uintptr_t>(&mine));
  EXPECT_EQ(driver().copy(s.base, at, 4, nullptr), Status::failed);
  EXPECT_EQ(driver().fill(s.base, 0, 5, nullptr), Status::failed);
  EXPECT_EQ(driver().fill(s.base + kMiB - 4, 0, 8, nullptr), Status::failed) << "beyond the end";
  drop(s);
}

TEST_F(MetalTest, VirtualMachinesAndOldSystemsGetWholeBuffers) {
  const std::vector<Settings> all = {{{"NAME", "Apple Paravirtual device"}},
                                     {{"WITHOUT", "heaps"}},
                                     {{"WITHOUT", "placement"}},
                                     {{"WITHOUT", "shared_heaps"}},
                                     {{"WITHOUT", "linear_heaps"}},
                                     {{"PAGE", "4096"}, {"LARGE_ALIGN", "65536"}}};
  for (const Settings& settings : all) {
    start({}, settings);
    EXPECT_TRUE(driver().capabilities().whole_buffers && driver().capabilities().block_objects);
    Segment s;
    EXPECT_EQ(driver().create_segment(kMiB, s), Status::unsupported);
    void* buffer = nullptr;
    ASSERT_EQ(driver().allocate_host(HostKind::unified, 100, buffer), Status::ok);
    std::memset(buffer, 1, 100);
    EXPECT_NE(driver().host_object(buffer), nullptr);
    EXPECT_NE(driver().host_object(buffer), buffer);
    EXPECT_EQ(driver().free_host(HostKind::unified, buffer, 100), Status::ok);
    EXPECT_EQ(driver().free_host(HostKind::unified, buffer, 100), Status::failed);
  }
}

TEST_F(MetalTest, WhatTheDeviceCannotDoIsSaid) {
  library().restart({{"WITHOUT", "heaps"}});
  MetalConfig config;
  config.memory = MetalMemory::heaps;
  std::string why;
  EXPECT_EQ(make_metal_driver(0, config, &why), nullptr);
  EXPECT_NE(why.find("heaps"), std::string::npos);
  EXPECT_EQ(make_metal_driver(1, {}, &why), nullptr);
  EXPECT_EQ(make_metal_driver(-1, {}, &why), nullptr);
  library().restart({{"DEVICES", "2"}});
  EXPECT_EQ(metal_device_count(), 2);
  EXPECT_NE(make_metal_driver(1), nullptr);
}

TEST_F(MetalTest, ADiscreteDeviceNamesItsOwnMemory) {
  start({}, {{"WITHOUT", "unified shared_heaps"}, {"MEMORY", "68719476736"}, {"WORKING_SET", "8589934592"}});
  const Capabilities& c = driver().capabilities();
  EXPECT_FALSE(c.unified_memory || c.host_accessible || c.whole_buffers);
  EXPECT_EQ(c.total_memory, std::size_t{8} << 30);
}

TEST_F(MetalTest, TheSparseProbeSeesWhatTheSystemShows) {
  start({}, {{"WITH", "sparse"}});
  EXPECT_TRUE(driver().capabilities().sparse_buffers);
  start({}, {{"WITH", "sparse"}, {"FAIL", "newBufferWithLength.options.placementSparsePageSize.:1"}});
  EXPECT_FALSE(driver().capabilities().sparse_buffers) << "it says that it can, and then it cannot";
}

TEST_F(MetalTest, ObjectsHaveACapAndAFigure) {
  MetalConfig config;
  config.max_objects = 3;
  start(config);
  const Segment s = segment(kMiB);
  void* const a = object(s, 0, 256);
  void* const b = object(s, 256, 256);
  void* c = nullptr;
  EXPECT_EQ(driver().create_object(s, 512, 256, c), Status::out_of_memory);
  EXPECT_NE(driver().error_text().find("Resource limit (3) exceeded"), std::string::npos);
  void* host = nullptr;
  EXPECT_EQ(driver().allocate_host(HostKind::unified, 100, host), Status::out_of_memory);
  EXPECT_EQ(driver().objects(), 3u);
  driver().destroy_object(a);
  EXPECT_EQ(driver().objects(), 2u);
  driver().destroy_object(a);
  EXPECT_EQ(driver().objects(), 2u) << "unknown by now";
  driver().destroy_object(b);
  drop(s);
  EXPECT_EQ(figures().objects, 0u);
  EXPECT_EQ(figures().objects_made, 3u);
  start({}, {{"RSRC_LIMIT", "1234"}});
  EXPECT_EQ(driver().capabilities().max_objects, 1234u);
}

TEST_F(MetalTest, TooLongBuffersAreRefusedBeforeMetalIsAsked) {
  start({}, {{"MAX_BUFFER", "16777216"}});
  Segment s;
  EXPECT_EQ(driver().create_segment(32 * kMiB, s), Status::out_of_memory);
  void* host = nullptr;
  EXPECT_EQ(driver().allocate_host(HostKind::unified, 32 * kMiB, host), Status::out_of_memory);
  EXPECT_NE(driver().error_text().find("maximum allowed buffer size"), std::string::npos);
  EXPECT_EQ(figures().objects, 0u);
}

TEST_F(MetalTest, WhereMetalSaysNilNothingChanges) {
  start();
  Segment s;
  for (const char* const method : {"newHeapWithDescriptor:", "newBufferWithLength:options:offset:"}) {
    control().fail(method, 1, 1);
    EXPECT_EQ(driver().create_segment(kMiB, s), Status::out_of_memory) << method;
  }
  s = segment(kMiB);
  void* made = nullptr;
  control().fail("newBufferWithLength:options:offset:", 1, 1);
  EXPECT_EQ(driver().create_object(s, 0, 256, made), Status::out_of_memory);
  control().fail("newBufferWithLength:options:", 1, 1);
  EXPECT_EQ(driver().allocate_host(HostKind::unified, 100, made), Status::out_of_memory);
  control().fail("newSharedEvent", 1, 1);
  EXPECT_EQ(driver().stream_id(library().queue(1)), 0u);
  control().fail("commandBuffer", 1, 1);
  Event event{};
  EXPECT_EQ(driver().record(nullptr, event), Status::out_of_memory);
  EXPECT_EQ(control().injected(), 6u);
  drop(s);
}

// --- Views ----------------------------------------------------------------------------------------------------------

TEST_F(MetalTest, PagesOfAFileThatMayOnlyBeReadCanBeViewed) {
  start();
  void* const mapped = mmap(nullptr, 65536, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  auto* const page = reinterpret_cast<void*>((reinterpret_cast<std::uintptr_t>(mapped) + 16383) / 16384 * 16384);
  const std::uint64_t before = messages("*");
  std::uint64_t each = 0;
  for (int i = 0; i < 1000; ++i) {
    void* view = nullptr;
    ASSERT_EQ(driver().wrap(page, 10000, view), Status::ok) << driver().error_text();
    EXPECT_EQ(figures().objects, 1u);
    driver().unwrap(view);
    if (i == 0) each = messages("*") - before;
  }
  EXPECT_EQ(messages("*") - before, 1000 * each);
  EXPECT_EQ(figures().objects, 0u);
  void* view = nullptr;
  EXPECT_EQ(driver().wrap(static_cast<char*>(page) + 4096, 4096, view), Status::unsupported)
      << "not a page of the system";
  control().fail("newBufferWithBytesNoCopy:length:options:deallocator:", 1, 1);
  EXPECT_EQ(driver().wrap(page, 4096, view), Status::unsupported);
  EXPECT_EQ(view, nullptr);
  munmap(mapped, 65536);
}

// --- Queues ---------------------------------------------------------------------------------------------------------

TEST_F(MetalTest, WorkOfOneQueueWaitsForAnotherOnTheDevice) {
  start({}, {{"MANUAL", "1"}});
  const Segment s = segment(kMiB);
  void* const block = object(s, 0, 65536);
  void* const first = library().queue(1);
  void* const second = library().queue(2);
  control().launch_fill(first, block, 0, 65536, 1, 1);
  Event event{};
  ASSERT_EQ(driver().record(first, event), Status::ok);
  ASSERT_EQ(driver().wait(second, event), Status::ok);
  control().launch_check(second, block, 0, 65536, 1, 1);
  control().complete(second);
  EXPECT_FALSE(driver().passed(event));
  EXPECT_EQ(control().pending(), 4u) << "the second queue stands still";
  control().complete(first);
  EXPECT_TRUE(driver().passed(event));
  EXPECT_EQ(control().pending(), 0u);
  EXPECT_EQ(control().mismatches(), 0u);
  driver().release(event);
  driver().destroy_object(block);
  drop(s);
}

TEST_F(MetalTest, AForgottenQueueIsLetGoWhenItsEventsAre) {
  start({}, {{"MANUAL", "1"}});
  auto queue = library().make_queue();
  const std::uint64_t id = driver().stream_id(queue.get());
  Event event{};
  ASSERT_EQ(driver().record(queue.get(), event), Status::ok);
  driver().forget_stream(queue.get(), id);
  queue.reset();
  control().complete_all();
  EXPECT_TRUE(driver().passed(event));
  driver().release(event);
  EXPECT_EQ(control().live_objects("MTLCommandQueue"), 0u);
  EXPECT_EQ(control().live_objects("MTLSharedEvent"), 0u);
}

TEST_F(MetalTest, AQueueOfAnotherDeviceIsRefused) {
  library().restart({{"DEVICES", "2"}});
  auto other = make_metal_driver(1);
  ASSERT_NE(other, nullptr);
  EXPECT_EQ(other->stream_id(library().queue(1)), 0u);
  EXPECT_NE(other->error_text().find("another device"), std::string::npos);
}

TEST_F(MetalTest, EveryNilOfMetalIsSurvived) {
  std::uint64_t failures = 0;
  for (std::uint64_t n = 1; n < 200; ++n) {
    start({}, {{"LAG_US", "0"}});
    control().fail("*", n, 1);
    driver().set_wired_limit(64 * kMiB);
    Segment s;
    if (driver().create_segment(kMiB, s) == Status::ok) {
      void* block = nullptr;
      if (driver().create_object(s, 0, 4096, block) == Status::ok) driver().destroy_object(block);
      driver().fill(s.base, 1, 4096, library().queue(1));
      Event event{};
      if (driver().record(nullptr, event) == Status::ok) {
        driver().wait(library().queue(2), event);
        driver().release(event);
      }
      driver().commit_residency();
      driver().synchronize_device();
      EXPECT_EQ(driver().destroy_segment(s), Status::ok);
    }
    void* host = nullptr;
    if (driver().allocate_host(HostKind::unified, 5000, host) == Status::ok) {
      EXPECT_EQ(driver().free_host(HostKind::unified, host, 5000), Status::ok);
    }
    EXPECT_EQ(figures().objects, 0u);
    EXPECT_EQ(library().violations(), std::vector<std::string>{}) << n;
    failures += control().injected();
    if (control().injected() == 0) break;
  }
  EXPECT_GE(failures, 8u);
}

TEST_F(MetalTest, WithoutALibraryThereIsNoDevice) {
  std::string why;
  EXPECT_EQ(make_metal_driver(99, {}, &why), nullptr);
  EXPECT_FALSE(why.empty());
}

}  // namespace
}  // namespace cistern::drivers
