// ThreadCache: free blocks of one (thread, heap) pair, so that the sizes in use cost a few nanoseconds and no lock.
//
// Does: bins of small classes and of exact larger sizes, bounded in bytes together; a pocket for one large block; the
// inbox into which other threads free this thread's blocks; the claim that lets exactly one of two racing frees win.
// Does not: get or give memory, look at addresses.
//
// The bound costs the fast path nothing of its own: while only the fast path runs, what the bins hold plus what the
// account has as live is constant (`total`), so the account's watermark `low` = total - budget says when the bins are
// full.
//
//   event                              live    held    total
//   fast malloc, fast free             +/-     -/+     same
//   block fetched for the caller       +               +
//   refill, block from the inbox               +       +
//   free of another cache's block      -               -
//   spill                                      -       -
//
// Locking: the owning thread alone touches the bins and the account; of the pocket see there. Any thread may claim() a
// live block and push it on the inbox. Whoever holds the device's lock may empty the inbox of a cache whose thread is
// gone, or, by the rules of Central::drain_inboxes(), of any cache.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/block.hpp"
#include "core/figures.hpp"
#include "core/pocket.hpp"
#include "core/size_class.hpp"
#include "core/units.hpp"

namespace cistern::core {

struct Bin {
  Block* head = nullptr;
  std::uint64_t size = 0;  // Bytes of a block; 0: not in use.
};

// Free blocks linked through Block::next.
struct Chain {
  Block* head = nullptr;
  Block* tail = nullptr;

  void push(Block* block) {
    block->next = head;
    if (head == nullptr) tail = block;
    head = block;
  }
};

// Claims that lost against the owner's own free at the same instant: double frees that no exception told. Both took the
// bytes out of the figures.
struct LateFrees {
  std::int64_t count = 0;
  std::int64_t bytes = 0;

  void add(const Block* block) {
    ++count;
    bytes += static_cast<std::int64_t>(block->capacity);
  }
};

class alignas(4096) ThreadCache {
 public:
  static constexpr std::size_t kSmallBins = SizeClasses::kMaxClasses;
  static constexpr std::size_t kSets = 32, kWays = 4;  // Sizes in use at a time, in the traces: 20 to 100.
  static constexpr std::size_t kExactBins = kSets * kWays;
  static constexpr std::size_t kNoBin = kSmallBins + kExactBins;  // Of blocks that have none; stays empty, of size 0.
  static constexpr std::size_t kBins = kNoBin + 1;

  static constexpr std::size_t kAlwaysKept = MiB;
  static constexpr std::size_t kFirstRefill = 4;    // Blocks,
  static constexpr std::uint8_t kRefillGrowth = 2;  // and the doublings from one refill to the next.

  constexpr ThreadCache() = default;
  ThreadCache(const ThreadCache&) = delete;
  ThreadCache& operator=(const ThreadCache&) = delete;

  void set_up(const SizeClasses& classes);

  // The cache in which a bin lies. `owner` may have kOwnerBits set.
  static ThreadCache* of(std::uintptr_t owner) {
    return reinterpret_cast<ThreadCache*>(owner & ~kOwnerBits & ~(alignof(ThreadCache) - 1));
  }
  std::uintptr_t owner_of_bin(std::size_t index) const { return reinterpret_cast<std::uintptr_t>(&bins[index]); }

  // The bin of exactly this size above the small classes; null when there is none.
  Bin* find_exact(std::uint64_t size) {
    Bin* set = &bins[kSmallBins + set_of(size) * kWays];
    for (std::size_t way = 0; way < kWays; ++way) {
      if (set[way].size == size) return set + way;
    }
    return nullptr;
  }
  // The same, made when there is none; the blocks of the size that had to go are spilled.
  Bin& exact_bin(std::uint64_t size, Chain& spill);

  // Takes a block from a bin, or null.
  static Block* pop(Bin& bin) {
    Block* block = bin.head;
    if (block != nullptr) bin.head = block->next;
    return block;
  }

