// Whole buffers that the host can reach, and small blocks of them.
#include "allocator/host_buffers.hpp"

#include <algorithm>
#include <new>
#include <utility>

namespace cistern::allocation {

using core::Block;
using drivers::HostKind;
using drivers::Status;

namespace {

// A buffer of the cache is less than two of them, 128 KiB, larger than what it serves: see BufferCache.
constexpr std::size_t kPage = 64 * core::KiB;

void* pointer(std::uint64_t address) { return reinterpret_cast<void*>(static_cast<std::uintptr_t>(address)); }
std::uint64_t address_of(const Block& block) { return block.address.load(std::memory_order_relaxed); }

}  // namespace

HostBuffers::HostBuffers(drivers::Driver& driver, const core::SizeClasses& classes, core::BlockPool& pool)
    : driver_(driver),
      classes_(classes),
      pool_(pool),
      pooled_(!driver.capabilities().host_accessible && !driver.capabilities().block_objects &&
              !driver.capabilities().segment_objects && classes.largest() != 0),
      free_(kPage, SIZE_MAX, [this](void* block, std::size_t) { drop(static_cast<Block*>(block)); }) {}

HostBuffers::~HostBuffers() {
  while (Block* block = take_oldest()) {
    driver_.free_host(HostKind::unified, pointer(address_of(*block)), reinterpret_cast<std::uintptr_t>(block->home));
  }
  for (const auto& [base, slab] : slabs_) driver_.free_host(HostKind::unified, pointer(base), slab.bytes);
}

// --- Small blocks ---------------------------------------------------------------------------------------------------

void HostBuffers::link(Slab& slab) {
  Slab*& head = room_[slab.kind];
  slab.prev = nullptr;
  slab.next = head;
  if (head != nullptr) head->prev = &slab;
  head = &slab;
}

void HostBuffers::unlink(Slab& slab) {
  (slab.prev != nullptr ? slab.prev->next : room_[slab.kind]) = slab.next;
  if (slab.next != nullptr) slab.next->prev = slab.prev;
}

HostBuffers::Slab& HostBuffers::slab_of(const Block* block) {
  return std::prev(slabs_.upper_bound(address_of(*block)))->second;
}

Status HostBuffers::add(std::size_t kind, std::uint64_t block_bytes, std::uint64_t bytes) {
  void* memory = nullptr;
  const Status status = driver_.allocate_host(HostKind::unified, bytes, memory);
  if (status != Status::ok) return status;
  const auto base = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(memory));
  try {
    Slab& slab = slabs_[base];
    slab.base = base;
    slab.bytes = bytes;
    slab.block_bytes = block_bytes;
    slab.kind = kind;
    link(slab);
  } catch (const std::bad_alloc&) {
    driver_.free_host(HostKind::unified, memory, bytes);
    return Status::out_of_memory;
  }
  bytes_ += bytes;
  slab_bytes_ += bytes;
  ++count_, ++changes_;
  return status;
}

void HostBuffers::start() { started_ = add(kTinyClass, kTiny, kTinyBytes) == Status::ok; }

Status HostBuffers::add_slab(std::uint64_t bytes) {
  const std::size_t kind = classes_.index(std::max(bytes, kTiny));
  return add(kind, classes_.size(kind), kSlabBytes);
}

// The next block of the slab that never had a descriptor; null when the host has no memory for one.
Block* HostBuffers::carve(Slab& slab) {
  Block* block = pool_.take();
  if (block == nullptr) return nullptr;
  const std::uint64_t address = slab.base + slab.carved * slab.block_bytes;
  try {
    const std::lock_guard lock(addresses_mutex_);
    by_address_.emplace(address, block);
  } catch (const std::bad_alloc&) {
    pool_.give(block);
    return nullptr;
  }
  ++slab.carved;
  block->address.store(address, std::memory_order_relaxed);
  block->capacity = slab.block_bytes;
  block->home = pointer(slab.block_bytes);
  core::set_flags(block, core::kBlockHost);
  block->bin = kPart;
  return block;
}

