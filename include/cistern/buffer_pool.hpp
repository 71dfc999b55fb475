// BufferPool: scratch buffers for loops that ask for the same sizes again and again (a decode loop takes about 1,750 a
// token). A buffer costs a few nanoseconds; when the pool is warm nothing calls the driver, the heap or a lock.
//
// Does: keep buffers in buckets by size, hand them out with dtype and shape, take all of them back at reset().
// Does not: place, split or merge memory (the Allocator does), plan (see planned arenas).
//
// Locking: none. The pool is used by one thread at a time, counts included. Handles (TypedBuffer) may be copied and
// dropped by any thread at any time, also while the pool works, is cleared or is destroyed.
//
//   a buffer is   which means                                        becomes
//
//   free          in its bucket, no handle exists                    handed out (alloc), gone (trim, clear)
//
//   handed out    given since the last reset                         free (release, reset without handles), escaped
//
//   escaped       reset() or release() found handles                 free (last handle dropped)
//
//   registered    brought by register_existing(), never recycled     gone (clear, and the last handle dropped)
//
// The pool looks for escaped buffers that came free at reset() and when nothing else is free, a bounded number at a
// time, and for all of them when it is asked for counts. A handle keeps its memory in every case, also after clear()
// and after the pool's end; then the last handle gives the memory back to the allocator. An allocator passed to the
// constructor must outlive all handles.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cistern/allocator.hpp"
#include "cistern/memory.hpp"
#include "cistern/typed_buffer.hpp"

namespace cistern {

namespace pooling {
class ArenaCore;
class PoolCore;
}  // namespace pooling

/// How a request is rounded up to the size of a bucket.
enum class Bucketing : std::uint8_t {
  power_of_two,  ///< 64, 128, 256, ... bytes.
  eight_steps,   ///< Eight sizes a doubling: at most 12.5 % waste for requests over 64 bytes.
  exact,         ///< A bucket for each size asked for. For loops whose sizes do not change.
};

/// What reset() does with buffers that handles still refer to.
enum class Escape : std::uint8_t {
  keep,   ///< They stay with their handles and return to the pool when the last one is dropped.
  error,  ///< reset() throws invalid_argument naming them; nothing is changed.
};

struct PoolOptions {
  Bucketing bucketing = Bucketing::power_of_two;
  /// Recycled buffers read zero as well (fresh ones do anyway). CPU only.
  bool zero_on_reuse = false;
};

namespace detail {

// Sizes of buckets.
//   power_of_two    64, 128, 256, 512, ...
//   eight_steps     64, 72, 80, ..., 128, 144, 160, ..., 256, ...
inline constexpr std::size_t kMinBucket = 64;  // Bytes: a cache line, and the alignment of CPU memory.
// Largest request, in bytes: rounding it up does not wrap.
inline constexpr std::size_t kMaxRequest = SIZE_MAX / 2;
inline constexpr std::uint32_t kPowerBuckets = 58;         // 2^6 ... 2^63
inline constexpr std::uint32_t kStepBuckets = 57 * 8 + 1;  // 64, then eight from each of 2^6 ... 2^62

constexpr std::uint32_t power_index(std::size_t bytes) noexcept {
  const std::size_t last = bytes - (bytes != 0);
  return static_cast<std::uint32_t>(std::bit_width(last | (kMinBucket - 1))) - 6;
}
constexpr std::size_t power_bytes(std::uint32_t index) noexcept { return kMinBucket << index; }

constexpr std::uint32_t step_index(std::size_t bytes) noexcept {
  if (bytes <= kMinBucket) return 0;
  const std::size_t last = bytes - 1;
  const std::uint32_t exponent = static_cast<std::uint32_t>(std::bit_width(last)) - 1;
  const std::uint32_t step = static_cast<std::uint32_t>(last >> (exponent - 3)) & 7;
  return (exponent - 6) * 8 + step + 1;
}
constexpr std::size_t step_bytes(std::uint32_t index) noexcept {
  if (index == 0) return kMinBucket;
  const std::uint32_t exponent = (index - 1) / 8 + 6;
  const std::size_t step = (index - 1) % 8;
  return (step + 9) << (exponent - 3);
}

struct alignas(64) PoolBucket {
  std::unique_ptr<Slot*[]> list;  // Handed out since the last reset: the first `used`. Free: the others, to `listed`.
  std::uint32_t used = 0;
  std::uint32_t listed = 0;
  std::size_t bytes = 0;  // Of each buffer.
  // Places in `list`, and the capacity of `escaped`: each has room for all buffers of the bucket.
  std::uint32_t room = 0;
  std::uint32_t next_look = 0;  // Where the search for returned ones goes on in `escaped`.
  std::vector<Slot*> escaped;   // In the hands of others.

