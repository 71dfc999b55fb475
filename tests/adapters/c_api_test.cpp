// The C interface: each group of calls and its errors, over the CPU and the CUDA stand-in. The programs in
// tests/programs call it from C; that the headers are C is checked by scripts/check_headers.py.
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "cistern/buffer_pool.hpp"
#include "cistern/c.h"
#include "cistern/c_arena.h"
#include "cistern/c_plan.h"
#include "cistern/c_trace.h"
#include "cistern/plan.hpp"
#include "cistern/trace.hpp"
#include "cistern/version.hpp"
#include "standin/cuda/cuda_library.hpp"

namespace {

namespace standin = cistern::standin;

constexpr cistern_device kCpu{CISTERN_CPU, 0};

std::string last_error() { return cistern_last_error(); }

TEST(CApi, NamesItsVersion) {
  EXPECT_EQ(cistern_c_version(), CISTERN_C_VERSION_MAJOR << 16 | CISTERN_C_VERSION_MINOR);
  EXPECT_STREQ(cistern_version_string(), cistern::kVersion);
}

// What programs were compiled with: places of fields and numbers, which stay. New fields come behind these.
TEST(CApi, TheBinaryFormStays) {
  static_assert(sizeof(void*) != 8 || sizeof(cistern_buffer) == 16);
  static_assert(sizeof(cistern_device) == 8 && sizeof(cistern_dtype) == 4 && sizeof(cistern_capture_pool) == 16);
  static_assert(sizeof(void*) != 8 || offsetof(cistern_stats, objects) == 160);                   // 1.1
  static_assert(sizeof(void*) != 8 || offsetof(cistern_pool_counts, total_bytes) == 56);          // 1.0
  static_assert(sizeof(void*) != 8 || offsetof(cistern_pool_counts, registered_bytes) == 72);     // 1.2
  static_assert(sizeof(void*) != 8 || offsetof(cistern_memory_segment, capture_pool) == 32);      // 1.1
  static_assert(sizeof(void*) != 8 || offsetof(cistern_arena_options, bucketing) == 32);          // 1.2
  static_assert(sizeof(void*) != 8 || offsetof(cistern_arena_figures, last_lower_bound) == 120);  // 1.2
  static_assert(sizeof(void*) != 8 || offsetof(cistern_plan_options, context) == 56);             // 1.2
  static_assert(sizeof(void*) != 8 || offsetof(cistern_plan_arrays, gap_count) == 80);            // 1.2
  static_assert(sizeof(cistern_arena_life) == 2 * sizeof(size_t) && sizeof(cistern_plan_event) == 24);
  static_assert(sizeof(cistern_trace_event) == 24 && sizeof(void*) == sizeof(size_t));
  static_assert(CISTERN_INTERNAL_ERROR == 4 && CISTERN_FILE_ERROR == 5 && CISTERN_MODEL == 3 && CISTERN_EXACT == 2);
  static_assert(CISTERN_PLAN_TIMEOUT == 3 && CISTERN_TRACE_PERFETTO_JSON == 3 && CISTERN_POISON_ON_FREE == 4);
  // The numbers of C++ go over as they are.
  static_assert(static_cast<int>(cistern::PlanStatus::timeout) == CISTERN_PLAN_TIMEOUT);
  static_assert(static_cast<int>(cistern::TraceFormat::perfetto_json) == CISTERN_TRACE_PERFETTO_JSON);
  static_assert(static_cast<int>(cistern::Bucketing::exact) == CISTERN_EXACT);
  SUCCEED();
}

TEST(CApi, Devices) {
  EXPECT_TRUE(cistern_device_available(kCpu));
  EXPECT_FALSE(cistern_device_available({CISTERN_CPU, 7}));
  EXPECT_FALSE(cistern_device_available({99, 0}));
  cistern_device device{};
  ASSERT_EQ(cistern_parse_device("model:1", &device), CISTERN_OK);
  EXPECT_EQ(device.type, CISTERN_MODEL);
  EXPECT_EQ(device.index, 1);
  EXPECT_EQ(cistern_parse_device("abacus", &device), CISTERN_INVALID_ARGUMENT);
  EXPECT_NE(last_error().find("abacus"), std::string::npos);
  EXPECT_EQ(cistern_parse_device(nullptr, &device), CISTERN_INVALID_ARGUMENT);
  EXPECT_EQ(cistern_get_default_device(nullptr), CISTERN_INVALID_ARGUMENT);
  EXPECT_EQ(last_error(), "cistern_get_default_device: out is null");
  ASSERT_EQ(cistern_get_default_device(&device), CISTERN_OK);
  EXPECT_EQ(device.type, CISTERN_CPU);
}

TEST(CApi, BuffersLiveAndDie) {
  cistern_buffer buffer{};
  ASSERT_EQ(cistern_malloc(kCpu, 1000, &buffer), CISTERN_OK);
  EXPECT_TRUE(cistern_buffer_live(buffer));
  EXPECT_GE(cistern_buffer_size(buffer), 1000U);
  EXPECT_EQ(cistern_buffer_offset(buffer), 0U);
  EXPECT_EQ(cistern_buffer_device(buffer).type, CISTERN_CPU);
  void* at = nullptr;
  ASSERT_EQ(cistern_buffer_raw_ptr(buffer, &at), CISTERN_OK);
  EXPECT_EQ(at, cistern_buffer_ptr(buffer));
  std::memset(at, 1, 1000);
  cistern_buffer found{};
  ASSERT_EQ(cistern_find(kCpu, at, &found), CISTERN_OK);
  EXPECT_EQ(found.block, buffer.block);
  EXPECT_EQ(cistern_free(buffer), CISTERN_OK);
  EXPECT_FALSE(cistern_buffer_live(buffer));
  EXPECT_EQ(cistern_free(buffer), CISTERN_INVALID_ARGUMENT);
  EXPECT_NE(last_error(), "");
  EXPECT_EQ(cistern_free({}), CISTERN_OK);
}

TEST(CApi, FreesByAddressAlone) {
  cistern_buffer buffer{};
  ASSERT_EQ(cistern_malloc(kCpu, 1 << 20, &buffer), CISTERN_OK);
  void* at = cistern_buffer_ptr(buffer);
  EXPECT_EQ(cistern_free_raw(kCpu, static_cast<char*>(at) + 64), CISTERN_INVALID_ARGUMENT);
  EXPECT_EQ(cistern_free_raw(kCpu, at), CISTERN_OK);
  EXPECT_EQ(cistern_free_raw(kCpu, at), CISTERN_INVALID_ARGUMENT);
  EXPECT_EQ(cistern_free_raw(kCpu, nullptr), CISTERN_OK);
}

TEST(CApi, Streams) {
  cistern_stream* stream = nullptr;
  ASSERT_EQ(cistern_stream_open(kCpu, reinterpret_cast<void*>(5), &stream), CISTERN_OK);
  EXPECT_NE(cistern_stream_id(stream), 0U);
  cistern_buffer buffer{};
  ASSERT_EQ(cistern_malloc_on(stream, 4096, &buffer), CISTERN_OK);
  EXPECT_EQ(cistern_record_use(buffer, stream), CISTERN_OK);
  EXPECT_EQ(cistern_free_on(buffer, stream), CISTERN_OK);
  EXPECT_EQ(cistern_stream_destroyed(stream), CISTERN_OK);
  cistern_stream_close(stream);
  EXPECT_EQ(cistern_malloc_on(nullptr, 1, &buffer), CISTERN_INVALID_ARGUMENT);
}

TEST(CApi, StagingMemory) {
  auto& library = standin::CudaLibrary::get();
  if (!library.is_standin()) GTEST_SKIP() << library.why();
  const cistern_device cuda = {CISTERN_CUDA, 0};
  cistern_stream* stream = nullptr;
  ASSERT_EQ(cistern_stream_open(cuda, library.stream(1), &stream), CISTERN_OK) << cistern_last_error();
  cistern_buffer buffer{}, other{};
  ASSERT_EQ(cistern_staging_malloc(stream, std::size_t{129} << 20, &buffer), CISTERN_OK) << cistern_last_error();
  cistern_stats stats{};
  stats.struct_size = sizeof stats;
  ASSERT_EQ(cistern_get_staging_stats(cuda, &stats), CISTERN_OK);
  EXPECT_LE(stats.reserved, std::uint64_t{130} << 20);
  ASSERT_EQ(cistern_get_stats(cuda, &stats), CISTERN_OK);
  EXPECT_EQ(stats.active, 0U) << "not the device's own memory";
  void* host = nullptr;
  ASSERT_EQ(cistern_buffer_raw_ptr(buffer, &host), CISTERN_OK);
  std::memset(host, 1, std::size_t{129} << 20);
  EXPECT_EQ(cistern_free_on(buffer, stream), CISTERN_INVALID_ARGUMENT) << "it is not the device's allocator's";
  EXPECT_NE(last_error().find("another allocator of cuda:0"), std::string::npos) << last_error();
  EXPECT_EQ(cistern_record_use(buffer, stream), CISTERN_INVALID_ARGUMENT);
  EXPECT_EQ(cistern_staging_record_use(buffer, nullptr), CISTERN_INVALID_ARGUMENT);
  EXPECT_EQ(cistern_staging_record_use(buffer, stream), CISTERN_OK) << last_error();
  EXPECT_EQ(cistern_staging_free_on(buffer, stream), CISTERN_OK) << cistern_last_error();
  EXPECT_EQ(cistern_free(buffer), CISTERN_INVALID_ARGUMENT);
  ASSERT_EQ(cistern_staging_malloc(stream, 100, &other), CISTERN_OK);
  EXPECT_EQ(cistern_free(other), CISTERN_OK);
  // By address alone, which only its own allocator knows.
  cistern_allocator* staging = nullptr;
  ASSERT_EQ(cistern_get_staging_allocator(cuda, &staging), CISTERN_OK) << last_error();
  EXPECT_EQ(cistern_allocator_device(staging).type, CISTERN_CUDA);
  ASSERT_EQ(cistern_allocator_malloc_on(staging, 5000, stream, &other), CISTERN_OK) << last_error();
  ASSERT_EQ(cistern_buffer_raw_ptr(other, &host), CISTERN_OK);
  cistern_buffer found{};
  ASSERT_EQ(cistern_find(cuda, host, &found), CISTERN_OK);
  EXPECT_EQ(found.block, nullptr);
  ASSERT_EQ(cistern_allocator_find(staging, host, &found), CISTERN_OK);
  EXPECT_EQ(found.block, other.block);
  EXPECT_EQ(cistern_free_raw(cuda, host), CISTERN_INVALID_ARGUMENT);
  EXPECT_EQ(cistern_allocator_free_raw(staging, host), CISTERN_OK) << last_error();
  EXPECT_EQ(cistern_allocator_free_raw(staging, host), CISTERN_INVALID_ARGUMENT);
  EXPECT_EQ(cistern_stream_destroyed(stream), CISTERN_OK) << cistern_last_error();
  EXPECT_EQ(cistern_staging_malloc(stream, 100, &other), CISTERN_INVALID_ARGUMENT) << "the stream is gone there, too";
  EXPECT_EQ(cistern_clear_staging_cache(cuda), CISTERN_OK);
  ASSERT_EQ(cistern_get_staging_stats(cuda, &stats), CISTERN_OK);
  EXPECT_EQ(stats.reserved, 0U);
  cistern_stream_close(stream);
}

TEST(CApi, CapturePools) {
  auto& library = standin::CudaLibrary::get();
  if (!library.is_standin()) GTEST_SKIP() << library.why();
  const cistern_device cuda = {CISTERN_CUDA, 0};
  cistern_stream* stream = nullptr;
  ASSERT_EQ(cistern_stream_open(cuda, library.stream(2), &stream), CISTERN_OK) << last_error();
  cistern_capture_pool pool{};
  EXPECT_EQ(cistern_make_capture_pool(kCpu, &pool), CISTERN_INVALID_ARGUMENT) << "no graphs there";
  EXPECT_EQ(cistern_make_capture_pool(cuda, nullptr), CISTERN_INVALID_ARGUMENT);
  ASSERT_EQ(cistern_make_capture_pool(cuda, &pool), CISTERN_OK) << last_error();
  EXPECT_NE(pool.id, 0U);
  EXPECT_EQ(cistern_end_capture_pool(pool), CISTERN_INVALID_ARGUMENT) << "not open";
  EXPECT_EQ(cistern_begin_capture_pool(pool, nullptr), CISTERN_INVALID_ARGUMENT);
  EXPECT_EQ(cistern_begin_capture_pool_where(pool, nullptr, nullptr), CISTERN_INVALID_ARGUMENT);
  EXPECT_EQ(cistern_begin_capture_pool({cuda, 0}, stream), CISTERN_INVALID_ARGUMENT);
  ASSERT_EQ(cistern_begin_capture_pool(pool, stream), CISTERN_OK) << last_error();
  EXPECT_EQ(cistern_begin_capture_pool(pool, stream), CISTERN_INVALID_ARGUMENT) << "open already";
  EXPECT_EQ(cistern_release_capture_pool(pool), CISTERN_INVALID_ARGUMENT) << "open";
  cistern_buffer captured{}, ordinary{};
  ASSERT_EQ(cistern_malloc_on(stream, 1 << 20, &captured), CISTERN_OK) << last_error();
  ASSERT_EQ(cistern_end_capture_pool(pool), CISTERN_OK) << last_error();
  ASSERT_EQ(cistern_malloc_on(stream, 1 << 20, &ordinary), CISTERN_OK) << last_error();
  uint64_t bytes = 0;
  ASSERT_EQ(cistern_get_capture_pool_bytes(pool, &bytes), CISTERN_OK);
  EXPECT_GE(bytes, std::uint64_t{1} << 20);

  // The map says which buffer is the pool's.
  struct Seen {
    std::uint64_t address, pool = UINT64_MAX, end = 0;
    bool gap = false;
  };
  const auto look = [](const cistern_memory_segment* segment, uint64_t address, uint64_t size, int live,
                       void* context) {
    auto& seen = *static_cast<Seen*>(context);
    EXPECT_EQ(segment->struct_size, sizeof *segment);
    if (address != segment->address && address != seen.end) seen.gap = true;
    seen.end = address + size;
    if (live != 0 && address == seen.address) seen.pool = segment->capture_pool;
  };
  for (const auto& [buffer, owner] : {std::pair(captured, pool.id), std::pair(ordinary, std::uint64_t{0})}) {
    Seen seen{.address = reinterpret_cast<std::uintptr_t>(cistern_buffer_ptr(buffer))};
    ASSERT_EQ(cistern_visit_memory(cuda, look, &seen), CISTERN_OK);
    EXPECT_EQ(seen.pool, owner);
    EXPECT_FALSE(seen.gap);
    EXPECT_EQ(cistern_free(buffer), CISTERN_OK);
  }
  EXPECT_EQ(cistern_visit_memory(cuda, nullptr, nullptr), CISTERN_INVALID_ARGUMENT);

  // Again, for the streams that a filter names: this one is not among them.
  const auto none = [](void*, void* asked) { return static_cast<int>(++*static_cast<int*>(asked) < 0); };
  int asked = 0;
  ASSERT_EQ(cistern_begin_capture_pool_where(pool, none, &asked), CISTERN_OK) << last_error();
  ASSERT_EQ(cistern_malloc_on(stream, 1 << 20, &ordinary), CISTERN_OK) << last_error();
  EXPECT_GT(asked, 0);
  EXPECT_EQ(cistern_free(ordinary), CISTERN_OK);
  ASSERT_EQ(cistern_end_capture_pool(pool), CISTERN_OK) << last_error();
  ASSERT_EQ(cistern_release_capture_pool(pool), CISTERN_OK) << last_error();
  EXPECT_EQ(cistern_release_capture_pool(pool), CISTERN_INVALID_ARGUMENT);
  EXPECT_NE(last_error().find("was released"), std::string::npos) << last_error();
  ASSERT_EQ(cistern_get_capture_pool_bytes(pool, &bytes), CISTERN_OK);
  EXPECT_EQ(bytes, 0U);
  EXPECT_EQ(cistern_clear_cache(cuda), CISTERN_OK);
  cistern_stream_close(stream);
}

TEST(CApi, Views) {
  alignas(64) static char memory[4096];
  cistern_buffer view{};
  ASSERT_EQ(cistern_make_buffer(kCpu, memory, sizeof memory, &view), CISTERN_OK);
  EXPECT_EQ(cistern_buffer_ptr(view), memory);
  EXPECT_EQ(cistern_free(view), CISTERN_INVALID_ARGUMENT);
  EXPECT_EQ(cistern_release(view), CISTERN_OK);
}

TEST(CApi, FiguresAndLimits) {
  cistern_stats stats{};
  EXPECT_EQ(cistern_get_stats(kCpu, &stats), CISTERN_INVALID_ARGUMENT) << "struct_size must be set";
  stats.struct_size = sizeof stats;
  cistern_buffer buffer{};
  ASSERT_EQ(cistern_malloc(kCpu, 3 << 20, &buffer), CISTERN_OK);
  ASSERT_EQ(cistern_get_stats(kCpu, &stats), CISTERN_OK);
  EXPECT_GE(stats.active, std::uint64_t{3} << 20);
  EXPECT_GE(stats.reserved, stats.active);
  EXPECT_EQ(stats.objects, 0U);
  EXPECT_EQ(cistern_before_submit(kCpu), CISTERN_OK);
  EXPECT_EQ(cistern_before_submit({CISTERN_CPU, 9}), CISTERN_INVALID_ARGUMENT);
  // An older, shorter struct: nothing beyond it is written.
  cistern_stats old{};
  old.struct_size = offsetof(cistern_stats, objects);
  old.objects = 42;
  ASSERT_EQ(cistern_get_stats(kCpu, &old), CISTERN_OK);
  EXPECT_EQ(old.objects, 42U);
  EXPECT_EQ(old.active, stats.active);
  // Shorter than any header ever had it: no struct of ours.
  for (const std::size_t size :
       {sizeof(size_t), offsetof(cistern_stats, reserved), offsetof(cistern_stats, objects) - 1}) {
    old.struct_size = size;
    old.active = 42;
    EXPECT_EQ(cistern_get_stats(kCpu, &old), CISTERN_INVALID_ARGUMENT) << size;
    EXPECT_NE(last_error().find("struct_size " + std::to_string(size) + ": expected sizeof"), std::string::npos);
    EXPECT_EQ(old.active, 42U);
  }
  size_t previous = 0;
  ASSERT_EQ(cistern_set_memory_limit(kCpu, 8 << 20, &previous), CISTERN_OK);
  cistern_buffer large{};
  EXPECT_EQ(cistern_malloc(kCpu, 16 << 20, &large), CISTERN_OUT_OF_MEMORY);
  EXPECT_NE(last_error().find("limit"), std::string::npos);
  ASSERT_EQ(cistern_set_memory_limit(kCpu, previous, nullptr), CISTERN_OK);
  EXPECT_EQ(cistern_free(buffer), CISTERN_OK);
  EXPECT_EQ(cistern_clear_cache(kCpu), CISTERN_OK);
  EXPECT_EQ(cistern_reset_peaks(kCpu), CISTERN_OK);
  uint32_t options = 99;
  EXPECT_EQ(cistern_set_memory_options(kCpu, 8, nullptr), CISTERN_INVALID_ARGUMENT);
  ASSERT_EQ(cistern_set_memory_options(kCpu, CISTERN_ZERO_ON_ALLOC, &options), CISTERN_OK);
  EXPECT_EQ(options, 0U);
  ASSERT_EQ(cistern_set_memory_options(kCpu, 0, &options), CISTERN_OK);
  EXPECT_EQ(options, static_cast<uint32_t>(CISTERN_ZERO_ON_ALLOC));
}

TEST(CApi, OutOfMemoryCallback) {
  int calls = 0;
  uint64_t id = 0;
  ASSERT_EQ(cistern_add_out_of_memory_callback(
                [](cistern_device, size_t, void* context) {
                  ++*static_cast<int*>(context);
                  return 0;
                },
                &calls, &id),
            CISTERN_OK);
  cistern_buffer buffer{};
  EXPECT_EQ(cistern_malloc(kCpu, size_t{1} << 50, &buffer), CISTERN_OUT_OF_MEMORY);
  EXPECT_GT(calls, 0);
  EXPECT_EQ(cistern_remove_out_of_memory_callback(id), CISTERN_OK);
  EXPECT_EQ(cistern_add_out_of_memory_callback(nullptr, nullptr, &id), CISTERN_INVALID_ARGUMENT);
}

TEST(CApi, Tags) {
  EXPECT_EQ(cistern_pop_tag(), CISTERN_INVALID_ARGUMENT);
  ASSERT_EQ(cistern_push_tag("c-weights"), CISTERN_OK);
  cistern_buffer buffer{};
  ASSERT_EQ(cistern_malloc(kCpu, 4096, &buffer), CISTERN_OK);
  ASSERT_EQ(cistern_pop_tag(), CISTERN_OK);
  uint64_t active = 0;
  ASSERT_EQ(cistern_get_tag(kCpu, "c-weights", &active, nullptr), CISTERN_OK);
  EXPECT_EQ(active, 4096U);
  EXPECT_EQ(cistern_get_tag(kCpu, "never used", &active, nullptr), CISTERN_INVALID_ARGUMENT);
  EXPECT_EQ(cistern_free(buffer), CISTERN_OK);
}

TEST(CApi, Pool) {
  cistern_pool* pool = nullptr;
  ASSERT_EQ(cistern_pool_create(kCpu, nullptr, CISTERN_POWER_OF_TWO, &pool), CISTERN_OK);
  cistern_stream* elsewhere = nullptr;
  ASSERT_EQ(cistern_stream_open({CISTERN_MODEL, 0}, nullptr, &elsewhere), CISTERN_OK) << last_error();
  cistern_pool* refused = nullptr;
  EXPECT_EQ(cistern_pool_create(kCpu, elsewhere, CISTERN_EXACT, &refused), CISTERN_INVALID_ARGUMENT);
  EXPECT_NE(last_error().find("model:0"), std::string::npos) << last_error();
  cistern_stream_close(elsewhere);
  const cistern_dtype f32{2, 32, 1};
  const int64_t shape[] = {4, 8};
  cistern_tensor* tensor = nullptr;
  EXPECT_EQ(cistern_pool_alloc(pool, 100, f32, shape, 2, &tensor), CISTERN_INVALID_ARGUMENT);
  EXPECT_EQ(cistern_pool_alloc(pool, 128, {77, 3, 1}, shape, 2, &tensor), CISTERN_INVALID_ARGUMENT);
  ASSERT_EQ(cistern_pool_alloc(pool, 128, f32, shape, 2, &tensor), CISTERN_OK);
  EXPECT_EQ(cistern_tensor_byte_len(tensor), 128U);
  EXPECT_EQ(cistern_tensor_dtype(tensor).bits, 32);
  int64_t extents[8] = {};
  EXPECT_EQ(cistern_tensor_shape(tensor, extents, 8), 2U);
  EXPECT_EQ(extents[1], 8);
  void* data = nullptr;
  ASSERT_EQ(cistern_tensor_data(tensor, &data), CISTERN_OK);
  std::memset(data, 7, 128);
  cistern_tensor* share = nullptr;
  ASSERT_EQ(cistern_tensor_share(tensor, &share), CISTERN_OK);
  EXPECT_EQ(cistern_tensor_buffer(share).block, cistern_tensor_buffer(tensor).block);
  EXPECT_EQ(cistern_pool_reset(pool, 1), CISTERN_INVALID_ARGUMENT);
  cistern_tensor_drop(share);
  ASSERT_EQ(cistern_pool_release(pool, tensor), CISTERN_OK);
  cistern_pool_counts counts{};
  counts.struct_size = offsetof(cistern_pool_counts, registered_count) - 1;
  EXPECT_EQ(cistern_pool_get_counts(pool, &counts), CISTERN_INVALID_ARGUMENT) << "shorter than ever";
  counts.struct_size = offsetof(cistern_pool_counts, registered_count);
  EXPECT_EQ(cistern_pool_get_counts(pool, &counts), CISTERN_OK) << "as in version 1.0";
  counts.struct_size = sizeof counts;
  ASSERT_EQ(cistern_pool_get_counts(pool, &counts), CISTERN_OK);
  EXPECT_EQ(counts.free_count, 1U);
  EXPECT_EQ(counts.in_use_count, 0U);
  ASSERT_EQ(cistern_pool_clear(pool), CISTERN_OK);
  cistern_pool_destroy(pool);
  cistern_pool_destroy(nullptr);
}

}  // namespace
