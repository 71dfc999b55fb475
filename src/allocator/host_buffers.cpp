// Whole buffers that the host can reach.
#include "allocator/host_buffers.hpp"

#include <algorithm>
#include <new>

#include "core/units.hpp"

namespace cistern::allocation {

using drivers::HostKind;
using drivers::Status;

HostBuffers::~HostBuffers() {
  for (const auto& [capacity, block] : free_) {
    driver_.free_host(HostKind::unified, reinterpret_cast<void*>(block->address.load(std::memory_order_relaxed)),
                      capacity);
  }
}

core::Block* HostBuffers::take_cached(std::uint64_t bytes) {
  const auto found = free_.lower_bound(bytes);
  // 128 KiB: two large pages' worth of waste, as the published rule for whole buffers has it (DESIGN section 2).
  if (found == free_.end() || found->first >= std::min(2 * bytes, bytes + 128 * core::KiB)) return nullptr;
  core::Block* block = found->second;
  free_.erase(found);
  cached_bytes_ -= block->capacity;
  return block;
}

Status HostBuffers::make(core::Block& block, std::uint64_t bytes) {
  void* memory = nullptr;
  const Status status = driver_.allocate_host(HostKind::unified, bytes, memory);
  if (status != Status::ok) return status;
  try {
    const std::lock_guard lock(addresses_mutex_);
    by_address_.emplace(reinterpret_cast<std::uintptr_t>(memory), &block);
  } catch (const std::bad_alloc&) {
    driver_.free_host(HostKind::unified, memory, bytes);
    return Status::out_of_memory;
  }
  block.address.store(reinterpret_cast<std::uintptr_t>(memory), std::memory_order_relaxed);
  block.capacity = bytes;
  block.home = reinterpret_cast<void*>(bytes);
  block.flags = core::kBlockHost;
  bytes_ += bytes;
  ++count_;
  return status;
}

void HostBuffers::keep(core::Block* block) {
  free_.emplace(block->capacity, block);
  cached_bytes_ += block->capacity;
}

void HostBuffers::rebind(const core::Block& made, core::Block* block) {
  const std::lock_guard lock(addresses_mutex_);
  by_address_.at(made.address.load(std::memory_order_relaxed)) = block;
}

bool HostBuffers::destroy(core::Block& block) {
  // Not block.capacity, which a live empty buffer shows as 0.
  const std::uint64_t capacity = reinterpret_cast<std::uintptr_t>(block.home);
  void* const memory = reinterpret_cast<void*>(block.address.load(std::memory_order_relaxed));
  if (driver_.free_host(HostKind::unified, memory, capacity) != Status::ok) return false;
  {
    const std::lock_guard lock(addresses_mutex_);
    by_address_.erase(block.address.load(std::memory_order_relaxed));
  }
  bytes_ -= capacity;
  --count_;
  return true;
}

core::Block* HostBuffers::find(std::uint64_t address) const {
  const std::lock_guard lock(addresses_mutex_);
  const auto found = by_address_.find(address);
  return found == by_address_.end() ? nullptr : found->second;
}

core::Block* HostBuffers::take_largest() {
  if (free_.empty()) return nullptr;
  const auto last = std::prev(free_.end());
  core::Block* block = last->second;
  free_.erase(last);
  cached_bytes_ -= block->capacity;
  return block;
}

}  // namespace cistern::allocation
