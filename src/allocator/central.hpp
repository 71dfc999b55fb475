// Central: everything of one device that its lock guards: streams, heaps of pages, slabs, host buffers, descriptors,
// thread caches as a list.
//
// Does: brings blocks out of the heap and takes them back, orders streams, makes room when memory is short, holds the
// limits. Does not: know figures of single threads, tags, options, or the caller's errors (the DeviceAllocator does).
// Called by DeviceAllocator alone. Locking: members that take a `Lock` are called under the device's lock; the lock may
// be held across driver calls. give_later() takes no lock: it is how free() hands blocks over.
//
//   block            where it is                           leaves by
//   live             with the caller                       free
//   cached           a bin of a thread cache               malloc, flush
//   pocketed         the pocket of a thread cache          malloc, flush, empty_pockets()
//   claimed          the inbox of a thread cache           its owner's next slow call, drain_inboxes()
//   returned         the central inbox                     the next holder of the lock
//   recent           StreamHeap::recent                    take_large(), flush_recent()
//   free             slab or heap of pages                 take_*()
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "allocator/block_objects.hpp"
#include "allocator/captures.hpp"
#include "allocator/device_mutex.hpp"
#include "allocator/driver_backing.hpp"
#include "allocator/host_buffers.hpp"
#include "allocator/ordered_buffers.hpp"
#include "allocator/stream_table.hpp"
#include "cistern/device.hpp"
#include "cistern/memory.hpp"
#include "core/block_index.hpp"
#include "core/block_pool.hpp"
#include "core/figures.hpp"
#include "core/limits.hpp"
#include "core/page_heap.hpp"
#include "core/recent_blocks.hpp"
#include "core/size_class.hpp"
#include "core/slab.hpp"
#include "core/stream_order.hpp"
#include "core/thread_cache.hpp"
#include "drivers/driver.hpp"

namespace cistern::allocation {

// What can be tuned; the defaults come from replaying traces.
struct FrontConfig {
  // The first three are 0 for the device's own: where pieces cost driver calls, little is kept and placement stays
  // tight.
  std::size_t max_cached = 0;                // Largest block that a thread keeps.
  std::size_t cache_bytes = 0;               // A thread keeps at least this much,
  std::size_t cache_fraction = 0;            // or the device's active bytes divided by this, if that is more.
  std::size_t refill_bytes = 8 * core::KiB;  // Most of small blocks fetched at a time, at least 1 and at most 64.
  std::size_t idle_objects = 32768;          // Objects kept over places without a block (Metal).
  std::size_t range_factor = 4;              // Reserved addresses, in multiples of the device's memory.
};

// Memory that is committed by touching costs nothing to hold untouched, and a move costs a page fault a page.
inline constexpr std::uint64_t kTouchSlackPercent = 10;

// `config` with the device's own numbers in place of zeros.
FrontConfig resolved(FrontConfig config, const drivers::Capabilities& capabilities);

// Reserved addresses and the heap of pages in them. The streams of a device share the first; each stream of a capture
// pool has its own.
struct AddressRange {
  AddressRange(drivers::Driver& driver, DeviceWork& work, BlockObjects& objects, std::uint32_t number)
      : index(number), backing(driver, work, objects) {}

  const std::uint32_t index;
  std::uint64_t bytes = 0;          // 0 until the first use, and without virtual memory.
  core::PageHeap* pages = nullptr;  // Null until the first use.
  DriverBacking backing;
};

// What serves one stream at a time: its small blocks and what it freed last; pages come from the range.
struct StreamHeap {
  StreamHeap(const core::SizeClasses& classes, core::BlockPool& pool, core::StreamIndex stream_index,
             std::uint32_t heap_number, AddressRange& addresses, bool asynchronous)
      : index(stream_index), number(heap_number), range(addresses), slabs(classes, pool), recent(asynchronous) {}

