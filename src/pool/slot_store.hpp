// Slots without memory, of the whole process, and the end of those whose owner has gone. Slots are made in pages that
// are never unmapped, because a thread that dropped a handle looks at its slot once more afterwards.
// Lock-free; any thread.
//
//   watch state   means                                           becomes
//   none          in the store, or its owner watches it           orphan (the owner ends)
//   orphan        no owner watches it                             claimed (found unused, by compare-exchange)
//   claimed       one thread frees its memory                     none, next generation (put_slot)
#pragma once

#include "cistern/typed_buffer.hpp"

namespace cistern::pooling {

enum WatchState : std::uint32_t { kNone = 0, kOrphan = 1, kClaimed = 2, kStateMask = 3 };

// All slots of the store, linked by SlotDetail::next, or a new page of them. Throws std::bad_alloc. The caller keeps
// what it does not need and gives it back in the end.
detail::Slot* take_slots();
// pre: no memory, no handle. The slot begins a new generation.
void put_slot(detail::Slot& slot) noexcept;

// A place for a handle of the slot, as long as the slot itself. Throws std::bad_alloc.
detail::HandleCell& cell_of(const detail::Slot& slot);

// The owner's last word on a slot that may have handles. Afterwards: one heavy_fence(), then last_look() on each.
void make_orphan(detail::Slot& slot) noexcept;

}  // namespace cistern::pooling
