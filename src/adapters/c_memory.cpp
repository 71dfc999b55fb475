// The C interface: devices, streams, buffers, figures, limits, options, tags. Thin calls of the C++ interface.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "adapters/c_api.hpp"
#include "cistern/version.hpp"

namespace cistern::c {
namespace {

thread_local std::string last_error;
thread_local std::size_t last_requested = 0;
thread_local std::size_t last_limit = 0;
thread_local std::vector<std::unique_ptr<ScopedTag>> tags;

void set_limit(std::size_t (*set)(std::size_t, Device), cistern_device device, std::size_t bytes,
               std::size_t* previous) {
  const std::size_t before = set(bytes, from_c(device));
  if (previous != nullptr) *previous = before;
}

void give_stats(const Stats& s, cistern_stats* out) {
  copy_versioned({.struct_size = 0,
                  .active = s.active,
                  .peak_active = s.peak_active,
                  .reserved = s.reserved,
                  .peak_reserved = s.peak_reserved,
                  .cached = s.cached,
                  .views = s.views,
                  .memory_limit = s.memory_limit,
                  .cache_limit = s.cache_limit,
                  .wired_limit = s.wired_limit,
                  .total_memory = s.total_memory,
                  .live_buffers = s.live_buffers,
                  .handles = s.handles,
                  .handles_created = s.handles_created,
                  .handles_moved = s.handles_moved,
                  .handles_released = s.handles_released,
                  .handles_split = 0,
                  .driver_calls = s.driver_calls,
                  .host_waits = s.host_waits,
                  .late_double_frees = s.late_double_frees,
                  .objects = s.objects},
                 out);
}

uint32_t options_to_c(MemoryOptions options) {
  return (options.zero_on_alloc ? uint32_t{CISTERN_ZERO_ON_ALLOC} : 0U) |
         (options.zero_on_reuse ? uint32_t{CISTERN_ZERO_ON_REUSE} : 0U) |
         (options.poison_on_free ? uint32_t{CISTERN_POISON_ON_FREE} : 0U);
}

}  // namespace

void set_last_error(const char* text) noexcept {
  try {
    last_error = text;
  } catch (...) {
    last_error.clear();
  }
}

void set_last_out_of_memory(std::size_t requested, std::size_t limit) noexcept {
  last_requested = requested;
  last_limit = limit;
}

void require(const void* pointer, const char* call, const char* name) {
  if (pointer == nullptr) throw invalid_argument(std::string(call) + ": " + name + " is null");
}

}  // namespace cistern::c

// NOLINTBEGIN(google-build-using-namespace): functions of C stand in no namespace.
using namespace cistern;
using namespace cistern::c;
// NOLINTEND(google-build-using-namespace)