  // pre: the block was popped in order to be made live by add_live().
  void took(const Block* block) { total_ -= static_cast<std::int64_t>(block->capacity); }
  // Adds bytes and buffers to the account that did not go through the bins.
  void add_live(std::int64_t bytes, std::int64_t count) {
    account.add(bytes, count);
    total_ += bytes;
  }
  bool above_high() const {
    return account.bytes.load(std::memory_order_relaxed) > account.high.load(std::memory_order_relaxed);
  }
  // How many blocks of a small class are to be fetched together, at most so many: few at first, since where memory is
  // looked for often most of them would go back unused.
  std::size_t refill(std::size_t bin, std::size_t most) {
    const std::size_t wanted = std::min<std::size_t>(kFirstRefill << refills_[bin], most);
    if (wanted < most) refills_[bin] = static_cast<std::uint8_t>(refills_[bin] + kRefillGrowth);
    return wanted;
  }
  // Puts a free block into its bin; the account has nothing to do with it.
  void hold(Block* block, Chain& spill);
  // Bytes that left the account for a block that is not in a bin. Whether the account is now below its floor.
  bool freed_elsewhere(std::int64_t bytes) {
    add_live(-bytes, -1);
    account.move_keep_low(-bytes);
    return account.bytes.load(std::memory_order_relaxed) < account.floor.load(std::memory_order_relaxed);
  }
  // The other way round: a block that is fetched for the caller. Whether the peak is to be looked at.
  bool fetched(std::int64_t bytes) {
    add_live(bytes, 1);
    account.move_keep_low(bytes);
    return above_high();
  }
  // Sets the watermark. Where the bins hold more than the budget, which `compute` gives anew then, they are spilled to
  // 3/4 of it; the newest block of the bin that was used last stays, up to kAlwaysKept bytes: a single size in use is
  // served from here.
  template <class Compute>
  void bound(Compute&& compute, Chain& spill) {
    if (held() > budget_) {
      budget_ = compute();
      if (held() > budget_) shrink(spill);
    }
    account.set_keep_low(total_ - static_cast<std::int64_t>(std::max(budget_, held())));
  }
  // Says which bin the fast path used last.
  void used(std::uintptr_t owner) { recent_ = (owner - reinterpret_cast<std::uintptr_t>(this)) / sizeof(Bin); }
  // Bytes in the bins.
  std::uint64_t held() const {
    return static_cast<std::uint64_t>(total_ - account.bytes.load(std::memory_order_relaxed));
  }
  // The whole content of the bins and the pocket.
  void flush(Chain& spill) {
    empty_pocket(spill);
    refills_ = {};
    for (auto bin = bins.begin(); held() != 0 && bin != bins.end(); ++bin) spill_bin(*bin, spill);
  }
  void empty_pocket(Chain& spill) {
    if (Block* block = pocket.take()) spill.push(block);
  }
  // Drops the content of the bins and the pocket (after a fork, when nobody knows in which state it is).
  void forget();

  // Links a claimed block. Any thread.
  void push_inbox(Block* block) {
    std::atomic<Block*>& lane = inbox[reinterpret_cast<std::uintptr_t>(block) / sizeof(Block) % kLanes];
    Block* head = lane.load(std::memory_order_relaxed);
    do {
      block->remote_next = head;
    } while (!lane.compare_exchange_weak(head, block, std::memory_order_release, std::memory_order_relaxed));
  }
  bool inbox_empty() const {
    std::uintptr_t any = 0;  // Without a branch a list.
    for (const auto& lane : inbox) any |= reinterpret_cast<std::uintptr_t>(lane.load(std::memory_order_relaxed));
    return any == 0;
  }
  // Takes everything out of the inbox, as one list; null when it is empty. The result is for complete().
  Block* take_inbox();
  // Completes the frees, except that of `busy`, which returns to the inbox. `late` gets the claims that turned out to
  // be double frees. pre: the caller is the cache's thread, or may empty the inbox by the rule above.
  void complete(Block* claimed, const Block* busy, Chain& freed, LateFrees& late);

  bool check_invariants() const;

  // Lines that different threads write are 128 bytes apart: processors fetch them in pairs.
  // --- Fast path: written by the owning thread ---------------------------------------------------------------------
  std::array<Bin, kBins> bins{};  // First, so that an owner minus its cache is an offset into them.
  alignas(128) Account account;
  std::uint32_t epoch = 0;  // Flush requests that this cache has honoured.
  Pocket pocket;            // Its block is in the account as freed.

 private:
  // Long way: written by the owning thread.
  std::int64_t total_ = 0;
  std::uint64_t budget_ = 0;
  std::size_t hand_ = 0;                            // Next bin to be spilled.
  std::size_t recent_ = 0;                          // Bin of the last hold() or used().
  std::array<std::uint8_t, kSmallBins> refills_{};  // See refill().

 public:
  // --- Written by other threads ------------------------------------------------------------------------------------
  // Several lists, chosen by the block's address, so that the lines of several blocks are on their way at a time when
  // the inbox is emptied.
  static constexpr std::size_t kLanes = 4;
  alignas(128) std::array<std::atomic<Block*>, kLanes> inbox{};

  // --- Set when the cache is made or changes hands; read by every thread that frees a block of this cache ----------
  alignas(128) std::atomic<const void*> thread{nullptr};  // Null: abandoned.
  // The thread that may take the short way with blocks of this cache; null while every free must be looked at.
  std::atomic<const void*> fast_thread{nullptr};
  void* front = nullptr;  // The allocator that it belongs to.
  void* heap = nullptr;
  ThreadCache* next = nullptr;  // All caches of the allocator.

 private:
  static std::size_t set_of(std::uint64_t size) { return (size * 0x9E3779B97F4A7C15u) >> (64 - 5); }
  static_assert(kSets == 32);
  void spill_bin(Bin& bin, Chain& spill);
  void shrink(Chain& spill);
};
static_assert(sizeof(ThreadCache) == alignof(ThreadCache));  // NOLINT(misc-redundant-expression): two sizes.

// The owner of blocks that no thread cache owns: they are freed by compare-exchange on their serial.
extern ThreadCache central_owner;
// The cache of threads that have none, or must take the long way: all its bins are empty.
extern ThreadCache empty_cache;

inline std::uintptr_t central_owner_value() { return central_owner.owner_of_bin(ThreadCache::kNoBin); }

enum class Claim : std::uint8_t {
  done,         // The free is done for the caller; the owner will find the block in its inbox.
  over_stale,   // The same; it took the place of a claim that lost a race and that nobody else will count.
  double_free,  // Another thread has freed this allocation.
};

// Frees a block that `owner` owned just now, from another thread. pre: serial is odd and was the block's just now;
// owner is no shared one.
Claim claim(Block* block, ThreadCache* owner, std::uint64_t serial);

}  // namespace cistern::core
