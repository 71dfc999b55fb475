// DeviceAllocator: the allocator of one device, over one driver. The front that every call of the public API ends in.
//
// Does: the fast paths, figures, tags, content options, misuse errors, out-of-memory handling. Does not: place blocks,
// call the driver for memory (Central does). Used by the registry (one per device, never destroyed) and by tests,
// replay and benchmarks, which may make their own over a driver of theirs.
//
// Ownership of a block decides how it is freed:
//   by the thread whose cache owns it   plain loads and stores; a few nanoseconds
//   by another thread                   one compare-exchange (core::claim), then the owner's inbox
//   owned by `central_owner`            one compare-exchange on the serial (tagged buffers, views, host buffers, those
//                                       of threads without a cache)
// Locking: fast paths take none; free() takes none that is held across a driver call, except to give memory back to a
// device that has no asynchronous work. Lock order: registry, device (Central), threads, leaf locks.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "allocator/central.hpp"
#include "allocator/kept_buffers.hpp"
#include "allocator/thread_state.hpp"
#include "cistern/allocator.hpp"
#include "cistern/memory.hpp"

namespace cistern::allocation {

class DeviceAllocator : public Allocator {
 public:
  DeviceAllocator(Device device, std::unique_ptr<drivers::Driver> driver, FrontConfig config = {});
  // pre: no thread uses it. Every handle is dead afterwards; memory goes back to the driver.
  ~DeviceAllocator() override;

  Buffer malloc(std::size_t bytes) override;
  Buffer malloc(std::size_t bytes, const Stream& stream) override;
  void free(Buffer buffer) override;
  void free(Buffer buffer, const Stream& stream) override;
  void free_raw(void* ptr) override;
  Buffer find(const void* ptr) const override;
  std::size_t size(Buffer buffer) const override;
  Buffer make_buffer(void* ptr, std::size_t bytes) override;
  void release(Buffer buffer) override;
  void record_use(Buffer buffer, const Stream& stream) override;
  Device device() const noexcept override { return device_; }

  // A stream of this allocator; null is the default stream.
  Stream stream(void* native);
  void stream_destroyed(const Stream& stream);
  // Throws invalid_argument, naming the call, unless the stream is a live one of this allocator.
  void check_stream(const Stream& stream, const char* call) const {
    check_stream_entry(streams_.at(stream.slot()), stream, call);
  }
  // What the host can follow; moves device-only memory to unified memory first.
  void* host_pointer(Buffer buffer);

  Stats stats() const;
  void reset_peaks();
  std::size_t set_memory_limit(std::size_t bytes);
  std::size_t set_cache_limit(std::size_t bytes);
  std::size_t set_wired_limit(std::size_t bytes);
  void clear_cache();
  void before_submit();
  // Capture pools, by number; see cistern/capture.hpp.
  std::uint64_t make_pool();
  void begin_pool(std::uint64_t pool, CaptureFilter filter, StreamEntry* only = nullptr);
  void begin_pool(std::uint64_t pool, const Stream& stream);
  void end_pool(std::uint64_t pool);
  void release_pool(std::uint64_t pool);
  std::size_t pool_bytes(std::uint64_t pool);
  std::vector<MemorySegment> map();
  MemoryOptions set_options(MemoryOptions options);
  MemoryOptions options() const;
  std::vector<TagStats> tags() const;

  // --- For tests, replay and benchmarks ----------------------------------------------------------------------------
  drivers::Driver& driver() const { return central_.driver(); }
  // Under its lock; null before the first allocation.
  core::HeapGroup* heap_group() { return central_.group(); }
  Central& central() { return central_; }
  // Gives the caches of all threads back. pre: no other thread is in this allocator.
  void flush_thread_caches();
  // One message a broken rule, conservation first. pre: no other thread is in this allocator.
  std::vector<std::string> check_invariants();

  // --- For the other parts of the allocator layer ------------------------------------------------------------------
  // Address, bytes and device, for messages.
  std::string describe(const core::Block* block) const;
  // Whether every call must be looked at (content options).
  bool instrumented() const { return options_.load(std::memory_order_relaxed) != 0; }
  void abandon(core::ThreadCache& cache);
  virtual void lock_for_fork();
  virtual void unlock_after_fork();
  void become_only_thread(const void* thread) {
    central_.mutex().forget_waiting();
    central_.orphan_caches(thread);
  }
  DeviceAllocator* next_instance = nullptr;  // The registry's list.

 protected:
  DeviceAllocator(Device device, std::unique_ptr<drivers::Driver> driver, FrontConfig config, bool primary);
  // The short ways, given the calling thread's cache.
  Buffer malloc_from(core::ThreadCache& cache, std::size_t bytes, StreamEntry* entry, std::size_t small_limit);
  void free_to(core::ThreadCache& cache, Buffer buffer);

 private:
  struct Request {
    std::size_t bytes = 0;    // Asked for.
    std::size_t rounded = 0;  // Capacity that is looked for; the class's size for small blocks.
    std::size_t alignment = 0;
    int bin = -1;  // Size class, or -1.
  };

  core::Block* cached(core::ThreadCache& cache, std::size_t bytes, std::size_t small_limit);
  Buffer hand_out(core::ThreadCache& cache, core::Block* block);
  [[gnu::noinline, gnu::cold]] Buffer checkpoint(Buffer buffer);
  bool free_fast(core::ThreadCache& cache, std::uintptr_t owner, Buffer buffer);
  bool free_large(core::ThreadCache& cache, std::uintptr_t owner, Buffer buffer);
  [[gnu::noinline, gnu::cold]] void after_low(core::ThreadCache& cache);
  [[gnu::noinline]] void free_other(Buffer buffer);