  const core::StreamIndex index;  // In the device.
  const std::uint32_t number;     // In the process: index of thread caches.
  void* native = nullptr;         // The stream in whose order its free memory is,
  std::uint32_t slot = 0;         // and its entry.
  bool held = false;              // Of a capture pool: its pages stay where they are.
  AddressRange& range;
  core::SlabStore slabs;
  core::RecentBlocks recent;
};

// Figures that the lock's holder publishes when it lets go, for readers without a lock.
struct Published {
  std::atomic<std::uint64_t> reserved{0}, peak_reserved{0}, handles{0}, created{0}, moved{0}, released{0};
  std::atomic<std::uint64_t> host_waits{0}, late_double_frees{0};
};

inline constexpr std::uint8_t kPoison = 0xDE;  // memory.hpp promises it.

inline constexpr std::uint64_t kObjectSlack = 16;  // A block may be larger by 1/16 to use an object that is there.
// Where blocks have objects, sizes above the classes have 32 steps a doubling (at most 3 % is rounding) and start at
// multiples of an eighth of the size. Over the recorded traces that makes a third of the objects (docs/metal.md).
inline constexpr std::uint64_t kObjectSizes = 32, kObjectStarts = 8;
inline constexpr std::uint64_t kSharedObjectBytes = 256;  // Up to here blocks have no object of their own.

inline std::uint64_t address_of(const core::Block* block) { return block->address.load(std::memory_order_relaxed); }

// The node of the heap that a block is, or is a part of; null for memory from elsewhere.
// For readers without the lock, too: a block that moves to the host at the same time gets its new flags first.
inline const core::HeapNode* node_of(const core::Block* block) {
  const void* const home = std::atomic_ref(const_cast<core::Block*>(block)->home).load(std::memory_order_acquire);
  const std::uint8_t flags = core::flags_of(block);
  if ((flags & core::kBlockElsewhere) != 0) return nullptr;
  return (flags & core::kBlockSlab) != 0 ? static_cast<const core::Slab*>(home)->node
                                         : static_cast<const core::HeapNode*>(home);
}

class Central {
 public:
  // Proof that the device's lock is held; publishes figures and enforces limits when it goes.
  class Lock {
   public:
    explicit Lock(Central& central) : central_(&central), lock_(central.mutex_) {}
    // Tries once.
    Lock(Central& central, std::try_to_lock_t tag) : central_(&central), lock_(central.mutex_, tag) {}
    ~Lock() {
      if (!lock_.owns_lock() || !central_->publish(*this)) return;
      lock_.unlock();
      central_->mutex_.let_others_in();
    }
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;
    bool owns() const { return lock_.owns_lock(); }

   private:
    Central* central_;
    std::unique_lock<DeviceMutex> lock_;
  };

  // `primary`: the first heap gets the number kPrimaryHeap; for one allocator of the process.
  Central(std::unique_ptr<drivers::Driver> driver, FrontConfig config, void* front, Device device, bool primary);
  ~Central();
  Central(const Central&) = delete;
  Central& operator=(const Central&) = delete;

  // --- Streams -----------------------------------------------------------------------------------------------------
  StreamEntry& stream(const Lock&, void* native);
  void stream_destroyed(const Lock&, StreamEntry& entry);

