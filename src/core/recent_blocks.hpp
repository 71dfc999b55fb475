// RecentBlocks: large blocks that were freed in a heap since it was last searched, whole.
//
// Does: gives one back to a request of exactly its size, so that sizes that alternate cost neither a search nor a
// merge. Does not: own the blocks, or keep them from being merged: its user gives all of them to the heap before it
// searches it for the same stream, so that its other requests are placed as if the blocks had been freed at once. Those
// of other streams wait until memory would have to be brought. Called by Central alone. Locking: under the device's
// lock.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "core/block.hpp"
#include "core/page_heap.hpp"

namespace cistern::core {

class RecentBlocks {
 public:
  static constexpr std::size_t kMost = 8;  // More add nothing over the recorded traces.

  // `behind`: work runs behind the host, so that addresses which a piece left show nothing for a while.
  explicit RecentBlocks(bool behind) : behind_(behind) {}

  bool empty() const { return count_ == 0; }

  // Adds a free block; returns the oldest when there are too many, else null.
  Block* put(Block* block) {
    Block* const oldest = count_ == kMost ? take_at(0) : nullptr;
    blocks_[count_] = block;
    sizes_[count_++] = block->capacity;
    return oldest;
  }

  // Whether a block may come back to where it was: only one that has no free memory before it. The search, which
  // prefers low addresses, would have moved the others down, and without that loops scatter (vit_infer: 280 moves a
  // pass instead of none). Nor, where the host is not ahead, one after addresses that show nothing: it stands at the
  // start of its stretch, and the search might find a lower one. pre: not part of a slab.
  bool stays(const Block* block) const {
    const HeapNode* before = static_cast<const HeapNode*>(block->home)->prev;
    if (before == nullptr) return true;
    return before->state == NodeState::live ? !before->idle : behind_ && before->state != NodeState::run;
  }

  // The newest block of exactly `bytes` at a multiple of `alignment` (a power of two) that stays, or null.
  Block* take(std::uint64_t bytes, std::uint64_t alignment) {
    // Without a branch a block: which one it is, if any, is a toss.
    std::uint32_t same = 0;
    for (std::size_t i = 0; i < kMost; ++i) same |= (sizes_[i] == bytes ? 1u : 0u) << i;
    same &= (1u << count_) - 1;
    for (; same != 0; same &= ~std::bit_floor(same)) {
      const auto i = static_cast<std::size_t>(std::bit_width(same)) - 1;
      if (!stays(blocks_[i])) continue;
      if ((blocks_[i]->address.load(std::memory_order_relaxed) & (alignment - 1)) == 0) return take_at(i);
    }
    return nullptr;
  }

  // The newest, or null.
  Block* take_newest() { return count_ == 0 ? nullptr : blocks_[--count_]; }

 private:
  Block* take_at(std::size_t i) {
    Block* const block = blocks_[i];
    for (--count_; i < count_; ++i) {
      blocks_[i] = blocks_[i + 1];
      sizes_[i] = sizes_[i + 1];
    }
    return block;
  }

  std::array<std::uint64_t, kMost> sizes_{};
  std::array<Block*, kMost> blocks_{};
  std::size_t count_ = 0;
  bool behind_;
};

}  // namespace cistern::core
