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
  release_above(lock, over());
  if (over() == 0) return true;
  give_all_back(lock, thread, true);
  trim(lock, 0, true);
  return over() == 0;
}

Block* Central::take_host(const Lock& lock, std::uint64_t bytes, const void* thread) {
  work_.forget_errors();
  // Asking the device what is done costs calls, so only when what is known to be done does not serve.
  const bool small = host_.pooled() && bytes <= classes_.largest();
  if (Block* block = small ? host_.take_small(bytes) : host_.take_cached(bytes)) return block;
  settle_host();
  if (host_.can_start() && reserved() + HostBuffers::kTinyBytes <= limits_.memory()) {
    host_.start();
    apply_limit();
  }
  if (small) {
    if (Block* block = host_.take_small(bytes)) return block;
    // A slab must fit as it is; where that is too much, a whole buffer may still fit.
    const bool room = reserved() + HostBuffers::kSlabBytes <= limits_.memory();
    if (room && host_.add_slab(bytes) == Status::ok) {
      apply_limit();
      if (Block* block = host_.take_small(bytes)) return block;
    }
  }
  bytes = core::align_up(bytes, std::uint64_t{capabilities_.alignment});
  if (Block* block = host_.take_cached(bytes)) return block;
  BlockPool::Taken block = pool_.take_for_now();
  if (block == nullptr || !room_for(lock, bytes, thread)) return nullptr;
  Status status = host_.make(*block, bytes);
  if (status == Status::out_of_memory) {
    give_all_back(lock, thread, true);
    trim(lock, 0, true);
    status = host_.make(*block, bytes);
  }
  if (!work_.ok(status)) return nullptr;
  show_host_object(block.get());
  apply_limit();
  return block.release();
}

Block* Central::take_ordered(const Lock& lock, StreamHeap& heap, std::uint64_t bytes, const void* thread) {
  work_.forget_errors();
  const auto fits = [&] {
    // What the pool holds unused serves the request, or leaves after it.
    const std::uint64_t limit = limits_.memory(), used = ordered_.bytes() + host_.bytes();
    return bytes <= limit && used <= limit - bytes;
  };
  if (!fits()) give_all_back(lock, thread, true);
  if (!fits()) return nullptr;
  BlockPool::Taken block = pool_.take_for_now();
  if (block == nullptr) return nullptr;
  Status status = ordered_.make(*block, bytes, &heap.native);
  if (status == Status::out_of_memory) {
    give_all_back(lock, thread, true);
    trim(lock, 0, true);
    status = ordered_.make(*block, bytes, &heap.native);
  }
  if (status == Status::capturing) work_.note_shortage();  // The error says so.
  if (!work_.ok(status)) return nullptr;
  const std::uint64_t limit = limit_beside_host();
  ordered_.watch(limit, false);
  // The pool took new memory beside what was freed and may still be in use.
  if (ordered_.reserved() > limit && wait_for_all()) ordered_.watch(limit, true);
  return block.release();
}

void Central::show_host_object(Block* block) {
  if (!capabilities_.block_objects && !capabilities_.segment_objects) return;
  BlockPool::object_of(block)->set(driver_->host_object(reinterpret_cast<void*>(address_of(block))), 0);
  core::set_flags(block, block->flags | core::kBlockObject);
}

bool Central::keep_host(Block* block, bool used_elsewhere) {
  // Whole buffers of a device that works behind the host are freed in the order of a stream, and may serve any.
  if ((used_elsewhere || capabilities_.whole_buffers) && capabilities_.asynchronous) {
    work_.new_frees();
    try {
      pending_host_.push_back({block, core::Ticket::none, false});
      return true;
    } catch (const std::bad_alloc&) {
      if (!wait_for_all()) return false;
    }
  } else if (capabilities_.whole_buffers && !capabilities_.block_objects && !host_.pooled() && host_.destroy(*block)) {
    pool_.give(block);
    apply_limit();
    return true;
  }
  host_.keep(block);
  return true;
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
  // In the order of their tickets: where one has not passed, the later ones are not asked for.
  const auto waits = [&](const PendingHost& pending) { return !work_.passed(pending.ticket); };
  const auto first = std::find_if(pending_host_.begin(), pending_host_.end(), waits);
  for (auto pending = pending_host_.begin(); pending != first; ++pending) host_.keep(pending->block);
  pending_host_.erase(pending_host_.begin(), first);
}

