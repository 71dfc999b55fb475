// Shape: up to 8 extents, stored inline. TypedBuffer: a counted handle to memory with a dtype and a shape.
//
// Does: keep the memory alive while a handle exists, views of parts, checked access by the host. Does not: decide where
// memory comes from or goes to; that is the slot's owner (BufferPool, planned arenas).
//
// Locking: none. The count is atomic: handles of one buffer may be copied and dropped by any thread at any time (one
// handle object by one thread at a time, as with std::shared_ptr). Dropping the last handle never blocks on the pool's
// thread. The bytes themselves are the user's to order.
#pragma once

#include <array>
#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "cistern/buffer.hpp"
#include "cistern/dtype.hpp"
#include "cistern/stream.hpp"

namespace cistern {

inline constexpr std::size_t kMaxRank = 8;

namespace detail {
template <typename T>
concept Extent = std::integral<T> && !std::same_as<T, bool>;
[[noreturn]] void throw_negative_extent(std::intmax_t value);
[[noreturn]] void throw_large_extent(std::uintmax_t value);
}  // namespace detail

class Shape {
 public:
  /// No dimension: one element.
  constexpr Shape() noexcept : dims_{}, rank_(0) {}

  /// `Shape{40, heads, 128}`; any integers. Throws invalid_argument for negative ones.
  template <detail::Extent... Dims>
    requires(sizeof...(Dims) >= 1 && sizeof...(Dims) <= kMaxRank)
  constexpr Shape(Dims... dims) : dims_{extent(dims)...}, rank_(static_cast<std::uint8_t>(sizeof...(Dims))) {}

  /// Throws invalid_argument for more than 8 extents.
  explicit Shape(std::span<const std::size_t> dims);
  explicit Shape(std::span<const std::int64_t> dims);

  // Only the extents in use are copied: most shapes have four or fewer.
  constexpr Shape(const Shape& other) noexcept : dims_{}, rank_(other.rank_) { copy_dims(other); }
  constexpr Shape& operator=(const Shape& other) noexcept {
    rank_ = other.rank_;
    copy_dims(other);
    return *this;
  }

  constexpr std::size_t rank() const noexcept { return rank_; }
  /// pre: i < rank().
  constexpr std::size_t operator[](std::size_t i) const noexcept { return dims_[i]; }
  constexpr const std::size_t* begin() const noexcept { return dims_.data(); }
  constexpr const std::size_t* end() const noexcept { return dims_.data() + rank_; }
  constexpr std::span<const std::size_t> dims() const noexcept { return {dims_.data(), rank_}; }

  /// Product of the extents. Throws invalid_argument when it does not fit in size_t.
  constexpr std::size_t element_count() const {
    std::size_t count = 0;
    if (!count_elements(1, count)) throw_overflow();
    return count;
  }

  /// `out` = `unit` times the product of the extents; false when it does not fit.
  constexpr bool count_elements(std::size_t unit, std::size_t& out) const noexcept {
    std::size_t product = unit;
    bool overflow = false;
    for (std::size_t i = 0; i < rank_; ++i) overflow |= __builtin_mul_overflow(product, dims_[i], &product);
    out = product;
    return !overflow || has_zero(out);
  }

  friend constexpr bool operator==(const Shape& a, const Shape& b) noexcept {
    if (a.rank_ != b.rank_) return false;
    for (std::size_t i = 0; i < a.rank_; ++i) {
      if (a.dims_[i] != b.dims_[i]) return false;
    }
    return true;
  }

 private:
  template <detail::Extent T>
  static constexpr std::size_t extent(T value) {
    if constexpr (std::signed_integral<T>) {
      if (value < 0) detail::throw_negative_extent(value);
    } else if constexpr (sizeof(T) >= sizeof(std::int64_t)) {
      // DLPack and every array library keep extents in signed 64 bits.
      if (value > static_cast<std::uint64_t>(INT64_MAX)) detail::throw_large_extent(value);
    }
    return static_cast<std::size_t>(value);
  }
  // An extent of zero makes the product zero, whatever the others are.
  constexpr bool has_zero(std::size_t& out) const noexcept {
    for (std::size_t i = 0; i < rank_; ++i) {
      if (dims_[i] == 0) {
        out = 0;
        return true;
      }
    }
    return false;
  }
  constexpr void copy_dims(const Shape& other) noexcept {
    for (std::size_t i = 0; i < 4; ++i) dims_[i] = other.dims_[i];
    if (rank_ > 4) {
      for (std::size_t i = 4; i < kMaxRank; ++i) dims_[i] = other.dims_[i];
    }
  }
  [[noreturn]] static void throw_overflow();

