// TypedBuffer: a counted handle to memory with a dtype and a shape.
//
// Does: keep the memory alive while a handle exists, views of parts, checked access by the host. Does not: decide where
// memory comes from or goes to; that is the slot's owner (BufferPool, planned arenas).
//
// Locking: none. Handles of one buffer may be copied and dropped by any thread at any time (one handle object by one
// thread at a time, as with std::shared_ptr). A copy is one atomic increment, dropping it one decrement; dropping the
// first handle is a plain store. Nothing blocks. The bytes themselves are the user's to order.
#pragma once

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
#include "cistern/shape.hpp"
#include "cistern/stream.hpp"

namespace cistern {

namespace detail {

// How handles and the owner of their memory agree on who still uses it.
//
//   primary   1 while the first handle exists (the one that alloc() made, wherever it was moved)
//   shared    number of copies of it
//
// The memory is unused when `primary` and then `shared` are read as zero: copies of the first handle were counted
// before it went, copies of copies keep the count above zero. Dropping the first handle, which is what happens to
// nearly all buffers, is therefore one plain store; no atomic read-modify-write, no list, no branch on who is last. The
// owner looks when it wants the memory back (reset, or nothing free).
//
// Only an owner that ends has to be told. It marks its slots as orphans, makes every running thread's earlier stores
// visible (heavy_fence), and looks a last time. A thread that drops a handle looks at `hint` after its store: either
// the owner saw the store, or the thread sees the mark; then it looks itself. Whoever finds the slot unused and changes
// `watch` from orphan to claimed frees the memory, once. For this, slots stay mapped for the life of the process.

struct Slot;

// Who owns the memory of slots.
class SlotOwner {
 public:
  SlotOwner(const SlotOwner&) = delete;
  SlotOwner& operator=(const SlotOwner&) = delete;
  // The slot was an orphan and nobody uses it now: free its memory. Called by any thread, once a slot.
  virtual void retire(Slot& slot) noexcept = 0;
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

// Bits of Slot::shared.
inline constexpr std::uint32_t kUsedElsewhere = 1u << 31;  // Work on another stream was announced (record_use).
inline constexpr std::uint32_t kCountMask = kUsedElsewhere - 1;

enum class SlotState : std::uint8_t {
  empty,       // Has no memory.
  listed,      // In its owner's list: free, or handed out since the last reset.
  escaped,     // Still had handles at a reset: comes back when they are gone.
  released,    // Given back by release() while other handles exist: comes back when they are gone.
  registered,  // Not recycled.
};

// What a cycle touches of a buffer: 16 bytes, so that 1,750 of them fit in a first-level cache. Any thread that holds a
// handle may write `primary` and `shared`; the rest is written by the owner's thread while no handle exists.
struct alignas(16) Slot {
  std::atomic<std::uint8_t> primary{0};
  std::atomic<std::uint8_t> hint{0};  // Not 0: whoever drops a handle calls last_look().
  DType dtype = DType::u8;            // As asked for by the last alloc().
  SlotState state = SlotState::empty;
  std::atomic<std::uint32_t> shared{0};
  std::byte* host = nullptr;  // Where the host finds the buffer's first byte; null when it has to ask the buffer.
};
static_assert(sizeof(Slot) == 16);

// The rest of a slot. Written by the owner's thread.
struct SlotDetail {
  SlotOwner* owner = nullptr;
  Slot* next = nullptr;  // Among the slots without memory.
  Buffer buffer;
  std::atomic<std::uint32_t> watch{0};  // Generation times 4, and a WatchState.
  std::uint32_t bucket = 0;
  std::uint32_t index = 0;  // Place in the owner's list.
  bool owned = true;        // The memory goes back to the allocator at the end; otherwise somebody else frees it.
  bool kept = false;        // The allocator takes no other free of the buffer meanwhile.
};
static_assert(sizeof(SlotDetail) == 48);

struct HandleCell;

// A slot's detail is found by its address. So large that the slots of a chunk are 4 KiB: less would crowd those of many
// chunks into a few sets of the first-level cache.
struct alignas(16384) SlotChunk {
  static constexpr std::size_t kSlots = 255;
  Slot slots[kSlots];
  SlotDetail details[kSlots];
  std::atomic<HandleCell*> cells{nullptr};  // One a slot, for owners that keep handles themselves; made when needed.
};
static_assert(sizeof(SlotChunk) == 16384);

inline SlotDetail& detail_of(const Slot& slot) noexcept {
  const auto address = reinterpret_cast<std::uintptr_t>(&slot);
  auto* chunk = reinterpret_cast<SlotChunk*>(address & ~std::uintptr_t{sizeof(SlotChunk) - 1});
  return chunk->details[(address & (sizeof(SlotChunk) - 1)) / sizeof(Slot)];
}

// Handles of the slot. 0 is final when no handle is in the caller's hands.
inline std::size_t handle_count(const Slot& slot) noexcept {
  const std::size_t primary = slot.primary.load(std::memory_order_acquire);
  return primary + (slot.shared.load(std::memory_order_acquire) & kCountMask);
}

// 0: no handle, and no work on other streams was announced. Not the number of handles.
inline std::uint32_t users_of(const Slot& slot) noexcept {
  const std::uint32_t primary = slot.primary.load(std::memory_order_acquire);
  return primary | slot.shared.load(std::memory_order_acquire);
}

// Frees the memory of an orphan that nobody uses; otherwise does nothing. Any thread, any slot.
void last_look(Slot& slot) noexcept;

// After each drop of a handle.
inline void after_drop(Slot& slot) noexcept {
  // The processor's half of this fence is the owner's heavy_fence().
  std::atomic_signal_fence(std::memory_order_seq_cst);
  if (slot.hint.load(std::memory_order_relaxed) != 0) [[unlikely]] {
    last_look(slot);
  }
}

inline constexpr std::uint8_t kView = 1;     // Part of a buffer, or another reading of it.
inline constexpr std::uint8_t kPrimary = 2;  // The handle stands for Slot::primary, otherwise for one of `shared`.
inline constexpr std::uint8_t kMore = 4;     // Of a planned handle: its bytes were those of several others.

// One word. A handle is often moved right after it was made, and a load that is wider than the stores before it waits
// until they have reached the cache; the empty statement keeps the compiler from joining the loads of words.
template <typename T>
inline T word(T value) noexcept {
  asm("" : "+r"(value));
  return value;
}

struct HandleBits {
  Slot* slot = nullptr;
  // Of the handle's first byte: slot->host plus its offset in the buffer (so the offset alone where host is null).
  std::uintptr_t address = 0;
  std::size_t byte_len = 0;
  Extents extents;  // With dtype and flags.

