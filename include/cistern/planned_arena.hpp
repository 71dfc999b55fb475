// PlannedArena: memory of a loop that repeats itself. It watches a few cycles (sizes, order, lifetimes), plans them,
// and then serves each buffer from one slab: it compares the request with the plan and returns a handle made before.
//
// Does: record cycles, plan them (cistern/plan.hpp), serve them at the same addresses cycle after cycle, keep several
// shapes of cycle (prefill, decode) side by side, replan when the loop changes. Requests that the plan does not expect,
// or whose bytes are still in use, come from a BufferPool; each is counted.
// Does not: run work, know graphs. Addresses of a shape change only when it is planned anew (figures().plans grows).
//
// Locking: none. The arena is used by one thread at a time, figures included. Handles (TypedBuffer) may be copied and
// dropped by any thread at any time, also after the arena's end. Planning runs on a thread of its own (or at
// end_cycle(), see ArenaOptions::background); plans are put in service by end_cycle() only.
//
// A buffer's life ends with its last handle, as in the pool; the arena looks at the buffers that lay in the same bytes
// before it hands these out, so a buffer that lives longer than planned, or beyond its cycle, keeps its bytes.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cistern/allocator.hpp"
#include "cistern/buffer_pool.hpp"
#include "cistern/planned_buffer.hpp"

namespace cistern {

namespace pooling {
class ArenaCore;
}

struct ArenaOptions {
  /// Cycles alike that are recorded before they are planned. Two or more also show what lives on into the next cycle.
  unsigned record_cycles = 2;
  /// Cycles with departures, one after the other, after which the loop is recorded and planned anew.
  unsigned replan_after = 2;
  /// Shapes of cycle that are kept. One that was not used for eight cycles makes room for another.
  unsigned max_shapes = 8;
  /// Plan on a thread of its own; otherwise within end_cycle().
  bool background = true;
  /// Time for one plan.
  std::chrono::duration<double> plan_time{0.25};
  /// Of the pool for requests outside the plan.
  Bucketing bucketing = Bucketing::power_of_two;
};

struct ArenaFigures {
  std::uint64_t cycles = 0;
  std::uint64_t from_slab = 0;       ///< Buffers served by a plan.
  std::uint64_t from_pool = 0;       ///< Buffers served by the pool: recording, departures and steps left to the pool.
  std::uint64_t other_size = 0;      ///< Departures: the plan expected another request, or none.
  std::uint64_t longer_life = 0;     ///< Departures: the planned bytes were still in use.
  std::uint64_t recorded = 0;        ///< Cycles.
  std::uint64_t plans = 0;           ///< Plans put in service.
  std::uint64_t failed_plans = 0;    ///< Plans that could not be made, or for which there was no memory.
  std::uint64_t switches = 0;        ///< Cycles whose shape was recognised only after their start.
  std::size_t shapes = 0;            ///< Planned and in service.
  std::size_t slab_bytes = 0;        ///< Of all shapes in service.
  std::size_t pool_bytes = 0;        ///< BufferPool::total_bytes().
  std::size_t held = 0;              ///< Buffers known to have outlived their plan or cycle.
  std::size_t last_peak = 0;         ///< Bytes, of the plan put in service last.
  std::size_t last_lower_bound = 0;  ///< Bytes that no plan of it can do without.
};

/// One request of a cycle that is known beforehand. Time is the number of requests made before.
struct ArenaLife {
  std::size_t byte_len = 0;
  std::size_t dead_at = 0;  ///< First request that may have its bytes; the number of requests: lives to the end.
};

namespace detail {

// What alloc() needs while the loop keeps to its plan.
struct ArenaFront {
  // The handle of the next request as it was last time. One that nothing matches while there is more to look at
  // (recording, held buffers, a lost place).
  HandleCell* next = nullptr;
};

}  // namespace detail

class PlannedArena {
 public:
  explicit PlannedArena(Device device = default_device(), ArenaOptions options = {});
  /// Buffers are ready for work submitted to `stream` after alloc(), and their bytes are used again in its order.
  explicit PlannedArena(const Stream& stream, ArenaOptions options = {});
  /// Memory of an allocator of your own, which must outlive all handles. `stream` must be one of its device.
  PlannedArena(Allocator& allocator, const Stream& stream, ArenaOptions options = {});
  ~PlannedArena();
  PlannedArena(const PlannedArena&) = delete;
  PlannedArena& operator=(const PlannedArena&) = delete;

