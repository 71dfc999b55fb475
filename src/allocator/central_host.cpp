// Host buffers under the device's lock: out, back, and in the place of a block of the heap.
#include <algorithm>
#include <new>

#include "allocator/central.hpp"

namespace cistern::allocation {

using core::Block;
using core::BlockPool;
using drivers::Status;

bool Central::room_for(const Lock& lock, std::uint64_t bytes, const void* thread) {
  const auto over = [&] {
    const std::uint64_t limit = limits_.memory(), used = reserved_now(lock);
    return bytes > limit ? UINT64_MAX : used - std::min(used, limit - bytes);
  };
  if (over() == 0) return true;
  if (over() == UINT64_MAX) return false;
  release_above(over());
  if (over() == 0) return true;
  give_all_back(lock, thread, true);
  trim(lock, 0, true);
  return over() == 0;
}

Block* Central::take_host(const Lock& lock, std::uint64_t bytes, const void* thread) {
  settle_host();
  if (Block* block = host_.take_cached(bytes)) return block;
  bool full = false;
  Block* block = pool_.take();
  if (block == nullptr) return nullptr;
  if (room_for(lock, bytes, thread)) {
    Status status = host_.make(*block, bytes);
    if (status == Status::out_of_memory) {
      give_all_back(lock, thread, true);
      trim(lock, 0, true);
      status = host_.make(*block, bytes);
    }
    if (status == Status::ok) {
      show_host_object(block);
      apply_limit();
      return block;
    }
    full = true;
  }
  if (full) work_.note_shortage();
  pool_.give(block);
  return nullptr;
}

void Central::show_host_object(Block* block) {
  if (!capabilities_.block_objects && !capabilities_.segment_objects) return;
  BlockPool::object_of(block)->set(driver_->host_object(reinterpret_cast<void*>(address_of(block))), 0);
  block->flags = static_cast<std::uint8_t>(block->flags | core::kBlockObject);
}

void Central::keep_host(Block* block, bool used_elsewhere) {
  // Whole buffers of a device that works behind the host are freed in the order of a stream, and may serve any.
  if ((used_elsewhere || capabilities_.whole_buffers) && capabilities_.asynchronous) {
    work_.new_frees();
    pending_host_.push_back({block, core::Ticket::none, false});
    return;
  }
  if (capabilities_.whole_buffers && !capabilities_.block_objects && host_.destroy(*block)) {
    pool_.give(block);
    apply_limit();
    return;
  }
  host_.keep(block);
}

void Central::settle_host() {
  if (pending_host_.empty()) return;
  if (!pending_host_.back().marked) {
    // One ticket for all that came since the last look.
    const core::Ticket ticket = work_.mark();
    for (auto p = pending_host_.rbegin(); p != pending_host_.rend() && !p->marked; ++p) {
      p->ticket = ticket;
      p->marked = true;
    }
  }
  std::erase_if(pending_host_, [&](const PendingHost& pending) {
    if (!work_.passed(pending.ticket)) return false;
    host_.keep(pending.block);
    return true;
  });
}

void Central::drop_host_cache() {
  settle_host();
  while (Block* block = host_.take_largest()) {
    if (!host_.destroy(*block)) {
      host_.keep(block);
      break;
    }
    pool_.give(block);
  }
  apply_limit();
}

bool Central::move_to_host(const Lock& lock, Block* block) {
  const int fixed = core::kBlockHost | core::kBlockView | core::kBlockPinned;
  if (!capabilities_.can_copy || (block->flags & fixed) != 0) return false;
  // The old memory needs a descriptor of its own, since this one goes on with the new memory.
  Block* old = pool_.take();
  if (old == nullptr) return false;
  StreamHeap& heap = heap_of(block);
  const std::uint64_t capacity = full_capacity(block), from = address_of(block);
  Block made;
  if (!room_for(lock, capacity, nullptr) || host_.make(made, capacity) != Status::ok) {
    pool_.give(old);
    return false;
  }
  if (!work_.wait_for_all() || driver_->copy(address_of(&made), from, capacity, heap.native) != Status::ok ||
      !work_.wait_for_all()) {
    host_.destroy(made);
    pool_.give(old);
    return false;
  }
  host_.rebind(made, block);
  old->address.store(from, std::memory_order_relaxed);
  old->capacity = capacity;
  old->home = block->home;
  old->bin = block->bin;
  old->flags = block->flags & (core::kBlockSlab | core::kBlockObject | core::kBlockOwnObject);
  if (core::BlockObject* object = BlockPool::object_of(block); object != nullptr) {
    BlockPool::object_of(old)->set(object->object.load(std::memory_order_relaxed),
                                   object->offset.load(std::memory_order_relaxed));
  }
  if ((block->flags & core::kBlockSlab) != 0) {
    static_cast<core::Slab*>(block->home)->replace(block, old);
  } else {
    static_cast<core::HeapNode*>(block->home)->block = old;
    index_.insert(from, old);
  }
  // Whoever frees the block next must look at it: it no longer fits the bins.
  block->owner.fetch_or(core::kAttention, std::memory_order_acq_rel);
  block->home = made.home;
  block->flags = static_cast<std::uint8_t>(core::kBlockHost | (block->flags & core::kBlockEmpty));
  block->address.store(address_of(&made), std::memory_order_release);
  show_host_object(block);
  uses_.take(block);
  give(lock, old);
  apply_limit();
  return true;
}

}  // namespace cistern::allocation