  // --- Blocks ------------------------------------------------------------------------------------------------------
  // Blocks are free, owned by nobody, ready for the heap's stream. Null when there is no memory under the limit.
  // `thread` is the caller's record, whose caches may be flushed; null when it has none.
  core::Block* take_small(const Lock& lock, StreamHeap& heap, std::uint8_t bin, const void* thread);
  core::Block* take_large(const Lock& lock, StreamHeap& heap, std::uint64_t bytes, std::uint64_t alignment,
                          const void* thread) {
    // Never less than a granule of the index, which knows one block a granule.
    const std::uint64_t wanted = std::max(bytes, std::uint64_t{1} << core::BlockIndex::kGranuleBits);
    core::Block* const recent = heap.recent.take(wanted, alignment);
    if (recent == nullptr) return search_large(lock, heap, wanted, alignment, thread);
    group_->set_idle(static_cast<core::HeapNode*>(recent->home), false);
    return recent;
  }
  // A block that the host reaches, of exactly `bytes` or of the size class around them.
  core::Block* take_host(const Lock& lock, std::uint64_t bytes, const void* thread);
  // Memory of the device's own pool (ordered_buffers), in the order of the heap's stream.
  core::Block* take_ordered(const Lock& lock, StreamHeap& heap, std::uint64_t bytes, const void* thread);
  // A view of memory of somebody else; null when the device cannot reach it.
  core::Block* take_view(const Lock&, void* ptr, std::uint64_t bytes);
  void give_view(const Lock&, core::Block* block);
  // The same if a slab has one; makes no driver call.
  core::Block* take_small_ready(const Lock&, StreamHeap& heap, std::uint8_t bin);
  // Takes a free block back at once.
  void give(const Lock& lock, core::Block* block);
  // Takes free blocks back when the lock is next held. Any thread; no lock.
  void give_later(const core::Chain& chain) {
    if (chain.head == nullptr) return;
    core::Block* head = inbox_.load(std::memory_order_relaxed);
    do {
      chain.tail->next = head;
    } while (!inbox_.compare_exchange_weak(head, chain.head, std::memory_order_release, std::memory_order_relaxed));
  }
  void give_later(core::Block* block) {
    core::Chain one;
    one.push(block);
    give_later(one);
  }
  void drain(const Lock& lock);
  // The usable bytes of a free block's memory, whatever was shown as its capacity.
  std::uint64_t full_capacity(const core::Block* block) const;
  // Counts late double frees and puts their bytes back into the figures. Any thread.
  void note_late(const core::LateFrees& late) {
    if (late.count == 0) return;
    published_.late_double_frees.fetch_add(static_cast<std::uint64_t>(late.count), std::memory_order_relaxed);
    figures_.add_shared(late.bytes, late.count);
  }
  // The stream in whose order the block's memory is.
  void* native_of(const core::Block* block) const;
  bool has_returned() const { return inbox_.load(std::memory_order_relaxed) != nullptr; }

  // Makes a live block of the heap a host buffer with the same content. False when the device cannot; nothing changed.
  bool move_to_host(const Lock& lock, core::Block* block);
  // Whether the block must stay where it is.
  bool fixed(const core::Block* block) const;

  // --- Capture pools (central_capture.cpp) -------------------------------------------------------------------------
  std::uint64_t make_pool(const Lock&);
  // `only`: the one stream that the filter names, if it is one.
  void begin_capture(const Lock& lock, std::uint64_t pool, CaptureFilter filter, StreamEntry* only);
  [[nodiscard]] std::shared_ptr<const CaptureFilter> end_capture(const Lock& lock, std::uint64_t pool);
  void release_pool(const Lock& lock, std::uint64_t pool);
  std::uint64_t pool_bytes(const Lock&, std::uint64_t pool);
  // The heap of an open pool for a stream; the stream's own when the pool is not open any more.
  StreamHeap& capture_heap(const Lock&, std::uint64_t pool, const StreamEntry& entry);
  const Captures& captures() const { return captures_; }

  // --- What lies where (central_map.cpp) ---------------------------------------------------------------------------
  // The block of the heap that starts at the address, or did: its serial says whether it lives. Null when there is
  // none. Any thread, also one of the driver's: waits for no lock.
  core::Block* find(std::uint64_t address);
  // Of the device's heaps.
  std::vector<MemorySegment> map(const Lock&) const;

