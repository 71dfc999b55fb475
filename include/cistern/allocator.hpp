// Allocator: memory of one device. All members are thread-safe.
#pragma once

#include <cstddef>

#include "cistern/buffer.hpp"
#include "cistern/device.hpp"
#include "cistern/error.hpp"
#include "cistern/stream.hpp"

namespace cistern {

class Allocator {
 public:
  virtual ~Allocator() = default;
  Allocator(const Allocator&) = delete;
  Allocator& operator=(const Allocator&) = delete;

  /// Memory that host and device reach. `malloc(0)` is valid: size 0, freed like any other.
  /// Throws out_of_memory; invalid_argument for sizes that no device could have (near SIZE_MAX).
  virtual Buffer malloc(std::size_t bytes) = 0;
  /// Device memory, ready for work that is submitted to `stream` from now on.
  virtual Buffer malloc(std::size_t bytes, const Stream& stream) = 0;
  /// Gives the memory back in the order of the stream that allocated it. Memory without a stream goes back at once:
  /// work on it must be done, or be named by record_use() or free(buffer, stream). Nothing happens for a null buffer.
  /// Throws invalid_argument for a double free, a view, another device's buffer, one that a pool or an arena keeps.
  virtual void free(Buffer buffer) = 0;
  /// The same, in the order of `stream`.
  virtual void free(Buffer buffer, const Stream& stream) = 0;
  /// Frees by address (C interfaces). Throws invalid_argument for an address that is not the start of a live buffer.
  virtual void free_raw(void* ptr) = 0;
  /// The live buffer that starts at `ptr`; null when there is none.
  virtual Buffer find(const void* ptr) const = 0;
  /// Usable capacity in bytes. Throws invalid_argument for a freed handle.
  virtual std::size_t size(Buffer buffer) const = 0;
  /// A view of memory owned by somebody else, without a copy; null when the device cannot reach it as it is, and for a
  /// null pointer to no bytes.
  virtual Buffer make_buffer(void* ptr, std::size_t bytes) = 0;
  /// Ends a view made by make_buffer(). May wait for other threads, so unlike free() it is not for host functions of a
  /// stream. Throws invalid_argument for a buffer that is not a view, or is registered with a pool.
  virtual void release(Buffer buffer) = 0;
  /// Says that work on `stream` uses the buffer: its memory is not reused before that work is done.
  virtual void record_use(Buffer buffer, const Stream& stream) = 0;
  virtual Device device() const noexcept = 0;

 protected:
  Allocator() = default;
};

/// The allocator of the default device, and of `device`. Made at first use, never destroyed.
/// Throws invalid_argument when the device is not available.
Allocator& allocator();
Allocator& allocator(Device device);

/// Host memory for copies to and from `device`: pinned, so that copies run at full speed beside other work. A buffer
/// costs its own size in whole pages, no power of two. free() needs no wait: the buffer serves again only when all work
/// submitted until then is done. The device's own allocator where the host reaches its memory anyway.
/// Throws invalid_argument when the device is not available.
Allocator& staging_allocator(Device device);

/// The CPU without a cache: each buffer is one aligned allocation of the C library, and free() gives it back at once.
Allocator& system_allocator();

/// Shorthands on the default device; free() finds the buffer's own device.
Buffer malloc(std::size_t bytes);
Buffer malloc(std::size_t bytes, const Stream& stream);
void free(Buffer buffer);

}  // namespace cistern
