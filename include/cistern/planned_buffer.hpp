// PlannedBuffer: the handle that a PlannedArena gives out. One word: it points to a TypedBuffer that the arena wrote
// ahead, so that a request of a loop that repeats itself writes nothing but the mark that its bytes are in use.
//
// Does: everything that a TypedBuffer does, by showing it (`*buffer`, `buffer->`, and the members below). Becomes a
// TypedBuffer wherever one is wanted: moved, it hands its share over; otherwise that is a copy, a share of its own.
// Does not: copy itself.
//
// Locking: none; as TypedBuffer. The reference that `*buffer` gives is good while the handle is.
#pragma once

#include <cstddef>
#include <utility>

#include "cistern/typed_buffer.hpp"

namespace cistern {

namespace detail {
struct PlannedAccess;
}

class PlannedBuffer {
 public:
  PlannedBuffer() noexcept = default;
  PlannedBuffer(PlannedBuffer&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  PlannedBuffer& operator=(PlannedBuffer&& other) noexcept {
    const TypedBuffer* const handle = std::exchange(other.handle_, nullptr);
    drop();
    handle_ = handle;
    return *this;
  }
  PlannedBuffer(const PlannedBuffer&) = delete;
  PlannedBuffer& operator=(const PlannedBuffer&) = delete;
  ~PlannedBuffer() { drop(); }

  /// Drops this handle's share; the handle is empty afterwards.
  void reset() noexcept {
    drop();
    handle_ = nullptr;
  }
  explicit operator bool() const noexcept { return handle_ != nullptr; }

  const TypedBuffer& operator*() const noexcept { return handle_ != nullptr ? *handle_ : empty(); }
  const TypedBuffer* operator->() const noexcept { return &**this; }
  operator TypedBuffer() const& { return **this; }  // NOLINT(google-explicit-constructor)
  operator TypedBuffer() && noexcept {              // NOLINT(google-explicit-constructor)
    if (handle_ == nullptr) return {};
    return detail::HandleAccess::same(*std::exchange(handle_, nullptr));
  }

  // As those of TypedBuffer.
  std::size_t byte_len() const noexcept { return (*this)->byte_len(); }
  std::size_t element_count() const noexcept { return (*this)->element_count(); }
  Shape shape() const noexcept { return (*this)->shape(); }
  DType dtype() const noexcept { return (*this)->dtype(); }
  bool is_view() const noexcept { return false; }
  std::size_t use_count() const noexcept { return (*this)->use_count(); }
  bool shares_memory(const TypedBuffer& other) const noexcept { return (*this)->shares_memory(other); }
  Buffer buffer() const noexcept { return (*this)->buffer(); }
  std::size_t byte_offset() const noexcept { return (*this)->byte_offset(); }
  std::byte* data() const { return (*this)->data(); }
  TypedBuffer slice_view(std::size_t byte_offset, std::size_t elements) const {
    return (*this)->slice_view(byte_offset, elements);
  }
  TypedBuffer view(std::size_t byte_offset, DType dtype, const Shape& shape) const {
    return (*this)->view(byte_offset, dtype, shape);
  }
  TypedBuffer reshape(const Shape& shape) const { return (*this)->reshape(shape); }
  template <typename T>
  auto as_span() const {
    return (*this)->template as_span<T>();
  }
  void record_use(const Stream& stream) const { (*this)->record_use(stream); }

 private:
  friend struct detail::PlannedAccess;

  // pre: the first handle of its slot, marked as in use, not counted otherwise.
  explicit PlannedBuffer(const TypedBuffer* handle) noexcept : handle_(handle) {
    if (handle == nullptr) __builtin_unreachable();
  }

  void drop() noexcept {
    if (handle_ == nullptr) return;
    detail::Slot* slot = detail::HandleAccess::slot(*handle_);
    slot->primary.store(0, std::memory_order_release);
    detail::after_drop(*slot);
  }
  static const TypedBuffer& empty() noexcept;

  const TypedBuffer* handle_ = nullptr;
};
static_assert(sizeof(PlannedBuffer) == sizeof(void*));

/// As for a TypedBuffer.
inline std::string to_string(const PlannedBuffer& buffer) { return to_string(*buffer); }

namespace detail {
// For the arena: makes and opens planned handles.
struct PlannedAccess {
  static PlannedBuffer make(const TypedBuffer& handle) noexcept { return PlannedBuffer(&handle); }
  static const TypedBuffer* open(PlannedBuffer&& buffer) noexcept { return std::exchange(buffer.handle_, nullptr); }
};
}  // namespace detail

}  // namespace cistern