  std::size_t members() const noexcept { return listed + escaped.size(); }
};
static_assert(sizeof(PoolBucket) == 64);

// What alloc() needs while there are free buffers.
struct PoolFront {
  enum class Sizes : std::uint8_t {
    power,
    steps,
    table,  // PoolCore::find_exact()
    slow,   // Something is to be done for recycled buffers.
  };
  std::vector<PoolBucket> buckets;
  Sizes sizes = Sizes::power;
};

}  // namespace detail

struct BufferRequest {
  std::size_t byte_len = 0;
  DType dtype = DType::u8;
  Shape shape;
};

class BufferPool {
 public:
  explicit BufferPool(Device device = default_device(), PoolOptions options = {});
  /// Buffers are ready for work submitted to `stream` after alloc(), and recycled in its order.
  explicit BufferPool(const Stream& stream, PoolOptions options = {});
  /// Memory of an allocator of your own. `stream` must be one of its device.
  BufferPool(Allocator& allocator, const Stream& stream, PoolOptions options = {});
  ~BufferPool();
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  /// Fresh CPU buffers read zero; recycled ones have their old content.
  /// Throws invalid_argument when byte_len is not what dtype and shape need, for sizes near SIZE_MAX, for a device that
  /// is not the pool's; out_of_memory after the pool's free buffers were given back and did not help.
  [[gnu::always_inline]] TypedBuffer alloc(std::size_t byte_len, DType dtype, const Shape& shape) {
    if (is_valid(dtype) && shape.count_ <= detail::kMaxRequest / 8 && shape.count_ * size_of(dtype) == byte_len)
        [[likely]] {
      if (detail::PoolBucket* bucket = find(byte_len); bucket != nullptr && bucket->used < bucket->listed) [[likely]] {
        detail::Slot* slot = bucket->list[bucket->used++];
        slot->dtype = dtype;
        slot->primary.store(1, std::memory_order_relaxed);
        return detail::HandleAccess::make(slot, 0, byte_len, dtype, shape);
      }
    }
    return alloc_slow(byte_len, dtype, shape);
  }
  TypedBuffer alloc(Device device, std::size_t byte_len, DType dtype, const Shape& shape);
  /// byte_len from dtype and shape.
  TypedBuffer alloc(DType dtype, const Shape& shape);
  /// All or nothing: when one request fails, the ones before it are taken back.
  std::vector<TypedBuffer> alloc_batch(std::span<const BufferRequest> requests);
  /// The same into handles of the caller, which are replaced. pre: out is as long as requests (else invalid_argument).
  void alloc_batch(std::span<const BufferRequest> requests, std::span<TypedBuffer> out);

  /// Gives one buffer back before the next reset(); the handle becomes empty. When other handles of it exist, it
  /// returns as the last is dropped. Throws invalid_argument for an empty handle, a view, a buffer of another pool, one
  /// released before (through another handle), one from before clear(), a registered one; then nothing is changed.
  void release(TypedBuffer& buffer);
  void release(TypedBuffer&& buffer) { release(buffer); }

  /// Ends a cycle: all buffers that no handle refers to are free again.
  void reset(Escape escape = Escape::keep);
  /// Gives all free buffers back to the allocator.
  void trim();
  /// The same, and forgets all others: the pool is as new. Memory that handles refer to goes when they do.
  void clear();

  /// A handle for memory that the pool does not recycle (weights, caches), which it keeps until clear() or its end.
  /// Until then and until the last handle is gone, free() of the buffer is refused. After that the owner of a plain
  /// Buffer frees it; a UniqueBuffer is freed by the pool. Throws invalid_argument for a freed, foreign-device or too
  /// small buffer, for one that is registered with any pool, and for memory of a pool or an arena.
  TypedBuffer register_existing(Buffer buffer, DType dtype, const Shape& shape);
  TypedBuffer register_existing(UniqueBuffer&& buffer, DType dtype, const Shape& shape);

  // Bytes are those of the buckets. total = free + in use; registered buffers are counted apart.
  std::size_t free_count() const;
  std::size_t free_bytes() const;
  /// Handed out since the last reset(), and escaped.
  std::size_t in_use_count() const;
  std::size_t in_use_bytes() const;
  std::size_t escaped_count() const;
  std::size_t total_count() const;
  std::size_t total_bytes() const;
  std::size_t registered_count() const;
  std::size_t registered_bytes() const;

  Device device() const noexcept;
  const Stream& stream() const noexcept;
  const PoolOptions& options() const noexcept;
  /// Bytes of the bucket that serves a request.
  std::size_t bucket_bytes(std::size_t byte_len) const;

  /// One message a broken rule; empty when all hold. No other thread may drop handles meanwhile.
  std::vector<std::string> check_invariants() const;

 private:
  friend class pooling::ArenaCore;  // Refuses in its own name what its pool would.
  detail::PoolBucket* find(std::size_t byte_len) const noexcept {
    if (front_->sizes == detail::PoolFront::Sizes::power) return &front_->buckets[detail::power_index(byte_len)];
    if (front_->sizes == detail::PoolFront::Sizes::steps) return &front_->buckets[detail::step_index(byte_len)];
    return front_->sizes == detail::PoolFront::Sizes::table ? find_exact(byte_len) : nullptr;
  }
  detail::PoolBucket* find_exact(std::size_t byte_len) const noexcept;
  // The shape by value: its address would keep the caller's out of registers.
  TypedBuffer alloc_slow(std::size_t byte_len, DType dtype, Shape shape);

  detail::PoolFront* front_;  // Of core_.
  pooling::PoolCore* core_;   // Shared with the handles: lives until the last of them is dropped.
};

}  // namespace cistern
