// Buffer: a handle to one allocation. 16 bytes, trivially copyable, owns nothing. Thread-safe to copy and read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "cistern/device.hpp"

namespace cistern {

namespace core {
struct Block;
}

class Buffer {
 public:
  constexpr Buffer() noexcept = default;
  constexpr Buffer(core::Block* block, std::uint64_t serial) noexcept : block_(block), serial_(serial) {}

  /// Device-side pointer, or the device's buffer object (Metal). Null for a null buffer.
  void* ptr() const noexcept;
  /// Bytes from the start of the object named by ptr(); 0 except on Metal without an object per block.
  std::size_t offset() const noexcept;
  /// Pointer that the host can use. Device-only memory is moved to unified memory first, after the stream's work.
  /// Throws invalid_argument on a freed handle, out_of_memory, driver_error.
  void* raw_ptr() const;
  /// Usable capacity in bytes, at least what was asked for; 0 for a null buffer.
  std::size_t size() const noexcept;
  Device device() const noexcept;
  /// Whether the handle still names a live allocation.
  bool live() const noexcept;

  explicit constexpr operator bool() const noexcept { return block_ != nullptr; }
  friend constexpr bool operator==(const Buffer&, const Buffer&) noexcept = default;

  core::Block* block() const noexcept { return block_; }
  std::uint64_t serial() const noexcept { return serial_; }

 private:
  core::Block* block_ = nullptr;
  std::uint64_t serial_ = 0;
};

static_assert(sizeof(Buffer) == 16 && std::is_trivially_copyable_v<Buffer>);

}  // namespace cistern