  // --- Thread caches -----------------------------------------------------------------------------------------------
  // A cache for the calling thread: an abandoned one of the heap, or a new one. Null when the host has no memory left.
  core::ThreadCache* adopt(const Lock& lock, StreamHeap& heap, const void* thread);
  void abandon(const Lock& lock, core::ThreadCache& cache);
  // Gives the content of the thread's caches back.
  void flush_thread(const Lock& lock, const void* thread);
  // After a fork: the caches of other threads belong to nobody; what their bins held is lost, the inboxes are kept, and
  // pockets given back.
  void orphan_caches(const void* thread);
  // Empties the caches of all threads. pre: no other thread is in the allocator, nor will be before this returns.
  void flush_all_caches(const Lock& lock);
  // Whether threads may keep a large block: not while memory is above a limit, or a cache limit must be held.
  bool keeps_pockets() const { return keeps_pockets_.load(std::memory_order_relaxed); }
  std::uint32_t flush_epoch() const { return epoch_.load(std::memory_order_relaxed); }

  // --- Memory pressure and limits ----------------------------------------------------------------------------------
  // Gives back all that can be: caches, inboxes, empty slabs, stale addresses, after waiting for pending work.
  void give_all_back(const Lock& lock, const void* thread, bool wait);
  void trim(const Lock& lock, std::uint64_t keep, bool wait);
  void set_memory_limit(const Lock& lock, std::uint64_t bytes, const void* thread);
  void set_cache_limit(const Lock& lock, std::uint64_t bytes, const void* thread);
  // Brings cached memory under the cache limit as far as wholly free memory allows.
  void enforce_cache_limit(const Lock& lock, const void* thread);
  // The same, by free(): does nothing when the lock is taken, whose holder then looks again.
  void enforce_cache_limit_soon(const void* thread);
  std::uint64_t reserved_now(const Lock&) const { return reserved(); }
  // Whether the memory limit is below what is live and `bytes` more: nothing that can be evicted helps then, and memory
  // that is mapped already is not handed out either.
  bool beyond_limit(const Lock&, std::uint64_t bytes) {
    // While pockets are kept, what is reserved was within the limit when it last changed.
    if (keeps_pockets() || reserved() <= limits_.memory() || !exceeds_limit(bytes)) return false;
    work_.forget_errors();
    return true;
  }
  // What is wired becomes real: live memory before memory that nobody uses. `batches`: the program says so before each
  // submission, so that it is not done at every change.
  void settle_residency(const Lock& lock, bool batches);
  std::uint64_t largest_free(const Lock&) const { return group_ ? group_->largest_free() : 0; }

  // --- Parts, for the allocator and for tests ----------------------------------------------------------------------
  drivers::Driver& driver() const { return *driver_; }
  const drivers::Capabilities& capabilities() const { return capabilities_; }
  const core::SizeClasses& classes() const { return classes_; }
  const FrontConfig& config() const { return config_; }
  core::HeapGroup* group() const { return group_.get(); }
  BlockObjects& objects() { return objects_; }
  HostBuffers& host() { return host_; }
  const HostBuffers& host() const { return host_; }
  OrderedBuffers& ordered() { return ordered_; }
  const OrderedBuffers& ordered() const { return ordered_; }
  core::BlockPool& pool() { return pool_; }
  StreamTable& streams() { return streams_; }
  core::StreamUses& uses() { return uses_; }
  const core::StreamUses& uses() const { return uses_; }
  core::Figures& figures() { return figures_; }
  const core::Figures& figures() const { return figures_; }
  core::Limits& limits() { return limits_; }
  const core::Limits& limits() const { return limits_; }
  const Published& published() const { return published_; }
  DeviceWork& work() { return work_; }
  void reset_peak_reserved(const Lock&);
  std::uint64_t view_bytes() const { return view_bytes_.load(std::memory_order_relaxed); }
  void set_poison(bool on) { poison_.store(on, std::memory_order_relaxed); }
  std::vector<std::string> check_invariants(const Lock&) const;
  // To hold and let go around fork().
  DeviceMutex& mutex() { return mutex_; }

