// Bins, their bound, and the inboxes of thread caches.
#include "core/thread_cache.hpp"

namespace cistern::core {

constinit ThreadCache central_owner;
constinit ThreadCache empty_cache;

void ThreadCache::set_up(const SizeClasses& classes) {
  for (std::size_t i = 0; i < classes.count(); ++i) bins[i].size = classes.size(i);
}

void ThreadCache::spill_bin(Bin& bin, Chain& spill) {
  while (Block* block = pop(bin)) {
    total_ -= static_cast<std::int64_t>(block->capacity);
    spill.push(block);
  }
}

Bin& ThreadCache::exact_bin(std::uint64_t size, Chain& spill) {
  if (Bin* found = find_exact(size)) return *found;
  const std::size_t first = kSmallBins + set_of(size) * kWays;
  std::size_t chosen = first + hand_++ % kWays;
  for (std::size_t i = first; i < first + kWays; ++i) {
    if (bins[i].head == nullptr) {
      chosen = i;
      if (bins[i].size == 0) break;
    }
  }
  spill_bin(bins[chosen], spill);
  bins[chosen].size = size;
  return bins[chosen];
}

void ThreadCache::hold(Block* block, Chain& spill) {
  Bin& bin = (block->flags & kBlockSlab) != 0 ? bins[block->bin] : exact_bin(block->capacity, spill);
  recent_ = static_cast<std::size_t>(&bin - bins.data());
  block->owner.store(reinterpret_cast<std::uintptr_t>(&bin), std::memory_order_relaxed);
  block->next = bin.head;
  bin.head = block;
  total_ += static_cast<std::int64_t>(block->capacity);
}

// Whole bins in turn, those of large blocks before those of small ones, the one in use last and only as much as must
// be.
void ThreadCache::shrink(Chain& spill) {
  const std::uint64_t enough = budget_ / 4 * 3;
  for (std::size_t tries = 0; tries < kExactBins && held() > enough; ++tries) {
    const std::size_t victim = kSmallBins + hand_++ % kExactBins;
    if (victim != recent_) spill_bin(bins[victim], spill);
  }
  for (std::size_t i = 0; i < kSmallBins && held() > enough; ++i) {
    if (i != recent_) spill_bin(bins[i], spill);
  }
  Bin& bin = bins[recent_];
  while (held() > enough && bin.head != nullptr && bin.head->next != nullptr) {
    Block* block = bin.head->next;
    bin.head->next = block->next;
    total_ -= static_cast<std::int64_t>(block->capacity);
    spill.push(block);
  }
  if (held() > budget_ && bin.size > kAlwaysKept) spill_bin(bin, spill);
}

void ThreadCache::forget() {
  pocket.forget();
  for (std::size_t i = 0; i < kBins; ++i) {
    bins[i].head = nullptr;
    if (i >= kSmallBins) bins[i].size = 0;
  }
  total_ = account.bytes.load(std::memory_order_relaxed);
}

Block* ThreadCache::take_inbox() {
  std::array<Block*, kLanes> lanes{};
  std::size_t open = 0;
  for (std::atomic<Block*>& lane : inbox) {
    if (lane.load(std::memory_order_relaxed) == nullptr) continue;
    Block* block = lane.exchange(nullptr, std::memory_order_acquire);
    if (block == nullptr) continue;
    prefetch_for_write(block);
    lanes[open++] = block;
  }
  // All lists side by side: the line of a block was last written by the thread that freed it, and says where the next
  // one is.
  Block* taken = nullptr;
  while (open != 0) {
    for (std::size_t i = 0; i < open;) {
      Block* const block = lanes[i];
      Block* const following = block->remote_next;
      block->remote_next = taken;
      taken = block;
      if (following != nullptr) {
        prefetch_for_write(following);
        lanes[i++] = following;
      } else {
        lanes[i] = lanes[--open];
      }
    }
  }
  return taken;
}

void ThreadCache::complete(Block* block, const Block* busy, Chain& freed, LateFrees& late) {
  while (block != nullptr) {
    Block* const following = block->remote_next;
    std::uint32_t claimed = block->remote.load(std::memory_order_acquire);
    for (;;) {
      const std::uint64_t serial = block->serial.load(std::memory_order_relaxed);
      if (claimed != static_cast<std::uint32_t>(serial)) {
        // The allocation that was claimed is gone: its owner freed it at the same instant.
        if (!block->remote.compare_exchange_weak(claimed, 0, std::memory_order_acq_rel)) continue;
        late.add(block);
        break;
      }
      ThreadCache* owner = of(block->owner.load(std::memory_order_relaxed));
      if (owner != this || block == busy) {
        // Busy; or an older, lost claim kept the block linked here while it moved on: the valid one goes where it
        // belongs.
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

bool ThreadCache::check_invariants() const {
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < kBins; ++i) {
    std::size_t blocks = 0;
    for (const Block* block = bins[i].head; block != nullptr; block = block->next) {
      const bool fits = block->capacity == bins[i].size && of(block->owner.load(std::memory_order_relaxed)) == this;
      if (!fits || block->serial.load(std::memory_order_relaxed) % 2 != 0) return false;
      bytes += static_cast<std::int64_t>(block->capacity);
      if (++blocks > std::size_t{1} << 24) return false;  // A loop.
    }
  }
  return total_ == account.bytes.load(std::memory_order_relaxed) + bytes;
}

Claim claim(Block* block, ThreadCache* owner, std::uint64_t serial) {
  const auto mark = static_cast<std::uint32_t>(serial);
  std::uint32_t before = block->remote.load(std::memory_order_relaxed);
  do {
    if (before == mark) return Claim::double_free;
  } while (!block->remote.compare_exchange_weak(before, mark, std::memory_order_acq_rel, std::memory_order_relaxed));
  block->owner.fetch_or(kAttention, std::memory_order_acq_rel);
  // With an older claim on it, one that lost a race, the block is linked already.
  if (before != 0) return Claim::over_stale;
  owner->push_inbox(block);
  return Claim::done;
}

}  // namespace cistern::core
