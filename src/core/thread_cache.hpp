// ThreadCache: free blocks of one (thread, heap) pair, so that the sizes in use cost a few nanoseconds and no lock.
//
// Does: bins of small classes and of exact larger sizes, bounded in bytes; the inbox into which other threads free this
// thread's blocks; the claim that lets exactly one of two racing frees win. Does not: get or give memory, look at addresses.
//
// Small bins hold a fixed number of blocks. Exact bins share a byte budget by grants: a grant is the right to hold one
// block of that size; `room` counts grants without a block. A size that needs a grant when the budget is used up takes
// those of another bin, whose blocks spill.
//
// Locking: the owning thread alone touches the bins. Any thread may claim() a live block and push it on the inbox. Whoever
// holds the device's lock may empty the inbox of a cache whose thread is gone, or, after a barrier on all threads and
// with `busy` seen clear, of any cache (see Front::drain_inboxes).
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/block.hpp"
#include "core/figures.hpp"
#include "core/size_class.hpp"

namespace cistern::core {

struct Bin {
  Block* head = nullptr;
  std::int32_t room = 0;     // Blocks that may still come in.
  std::uint32_t size = 0;    // Bytes of a block; 0: not in use.
};

// Free blocks linked through Block::next.
struct Chain {
  Block* head = nullptr;
  Block* tail = nullptr;
  std::uint64_t bytes = 0;

  void push(Block* block) {
    block->next = head;
    if (head == nullptr) tail = block;
    head = block;
    bytes += block->capacity;
  }
};

class alignas(64) ThreadCache {
 public:
  static constexpr std::size_t kSmallBins = SizeClasses::kMaxClasses;
  static constexpr std::size_t kSets = 32, kWays = 4;  // Sizes in use at a time, in the traces: 20 to 100.
  static constexpr std::size_t kBins = kSmallBins + kSets * kWays;

  constexpr ThreadCache() = default;
  ThreadCache(const ThreadCache&) = delete;
  ThreadCache& operator=(const ThreadCache&) = delete;

  // Sizes and bounds of the small bins: each holds at most `bin_bytes`, but at least 4 and at most 128 blocks.
  void set_up(const SizeClasses& classes, std::size_t bin_bytes);

  // The bin of exactly this size above the small classes; null when there is none.
  Bin* find_exact(std::uint64_t size) {
    Bin* set = &bins[kSmallBins + set_of(size) * kWays];
    for (std::size_t way = 0; way < kWays; ++way) {
      if (set[way].size == size) return set + way;
    }
    return nullptr;
  }

  // Takes a block from a bin, or null.
  static Block* pop(Bin& bin) {
    Block* block = bin.head;
    if (block != nullptr) {
      bin.head = block->next;
      ++bin.room;
    }
    return block;
  }
  // Puts a free block that `owner` = this into its bin, with at most `budget` bytes in exact bins (but always one block).
  // What does not fit goes to `spill`, which may be the block itself.
  void put(Block* block, std::uint64_t budget, Chain& spill);
  // The whole content of the bins.
  void flush(Chain& spill);
  // Drops the content of the bins (after a fork, when nobody knows in which state it is).
  void forget();
  // The content of the exact bins.
  void flush_exact(Chain& spill);

  // Links a claimed block. Any thread.
  void push_inbox(Block* block) {
    Block* head = inbox.load(std::memory_order_relaxed);
    do {
      block->remote_next = head;
    } while (!inbox.compare_exchange_weak(head, block, std::memory_order_release, std::memory_order_relaxed));
  }
  bool inbox_empty() const { return inbox.load(std::memory_order_relaxed) == nullptr; }
  // Takes everything out of the inbox; null when it is empty. The result is for complete() or return_inbox().
  Block* take_inbox() { return inbox.exchange(nullptr, std::memory_order_acquire); }
  // Completes the frees. `late` counts claims that turned out to be double frees.
  // pre: the caller is the cache's thread, or fulfils the rule above.
  void complete(Block* claimed, Chain& freed, std::uint64_t& late);
  void return_inbox(Block* claimed);

  // Bytes of grants and blocks in exact bins, for checks.
  std::uint64_t granted_bytes() const { return granted_bytes_; }
  std::uint64_t held_bytes() const;
  bool check_invariants() const;

  // --- Fast path: written by the owning thread ---------------------------------------------------------------------
  Account account;
  std::atomic<std::uint32_t> busy{0};  // Set while a local free is between its checks and its last store.
  std::uint32_t epoch = 0;             // Flush requests that this cache has honoured.
  // The thread that may take the short way with blocks of this cache; cleared while every free must be looked at.
  std::atomic<const void*> fast_thread{nullptr};
  std::array<Bin, kBins> bins{};

  // --- Written by other threads ------------------------------------------------------------------------------------
  alignas(64) std::atomic<Block*> inbox{nullptr};

  // --- Set when the cache is made or changes hands -----------------------------------------------------------------
  alignas(64) std::atomic<const void*> thread{nullptr};  // Null: abandoned.
  void* front = nullptr;                     // The allocator that it belongs to.
  void* heap = nullptr;
  ThreadCache* next = nullptr;  // All caches of the allocator.

 private:
  static std::size_t set_of(std::uint64_t size) { return (size * 0x9E3779B97F4A7C15u) >> (64 - 5); }
  static_assert(kSets == 32);
  Bin& exact_bin(std::uint64_t size, Chain& spill);
  void release_bin(std::size_t index, Chain& spill);

  std::array<std::uint16_t, kBins> grants_{};  // Exact bins: room + blocks.
  std::uint64_t granted_bytes_ = 0;
  std::size_t hand_ = 0;  // Next exact bin to lose its grants.
};

// The owner of blocks that no thread cache owns: they are freed by compare-exchange on their serial.
extern ThreadCache central_owner;
// The cache of threads that have none, or must take the long way: all its bins are empty.
extern ThreadCache empty_cache;

enum class Claim : std::uint8_t {
  linked,       // The free is done for the caller; the owner will find the block in its inbox.
  stale,        // The same; the block was linked already, by an older claim that lost a race.
  double_free,  // Another thread has freed this allocation.
};

// Frees a block that `owner` owned just now, from another thread. pre: serial is odd and was the block's just now;
// owner is no shared one.
Claim claim(Block* block, ThreadCache* owner, std::uint64_t serial);

}  // namespace cistern::core