  /// Content is undefined. Throws invalid_argument when byte_len is not what dtype and shape need and for sizes near
  /// SIZE_MAX; out_of_memory when the pool does.
  [[gnu::always_inline]] PlannedBuffer alloc(std::size_t byte_len, DType dtype, const Shape& shape) {
    // What agrees with a handle made before was found valid then.
    detail::HandleCell* const next = front_.next;
    const std::uint64_t differs = detail::HandleAccess::differs(next->handle, dtype, shape);
    if ((differs | (detail::HandleAccess::byte_len(next->handle) ^ byte_len)) == 0) [[likely]] {
      if (take(*next)) [[likely]]
        return detail::PlannedAccess::make(next->handle);
    }
    return detail::PlannedAccess::make(*alloc_slow(byte_len, dtype, detail::HandleAccess::by_words(shape)));
  }
  /// byte_len from dtype and shape.
  [[gnu::always_inline]] PlannedBuffer alloc(DType dtype, const Shape& shape) {
    detail::HandleCell* const next = front_.next;
    if (detail::HandleAccess::differs(next->handle, dtype, shape) == 0) [[likely]] {
      if (take(*next)) [[likely]]
        return detail::PlannedAccess::make(next->handle);
    }
    return detail::PlannedAccess::make(*alloc_slow(dtype, detail::HandleAccess::by_words(shape)));
  }

  /// The same as dropping the handle, with checks: throws invalid_argument for an empty handle, a view, a buffer of
  /// another pool or arena, one released before (through another handle), one from before clear(); then nothing is
  /// changed.
  void release(TypedBuffer& buffer);
  void release(TypedBuffer&& buffer) { release(buffer); }
  void release(PlannedBuffer& buffer);
  void release(PlannedBuffer&& buffer) { release(buffer); }

  /// Ends a cycle. Buffers that handles refer to stay with them. Puts plans in service that are ready. Nothing happens
  /// when nothing was asked for since the last call.
  void end_cycle();
  /// Waits for the plan being made, if any, and puts it in service: before a graph is captured, say. Throws
  /// invalid_argument in the middle of a cycle.
  void finish_planning();
  /// Plans a cycle that is known beforehand, now. Throws invalid_argument in the middle of a cycle and for lives that
  /// end before they begin or after the cycle; out_of_memory when there is no room for the slab,
  /// also where its size is more than any device has.
  void learn(std::span<const ArenaLife> cycle);
  /// Forgets all plans and gives all memory back that no handle refers to.
  void clear();

  ArenaFigures figures() const;
  Device device() const noexcept;
  const Stream& stream() const noexcept;
  const ArenaOptions& options() const noexcept;

  /// One message a broken rule; empty when all hold. No other thread may drop handles meanwhile.
  std::vector<std::string> check_invariants() const;

 private:
  // The next handle, unless somebody uses its bytes.
  [[gnu::always_inline]] bool take(detail::HandleCell& next) noexcept {
    detail::Slot& slot = *detail::HandleAccess::slot(next.handle);
    if (detail::users_of(slot) != 0) [[unlikely]]
      return false;
    slot.primary.store(1, std::memory_order_relaxed);
    front_.next = &next + 1;
    return true;
  }
  // The shape by value, and what becomes a PlannedBuffer as a pointer: neither of the caller's needs an address.
  [[gnu::returns_nonnull]] const TypedBuffer* alloc_slow(std::size_t byte_len, DType dtype, Shape shape);
  [[gnu::returns_nonnull]] const TypedBuffer* alloc_slow(DType dtype, Shape shape);

  detail::ArenaFront front_;  // Written by core_ as well.
  std::unique_ptr<pooling::ArenaCore> core_;
};

}  // namespace cistern