void Central::drop_host_cache() {
  settle_host();
  while (host_.release_oldest() != 0) {
  }
  host_.release_slabs();
  apply_limit();
}

// The block and a fresh host block change their memory: the one goes on with the host's, the other goes back with the
// device's.
bool Central::move_to_host(const Lock& lock, Block* block) {
  const int unmoved = core::kBlockHost | core::kBlockView;
  if (!capabilities_.can_copy || (block->flags & unmoved) != 0 || fixed(block)) return false;
  const std::uint64_t capacity = full_capacity(block), from = address_of(block);
  void* const native = native_of(block);
  if (work_.captured(native)) {
    work_.note_failure("its stream is being captured into a graph");
    return false;
  }
  Block* other = take_host(lock, capacity, nullptr);
  if (other == nullptr) return false;
  const std::uint64_t to = address_of(other);
  // Memory of the host's is in no stream's order: whoever frees it waits for this one's work, which goes on using it.
  const auto use_by_own = [&] {
    if (!capabilities_.asynchronous || capabilities_.whole_buffers) return true;
    try {
      uses_.add(block, heap_of(block).slot);
    } catch (const std::bad_alloc&) {
      return false;
    }
    return true;
  };
  // After the stream's work, and after what other streams were said to do with it.
  const bool ready = order_uses(block) && use_by_own();
  if (!ready || driver_->copy(to, from, capacity, native) != Status::ok || !work_.wait_for(native)) {
    work_.ok(Status::failed);  // Keeps the driver's text for the error.
    // The use stays, beside what another thread may have recorded meanwhile; its free must look at it.
    if (ready) block->owner.fetch_or(core::kAttention, std::memory_order_acq_rel);
    // A copy that was submitted still writes there: lost rather than used too early.
    static_cast<void>(keep_host(other, true));
    return false;
  }
  host_.rebind(*other, block);
  void* const host_home = other->home;
  const std::uint8_t host_bin = other->bin, host_flags = other->flags;
  other->address.store(from, std::memory_order_relaxed);
  other->capacity = capacity;
  other->home = block->home;
  other->bin = block->bin;
  core::set_flags(other, block->flags & ~core::kBlockEmpty);
  if (core::BlockObject* object = BlockPool::object_of(block); object != nullptr) {
    BlockPool::object_of(other)->set(object->object.load(std::memory_order_relaxed),
                                     object->offset.load(std::memory_order_relaxed));
    object->set(nullptr, 0);
  }
  if ((block->flags & core::kBlockOrdered) != 0) {
    ordered_.rebind(*other, other);
  } else if ((block->flags & core::kBlockSlab) != 0) {
    static_cast<core::Slab*>(block->home)->replace(block, other);
  } else {
    static_cast<core::HeapNode*>(block->home)->block = other;
    // Not in the index: it is free, and goes back below.
  }
  // Whoever frees the block next must look at it: it no longer fits the bins.
  block->owner.fetch_or(core::kAttention, std::memory_order_acq_rel);
  core::set_flags(block, host_flags | (block->flags & core::kBlockEmpty));  // Before `home`, see node_of().
  std::atomic_ref(block->home).store(host_home, std::memory_order_release);
  block->bin = host_bin;
  block->address.store(to, std::memory_order_release);
  show_host_object(block);
  give(lock, other);
  apply_limit();
  return true;
}

}  // namespace cistern::allocation