 private:
  // Null for `range`: one of its own.
  StreamHeap& new_heap(AddressRange* range, bool primary = false);
  Captures::Pool& pool_for(std::uint64_t id, const char* call);
  std::uint32_t shown_number(const StreamHeap& heap) const;
  void show_numbers();
  void settle_captures(const Lock& lock);
  void retire(StreamEntry& entry);
  void retire_owner_of(const Lock& lock, void* native);
  // For a stream that is the first to use the range.
  bool open(AddressRange& range, core::StreamIndex first);
  core::HeapNode* place(const Lock& lock, StreamHeap& heap, std::uint64_t bytes, std::uint64_t alignment,
                        const void* thread);
  // A large block that is none of the recent ones.
  core::Block* search_large(const Lock& lock, StreamHeap& heap, std::uint64_t wanted, std::uint64_t alignment,
                            const void* thread);
  // The same when mapped memory as it is does not do.
  core::HeapNode* bring(const Lock& lock, StreamHeap& heap, std::uint64_t bytes, std::uint64_t alignment,
                        const void* thread);
  bool room_for(const Lock& lock, std::uint64_t bytes, const void* thread);
  // Whether the limit is below what is live and so many bytes more.
  [[gnu::noinline, gnu::cold]] bool exceeds_limit(std::uint64_t bytes) const;
  std::uint64_t reserved() const { return (group_ ? group_->reserved() : 0) + host_.bytes() + ordered_.reserved(); }
  // pre: the block is not handed out. False when the device makes no object for it.
  bool make_object(StreamHeap& heap, std::uint64_t offset, core::Block* block) {
    return !named_ || make_named(heap, offset, block);
  }
  bool make_named(StreamHeap& heap, std::uint64_t offset, core::Block* block);
  void drop_object(core::Block* block);
  void show_host_object(core::Block* block);
  void end_view(core::Block* block);
  void release_slab(StreamHeap& heap, core::Slab* slab);
  void release_empty_slabs();
  // The host waits for the work of all known streams. False when it cannot.
  bool wait_for_all() { return all_done(work_.wait_for_all()); }
  // Of others, too, where graphs may run, and whose handles may be gone: by a wait that would end a capture, so not
  // while a known stream is being captured.
  bool wait_for_device() { return wait_for_all() && all_done(work_.wait_for_device()); }
  bool all_done(bool done) {
    if (done && group_ != nullptr) group_->all_done();
    return done;
  }
  bool order_uses(core::Block* block);
  // False, with nothing changed, when the host has no memory for the record and the device cannot be waited for.
  bool keep_host(core::Block* block, bool used_elsewhere);
  void settle_host();
  void drop_host_cache();
  StreamHeap& heap_of(const core::Block* block) const;
  // Empties the inboxes of caches; of running threads' only with `others`. False when there was nothing.
  bool drain_inboxes(const Lock& lock, const void* thread, bool others);
  // Empties the thread's pockets, and those of others that hold at least so many bytes (not 0).
  bool empty_pockets(const Lock& lock, const void* thread, std::uint64_t least);
  // Says anew whether threads may keep a large block; after every change of limits or of what is reserved.
  void settle_pockets();
  bool fill_index();
  core::Block* find_unindexed(std::uint64_t address) const;
  // False when the host has no memory. pre: the block's home is set, or the slab was just added.
  template <class Holder>
  bool enter(Holder* holder) {
    const Indexed state = indexed_.load(std::memory_order_relaxed);
    if (state == Indexed::wanted) fill_index();
    return state != Indexed::yes || insert(holder);
  }
  bool insert(core::Block* block) { return index_.insert(block); }
  bool insert(core::Slab* slab) {
    return index_.insert(slab->base.load(std::memory_order_relaxed), classes_.slab_bytes(slab->bin), slab);
  }
  void give_chain(const Lock& lock, const core::Chain& chain);
  // Keeps a block that was just freed for the next request if that is of its size, or gives it back.
  void give_or_keep(const Lock& lock, core::Block* block);
  void flush_recent(const Lock& lock, StreamHeap& heap);
  void flush_recent(const Lock& lock);
  void release_above(const Lock& lock, std::uint64_t excess_bytes);
  // Bytes in use that are not those of views.
  std::uint64_t live() const;
  std::uint64_t excess() const;
  // The memory limit, less what host buffers take of it.
  std::uint64_t limit_beside_host() const { return limits_.memory() - std::min(limits_.memory(), host_.bytes()); }
  void apply_limit();
  // Whether pieces came, went or moved: that takes so long that others may wait for the lock. Buffers of the device's
  // own pool come and go too fast for a sleeping thread to be waited for.
  bool publish(const Lock& lock) {
    // Nearly always: no. With a cache limit that binds no pockets are kept.
    const bool changed = changes() != published_changes_ || capabilities_.ordered_buffers;
    if (changed || enforce_wanted_.load(std::memory_order_relaxed) || !keeps_pockets() || has_floor_)
      publish_changes(lock);
    if (!changed || group_ == nullptr) return false;
    const std::uint64_t held = group_->gauge().changes;
    return std::exchange(published_held_, held) != held;
  }
  [[gnu::noinline, gnu::cold]] void publish_changes(const Lock& lock);
  // Grows with everything that is published.
  std::uint64_t changes() const {
    return (group_ != nullptr ? group_->gauge().changes : 0) + host_.changes() + ordered_.changes() +
           work_.host_waits();
  }

