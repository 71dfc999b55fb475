// Stream: an ordered queue of work on a device. A small value; copies name the same stream. Thread-safe.
#pragma once

#include <cstdint>

#include "cistern/device.hpp"

namespace cistern {

namespace allocation {
struct StreamFactory;
}

class Stream {
 public:
  /// The default stream of the default device.
  Stream();
  /// The default stream of `device`. Throws invalid_argument when the device is not available.
  explicit Stream(Device device);
  /// A stream made by the device's own library (`cudaStream_t`, `id<MTLCommandQueue>`), or a number on the CPU and the
  /// model device. The driver's id is read once, here: a handle that is destroyed and made again is another stream.
  /// Up to 4,095 of a device may be alive beside its default stream: invalid_argument for more, as for what is none.
  Stream(Device device, void* native);

  Device device() const noexcept { return device_; }
  void* native() const noexcept { return native_; }
  /// Unique in the life of the process; never reused.
  std::uint64_t id() const noexcept { return id_; }
  /// Where the device keeps this stream (internal).
  std::uint32_t slot() const noexcept { return slot_; }

  friend bool operator==(const Stream& a, const Stream& b) noexcept { return a.id_ == b.id_; }

 private:
  friend struct allocation::StreamFactory;
  Stream(Device device, std::uint32_t slot, void* native, std::uint64_t id) noexcept
      : device_(device), slot_(slot), native_(native), id_(id) {}

  Device device_{};
  std::uint32_t slot_ = 0;
  void* native_ = nullptr;
  std::uint64_t id_ = 0;
};

/// Says that the stream's owner is about to destroy it (call it before the native handle is gone: what the stream freed
/// may be ordered by that handle at any later time; for the handle of a thread's own default stream, in that thread
/// before it ends). Its memory serves others after the work that was pending; its copies are refused from now on.
/// Throws invalid_argument for a stream that was destroyed before, driver_error while the stream itself is being
/// captured, while a capture pool is open on it, or when the device has failed. Nothing happens for the default stream.
void stream_destroyed(const Stream& stream);

}  // namespace cistern
