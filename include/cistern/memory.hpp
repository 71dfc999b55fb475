// Limits, figures and options of a device's memory. All functions are thread-safe; reads take no lock.
// Units are bytes. `device` defaults to the default device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cistern/allocator.hpp"

namespace cistern {

/// Figures of one device. Bytes unless said otherwise. A peak is exact to 64 KiB a thread.
struct Stats {
  std::size_t active = 0;  ///< Capacity of live buffers, views included.
  std::size_t peak_active = 0;
  std::size_t reserved = 0;  ///< Physical memory mapped, thread caches and slack included.
  std::size_t peak_reserved = 0;
  std::size_t cached = 0;  ///< reserved - active (without views).
  std::size_t views = 0;   ///< Part of `active` that make_buffer() brought.
  std::size_t memory_limit = 0;
  std::size_t cache_limit = 0;
  std::size_t wired_limit = 0;
  std::size_t total_memory = 0;
  std::uint64_t live_buffers = 0;     ///< Count.
  std::uint64_t handles = 0;          ///< Physical handles (or segments) held now.
  std::uint64_t handles_created = 0;  ///< Since the start.
  std::uint64_t handles_moved = 0;
  std::uint64_t handles_released = 0;
  std::uint64_t objects = 0;       ///< Live objects of the vendor's that count against its cap (Metal).
  std::uint64_t driver_calls = 0;  ///< All calls to the system or the vendor's library since the start.
  std::uint64_t host_waits = 0;    ///< Times that the host waited for the device.
  std::uint64_t late_double_frees =
      0;  ///< Double frees by two threads at the same instant, found when the queue was emptied.
};

Stats stats(Device device);
Stats stats();

/// The figures of staging_allocator(device). Its limit is one of its own, a part of the system's memory: no setter
/// below reaches it.
Stats staging_stats(Device device);
/// Gives the staging memory that nobody uses back to the system.
void clear_staging_cache(Device device);

std::size_t get_active_memory();
std::size_t get_active_memory(Device device);
std::size_t get_peak_memory();
std::size_t get_peak_memory(Device device);
void reset_peak_memory();
void reset_peak_memory(Device device);
std::size_t get_cache_memory();
std::size_t get_cache_memory(Device device);
std::size_t get_reserved_memory();
std::size_t get_reserved_memory(Device device);
std::size_t get_peak_reserved_memory();
std::size_t get_peak_reserved_memory(Device device);

/// Setters return the previous value.
/// Memory limit: `reserved` does not grow past it; what is cached goes back first, then malloc() throws out_of_memory.
/// Live buffers stay. Where they alone are past it (0 is the lowest: nothing more), nothing is handed out any more,
/// mapped or not, malloc(0) included, but for blocks that the calling thread's own cache holds: those that it freed
/// itself since, or had before another thread set the limit. Memory is mapped in pieces of the device's granularity
/// (`cistern info`; 2 MiB on the CPU and on CUDA): a limit below one piece serves none of it, and what is left below a
/// multiple of it nothing more. Views count as active, not against the limit. The device's own pool
/// (CISTERN_CUDA_MEMORY=pool) grows by steps of its own: what it holds past the limit goes back after the request, as
/// far as the pool can.
/// Wired limit: see begin_batch(); on Metal alone, elsewhere it is kept and has no effect.
std::size_t set_memory_limit(std::size_t bytes);
std::size_t set_memory_limit(std::size_t bytes, Device device);
std::size_t get_memory_limit();
std::size_t get_memory_limit(Device device);
std::size_t set_cache_limit(std::size_t bytes);
std::size_t set_cache_limit(std::size_t bytes, Device device);
std::size_t get_cache_limit();
std::size_t get_cache_limit(Device device);
std::size_t set_wired_limit(std::size_t bytes);
std::size_t set_wired_limit(std::size_t bytes, Device device);
std::size_t get_wired_limit();
std::size_t get_wired_limit(Device device);

/// Gives all memory without a live byte back to the system. What was live before is no measure any more for how much
/// is kept: a smaller phase that follows holds little.
void clear_cache();
void clear_cache(Device device);

/// Says that a batch of work on the device's buffers is about to be submitted. On Metal what is to be wired is made
/// real here, once per batch; a program that never says so has it done at every change. Nothing happens elsewhere.
void before_submit(Device device);
void before_submit();

/// A stretch of a segment. Segments are tiled by their ranges, in address order.
struct MemoryRange {
  std::uintptr_t address = 0;
  std::size_t bytes = 0;
  bool live = false;  ///< A buffer; otherwise free, wherever it is kept.
};
/// A stretch of mapped device memory without a gap.
struct MemorySegment {
  std::uintptr_t address = 0;
  std::size_t bytes = 0;
  /// Of a capture pool: the stream in whose order its free memory is. Else null: streams share it.
  void* stream = nullptr;
  std::uint64_t capture_pool = 0;  ///< Id of the CapturePool that it belongs to; 0 for ordinary memory.
  std::vector<MemoryRange> ranges;
};
/// What lies where in the device's memory at this moment; memory that malloc(n) makes for the host is not in it. Slow:
/// for pictures and snapshots.
std::vector<MemorySegment> memory_map(Device device = default_device());

/// Sets a limit for a scope and puts the previous one back.
class ScopedMemoryLimit {
 public:
  explicit ScopedMemoryLimit(std::size_t bytes, Device device = default_device())
      : device_(device), previous_(set_memory_limit(bytes, device)) {}
  ~ScopedMemoryLimit();
  ScopedMemoryLimit(const ScopedMemoryLimit&) = delete;
  ScopedMemoryLimit& operator=(const ScopedMemoryLimit&) = delete;

