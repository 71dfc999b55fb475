// What lies where: the mapped stretches of every range, tiled by buffers and free memory. Under the device's lock.
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
