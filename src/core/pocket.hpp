// Pocket: the large block that a thread freed last, for its next request, without the device's lock.
//
// Does: keeps one block, if it was also the last large one that the thread got, for a request of exactly its size;
// keeps nothing for a while after others had to take it, so that threads that share little memory do not take it from
// each other all the time. Does not: keep it when another large block comes or goes: its user gives it back first, so
// that blocks are placed as if there were no pocket.
//
// Locking: its thread calls everything down to take(), without a locked instruction. Another thread, which holds the
// device's lock, calls close(), makes all threads see it (a barrier on all of them), then steal(), then open(). Where
// the owner was in the middle of a call it gets nothing.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "core/block.hpp"

namespace cistern::core {

class Pocket {
 public:
  static constexpr std::uint32_t kFirstRefusals = 64, kMostRefusals = 1U << 20;

  // The largest block that may be kept. pre: before the first use.
  void set_most(std::uint64_t bytes) { most_ = bytes; }

  // Notes the large block that the thread just got; null for one that is not to be kept.
  void note(Block* block) { last_ = block; }
  // Keeps a block that was just freed; false when it is not the last one, or the pocket is to stay empty or could not
  // be emptied, closed as it was.
  bool put(Block* block) {
    if (block != last_) return false;
    last_ = nullptr;
    const Use use(*this);
    if (!use.allowed() || bytes() != 0 || block->capacity > most_) return false;
    if (refusals_ != 0) {
      --refusals_;
      return false;
    }
    block_ = block;
    bytes_.store(block->capacity, std::memory_order_release);  // A forked child may look.
    return true;
  }
  // The block if it has exactly `bytes`, else null. It is the last one again.
  Block* take(std::uint64_t bytes) {
    if (this->bytes() != bytes || bytes == 0) return nullptr;  // The empty cache's is never written.
    const Use use(*this);                                      // From here on it may only be gone.
    return last_ = use.allowed() ? taken() : nullptr;
  }
  // The block, or null.
  Block* take() {
    last_ = nullptr;
    if (bytes() == 0) return nullptr;
    const Use use(*this);
    return use.allowed() ? taken() : nullptr;
  }

  // Any thread: how much it holds, or held a moment ago; 0: nothing.
  std::uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }
  void close() { closed_.store(true, std::memory_order_relaxed); }
  // The block if it has at least so many bytes, else null. pre: closed, and all threads know it.
  Block* steal(std::uint64_t least) {
    if (busy_.load(std::memory_order_acquire) || bytes() < least) return nullptr;
    return taken();
  }
  // Keeps nothing for a while, twice as long each time. pre: something was just stolen.
  void rest() {
    refusals_ = next_refusals_;
    next_refusals_ = std::min(2 * next_refusals_, kMostRefusals);
  }
  void open() { closed_.store(false, std::memory_order_release); }
  // Drops the content (after a fork, when nobody knows in which state it is).
  void forget() {
    last_ = nullptr;
    taken();
    busy_.store(false, std::memory_order_relaxed);
    closed_.store(false, std::memory_order_relaxed);
  }

 private:
  // First it says that it is busy, then looks whether it may: whoever closed the pocket sees the one, or is seen.
  class Use {
   public:
    explicit Use(Pocket& pocket) : pocket_(pocket) {
      pocket_.busy_.store(true, std::memory_order_relaxed);
      std::atomic_signal_fence(std::memory_order_seq_cst);
    }
    ~Use() { pocket_.busy_.store(false, std::memory_order_release); }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    bool allowed() const { return !pocket_.closed_.load(std::memory_order_acquire); }

   private:
    Pocket& pocket_;
  };

  Block* taken() {
    if (bytes() == 0) return nullptr;
    bytes_.store(0, std::memory_order_relaxed);
    return block_;
  }

  std::atomic<std::uint64_t> bytes_{0};  // Of the block; 0: there is none.
  Block* block_ = nullptr;
  Block* last_ = nullptr;
  std::uint64_t most_ = 0;
  std::uint32_t refusals_ = 0;                    // Blocks that are not kept from now on,
  std::uint32_t next_refusals_ = kFirstRefusals;  // and after the next rest().
  std::atomic<bool> busy_{false}, closed_{false};
};

}  // namespace cistern::core
