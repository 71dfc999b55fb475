// Buffers of the device's own pool, and a watch on it.
#include "allocator/ordered_buffers.hpp"

#include <algorithm>
#include <new>

#include "core/units.hpp"

namespace cistern::allocation {

using core::Block;
using drivers::Status;

namespace {

// Two calls a look cost about a microsecond; the pool grows by 32 MiB at least.
constexpr std::uint64_t kLookBytes = 32 * core::MiB;
// Of the device's memory, left to kernels, graphs and other processes while the pool holds something unused.
constexpr std::uint64_t kHeadroomPart = 32;

}  // namespace

Status OrderedBuffers::make(Block& block, std::uint64_t bytes, void* const* native) {
  drivers::Address address = 0;
  const Status status = driver_.allocate_ordered(bytes, *native, address);
  if (status != Status::ok) return status;
  try {
    const std::lock_guard lock(addresses_mutex_);
    by_address_.emplace(address, Entry{&block, native});
  } catch (const std::bad_alloc&) {
    driver_.free_ordered(address, *native);
    return Status::out_of_memory;
  }
  block.address.store(address, std::memory_order_relaxed);
  block.capacity = bytes;
  block.home = reinterpret_cast<void*>(bytes);
  core::set_flags(&block, core::kBlockOrdered);
  bytes_ += bytes;
  ++changes_;
  unseen_ += bytes;
  return status;
}

bool OrderedBuffers::destroy(Block& block) {
  if (driver_.free_ordered(at(block), native_of(block)) != Status::ok) return false;
  ++changes_;
  // Not block.capacity, which a live empty buffer shows as 0.
  bytes_ -= reinterpret_cast<std::uintptr_t>(block.home);
  const std::lock_guard lock(addresses_mutex_);
  by_address_.erase(at(block));
  return true;
}

void OrderedBuffers::rebind(const Block& from, Block* to) {
  const std::lock_guard lock(addresses_mutex_);
  by_address_.at(at(from)).block = to;
}

Block* OrderedBuffers::find(std::uint64_t address) const {
  const std::lock_guard lock(addresses_mutex_);
  const auto found = by_address_.find(address);
  return found == by_address_.end() ? nullptr : found->second.block;
}

void OrderedBuffers::watch(std::uint64_t limit, bool now) {
  // The pool grows in steps of its own; by one, at least, when more is live than it held.
  const bool may_exceed = reserved_ + unseen_ > limit, grown = bytes_ > reserved_;
  if (unseen_ < kLookBytes && !may_exceed && !grown && !now) return;
  unseen_ = 0;
  drivers::PoolFigures pool;
  if (driver_.pool_figures(pool) != Status::ok) return;
  std::uint64_t keep = std::min<std::uint64_t>(pool.reserved, limit);
  std::size_t free = 0, total = 0;
  if (pool.reserved > reserved_ && driver_.memory_info(free, total) == Status::ok) {
    const std::uint64_t headroom = total / kHeadroomPart, missing = headroom - std::min<std::uint64_t>(headroom, free);
    keep = std::min<std::uint64_t>(keep, pool.reserved - std::min<std::uint64_t>(missing, pool.reserved));
  }
  reserved_ = pool.reserved;
  if (keep < pool.reserved && pool.used < pool.reserved) give_back(pool.reserved - keep);
}

std::uint64_t OrderedBuffers::give_back(std::uint64_t bytes) {
  drivers::PoolFigures before, after;
  if (driver_.pool_figures(before) != Status::ok) return 0;
  if (driver_.trim_pool(before.reserved - std::min<std::uint64_t>(bytes, before.reserved)) != Status::ok) return 0;
  if (driver_.pool_figures(after) != Status::ok) return 0;
  reserved_ = after.reserved;
  return before.reserved - std::min(before.reserved, after.reserved);
}

}  // namespace cistern::allocation
