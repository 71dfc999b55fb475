// Streams and blocks under the device's lock: what goes out, and what comes back.
#include "allocator/central.hpp"

#include <algorithm>

#include "allocator/defaults.hpp"
#include "allocator/hexadecimal.hpp"
#include "allocator/thread_state.hpp"
#include "cistern/error.hpp"

namespace cistern::allocation {

using core::Block;
using core::BlockPool;
using core::HeapNode;
using drivers::Status;

FrontConfig resolved(FrontConfig config, const drivers::Capabilities& capabilities) {
  const bool touch = capabilities.commit_on_touch;
  if (config.max_cached == 0) config.max_cached = 64 * core::KiB;
  if (config.cache_bytes == 0) config.cache_bytes = touch ? 2 * core::MiB : 256 * core::KiB;
  if (config.cache_fraction == 0) config.cache_fraction = touch ? 512 : 4096;
  return config;
}

Central::Central(std::unique_ptr<drivers::Driver> driver, FrontConfig config, void* front, Device device, bool primary)
    : driver_(std::move(driver)),
      capabilities_(driver_->capabilities()),
      config_(resolved(config, capabilities_)),
      named_(capabilities_.block_objects || capabilities_.segment_objects),
      front_(front),
      device_(device),
      classes_(capabilities_.alignment),
      pool_(front, named_ || !capabilities_.host_accessible),
      work_(*driver_, streams_),
      objects_(*driver_, work_, config.idle_objects),
      host_(*driver_, classes_, pool_),
      ordered_(*driver_),
      limits_(default_memory_limit(device.type, capabilities_)) {
  // The default stream has entry 0, without a call to the driver: its native handle is null everywhere.
  StreamHeap& heap = new_heap(nullptr, primary);
  streams_.add(UINT64_MAX, nullptr, &heap, heap.number);
}

Central::~Central() {
  for (const auto& heap : heaps_) {
    forget_heap(heap->number);
    give_heap_number(heap->number);
    if (heap->range.pages != nullptr) heap->range.pages->hold(false);
  }
  for (int open = captures_.open(); open > 0; --open) driver_->end_capture();
  // Before the wait, so that no work is submitted after it.
  settle_host();
  all_done(work_.wait_for_device());
  settle_host();
  drop_host_cache();
  pool_.for_each([&](Block* block) {
    const bool in_use = block->serial.load(std::memory_order_relaxed) % 2 != 0 || block->home != nullptr;
    if (!in_use) return;
    if ((block->flags & core::kBlockView) != 0) {
      end_view(block);
    } else if ((block->flags & core::kBlockHost) != 0) {
      if (!HostBuffers::is_part(block)) host_.destroy(*block);
    } else if ((block->flags & core::kBlockOrdered) != 0) {
      ordered_.destroy(*block);
    } else {
      drop_object(block);
      if ((block->flags & core::kBlockSlab) != 0) return;
      auto* node = static_cast<HeapNode*>(block->home);
      node->heap->free(node);
    }
  });
  for (const auto& heap : heaps_) {
    heap->slabs.for_each([](const core::Slab& slab) { slab.node->heap->free(slab.node); });
  }
  if (group_ != nullptr) group_->trim(0, true);
  group_.reset();
  work_.retry_leftovers();
  for (const auto& range : ranges_) {
    if (range->bytes != 0) driver_->unreserve(range->backing.base(), range->bytes);
  }
  while (caches_ != nullptr) {
    core::ThreadCache* cache = caches_;
    caches_ = cache->next;
    delete cache;
  }
}

// --- Streams --------------------------------------------------------------------------------------------------------

StreamHeap& Central::new_heap(AddressRange* range, bool primary) {
  if (heaps_.size() >= UINT16_MAX) throw cistern::invalid_argument("cistern: too many streams and capture pools");
  const auto index = static_cast<core::StreamIndex>(heaps_.size());
  heaps_.reserve(heaps_.size() + 1);
  spare_heaps_.reserve(heaps_.size() + 1);
  spare_capture_heaps_.reserve(heaps_.size() + 1);
  left_capture_heaps_.reserve(heaps_.size() + 1);
  // Of what a capture pool has no thread keeps anything.
  const bool cached = range != nullptr || heaps_.empty();
  if (range == nullptr) {
    const auto number = static_cast<std::uint32_t>(ranges_.size());
    ranges_.push_back(std::make_unique<AddressRange>(*driver_, work_, objects_, number));
    range = ranges_.back().get();
  }
  const std::uint32_t number = primary ? kPrimaryHeap : cached ? take_heap_number() : kNoHeap;
  try {
    auto heap = std::make_unique<StreamHeap>(classes_, pool_, index, number, *range, capabilities_.asynchronous);
    work_.add_stream(heap->native);
    heaps_.push_back(std::move(heap));
  } catch (const std::bad_alloc&) {
    give_heap_number(number);
    throw;
  }
  return *heaps_.back();
}

StreamEntry& Central::stream(const Lock& lock, void* native) {
  if (native == nullptr) return *streams_.at(0);
  const std::uint64_t id = driver_->stream_id(native);
  if (id == 0) {
    throw invalid_argument("cistern: " + hexadecimal(reinterpret_cast<std::uintptr_t>(native)) + " is no stream of " +
                           to_string(device_) + ": " + driver_->error_text());
  }
  if (id == driver_->stream_id(nullptr)) return *streams_.at(0);  // Another name of the default stream.
  if (StreamEntry* known = streams_.find(id)) return *known;
  if (capabilities_.asynchronous && !driver_->shared_handle(native)) retire_owner_of(lock, native);
  StreamHeap* heap = heaps_.front().get();
  if (capabilities_.asynchronous) {
    // A spare heap's memory is in the order of another stream, most often the default one. When the new stream cannot
    // be ordered after that, it gets a new heap.
    const bool ordered = !spare_heaps_.empty() && (work_.order(spare_heaps_.back()->native, native) || wait_for_all());
    if (!ordered) {
      StreamHeap& fresh = new_heap(ranges_.front().get());  // May move the vector.
      spare_heaps_.insert(spare_heaps_.begin(), &fresh);
    }
    auto chosen = ordered ? spare_heaps_.end() - 1 : spare_heaps_.begin();
    heap = *chosen;
    // What may fail comes first.
    if (group_ != nullptr) {
      group_->replace_stream(heap->index);
      if (ordered && heap->native == nullptr) group_->come_after(heap->index, heaps_.front()->index);
    }
    StreamEntry* entry = streams_.add(id, native, heap, shown_number(*heap));
    if (entry != nullptr) {
      spare_heaps_.erase(chosen);
      heap->native = native;
      heap->slot = entry->slot;
      return *entry;
    }
  } else if (StreamEntry* entry = streams_.add(id, native, heap, heap->number)) {
    return *entry;
  }
  throw cistern::invalid_argument("cistern: " + std::to_string(StreamTable::kMaxStreams) + " streams of " +
                                  to_string(device_) +
                                  " are alive, the default one among them, which is the most; say stream_destroyed() "
                                  "for those that are gone");
}

void Central::stream_destroyed(const Lock& lock, StreamEntry& entry) {
  if (entry.slot == 0) return;
  drain(lock);
  flush_recent(lock, *entry.heap);
  // From here on the default stream stands for it: its work comes after all of the old stream's.
  // While another stream is captured the default one may be forbidden to wait for it; the host is not.
  if (!work_.order(entry.native, nullptr) && !work_.wait_for(entry.native) && !wait_for_all()) {
    // Where a capture was announced nobody was asked.
    throw driver_error("cistern: stream_destroyed: the device cannot be waited for: " +
                       (work_.captured(entry.native) ? "a capture pool is open on the stream" : driver_->error_text()));
  }
  retire(entry);
}

// A handle that came back as another stream: whoever had it is gone, and its owner did not say so.
void Central::retire_owner_of(const Lock& lock, void* native) {
  StreamEntry* gone = nullptr;
  streams_.for_each_live([&](StreamEntry& entry) {
    if (entry.slot != 0 && entry.native == native) gone = &entry;
  });
  if (gone == nullptr) return;
  if (!wait_for_device()) {
    throw driver_error("cistern: the handle of a destroyed stream came back, and the device cannot be waited for: " +
                       driver_->error_text());
  }
  drain(lock);
  flush_recent(lock, *gone->heap);
  retire(*gone);
}

// pre: the default stream comes after all of the stream's work.
void Central::retire(StreamEntry& entry) {
  uses_.replace_stream(entry.slot, 0);
  if (capabilities_.asynchronous) {
    // Its own heap, and those of capture pools.
    for (const auto& heap : heaps_) {
      if (heap->slot != entry.slot) continue;
      heap->native = nullptr;
      heap->slot = 0;
      if (group_ != nullptr) group_->replace_stream(heap->index);
    }
    spare_heaps_.push_back(entry.heap);
  }
  driver_->forget_stream(entry.native, entry.driver_id);
  streams_.remove(entry);
}

// --- Out ------------------------------------------------------------------------------------------------------------

Block* Central::take_small_ready(const Lock&, StreamHeap& heap, std::uint8_t bin) {
  Block* block = heap.slabs.take(bin);
  if (block != nullptr && named_ && (block->flags & core::kBlockObject) == 0) {
    const auto* slab = static_cast<const core::Slab*>(block->home);
    const std::uint64_t inside = address_of(block) - slab->base.load(std::memory_order_relaxed);
    if (!make_object(heap, slab->node->offset + inside, block)) {
      heap.slabs.give(block);
      return nullptr;
    }
  }
  return block;
}

Block* Central::take_small(const Lock& lock, StreamHeap& heap, std::uint8_t bin, const void* thread) {
  // The second attempt is for devices with objects, of which there may have been too many.
  for (int attempts = capabilities_.block_objects ? 2 : 1; attempts > 0; --attempts) {
    if (Block* block = take_small_ready(lock, heap, bin)) return block;
    const std::size_t bytes = classes_.slab_bytes(bin);
    HeapNode* node = place(lock, heap, bytes, std::size_t{1} << core::BlockIndex::kGranuleBits, thread);
    if (node == nullptr) return nullptr;
    const std::uint64_t address = heap.range.backing.address_of(node->offset);
    core::Slab* slab = heap.slabs.add(bin, node, address);
    if (slab == nullptr || !enter(slab)) {
      if (slab != nullptr) heap.slabs.release(slab);
      node->heap->free(node);
      return nullptr;
    }
    if (Block* block = take_small_ready(lock, heap, bin)) return block;
    if (attempts > 1) give_all_back(lock, thread, true);
  }
  return nullptr;
}

Block* Central::search_large(const Lock& lock, StreamHeap& heap, std::uint64_t wanted, std::uint64_t alignment,
                             const void* thread) {
  flush_recent(lock, heap);
  BlockPool::Taken taken = pool_.take_for_now();
  Block* const block = taken.get();
  if (block == nullptr) return nullptr;
  HeapNode* node = nullptr;
  // Where an object of the size, or of hardly more, stands, none must be made.
  core::PageHeap* const pages = heap.range.pages;
  if (pages != nullptr && objects_.idle() != 0 && !group_->gauge().over) {
    std::uint64_t at = 0, size = 0, least = UINT64_MAX;
    const std::uint64_t most = wanted + wanted / kObjectSlack;
    objects_.find_idle(heap.range.index, wanted, most, [&](std::uint64_t offset, std::uint64_t bytes_there) {
      const std::uint64_t left = offset % alignment == 0 ? pages->left_at(offset, bytes_there, heap.index) : UINT64_MAX;
      if (left < least) at = offset, size = bytes_there, least = left;
      const bool free = left != UINT64_MAX;
      return BlockObjects::Verdict{left == 0, free ? nullptr : pages->occupant(offset, bytes_there)};
    });
    if (least != UINT64_MAX) node = pages->allocate_at(at, size, heap.index);
  }
  if (node == nullptr) node = place(lock, heap, wanted, alignment, thread);
  if (node == nullptr) return nullptr;
  node->block = block;
  block->home = node;
  block->address.store(heap.range.backing.address_of(node->offset), std::memory_order_relaxed);
  block->capacity = node->size;
  core::set_flags(block, 0);
  bool ready = enter(block);
  if (ready && !make_object(heap, node->offset, block)) {
    // Blocks in the caches have objects, too: when they are back, theirs can be dropped.
    give_all_back(lock, thread, true);
    ready = make_object(heap, node->offset, block);
  }
  if (!ready) {
    node->block = nullptr;
    node->heap->free(node);
    return nullptr;
  }
  return taken.release();
}

bool Central::make_named(StreamHeap& heap, std::uint64_t offset, Block* block) {
  std::uint64_t inside = 0;
  const drivers::Segment* segment = heap.range.backing.segment_of(offset, inside);
  if (segment == nullptr) return false;
  core::BlockObject& object = *BlockPool::object_of(block);
  const bool in_slab = (block->flags & core::kBlockSlab) != 0;
  // The smallest blocks share their segment's object: the driver never hears of one of them.
  if (capabilities_.segment_objects || (in_slab && block->capacity <= kSharedObjectBytes)) {
    object.set(segment->object, inside);
    core::set_flags(block, block->flags | core::kBlockObject);
    return true;
  }
  void* const own = objects_.acquire(heap.range.index, offset, *segment, inside, block->capacity);
  if (own == nullptr) {
    work_.note_shortage();
    return false;
  }
  object.set(own, 0);
  core::set_flags(block, block->flags | core::kBlockObject | core::kBlockOwnObject);
  return true;
}

void Central::drop_object(Block* block) {
  core::BlockObject* object = BlockPool::object_of(block);
  if (object == nullptr) return;
  if ((block->flags & core::kBlockOwnObject) != 0) objects_.release(address_of(block), full_capacity(block));
  object->set(nullptr, 0);
  core::set_flags(block, block->flags & ~(core::kBlockObject | core::kBlockOwnObject));
}

// --- Back -----------------------------------------------------------------------------------------------------------

StreamHeap& Central::heap_of(const Block* block) const {
  return heaps_.size() == 1 ? *heaps_.front() : *heaps_[core::raw(node_of(block)->stream)];
}

void Central::drain(const Lock& lock) {
  if (!has_returned()) return;
  Block* block = inbox_.exchange(nullptr, std::memory_order_acquire);
  while (block != nullptr) {
    Block* const following = block->next;
    give_or_keep(lock, block);
    block = following;
  }
}

void Central::give_or_keep(const Lock& lock, Block* block) {
  constexpr int kObjects = core::kBlockObject | core::kBlockOwnObject;
  if ((block->flags & ~kObjects) != 0 || uses_.contains(block) || poison_.load(std::memory_order_relaxed)) {
    return give(lock, block);
  }
  block->owner.store(core::central_owner_value(), std::memory_order_relaxed);
  group_->set_idle(static_cast<HeapNode*>(block->home), true);
  if (Block* oldest = heap_of(block).recent.put(block)) give(lock, oldest);
}

void Central::flush_recent(const Lock& lock, StreamHeap& heap) {
  while (Block* block = heap.recent.take_newest()) give(lock, block);
}

void Central::flush_recent(const Lock& lock) {
  for (const auto& heap : heaps_) flush_recent(lock, *heap);
}

void* Central::native_of(const Block* block) const {
  if ((block->flags & core::kBlockHost) != 0) return nullptr;
  return (block->flags & core::kBlockOrdered) != 0 ? ordered_.native_of(*block) : heap_of(block).native;
}

bool Central::order_uses(Block* block) {
  core::StreamUses::Taken taken = uses_.take(block);
  if (taken.empty()) return true;
  void* const native = native_of(block);
  bool ordered = true;
  for (const std::uint32_t stream : taken.mapped()) {
    const StreamEntry* entry = streams_.at(stream);
    ordered = ordered && (entry == nullptr || work_.order(entry->native, native));
  }
  if (ordered || wait_for_all()) return true;
  uses_.put_back(std::move(taken));
  return false;
}

void Central::give(const Lock&, Block* block) {
  block->owner.store(core::central_owner_value(), std::memory_order_relaxed);
  const bool used_elsewhere = uses_.contains(block);
  if ((block->flags & core::kBlockHost) != 0) {
    if (!keep_host(block, used_elsewhere)) return give_later(block);
    if (used_elsewhere) static_cast<void>(uses_.take(block));
    return;
  }
  if (used_elsewhere && !order_uses(block)) return give_later(block);
  if ((block->flags & core::kBlockOrdered) != 0) {
    if (!ordered_.destroy(*block)) return give_later(block);
    pool_.give(block);
    return;
  }
  StreamHeap& heap = heap_of(block);
  work_.new_frees();
  // Replays may still write to what a capture pool got back; and on a stream that is captured this would be a node.
  if (poison_.load(std::memory_order_relaxed) && capabilities_.asynchronous && !heap.held && !captures_.any()) {
    driver_->fill(address_of(block), kPoison, block->capacity, heap.native);
  }
  if ((block->flags & core::kBlockSlab) != 0) {
    core::Slab* const slab = heap.slabs.give(block);
    // Where its blocks have objects an empty slab is worth more; it leaves when memory would have to be brought.
    if (slab != nullptr && !capabilities_.block_objects) release_slab(heap, slab);
    return;
  }
  auto* node = static_cast<HeapNode*>(block->home);
  if (named_) {
    drop_object(block);
    objects_.freed(node);
  }
  // Its entry in the index stays: whoever finds it sees that the block is free, or elsewhere.
  node->block = nullptr;
  node->heap->free(node);
  pool_.give(block);
}

void Central::release_slab(StreamHeap& heap, core::Slab* slab) {
  if (named_) {
    for (std::uint32_t i = 0; i < slab->carved; ++i) drop_object(slab->blocks[i].load(std::memory_order_relaxed));
  }
  HeapNode* const node = heap.slabs.release(slab);
  objects_.freed(node);
  node->heap->free(node);
}

Block* Central::take_view(const Lock&, void* ptr, std::uint64_t bytes) {
  Block* block = pool_.take();
  if (block == nullptr) return nullptr;
  void* object = nullptr;
  if (driver_->wrap(ptr, bytes, object) != Status::ok) {
    pool_.give(block);
    return nullptr;
  }
  block->address.store(reinterpret_cast<std::uintptr_t>(ptr), std::memory_order_relaxed);
  block->capacity = bytes;
  block->home = object;
  core::set_flags(block, core::kBlockView);
  if (BlockPool::object_of(block) != nullptr && object != ptr) BlockPool::object_of(block)->set(object, 0);
  view_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  return block;
}

void Central::end_view(Block* block) {
  driver_->unwrap(block->home);
  if (BlockPool::object_of(block) != nullptr) BlockPool::object_of(block)->set(nullptr, 0);
  view_bytes_.fetch_sub(block->capacity, std::memory_order_relaxed);
}

void Central::give_view(const Lock&, Block* block) {
  end_view(block);
  block->owner.store(core::central_owner_value(), std::memory_order_relaxed);
  pool_.give(block);
}

}  // namespace cistern::allocation
