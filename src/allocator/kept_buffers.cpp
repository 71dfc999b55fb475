// The mark of kept buffers in their descriptor. No lock: descriptors are never unmapped.
#include "allocator/kept_buffers.hpp"

#include "core/block.hpp"

namespace cistern::allocation {

using core::Block;

std::string to_string(Keeper keeper) {
  switch (keeper) {
    case Keeper::none:
      break;
    case Keeper::pool:
      return "a BufferPool's own, which ends with its handles";
    case Keeper::registered:
      return "registered with a BufferPool, until that is cleared or gone and the last handle dropped";
    case Keeper::slab:
      return "the slab of a PlannedArena, which ends with its handles";
  }
  return "kept by nobody";
}

namespace {

Keeper keeper_in(std::uintptr_t owner) noexcept {
  return static_cast<Keeper>((owner & core::kKeeperMask) >> core::kKeeperShift);
}

}  // namespace

Keeper keeper_of(const Block* block) noexcept { return keeper_in(block->owner.load(std::memory_order_acquire)); }

Keeper keep(Buffer buffer, Keeper keeper) noexcept {
  std::atomic<std::uintptr_t>& owner = buffer.block()->owner;
  const std::uintptr_t mark = static_cast<std::uintptr_t>(keeper) << core::kKeeperShift | core::kAttention;
  std::uintptr_t before = owner.load(std::memory_order_acquire);
  do {
    // Not read anew: who kept the buffer may let go now, and "nobody" would mean that it is kept.
    if (const Keeper by = keeper_in(before); by != Keeper::none) return by;
  } while (!owner.compare_exchange_weak(before, before | mark, std::memory_order_acq_rel, std::memory_order_acquire));
  return Keeper::none;
}

void let_go(Buffer buffer) noexcept {
  if (buffer.live()) buffer.block()->owner.fetch_and(~core::kKeeperMask, std::memory_order_acq_rel);
}

}  // namespace cistern::allocation
