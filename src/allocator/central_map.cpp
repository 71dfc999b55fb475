// What lies where: the block at an address; the mapped stretches of every range, tiled by buffers and free memory.
#include <mutex>
#include <unordered_map>

#include "allocator/central.hpp"

namespace cistern::allocation {
namespace {

// Free neighbours become one.
void add_range(MemorySegment& segment, std::uint64_t address, std::uint64_t bytes, bool live) {
  segment.bytes += bytes;
  if (!live && !segment.ranges.empty() && !segment.ranges.back().live) {
    segment.ranges.back().bytes += bytes;
  } else {
    segment.ranges.push_back({static_cast<std::uintptr_t>(address), bytes, live});
  }
}

void add_slab(MemorySegment& segment, const core::Slab& slab, std::uint64_t node_bytes) {
  const std::uint64_t base = slab.base.load(std::memory_order_relaxed);
  const std::uint64_t block_bytes = slab.block_bytes.load(std::memory_order_relaxed);
  for (std::uint32_t i = 0; i < slab.carved; ++i) {
    add_range(segment, base + i * block_bytes, block_bytes,
              core::is_live(slab.blocks[i].load(std::memory_order_relaxed)));
  }
  const std::uint64_t used = slab.carved * block_bytes;
  if (used < node_bytes) add_range(segment, base + used, node_bytes - used, false);
}

}  // namespace

// Enters the blocks that are there; parts of slabs are found by their slab. False when the host has no memory: the next
// question tries again. pre: the lock is held.
bool Central::fill_index() {
  bool all = true;
  pool_.for_each([&](core::Block* block) {
    if (block->home != nullptr && core::is_node(block)) all = all && insert(block);
  });
  for (const auto& heap : heaps_) {
    heap->slabs.for_each([&](core::Slab& slab) { all = all && insert(&slab); });
  }
  indexed_.store(all ? Indexed::yes : Indexed::no, std::memory_order_release);
  return all;
}

// To enter a block is a miss of the cache, and who keeps handles never asks: blocks are entered from the first question
// on. Where the lock is taken, whose holder may wait for work that waits for this thread, the holder's next large block
// or slab enters them; till then, and where the host has no memory, the question looks through all descriptors.
core::Block* Central::find(std::uint64_t address) {
  Indexed state = indexed_.load(std::memory_order_acquire);
  if (state == Indexed::no) indexed_.compare_exchange_strong(state, Indexed::wanted, std::memory_order_acquire);
  if (state != Indexed::yes) {
    bool filled = false;
    if (const std::unique_lock lock(mutex_, std::try_to_lock); lock.owns_lock()) {
      filled = indexed_.load(std::memory_order_relaxed) == Indexed::yes || fill_index();
    }
    // Who had a cache limit to hold and found the lock taken has left that to its holder.
    if (enforce_wanted_.load(std::memory_order_relaxed)) const Lock limit(*this, std::try_to_lock);
    if (!filled) return find_unindexed(address);
  }
  return index_.find(address);
}

core::Block* Central::find_unindexed(std::uint64_t address) const {
  core::Block* found = nullptr;
  pool_.for_each([&](core::Block* block) {
    const std::uint64_t serial = block->serial.load(std::memory_order_acquire);
    if (serial % 2 == 0 || address_of(block) != address || (core::flags_of(block) & core::kBlockElsewhere) != 0) return;
    // A view of the place that ended meanwhile has lost its flags.
    if (block->serial.load(std::memory_order_relaxed) == serial) found = block;
  });
  return found;
}

std::vector<MemorySegment> Central::map(const Lock&) const {
  std::vector<MemorySegment> segments;
  std::unordered_map<const core::HeapNode*, const core::Slab*> slabs;
  std::vector<std::uint64_t> pools(ranges_.size(), 0);
  std::vector<void*> streams(ranges_.size(), nullptr);
  for (const auto& heap : heaps_) {
    heap->slabs.for_each([&](const core::Slab& slab) { slabs.emplace(slab.node, &slab); });
    pools[heap->range.index] = captures_.pool_of(*heap);
    if (pools[heap->range.index] != 0) streams[heap->range.index] = heap->native;
  }
  for (const auto& range : ranges_) {
    if (range->pages == nullptr) continue;
    bool open = false;
    range->pages->for_each_node([&](const core::HeapNode& node) {
      const bool mapped = node.state == core::NodeState::live || node.state == core::NodeState::run;
      if (mapped && !open) {
        segments.push_back({static_cast<std::uintptr_t>(range->backing.address_of(node.offset)),
                            0,
                            streams[range->index],
                            pools[range->index],
                            {}});
      }
      open = mapped;
      if (!mapped) return;
      MemorySegment& segment = segments.back();
      const auto slab = slabs.find(&node);
      if (slab != slabs.end()) {
        add_slab(segment, *slab->second, node.size);
      } else {
        const bool live = node.state == core::NodeState::live && node.block != nullptr && core::is_live(node.block);
        add_range(segment, segment.address + segment.bytes, node.size, live);
      }
    });
  }
  return segments;
}

}  // namespace cistern::allocation
