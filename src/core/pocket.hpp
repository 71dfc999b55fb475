// Pocket: the large block that a thread freed last, for its next request, without the device's lock.
//
// Does: keeps one block, if it was also the last large one that the thread got, for a request of exactly its size. Does
// not: keep it when another large block comes or goes: its user gives it back first, so that blocks are placed as if
// there were no pocket.
//
// Locking: its thread calls everything down to take(), without a locked instruction. Another thread, which holds the
// device's lock, calls close(), makes all threads see it (a barrier on all of them), then steal(), then open(). Where
// the owner was in the middle of a call it gets nothing.
#pragma once

#include <atomic>
#include <cstdint>

#include "core/block.hpp"

namespace cistern::core {

class Pocket {
 public:
  // The largest block that may be kept. pre: before the first use.
  void set_most(std::uint64_t bytes) { most_ = bytes; }

  // Notes the large block that the thread just got; null for one that is not to be kept.
  void note(Block* block) { last_ = block; }
  // Keeps a block that was just freed; false when it is not the last one.
  bool put(Block* block) {
    if (block != last_) return false;
    last_ = nullptr;
    const Use use(*this);
    const bool kept = use.allowed() && block->capacity <= most_;
    if (kept) block_.store(block, std::memory_order_release);  // A forked child may look.
    return kept;
  }
  // The block if it has exactly `bytes`, else null. It is the last one again.
  Block* take(std::uint64_t bytes) {
    if (empty()) return nullptr;
    const Use use(*this);
    Block* const block = use.allowed() ? block_.load(std::memory_order_relaxed) : nullptr;
    if (block == nullptr || block->capacity != bytes) return nullptr;
    block_.store(nullptr, std::memory_order_relaxed);
    last_ = block;
    return block;
  }
  // The block, or null.
  Block* take() {
    last_ = nullptr;
    if (empty()) return nullptr;
    const Use use(*this);
    Block* const block = use.allowed() ? block_.load(std::memory_order_relaxed) : nullptr;
    if (block != nullptr) block_.store(nullptr, std::memory_order_relaxed);
    return block;
  }

  // Any thread: whether it looks empty.
  bool empty() const { return block_.load(std::memory_order_relaxed) == nullptr; }
  void close() { closed_.store(true, std::memory_order_relaxed); }
  // pre: closed, and all threads know it.
  Block* steal() {
    if (busy_.load(std::memory_order_acquire)) return nullptr;
    return block_.exchange(nullptr, std::memory_order_relaxed);
  }
  void open() { closed_.store(false, std::memory_order_release); }
  // Drops the content (after a fork, when nobody knows in which state it is).
  void forget() {
    last_ = nullptr;
    block_.store(nullptr, std::memory_order_relaxed);
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

  std::atomic<Block*> block_{nullptr};
  Block* last_ = nullptr;
  std::uint64_t most_ = 0;
  std::atomic<bool> busy_{false}, closed_{false};
};

}  // namespace cistern::core
