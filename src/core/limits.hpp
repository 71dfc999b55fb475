// Limits of one device's memory: what was set, and what follows from it. Values and arithmetic only.
// Locking: none needed; each value is an atomic, and a setter returns the value that it replaced.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace cistern::core {

class Limits {
 public:
  explicit Limits(std::uint64_t memory) : initial_(memory), memory_(memory) {}

  std::uint64_t memory() const { return memory_.load(std::memory_order_relaxed); }
  std::uint64_t set_memory(std::uint64_t bytes) { return memory_.exchange(bytes, std::memory_order_relaxed); }

  // Whether somebody asked for less than the device's default: then little room above the live bytes is expected.
  bool lowered() const { return memory() < initial_; }

  // Follows the memory limit until it is set to something else.
  std::uint64_t cache() const {
    const std::uint64_t set = cache_.load(std::memory_order_relaxed);
    return set == kFollow ? memory() : set;
  }
  std::uint64_t set_cache(std::uint64_t bytes) {
    const std::uint64_t before = cache();
    cache_.store(bytes == memory() ? kFollow : std::min(bytes, kFollow - 1), std::memory_order_relaxed);
    return before;
  }
  // Whether the cache limit can be what holds memory back: below the memory limit, which bounds the cache anyway.
  bool cache_binds() const { return cache() < memory(); }

  std::uint64_t wired() const { return wired_.load(std::memory_order_relaxed); }
  std::uint64_t set_wired(std::uint64_t bytes) { return wired_.exchange(bytes, std::memory_order_relaxed); }

  // Bytes of free memory above the cache limit.
  std::uint64_t excess(std::uint64_t reserved, std::uint64_t active) const {
    const std::uint64_t cached = reserved - std::min(reserved, active);
    return cached - std::min(cached, cache());
  }

 private:
  static constexpr std::uint64_t kFollow = UINT64_MAX;

  const std::uint64_t initial_;
  std::atomic<std::uint64_t> memory_;
  std::atomic<std::uint64_t> cache_{kFollow};
  std::atomic<std::uint64_t> wired_{0};
};

}  // namespace cistern::core