extern "C" {

uint32_t cistern_c_version(void) { return CISTERN_C_VERSION_MAJOR << 16 | CISTERN_C_VERSION_MINOR; }
const char* cistern_version_string(void) { return kVersion; }
const char* cistern_last_error(void) { return last_error.c_str(); }

void cistern_last_out_of_memory(uint64_t* requested, uint64_t* limit) {
  if (requested != nullptr) *requested = last_requested;
  if (limit != nullptr) *limit = last_limit;
}

int cistern_device_available(cistern_device device) {
  int available = 0;
  guarded([&] { available = is_available(from_c(device)) ? 1 : 0; });
  return available;
}

cistern_status cistern_get_default_device(cistern_device* out) {
  return guarded([&] {
    require(out, "cistern_get_default_device", "out");
    *out = to_c(default_device());
  });
}

cistern_status cistern_set_default_device(cistern_device device) {
  return guarded([&] { set_default_device(from_c(device)); });
}

cistern_status cistern_parse_device(const char* text, cistern_device* out) {
  return guarded([&] {
    require(text, "cistern_parse_device", "text");
    require(out, "cistern_parse_device", "out");
    *out = to_c(parse_device(text));
  });
}

size_t cistern_device_text(cistern_device device, char* text, size_t capacity) {
  std::string name;
  guarded([&] { name = to_string(from_c(device)); });
  return write_text(name, text, capacity);
}

cistern_status cistern_stream_open(cistern_device device, void* native, cistern_stream** out) {
  return guarded([&] {
    require(out, "cistern_stream_open", "out");
    *out = new cistern_stream{native == nullptr ? Stream(from_c(device)) : Stream(from_c(device), native)};
  });
}

void cistern_stream_close(cistern_stream* stream) { delete stream; }

uint64_t cistern_stream_id(const cistern_stream* stream) { return stream != nullptr ? stream->value.id() : 0; }
void* cistern_stream_native(const cistern_stream* stream) {
  return stream != nullptr ? stream->value.native() : nullptr;
}
cistern_device cistern_stream_device(const cistern_stream* stream) {
  return stream != nullptr ? to_c(stream->value.device()) : cistern_device{};
}

cistern_status cistern_stream_destroyed(const cistern_stream* stream) {
  return guarded([&] {
    require(stream, "cistern_stream_destroyed", "stream");
    stream_destroyed(stream->value);
  });
}

cistern_status cistern_malloc(cistern_device device, size_t bytes, cistern_buffer* out) {
  return guarded([&] {
    require(out, "cistern_malloc", "out");
    *out = to_c(allocator(from_c(device)).malloc(bytes));
  });
}

cistern_status cistern_malloc_on(const cistern_stream* stream, size_t bytes, cistern_buffer* out) {
  return guarded([&] {
    require(stream, "cistern_malloc_on", "stream");
    require(out, "cistern_malloc_on", "out");
    *out = to_c(allocator(stream->value.device()).malloc(bytes, stream->value));
  });
}

cistern_status cistern_free(cistern_buffer buffer) {
  return guarded([&] { cistern::free(from_c(buffer)); });
}

cistern_status cistern_free_on(cistern_buffer buffer, const cistern_stream* stream) {
  return guarded([&] {
    require(stream, "cistern_free_on", "stream");
    allocator(stream->value.device()).free(from_c(buffer), stream->value);
  });
}

cistern_status cistern_free_raw(cistern_device device, void* ptr) {
  return guarded([&] {
    if (ptr != nullptr) allocator(from_c(device)).free_raw(ptr);
  });
}

cistern_status cistern_find(cistern_device device, const void* ptr, cistern_buffer* out) {
  return guarded([&] {
    require(out, "cistern_find", "out");
    *out = to_c(allocator(from_c(device)).find(ptr));
  });
}

cistern_status cistern_record_use(cistern_buffer buffer, const cistern_stream* stream) {
  return guarded([&] {
    require(stream, "cistern_record_use", "stream");
    allocator(stream->value.device()).record_use(from_c(buffer), stream->value);
  });
}

cistern_status cistern_make_buffer(cistern_device device, void* ptr, size_t bytes, cistern_buffer* out) {
  return guarded([&] {
    require(out, "cistern_make_buffer", "out");
    *out = to_c(allocator(from_c(device)).make_buffer(ptr, bytes));
  });
}

cistern_status cistern_release(cistern_buffer view) {
  return guarded([&] {
    const Buffer buffer = from_c(view);
    if (buffer) allocator(buffer.device()).release(buffer);
  });
}

int cistern_buffer_live(cistern_buffer buffer) { return from_c(buffer).live() ? 1 : 0; }
void* cistern_buffer_ptr(cistern_buffer buffer) { return from_c(buffer).ptr(); }
size_t cistern_buffer_offset(cistern_buffer buffer) { return from_c(buffer).offset(); }
size_t cistern_buffer_size(cistern_buffer buffer) { return from_c(buffer).size(); }
cistern_device cistern_buffer_device(cistern_buffer buffer) { return to_c(from_c(buffer).device()); }

cistern_status cistern_buffer_raw_ptr(cistern_buffer buffer, void** out) {
  return guarded([&] {
    require(out, "cistern_buffer_raw_ptr", "out");
    *out = from_c(buffer).raw_ptr();
  });
}

cistern_status cistern_get_stats(cistern_device device, cistern_stats* out) {
  return guarded([&] {
    require(out, "cistern_get_stats", "out");
    give_stats(stats(from_c(device)), out);
  });
}

cistern_status cistern_get_staging_stats(cistern_device device, cistern_stats* out) {
  return guarded([&] {
    require(out, "cistern_get_staging_stats", "out");
    give_stats(staging_stats(from_c(device)), out);
  });
}

cistern_status cistern_clear_staging_cache(cistern_device device) {
  return guarded([&] { clear_staging_cache(from_c(device)); });
}

cistern_status cistern_staging_malloc(const cistern_stream* stream, size_t bytes, cistern_buffer* out) {
  return guarded([&] {
    require(stream, "cistern_staging_malloc", "stream");
    require(out, "cistern_staging_malloc", "out");
    *out = to_c(staging_allocator(stream->value.device()).malloc(bytes, stream->value));
  });
}

cistern_status cistern_staging_free_on(cistern_buffer buffer, const cistern_stream* stream) {
  return guarded([&] {
    require(stream, "cistern_staging_free_on", "stream");
    staging_allocator(stream->value.device()).free(from_c(buffer), stream->value);
  });
}

cistern_status cistern_staging_record_use(cistern_buffer buffer, const cistern_stream* stream) {
  return guarded([&] {
    require(stream, "cistern_staging_record_use", "stream");
    staging_allocator(stream->value.device()).record_use(from_c(buffer), stream->value);
  });
}

cistern_status cistern_reset_peaks(cistern_device device) {
  return guarded([&] { reset_peak_memory(from_c(device)); });
}

cistern_status cistern_set_memory_limit(cistern_device device, size_t bytes, size_t* previous) {
  return guarded([&] { set_limit(&set_memory_limit, device, bytes, previous); });
}
cistern_status cistern_set_cache_limit(cistern_device device, size_t bytes, size_t* previous) {
  return guarded([&] { set_limit(&set_cache_limit, device, bytes, previous); });
}
cistern_status cistern_set_wired_limit(cistern_device device, size_t bytes, size_t* previous) {
  return guarded([&] { set_limit(&set_wired_limit, device, bytes, previous); });
}

cistern_status cistern_clear_cache(cistern_device device) {
  return guarded([&] { clear_cache(from_c(device)); });
}

cistern_status cistern_before_submit(cistern_device device) {
  return guarded([&] { before_submit(from_c(device)); });
}

cistern_status cistern_set_memory_options(cistern_device device, uint32_t options, uint32_t* previous) {
  return guarded([&] {
    constexpr uint32_t known = CISTERN_ZERO_ON_ALLOC | CISTERN_ZERO_ON_REUSE | CISTERN_POISON_ON_FREE;
    if ((options & ~known) != 0) {
      throw invalid_argument("cistern_set_memory_options: options " + std::to_string(options) +
                             ": expected a sum of cistern_memory_option values (at most 7)");
    }
    const MemoryOptions before = set_memory_options({.zero_on_alloc = (options & CISTERN_ZERO_ON_ALLOC) != 0,
                                                     .zero_on_reuse = (options & CISTERN_ZERO_ON_REUSE) != 0,
                                                     .poison_on_free = (options & CISTERN_POISON_ON_FREE) != 0},
                                                    from_c(device));
    if (previous != nullptr) *previous = options_to_c(before);
  });
}

cistern_status cistern_get_memory_options(cistern_device device, uint32_t* out) {
  return guarded([&] {
    require(out, "cistern_get_memory_options", "out");
    *out = options_to_c(get_memory_options(from_c(device)));
  });
}

cistern_status cistern_add_out_of_memory_callback(cistern_out_of_memory_callback callback, void* context,
                                                  uint64_t* id) {
  return guarded([&] {
    if (callback == nullptr) throw invalid_argument("cistern_add_out_of_memory_callback: callback is null");
    require(id, "cistern_add_out_of_memory_callback", "id");
    *id = add_out_of_memory_callback(
        [=](Device device, std::size_t bytes) { return callback(to_c(device), bytes, context) != 0; });
  });
}

cistern_status cistern_remove_out_of_memory_callback(uint64_t id) {
  return guarded([&] { remove_out_of_memory_callback(id); });
}

cistern_status cistern_push_tag(const char* name) {
  return guarded([&] {
    require(name, "cistern_push_tag", "name");
    tags.reserve(tags.size() + 1);
    tags.push_back(std::make_unique<ScopedTag>(name));
  });
}

cistern_status cistern_pop_tag(void) {
  return guarded([&] {
    if (tags.empty()) throw invalid_argument("cistern_pop_tag: no tag was pushed on this thread");
    tags.pop_back();
  });
}

cistern_status cistern_get_tag(cistern_device device, const char* name, uint64_t* active, uint64_t* peak) {
  return guarded([&] {
    require(name, "cistern_get_tag", "name");
    const std::vector<TagStats> all = tag_stats(from_c(device));
    const auto found = std::find_if(all.begin(), all.end(), [&](const TagStats& t) { return t.name == name; });
    if (found == all.end())
      throw invalid_argument("cistern_get_tag: no buffer was allocated under \"" + std::string(name) + "\"");
    if (active != nullptr) *active = found->active;
    if (peak != nullptr) *peak = found->peak;
  });
}

cistern_status cistern_visit_tags(cistern_device device, cistern_tag_visitor visitor, void* context) {
  return guarded([&] {
    if (visitor == nullptr) throw invalid_argument("cistern_visit_tags: visitor is null");
    for (const TagStats& tag : tag_stats(from_c(device))) visitor(tag.name.c_str(), tag.active, tag.peak, context);
  });
}

}  // extern "C"
