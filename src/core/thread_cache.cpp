// Bins, grants and inboxes of thread caches.
#include "core/thread_cache.hpp"

#include <algorithm>

namespace cistern::core {

constinit ThreadCache central_owner;
constinit ThreadCache empty_cache;

void ThreadCache::set_up(const SizeClasses& classes, std::size_t bin_bytes) {
  for (std::size_t i = 0; i < classes.count(); ++i) {
    bins[i].size = static_cast<std::uint32_t>(classes.size(i));
    bins[i].room = bin_bytes == 0 ? 0 : static_cast<std::int32_t>(std::clamp<std::size_t>(bin_bytes / classes.size(i), 4, 128));
    grants_[i] = static_cast<std::uint16_t>(bins[i].room);
  }
}

void ThreadCache::release_bin(std::size_t index, Chain& spill) {
  Bin& bin = bins[index];
  while (Block* block = pop(bin)) spill.push(block);
  granted_bytes_ -= std::uint64_t{grants_[index]} * bin.size;
  grants_[index] = 0;
  bin.room = 0;
}

Bin& ThreadCache::exact_bin(std::uint64_t size, Chain& spill) {
  if (Bin* found = find_exact(size)) return *found;
  const std::size_t first = kSmallBins + set_of(size) * kWays;
  std::size_t chosen = first + hand_ % kWays;
  for (std::size_t i = first; i < first + kWays; ++i) {
    if (bins[i].head == nullptr) {
      chosen = i;
      if (grants_[i] == 0) break;
    }
  }
  release_bin(chosen, spill);
  ++hand_;
  bins[chosen].size = static_cast<std::uint32_t>(size);
  return bins[chosen];
}

void ThreadCache::put(Block* block, std::uint64_t budget, Chain& spill) {
  const bool small = (block->flags & kBlockSlab) != 0;
  Bin& bin = small ? bins[block->bin] : exact_bin(block->capacity, spill);
  const auto index = static_cast<std::size_t>(&bin - bins.data());
  if (bin.room <= 0) {
    if (small) {
      // Half of the bin leaves, so that neither a row of frees nor a row of allocations does so again soon.
      for (std::int32_t n = grants_[index] / 2; n >= 0; --n) {
        Block* old = pop(bin);
        if (old == nullptr) break;
        spill.push(old);
      }
    } else if (grants_[index] == 0 || granted_bytes_ + block->capacity <= budget ||
               (grants_[index] + 1u) * block->capacity <= budget) {
      for (std::size_t tries = kSets * kWays; granted_bytes_ != 0 && granted_bytes_ + block->capacity > budget && tries > 0;
           --tries) {
        const std::size_t victim = kSmallBins + hand_++ % (kSets * kWays);
        if (victim != index) release_bin(victim, spill);
      }
      if (granted_bytes_ == 0 || (granted_bytes_ + block->capacity <= budget && grants_[index] < 64)) {
        ++grants_[index];
        ++bin.room;
        granted_bytes_ += block->capacity;
      }
    }
    if (bin.room <= 0) {
      spill.push(block);
      return;
    }
  }
  block->bin = static_cast<std::uint8_t>(index);
  block->next = bin.head;
  bin.head = block;
  --bin.room;
}

void ThreadCache::flush_exact(Chain& spill) {
  for (std::size_t i = kSmallBins; i < kBins; ++i) {
    while (Block* block = pop(bins[i])) spill.push(block);
  }
}

void ThreadCache::flush(Chain& spill) {
  for (Bin& bin : bins) {
    while (Block* block = pop(bin)) spill.push(block);
  }
}

void ThreadCache::forget() {
  granted_bytes_ = 0;
  for (std::size_t i = 0; i < kBins; ++i) {
    bins[i].head = nullptr;
    if (i >= kSmallBins) {
      bins[i] = {};
      grants_[i] = 0;
    }
    bins[i].room = grants_[i];
  }
}

void ThreadCache::return_inbox(Block* claimed) {
  while (claimed != nullptr) {
    Block* const following = claimed->remote_next;
    push_inbox(claimed);
    claimed = following;
  }
}

void ThreadCache::complete(Block* block, Chain& freed, std::uint64_t& late) {
  while (block != nullptr) {
    Block* const following = block->remote_next;
    std::uint32_t claimed = block->remote.load(std::memory_order_acquire);
    for (;;) {
      const std::uint64_t serial = block->serial.load(std::memory_order_relaxed);
      if (claimed != static_cast<std::uint32_t>(serial)) {
        // The allocation that was claimed is gone: its owner freed it at the same instant.
        if (!block->remote.compare_exchange_weak(claimed, 0, std::memory_order_acq_rel)) continue;
        ++late;
        break;
      }
      if (ThreadCache* owner = block->owner.load(std::memory_order_relaxed); owner != this) {
        // An older, lost claim kept the block linked here while it moved on: pass the valid one to where it belongs.
        owner->push_inbox(block);
        break;
      }
      // First the serial, so that a late second free finds the handle dead; then the field.
      block->serial.store(serial + 1, std::memory_order_relaxed);
      block->remote.store(0, std::memory_order_release);
      freed.push(block);
      break;
    }
    block = following;
  }
}

std::uint64_t ThreadCache::held_bytes() const {
  std::uint64_t bytes = 0;
  for (const Bin& bin : bins) {
    for (const Block* block = bin.head; block != nullptr; block = block->next) bytes += block->capacity;
  }
  return bytes;
}

bool ThreadCache::check_invariants() const {
  std::uint64_t granted = 0;
  for (std::size_t i = 0; i < kBins; ++i) {
    std::int32_t blocks = 0;
    for (const Block* block = bins[i].head; block != nullptr; block = block->next, ++blocks) {
      if (block->capacity != bins[i].size || block->serial.load(std::memory_order_relaxed) % 2 != 0) return false;
      if (blocks > 1 << 20) return false;
    }
    if (bins[i].room + blocks != grants_[i]) return false;
    if (i >= kSmallBins) granted += std::uint64_t{grants_[i]} * bins[i].size;
  }
  return granted == granted_bytes_;
}

Claim claim(Block* block, ThreadCache* owner, std::uint64_t serial) {
  const auto mark = static_cast<std::uint32_t>(serial);
  std::uint32_t before = block->remote.load(std::memory_order_relaxed);
  do {
    if (before == mark) return Claim::double_free;
  } while (!block->remote.compare_exchange_weak(before, mark, std::memory_order_acq_rel, std::memory_order_relaxed));
  if (before != 0 && before != kRemoteAttention) return Claim::stale;
  owner->push_inbox(block);
  return Claim::linked;
}

}  // namespace cistern::core