Block* HostBuffers::take_small(std::uint64_t bytes) {
  if (!pooled_ || bytes > classes_.largest()) return nullptr;
  Slab* slab = room_[kind_of(bytes)];
  // All scalars in use: the next ones take blocks of the smallest class.
  if (slab == nullptr && bytes <= kTiny) slab = room_[0];
  if (slab == nullptr) return nullptr;
  Block* block = slab->free;
  if (block != nullptr) {
    slab->free = block->next;
  } else if ((block = carve(*slab)) == nullptr) {
    return nullptr;
  }
  ++slab->used;
  if (slab->full()) unlink(*slab);
  return block;
}

void HostBuffers::release_slabs() {
  for (auto next = slabs_.begin(); next != slabs_.end();) {
    const auto at = next++;
    Slab& slab = at->second;
    if (slab.used != 0) continue;
    if (driver_.free_host(HostKind::unified, pointer(slab.base), slab.bytes) != Status::ok) continue;
    unlink(slab);
    if (slab.kind == kTinyClass) started_ = false;
    {
      const std::lock_guard lock(addresses_mutex_);
      for (std::uint32_t i = 0; i < slab.carved; ++i) by_address_.erase(slab.base + i * slab.block_bytes);
    }
    while (Block* block = slab.free) {
      slab.free = block->next;
      pool_.give(block);
    }
    bytes_ -= slab.bytes;
    slab_bytes_ -= slab.bytes;
    --count_, ++changes_;
    slabs_.erase(at);
  }
}

// --- Whole buffers --------------------------------------------------------------------------------------------------

Block* HostBuffers::take_cached(std::uint64_t bytes) { return static_cast<Block*>(free_.take(bytes).buffer); }

Status HostBuffers::make(Block& block, std::uint64_t bytes) {
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
  core::set_flags(&block, core::kBlockHost);
  block.bin = kWhole;
  bytes_ += bytes;
  ++count_, ++changes_;
  return status;
}

void HostBuffers::keep(Block* block) {
  // A block that was moved here showed the capacity that it had before.
  block->capacity = reinterpret_cast<std::uintptr_t>(block->home);
  if (!is_part(block)) {
    free_.put(block, block->capacity);
    return;
  }
  Slab& slab = slab_of(block);
  const bool was_full = slab.full();
  block->next = slab.free;
  slab.free = block;
  --slab.used;
  if (was_full) link(slab);
}

void HostBuffers::rebind(const Block& from, Block* to) {
  const std::lock_guard lock(addresses_mutex_);
  by_address_.at(address_of(from)) = to;
}

bool HostBuffers::destroy(Block& block) {
  // Not block.capacity, which a live empty buffer shows as 0.
  const std::uint64_t capacity = reinterpret_cast<std::uintptr_t>(block.home);
  if (driver_.free_host(HostKind::unified, pointer(address_of(block)), capacity) != Status::ok) return false;
  {
    const std::lock_guard lock(addresses_mutex_);
    by_address_.erase(address_of(block));
  }
  bytes_ -= capacity;
  --count_, ++changes_;
  return true;
}

Block* HostBuffers::find(std::uint64_t address) const {
  const std::lock_guard lock(addresses_mutex_);
  const auto found = by_address_.find(address);
  return found == by_address_.end() ? nullptr : found->second;
}

// The cache has no room for it: back to the driver.
void HostBuffers::drop(Block* block) {
  if (destroy(*block)) {
    pool_.give(block);
  } else {
    block->next = stuck_;
    stuck_ = block;
  }
}

std::uint64_t HostBuffers::release_oldest() {
  Block* block = take_oldest();
  if (block == nullptr) return 0;
  if (!destroy(*block)) {
    keep(block);
    return 0;
  }
  const std::uint64_t bytes = block->capacity;
  pool_.give(block);
  return bytes;
}

Block* HostBuffers::take_oldest() {
  if (stuck_ != nullptr) return std::exchange(stuck_, stuck_->next);
  return static_cast<Block*>(free_.take_oldest().buffer);
}

}  // namespace cistern::allocation