  HandleBits() noexcept = default;
  HandleBits(Slot* s, std::uintptr_t a, std::size_t n, const Extents& e) noexcept
      : slot(s), address(a), byte_len(n), extents(e) {}
  HandleBits(const HandleBits& other) noexcept
      : slot(word(other.slot)),
        address(word(other.address)),
        byte_len(word(other.byte_len)),
        extents(other.extents, [](std::uint64_t value) { return word(value); }) {}
  // NOLINTNEXTLINE(bugprone-unhandled-self-assignment): words onto themselves.
  HandleBits& operator=(const HandleBits& other) noexcept {
    slot = word(other.slot);
    address = word(other.address);
    byte_len = word(other.byte_len);
    extents = Extents(other.extents, [](std::uint64_t value) { return word(value); });
    return *this;
  }
};

}  // namespace detail

/// Owns a share of a buffer. 64 bytes; a copy is one atomic increment, a move none.
class TypedBuffer {
 public:
  TypedBuffer() noexcept = default;
  TypedBuffer(const TypedBuffer& other) noexcept : bits_(other.bits_) { share(); }
  TypedBuffer(TypedBuffer&& other) noexcept : bits_(other.bits_) { other.bits_.slot = nullptr; }
  TypedBuffer& operator=(const TypedBuffer& other) noexcept {
    TypedBuffer copy(other);
    std::swap(bits_, copy.bits_);
    return *this;
  }
  TypedBuffer& operator=(TypedBuffer&& other) noexcept {
    if (this != &other) {
      drop();
      bits_ = other.bits_;
      other.bits_.slot = nullptr;
    }
    return *this;
  }
  ~TypedBuffer() { drop(); }

  /// Drops this handle's share; the handle is empty afterwards.
  void reset() noexcept {
    drop();
    bits_.slot = nullptr;
  }

  explicit operator bool() const noexcept { return bits_.slot != nullptr; }

  // Of an empty handle: 0, 0, a scalar shape, u8.
  std::size_t byte_len() const noexcept { return *this ? bits_.byte_len : 0; }
  std::size_t element_count() const noexcept { return *this ? bits_.byte_len / size_of(bits_.extents.dtype()) : 0; }
  Shape shape() const noexcept { return *this ? Shape(bits_.extents, element_count()) : Shape(); }
  DType dtype() const noexcept { return *this ? bits_.extents.dtype() : DType::u8; }
  /// Whether this is a part (or another reading) of a buffer; such handles cannot be released to the pool.
  bool is_view() const noexcept { return *this && (bits_.extents.flags() & detail::kView) != 0; }
  /// Handles of the same memory, this one included. Other threads may change it at once.
  std::size_t use_count() const noexcept { return *this ? detail::handle_count(*bits_.slot) : 0; }
  /// Whether two handles keep the same piece of memory alive.
  bool shares_memory(const TypedBuffer& other) const noexcept { return *this && bits_.slot == other.bits_.slot; }

