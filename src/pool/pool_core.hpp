// PoolCore: the state of a BufferPool. It lives on after the pool until the last handle is dropped.
//
// A bucket keeps its slots in one array, cut in two by `used`:
//
//   [ handed out since the last reset | free ]
//     0 ...                    used - 1, used ...
//
// alloc() takes the slot at `used` and steps on. reset() looks whether the slots of the first part have handles and,
// when none has, sets `used` to zero: nothing is moved. A slot that leaves the first part early (release) is swapped
// with its last; one that escapes moves to the bucket's second array, and back when it is found without handles. So a
// slot is in one place at a time.
//
// Locking: none; one thread at a time, except retire() and record_use(), which any thread may call.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cistern/buffer_pool.hpp"

namespace cistern::pooling {

using Bucket = detail::PoolBucket;

class PoolCore final : public detail::SlotOwner {
 public:
  PoolCore(Allocator& allocator, const Stream& stream, PoolOptions options, std::uint64_t pool_id);

  detail::PoolFront& front() noexcept { return front_; }

  // The memory of one request, with its first handle counted. pre: bytes <= detail::kMaxRequest.
  detail::Slot* take(std::size_t bytes, DType dtype);
  // Undoes take(). pre: no other handle than the one that take() counted.
  void recycle(detail::Slot& slot) noexcept;

  // Why the handle cannot be released; null when it can.
  const char* may_release(const TypedBuffer& handle) const noexcept;
  // pre: may_release() returned null. The handle becomes empty.
  void release(TypedBuffer& handle) noexcept;

  // One line for each buffer that a reset would leave with its handles.
  std::vector<std::string> held_buffers() const;
  void reset() noexcept;
  void trim() noexcept;
  // The pool is done with this: what handles refer to is freed when they go, then the core itself.
  void close() noexcept;
  // Lists every escaped buffer that has no handle any more.
  void collect() noexcept;

  // Throws invalid_argument when somebody keeps the buffer already. pre: it is live.
  detail::Slot* add_registered(Buffer buffer, bool owned, std::size_t bytes, DType dtype);

  // The bucket of a size seen before (mode `exact`), or null.
  Bucket* find_exact(std::size_t bytes) noexcept;
  std::size_t bucket_bytes(std::size_t bytes) const noexcept;
  std::size_t handed_out_count() const noexcept;
  std::size_t handed_out_bytes() const noexcept;
  std::size_t escaped_count() const noexcept { return escaped_count_; }
  std::size_t escaped_bytes() const noexcept { return escaped_bytes_; }
  std::size_t total_count() const noexcept { return total_count_; }
  std::size_t total_bytes() const noexcept { return total_bytes_; }
  std::size_t registered_count() const noexcept { return registered_.size(); }
  std::size_t registered_bytes() const noexcept { return registered_bytes_; }

  Allocator& allocator() const noexcept { return allocator_; }
  const Stream& stream() const noexcept { return stream_; }
  const PoolOptions& options() const noexcept { return options_; }

  std::vector<std::string> check_invariants() const;

  void retire(detail::Slot& slot) noexcept override;
  void record_use(detail::Slot& slot, const Stream& stream) override;

 protected:
  ~PoolCore() = default;  // It ends itself: let_go().

 private:
  // An entry of the table of mode `exact`; open addressing.
  struct Exact {
    std::size_t bytes = 0;
    std::uint32_t bucket = 0;
    bool taken = false;
  };

  Bucket* find(std::size_t bytes) noexcept;
  std::size_t exact_place(std::size_t bytes) const noexcept;
  Bucket& add_exact(std::size_t bytes);
  // The bucket for `bytes`, with at least one free slot. Throws as alloc() does, state unchanged.
  Bucket& refill(std::size_t bytes);
  Buffer allocate(std::size_t bytes);
  void make_room(Bucket& bucket);
  void reserve_slot();
  detail::Slot& pop_slot() noexcept;

  void reset_bucket(Bucket& bucket) noexcept;
  // Looks at up to `budget` escaped slots, going round.
  void look_for_returned(Bucket& bucket, std::size_t budget) noexcept;
  // The slot leaves the first part of its bucket's array.
  void unlist(Bucket& bucket, detail::Slot& slot) noexcept;
  void list_free(Bucket& bucket, detail::Slot& slot) noexcept;
  void to_escaped(Bucket& bucket, detail::Slot& slot, detail::SlotState state) noexcept;
  // pre: no handle, in no list. Gives the memory back, or keeps the slot as a free one.
  void discard(Bucket& bucket, detail::Slot& slot) noexcept;
  void free_memory(detail::Slot& slot) noexcept;
  void let_go() noexcept;

  Allocator& allocator_;
  const Stream stream_;
  const PoolOptions options_;
  const bool on_cpu_;
  detail::PoolFront front_;
  std::vector<std::uint32_t> live_;  // Buckets that ever had a slot.
  std::vector<Exact> exact_;
  detail::Slot* spare_ = nullptr;  // Slots without memory.
  std::vector<detail::Slot*> registered_;
  std::size_t registered_bytes_ = 0;
  std::size_t total_count_ = 0;
  std::size_t total_bytes_ = 0;
  std::size_t escaped_count_ = 0;
  std::size_t escaped_bytes_ = 0;
  std::atomic<std::size_t> remaining_{0};  // After close(): slots with memory, and 1 for close() itself.
};

}  // namespace cistern::pooling