  const std::unique_ptr<drivers::Driver> driver_;
  const drivers::Capabilities& capabilities_;
  const FrontConfig config_;
  const bool named_;  // ptr() of a block is an object, not its address.
  void* const front_;
  const Device device_;
  const core::SizeClasses classes_;
  DeviceMutex mutex_;
  core::BlockPool pool_;
  core::BlockIndex index_;
  // Whether blocks and slabs are in it.
  enum class Indexed : std::uint8_t { no, wanted, yes };
  std::atomic<Indexed> indexed_{Indexed::no};
  StreamTable streams_;
  Captures captures_;
  core::StreamUses uses_;
  DeviceWork work_;
  BlockObjects objects_;
  HostBuffers host_;
  OrderedBuffers ordered_;
  std::vector<std::unique_ptr<AddressRange>> ranges_;
  std::vector<std::unique_ptr<StreamHeap>> heaps_;  // By index.
  std::unique_ptr<core::HeapGroup> group_;
  std::uint64_t range_bytes_ = 0;  // Of each range.
  std::uint64_t peak_reserved_ = 0;
  std::vector<StreamHeap*> spare_heaps_;          // Of destroyed streams,
  std::vector<StreamHeap*> spare_capture_heaps_;  // of released capture pools, empty,
  std::vector<StreamHeap*> left_capture_heaps_;   // and of those some of whose blocks are still live.
  struct PendingHost {
    core::Block* block;
    core::Ticket ticket;
    bool marked;  // Otherwise the ticket is still to be had.
  };
  std::vector<PendingHost> pending_host_;  // Free host buffers that work may still use.
  core::ThreadCache* caches_ = nullptr;
  std::atomic<core::Block*> inbox_{nullptr};
  std::atomic<std::uint32_t> epoch_{0};
  std::atomic<bool> enforce_wanted_{false};
  std::atomic<bool> keeps_pockets_{true};
  std::atomic<bool> poison_{false};  // Freed bytes are overwritten; only asynchronous devices do it here.
  bool has_floor_ = false;
  bool batches_ = false;               // The program says when a batch of work is about to be submitted.
  std::uint64_t settled_changes_ = 0;  // Segments made and given back when residency was last settled.
  std::atomic<std::uint64_t> view_bytes_{0};
  core::Figures figures_;
  core::Limits limits_;
  Published published_;
  std::uint64_t published_changes_ = UINT64_MAX;  // Changes of the heaps when the above was set.
  std::uint64_t published_held_ = 0;              // Of these, what the heap counts.
};

}  // namespace cistern::allocation