  /// The underlying buffer and this handle's start in it, in bytes: what kernels are given.
  Buffer buffer() const noexcept { return *this ? detail::detail_of(*bits_.slot).buffer : Buffer(); }
  std::size_t byte_offset() const noexcept {
    return *this ? bits_.address - reinterpret_cast<std::uintptr_t>(bits_.slot->host) : 0;
  }
  /// Address for the host; null for an empty handle. Off the CPU it is that of Buffer::raw_ptr(), with its effects.
  std::byte* data() const {
    if (!*this) return nullptr;
    if (bits_.slot->host == nullptr) return foreign_data();
    return reinterpret_cast<std::byte*>(bits_.address);
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
  requires(Element<std::remove_const_t<T>> || std::same_as<std::remove_const_t<T>, std::byte>) std::span<T> as_span()
  const {
    if constexpr (std::same_as<std::remove_const_t<T>, std::byte>) {
      return {checked_data(bits_.extents.dtype(), 1), bits_.byte_len};
    } else {
      std::byte* bytes = checked_data(dtype_of<std::remove_const_t<T>>, alignof(T));
      return {reinterpret_cast<T*>(bytes), bits_.byte_len / sizeof(T)};
    }
  }

  /// Says that work on `stream` uses the memory: a pool then gives it back to the allocator instead of recycling it.
  void record_use(const Stream& stream) const;

 private:
  friend struct detail::HandleAccess;

  TypedBuffer(detail::Slot* slot, std::uintptr_t address, std::size_t byte_len, const detail::Extents& extents,
              DType dtype) noexcept
      : bits_{slot, address, byte_len, extents} {
    bits_.extents.set_handle(dtype, detail::kPrimary);
  }

  void share() noexcept {
    if (!*this) return;
    bits_.slot->shared.fetch_add(1, std::memory_order_relaxed);
    bits_.extents.set_handle(bits_.extents.dtype(), bits_.extents.flags() & ~detail::kPrimary & 0xFF);
  }
  void drop() noexcept {
    detail::Slot* slot = bits_.slot;
    if (slot == nullptr) return;
    if ((bits_.extents.flags() & detail::kPrimary) != 0) {
      slot->primary.store(0, std::memory_order_release);
    } else {
      slot->shared.fetch_sub(1, std::memory_order_acq_rel);
    }
    detail::after_drop(*slot);
  }
  std::byte* foreign_data() const;
  std::byte* checked_data(DType wanted, std::size_t alignment) const;

  detail::HandleBits bits_;
};
static_assert(sizeof(TypedBuffer) == 64);

/// "f32[40, 128], 20480 bytes"
std::string to_string(const TypedBuffer& buffer);

namespace detail {
// For owners of slots: makes and opens handles.
struct HandleAccess {
  // The first handle of a slot, `offset` bytes into its buffer. pre: `primary` is set.
  static TypedBuffer make(Slot* slot, std::size_t offset, std::size_t byte_len, DType dtype,
                          const Shape& shape) noexcept {
    return TypedBuffer(slot, reinterpret_cast<std::uintptr_t>(slot->host) + offset, byte_len, shape.extents_, dtype);
  }
  static Slot* slot(const TypedBuffer& handle) noexcept { return handle.bits_.slot; }
  static std::size_t byte_len(const TypedBuffer& handle) noexcept { return handle.bits_.byte_len; }
  static void forget(TypedBuffer& handle) noexcept { handle.bits_.slot = nullptr; }
  // A copy that keeps the compiler from preparing it before it is needed.
  static Shape by_words(const Shape& shape) noexcept {
    return Shape(Extents(shape.extents_, [](std::uint64_t value) { return word(value); }), word(shape.count_));
  }
  // The handle again, not counted: one of the two has to be forgotten. pre: the first handle of its slot.
  static TypedBuffer same(const TypedBuffer& handle) noexcept {
    const HandleBits& bits = handle.bits_;
    return TypedBuffer(bits.slot, bits.address, bits.byte_len, bits.extents, bits.extents.dtype());
  }
  // Writes over what `cell` says, which counts for nothing.
  static void write(TypedBuffer& cell, const TypedBuffer& handle, std::uint8_t more_flags) noexcept {
    cell.bits_ = handle.bits_;
    cell.bits_.extents.set_handle(handle.bits_.extents.dtype(),
                                  static_cast<std::uint8_t>(handle.bits_.extents.flags() | more_flags));
  }
  // 0: the handle has this dtype and shape, and is the first of its slot, with these flags besides.
  static std::uint64_t differs(const TypedBuffer& handle, DType dtype, const Shape& shape,
                               std::uint8_t more_flags = 0) noexcept {
    const HandleBits& has = handle.bits_;
    Extents want = shape.extents_;
    want.set_handle(dtype, kPrimary | more_flags);
    // Extents beyond the rank are 0 in both; the rank is mostly a constant.
    std::uint64_t out = has.extents.low[0] ^ want.low[0];
    if (want.rank() > 2) out |= has.extents.low[1] ^ want.low[1];
    if (want.rank() > 4) out |= has.extents.low[2] ^ want.low[2];
    if (want.rank() > 6) out |= has.extents.low[3] ^ want.low[3];
    return out | (has.extents.rest ^ want.rest);
  }
};

// A handle that counts for nothing: written ahead, shown to many.
struct alignas(64) HandleCell {
  union {
    TypedBuffer handle;
  };
  HandleCell() noexcept : handle() {}
  ~HandleCell() {}
  HandleCell(const HandleCell&) = delete;
  HandleCell& operator=(const HandleCell&) = delete;
};
static_assert(sizeof(HandleCell) == 64);
}  // namespace detail

}  // namespace cistern