  std::array<std::size_t, kMaxRank> dims_;
  std::uint8_t rank_;
};

/// "[40, 128]"
std::string to_string(const Shape& shape);

namespace detail {

struct Slot;

// Who gets a slot back.
class SlotOwner {
 public:
  SlotOwner(const SlotOwner&) = delete;
  SlotOwner& operator=(const SlotOwner&) = delete;
  // The last handle of a slot that was let go (kEscaped) was dropped, by the calling thread, whichever that is.
  virtual void returned(Slot& slot) noexcept = 0;
  // Work on `stream` was announced by a thread that holds a handle.
  virtual void record_use(Slot& slot, const Stream& stream) = 0;
  // Unique in the life of the process, shared by the owners that one pool has had.
  std::uint64_t pool_id() const noexcept { return pool_id_; }

 protected:
  explicit SlotOwner(std::uint64_t pool_id) noexcept : pool_id_(pool_id) {}
  ~SlotOwner() = default;

 private:
  std::uint64_t pool_id_;
};

// Bits of Slot::word beside the count of handles.
inline constexpr std::uint32_t kEscaped = 1u << 31;        // The last drop calls SlotOwner::returned().
inline constexpr std::uint32_t kUsedElsewhere = 1u << 30;  // Work on another stream was announced (record_use).
inline constexpr std::uint32_t kCountMask = kUsedElsewhere - 1;

enum class SlotState : std::uint8_t {
  empty,       // Has no memory.
  listed,      // In its owner's list: free, or handed out since the last reset.
  escaped,     // Still had handles at a reset: comes back when they are dropped.
  released,    // Given back by release() while other handles exist: comes back when they are dropped.
  registered,  // Not recycled.
};

// The descriptor behind the handles of one piece of memory: one cache line, so that threads that drop handles of
// different buffers do not share one. `word` may be written by any thread that holds a handle; `next` by the thread
// that dropped the last one; everything else by the owner's thread, before the handles exist.
struct alignas(64) Slot {
  std::atomic<std::uint32_t> word{0};
  std::uint32_t index = 0;  // Place in the owner's list.
  std::byte* host = nullptr;  // Where the host finds the buffer's first byte; null when it has to ask the buffer.
  SlotOwner* owner = nullptr;
  Slot* next = nullptr;  // In the list of returned slots, or of empty ones.
  Buffer buffer;
  std::size_t byte_len = 0;  // As asked for by the last alloc().
  std::uint32_t bucket = 0;
  DType dtype = DType::u8;
  SlotState state = SlotState::empty;
  bool owned = true;  // The memory goes back to the allocator at the end; otherwise somebody else frees it.
};
static_assert(sizeof(Slot) == 64);

struct HandleAccess;

}  // namespace detail

/// Owns a share of a buffer. 96 bytes; a copy is one atomic increment, a move none.
class TypedBuffer {
 public:
  TypedBuffer() noexcept = default;
  TypedBuffer(const TypedBuffer& other) noexcept
      : slot_(other.slot_), offset_(other.offset_), byte_len_(other.byte_len_), shape_(other.shape_),
        dtype_(other.dtype_), view_(other.view_) {
    if (slot_ != nullptr) slot_->word.fetch_add(1, std::memory_order_relaxed);
  }
  TypedBuffer(TypedBuffer&& other) noexcept
      : slot_(std::exchange(other.slot_, nullptr)), offset_(other.offset_), byte_len_(other.byte_len_),
        shape_(other.shape_), dtype_(other.dtype_), view_(other.view_) {}
  TypedBuffer& operator=(const TypedBuffer& other) noexcept {
    if (other.slot_ != nullptr) other.slot_->word.fetch_add(1, std::memory_order_relaxed);
    drop();
    assign(other);
    return *this;
  }
  TypedBuffer& operator=(TypedBuffer&& other) noexcept {
    if (this != &other) {
      drop();
      assign(other);
      other.slot_ = nullptr;
    }
    return *this;
  }
  ~TypedBuffer() { drop(); }

  /// Drops this handle's share; the handle is empty afterwards.
  void reset() noexcept {
    drop();
    slot_ = nullptr;
  }

  explicit operator bool() const noexcept { return slot_ != nullptr; }

  // Of an empty handle: 0, 0, a scalar shape, u8.
  std::size_t byte_len() const noexcept { return slot_ != nullptr ? byte_len_ : 0; }
  std::size_t element_count() const noexcept { return slot_ != nullptr ? byte_len_ / size_of(dtype_) : 0; }
  Shape shape() const noexcept { return slot_ != nullptr ? shape_ : Shape(); }
  DType dtype() const noexcept { return slot_ != nullptr ? dtype_ : DType::u8; }
  /// Whether this is a part (or another reading) of a buffer; such handles cannot be released to the pool.
  bool is_view() const noexcept { return slot_ != nullptr && view_; }
  /// Handles of the same memory, this one included. Other threads may change it at once.
  std::size_t use_count() const noexcept {
    return slot_ != nullptr ? slot_->word.load(std::memory_order_relaxed) & detail::kCountMask : 0;
  }
  /// Whether two handles keep the same piece of memory alive.
  bool shares_memory(const TypedBuffer& other) const noexcept { return slot_ != nullptr && slot_ == other.slot_; }