 private:
  Device device_;
  std::size_t previous_;
};

class ScopedCacheLimit {
 public:
  explicit ScopedCacheLimit(std::size_t bytes, Device device = default_device())
      : device_(device), previous_(set_cache_limit(bytes, device)) {}
  ~ScopedCacheLimit();
  ScopedCacheLimit(const ScopedCacheLimit&) = delete;
  ScopedCacheLimit& operator=(const ScopedCacheLimit&) = delete;

 private:
  Device device_;
  std::size_t previous_;
};

/// Content rules. Defaults are all off; fresh CPU memory is zero anyway.
struct MemoryOptions {
  bool zero_on_alloc = false;   ///< Every buffer reads zero when handed out.
  bool zero_on_reuse = false;   ///< A buffer that was used before reads zero when handed out again.
  bool poison_on_free = false;  ///< Freed bytes are overwritten with 0xDE.
};
MemoryOptions set_memory_options(MemoryOptions options, Device device = default_device());
MemoryOptions get_memory_options(Device device = default_device());

/// Called when an allocation would fail, after caches were flushed and before out_of_memory is thrown; without any lock
/// of Cistern held. Return true when memory was freed and another attempt is worth it. What a callback throws passes
/// through malloc() to its caller; those after it are not called, and the allocator stays usable.
using OutOfMemoryCallback = std::function<bool(Device device, std::size_t bytes)>;
std::uint64_t add_out_of_memory_callback(OutOfMemoryCallback callback);
void remove_out_of_memory_callback(std::uint64_t id);

/// Buffers that this thread allocates in the scope count under `name`. Scopes nest; the innermost name holds. The empty
/// name is that of no tag: what is allocated under it counts nowhere, whatever scope is around it.
class ScopedTag {
 public:
  explicit ScopedTag(std::string_view name);
  ~ScopedTag();
  ScopedTag(const ScopedTag&) = delete;
  ScopedTag& operator=(const ScopedTag&) = delete;

 private:
  std::uint16_t previous_;
};

struct TagStats {
  std::string name;
  std::size_t active = 0;
  std::size_t peak = 0;
};
/// By active bytes, largest first.
std::vector<TagStats> tag_stats(Device device = default_device());

/// Owns a buffer and frees it. Move-only.
class UniqueBuffer {
 public:
  UniqueBuffer() noexcept = default;
  explicit UniqueBuffer(Buffer buffer) noexcept : buffer_(buffer) {}
  UniqueBuffer(UniqueBuffer&& other) noexcept : buffer_(std::exchange(other.buffer_, {})) {}
  UniqueBuffer& operator=(UniqueBuffer&& other) noexcept {
    if (this != &other) {
      reset();
      buffer_ = std::exchange(other.buffer_, {});
    }
    return *this;
  }
  ~UniqueBuffer() { reset(); }
  /// Never throws: an error of free() is dropped. A buffer that was freed elsewhere stays so; one that a pool keeps
  /// (register_existing) is not freed, and nobody is left to do it.
  void reset() noexcept;
  Buffer get() const noexcept { return buffer_; }
  Buffer release() noexcept { return std::exchange(buffer_, {}); }
  explicit operator bool() const noexcept { return static_cast<bool>(buffer_); }

 private:
  Buffer buffer_;
};

using SharedBuffer = std::shared_ptr<const Buffer>;
UniqueBuffer make_unique_buffer(std::size_t bytes, Device device = default_device());
SharedBuffer make_shared_buffer(std::size_t bytes, Device device = default_device());

}  // namespace cistern