  // Up to a whole number of the device's alignment; 0 for sizes that no number holds.
  std::size_t aligned(std::size_t bytes) const { return (bytes + alignment_mask_) & ~alignment_mask_; }
  Request round(std::size_t bytes) const;
  [[gnu::noinline]] Buffer malloc_slow(core::ThreadCache& cache, std::size_t bytes, StreamEntry* entry);
  [[gnu::noinline]] Buffer malloc_slower(std::size_t bytes, StreamEntry* entry);
  Buffer malloc_far(core::ThreadCache& cache, std::size_t bytes, StreamEntry* entry);
  Buffer malloc_large(core::ThreadCache& cache, std::size_t bytes);
  core::Block* obtain(const Request& request, StreamHeap& heap, core::ThreadCache*& cache);
  core::Block* obtain_host(const Request& request);
  core::Block* obtain_ordered(const Request& request, StreamHeap& heap);
  core::Block* obtain_captured(const Request& request, std::uint64_t pool, const StreamEntry& entry);
  void account_malloc(core::ThreadCache* cache, const core::Block* block, const Request& request);
  void give_pocket_back(core::ThreadCache& cache);
  static void note_large(core::ThreadCache& cache, core::Block* block);
  // The handle of a block that is free no more. Whoever sees its serial sees what was written to it before.
  static Buffer make_live(core::Block* block) {
    const std::uint64_t serial = block->serial.load(std::memory_order_relaxed) + 1;
    block->serial.store(serial, std::memory_order_release);
    return Buffer(block, serial);
  }
  Buffer issue(core::Block* block, core::ThreadCache* cache, const Request& request);
  std::uintptr_t owner_in(core::ThreadCache& cache, const core::Block* block, core::Chain& spill) const;
  std::string clear_content(core::Block* block);
  void drain_own_inbox(core::ThreadCache& cache);
  core::ThreadCache* own_cache(ThreadRecord* record, const StreamHeap& heap) const;
  core::ThreadCache* far_cache(const StreamEntry* entry) const;
  void free_slow(Buffer buffer);
  void free_foreign(Buffer buffer, core::ThreadCache* owner);
  void finish_free(core::Block* block, core::ThreadCache* cache);
  void after_free(bool look_at_cache_limit);
  bool account_free(std::uint64_t capacity);
  [[gnu::noinline, gnu::cold]] void join_for_account();
  core::ThreadCache* join(const Central::Lock& lock, ThreadRecord& record, StreamHeap& heap);
  void restore_empty(core::Block* block) const;
  void poison(const core::Block* block) const;
  void add_use(core::Block* block, const Stream& stream);
  core::ThreadCache* cache_for(const core::Block* block) const;
  // Whether a free block may go into a thread's cache. Not where the device overwrites it first (Central::give()).
  bool kept_by_threads(const core::Block* block) const {
    const bool fits = (block->flags & core::kBlockSlab) != 0 || block->capacity <= central_.config().max_cached;
    const bool poisons = asynchronous_ && (options_.load(std::memory_order_relaxed) & kPoisonOnFree) != 0;
    return fits && !poisons && (block->flags & core::kBlockHost) == 0 && !central_.uses().contains(block);
  }
  std::uint64_t cache_budget() const;
  void bound(core::ThreadCache& cache, core::Chain spill = {});
  void check_stream_entry(const StreamEntry* entry, const Stream& stream, const char* call) const {
    if (entry == nullptr || entry->id.load(std::memory_order_relaxed) != stream.id()) [[unlikely]]
      throw_foreign_stream(stream, call);
  }
  [[noreturn, gnu::cold]] void throw_foreign_stream(const Stream& stream, const char* call) const;
  // The block of a live buffer of this allocator; throws otherwise.
  core::Block* checked(Buffer buffer, const char* call) const;
  void check_not_kept(const core::Block* block, const char* call) const;
  [[noreturn]] void throw_misuse(Buffer buffer, const char* call) const;
  // `what` comes before the figures.
  [[noreturn]] void throw_out_of_memory(std::size_t bytes, const std::string& driver_failure,
                                        const std::string& what = {});

  enum Option : std::uint8_t { kZeroOnAlloc = 1, kZeroOnReuse = 2, kPoisonOnFree = 4 };

  const Device device_;
  std::atomic<std::uint8_t> options_{0};
  core::TagFigures tag_figures_;
  mutable Central central_;  // find() fills its index.

  // Read by every call; on lines that nobody writes.
  alignas(64) const bool host_buffers_;  // malloc(n) is a whole buffer that the host reaches.
  const bool asynchronous_;              // Streams run behind the host.
  const bool keeps_nothing_;             // What is freed goes back to the driver at once.
  const std::uint32_t default_number_;   // Heap whose cache malloc(n) uses; kNoHeap where it makes host buffers.
  const std::size_t small_limit_;        // Requests up to here have a class.
  const std::size_t exact_limit_;        // Requests up to here may be in a thread cache.
  const std::size_t alignment_mask_;
  const core::SizeClasses classes_;  // A copy, near.
  const StreamTable& streams_;
};

// The same with heap number kPrimaryHeap as a constant: the process-wide allocator of the CPU.
class PrimaryAllocator final : public DeviceAllocator {
 public:
  PrimaryAllocator(Device device, std::unique_ptr<drivers::Driver> driver)
      : DeviceAllocator(device, std::move(driver), {}, true) {}
  using DeviceAllocator::free;
  using DeviceAllocator::malloc;
  Buffer malloc(std::size_t bytes) override;
  void free(Buffer buffer) override;
};

// The allocator that made the buffer's descriptor; null when it is gone.
inline DeviceAllocator* allocator_of(const core::Block* block) {
  return static_cast<DeviceAllocator*>(core::BlockPool::owner_of(block));
}

}  // namespace cistern::allocation