  /// The underlying buffer and this handle's start in it, in bytes: what kernels are given.
  Buffer buffer() const noexcept { return slot_ != nullptr ? slot_->buffer : Buffer(); }
  std::size_t byte_offset() const noexcept { return slot_ != nullptr ? offset_ : 0; }
  /// Address for the host. On a device without common memory see Buffer::raw_ptr(). Null for an empty handle.
  std::byte* data() const {
    if (slot_ == nullptr) return nullptr;
    return (slot_->host != nullptr ? slot_->host : host_address()) + offset_;
  }

  /// `elements` elements of the same dtype from `byte_offset` on, one-dimensional. The view keeps the memory alive.
  /// Throws invalid_argument when it does not lie within this handle's bytes.
  TypedBuffer slice_view(std::size_t byte_offset, std::size_t elements) const;
  /// The same with a shape, and read as another dtype.
  TypedBuffer view(std::size_t byte_offset, DType dtype, const Shape& shape) const;
  /// The same bytes in another shape. Throws invalid_argument when the element count differs.
  TypedBuffer reshape(const Shape& shape) const;

  /// The elements, for the host. T must be the C++ type of dtype(), or std::byte for the bytes as they are.
  /// Throws invalid_argument for another type, an address not aligned for T, an empty handle.
  template <typename T>
    requires(Element<std::remove_const_t<T>> || std::same_as<std::remove_const_t<T>, std::byte>)
  std::span<T> as_span() const {
    if constexpr (std::same_as<std::remove_const_t<T>, std::byte>) {
      return {checked_data(dtype_, 1), byte_len_};
    } else {
      std::byte* bytes = checked_data(dtype_of<std::remove_const_t<T>>, alignof(T));
      return {reinterpret_cast<T*>(bytes), byte_len_ / sizeof(T)};
    }
  }

  /// Says that work on `stream` uses the memory: a pool then gives it back to the allocator instead of recycling it.
  void record_use(const Stream& stream) const;

 private:
  friend struct detail::HandleAccess;

  TypedBuffer(detail::Slot* slot, std::size_t offset, std::size_t byte_len, DType dtype, const Shape& shape,
              bool view) noexcept
      : slot_(slot), offset_(offset), byte_len_(byte_len), shape_(shape), dtype_(dtype), view_(view) {}

  void drop() noexcept {
    if (slot_ == nullptr) return;
    const std::uint32_t before = slot_->word.fetch_sub(1, std::memory_order_acq_rel);
    // Not escaped: from here on the slot is its owner's, it must not be touched.
    if ((before & (detail::kEscaped | detail::kCountMask)) == (detail::kEscaped | 1)) [[unlikely]] {
      slot_->owner->returned(*slot_);
    }
  }
  void assign(const TypedBuffer& other) noexcept {
    slot_ = other.slot_;
    offset_ = other.offset_;
    byte_len_ = other.byte_len_;
    shape_ = other.shape_;
    dtype_ = other.dtype_;
    view_ = other.view_;
  }
  std::byte* host_address() const;
  std::byte* checked_data(DType wanted, std::size_t alignment) const;

  detail::Slot* slot_ = nullptr;
  std::size_t offset_ = 0;    // Bytes from the start of slot_->buffer.
  std::size_t byte_len_ = 0;
  [[no_unique_address]] Shape shape_;
  DType dtype_ = DType::u8;
  bool view_ = false;
};

/// "f32[40, 128], 20480 bytes"
std::string to_string(const TypedBuffer& buffer);

namespace detail {
// For owners of slots: makes and opens handles.
struct HandleAccess {
  // pre: the slot's count already has this handle's share.
  static TypedBuffer make(Slot* slot, std::size_t offset, std::size_t byte_len, DType dtype,
                          const Shape& shape) noexcept {
    return TypedBuffer(slot, offset, byte_len, dtype, shape, false);
  }
  static Slot* slot(const TypedBuffer& handle) noexcept { return handle.slot_; }
  // The handle becomes empty; its share of the count goes to the caller.
  static Slot* take(TypedBuffer& handle) noexcept { return std::exchange(handle.slot_, nullptr); }
};
}  // namespace detail

}  // namespace cistern
