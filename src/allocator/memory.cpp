// The public memory functions: each finds its device's allocator and asks it.
#include "cistern/memory.hpp"

#include "allocator/registry.hpp"
#include "cistern/capture.hpp"

namespace cistern {

using allocation::device_allocator;

Stats stats(Device device) { return device_allocator(device).stats(); }
Stats stats() { return stats(default_device()); }

Stats staging_stats(Device device) { return allocation::staging_device_allocator(device).stats(); }
void clear_staging_cache(Device device) { allocation::staging_device_allocator(device).clear_cache(); }

std::size_t get_active_memory() { return get_active_memory(default_device()); }
std::size_t get_active_memory(Device device) { return stats(device).active; }
std::size_t get_peak_memory() { return get_peak_memory(default_device()); }
std::size_t get_peak_memory(Device device) { return stats(device).peak_active; }
void reset_peak_memory() { reset_peak_memory(default_device()); }
void reset_peak_memory(Device device) { device_allocator(device).reset_peaks(); }
std::size_t get_cache_memory() { return get_cache_memory(default_device()); }
std::size_t get_cache_memory(Device device) { return stats(device).cached; }
std::size_t get_reserved_memory() { return get_reserved_memory(default_device()); }
std::size_t get_reserved_memory(Device device) { return stats(device).reserved; }
std::size_t get_peak_reserved_memory() { return get_peak_reserved_memory(default_device()); }
std::size_t get_peak_reserved_memory(Device device) { return stats(device).peak_reserved; }

std::size_t set_memory_limit(std::size_t bytes) { return set_memory_limit(bytes, default_device()); }
std::size_t set_memory_limit(std::size_t bytes, Device device) {
  return device_allocator(device).set_memory_limit(bytes);
}
std::size_t get_memory_limit() { return get_memory_limit(default_device()); }
std::size_t get_memory_limit(Device device) { return stats(device).memory_limit; }
std::size_t set_cache_limit(std::size_t bytes) { return set_cache_limit(bytes, default_device()); }
std::size_t set_cache_limit(std::size_t bytes, Device device) {
  return device_allocator(device).set_cache_limit(bytes);
}
std::size_t get_cache_limit() { return get_cache_limit(default_device()); }
std::size_t get_cache_limit(Device device) { return stats(device).cache_limit; }
std::size_t set_wired_limit(std::size_t bytes) { return set_wired_limit(bytes, default_device()); }
std::size_t set_wired_limit(std::size_t bytes, Device device) {
  return device_allocator(device).set_wired_limit(bytes);
}
std::size_t get_wired_limit() { return get_wired_limit(default_device()); }
std::size_t get_wired_limit(Device device) { return stats(device).wired_limit; }

std::vector<MemorySegment> memory_map(Device device) { return device_allocator(device).map(); }

CapturePool make_capture_pool(Device device) { return {device, device_allocator(device).make_pool()}; }
void begin_capture_pool(CapturePool pool, const Stream& stream) {
  device_allocator(pool.device).begin_pool(pool.id, stream);
}
void begin_capture_pool(CapturePool pool, CaptureFilter filter) {
  device_allocator(pool.device).begin_pool(pool.id, std::move(filter));
}
void end_capture_pool(CapturePool pool) { device_allocator(pool.device).end_pool(pool.id); }
void release_capture_pool(CapturePool pool) { device_allocator(pool.device).release_pool(pool.id); }
std::size_t capture_pool_bytes(CapturePool pool) { return device_allocator(pool.device).pool_bytes(pool.id); }

void before_submit() { before_submit(default_device()); }
void before_submit(Device device) { device_allocator(device).before_submit(); }
void clear_cache() { clear_cache(default_device()); }
void clear_cache(Device device) { device_allocator(device).clear_cache(); }

ScopedMemoryLimit::~ScopedMemoryLimit() {
  try {
    set_memory_limit(previous_, device_);
  } catch (...) {
    // Nothing throws out of a destructor; the limit itself is set before anything can fail.
  }
}

ScopedCacheLimit::~ScopedCacheLimit() {
  try {
    device_allocator(device_).set_cache_limit(previous_);
  } catch (...) {
    // As above.
  }
}

MemoryOptions set_memory_options(MemoryOptions options, Device device) {
  return device_allocator(device).set_options(options);
}
MemoryOptions get_memory_options(Device device) { return device_allocator(device).options(); }

std::vector<TagStats> tag_stats(Device device) { return device_allocator(device).tags(); }

void UniqueBuffer::reset() noexcept {
  try {
    free(std::exchange(buffer_, {}));
  } catch (...) {
    // The handle was freed elsewhere, or a pool keeps the buffer: nobody is left to tell.
  }
}

UniqueBuffer make_unique_buffer(std::size_t bytes, Device device) {
  return UniqueBuffer(allocator(device).malloc(bytes));
}

SharedBuffer make_shared_buffer(std::size_t bytes, Device device) {
  UniqueBuffer owned = make_unique_buffer(bytes, device);
  auto shared = std::shared_ptr<Buffer>(new Buffer(owned.get()), [](Buffer* buffer) {
    UniqueBuffer last(*buffer);
    delete buffer;
  });
  static_cast<void>(owned.release());
  return shared;
}

}  // namespace cistern
