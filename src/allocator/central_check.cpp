// The rules that hold between calls, for tests. Conservation first: every byte of the heap is in exactly one block or
// slab.
#include "allocator/central.hpp"
#include "allocator/device_allocator.hpp"

namespace cistern::allocation {

using core::Block;

std::vector<std::string> Central::check_invariants(const Lock& lock) const {
  std::vector<std::string> broken;
  std::uint64_t active = 0, live = 0, heap_bytes = 0, host_bytes = host_.slab_bytes(), ordered_bytes = 0, views = 0;
  std::size_t descriptors = 0, objects = 0;
  pool_.for_each([&](const Block* block) {
    const std::uint64_t serial = block->serial.load(std::memory_order_relaxed);
    if (serial % 2 == 0 && block->home == nullptr) return;
    ++descriptors;
    if (core::is_live(block)) {
      active += block->capacity;
      ++live;
    }
    if ((block->flags & core::kBlockOwnObject) != 0) ++objects;
    if ((block->flags & core::kBlockView) != 0) {
      views += block->capacity;
    } else if ((block->flags & core::kBlockHost) != 0) {
      if (!HostBuffers::is_part(block)) host_bytes += full_capacity(block);
    } else if ((block->flags & core::kBlockOrdered) != 0) {
      ordered_bytes += full_capacity(block);
    } else if ((block->flags & core::kBlockSlab) == 0) {
      const auto* node = static_cast<const core::HeapNode*>(block->home);
      heap_bytes += node->size;
      if (node->block != block) broken.emplace_back("a heap node does not lead back to its block");
    }
    const bool known = indexed_.load(std::memory_order_relaxed) == Indexed::yes;
    if ((block->flags & core::kBlockElsewhere) == 0 && known && index_.find(address_of(block)) != block) {
      broken.emplace_back("the index does not find a block by its address");
    }
  });
  for (const auto& heap : heaps_) {
    heap->slabs.for_each([&](const core::Slab& slab) { heap_bytes += slab.node->size; });
    for (std::string& message : heap->slabs.check_invariants()) broken.push_back(std::move(message));
  }
  const std::uint64_t reserved = reserved_now(lock);
  const auto expect = [&](std::uint64_t is, std::uint64_t should, const char* what) {
    if (is == should) return;
    broken.push_back(std::string(what) + ": " + std::to_string(is) + ", expected " + std::to_string(should));
  };
  expect(figures_.active(), active, "active bytes are not the sum of live buffers");
  expect(figures_.live_buffers(), live, "the count of live buffers");
  expect(view_bytes_.load(std::memory_order_relaxed), views, "bytes of views");
  expect(host_.bytes(), host_bytes, "bytes of host buffers");
  expect(ordered_.bytes(), ordered_bytes, "bytes of buffers from the device's pool");
  expect(pool_.used(), descriptors, "descriptors in use");
  expect(objects_.live(), objects, "objects over blocks of the heap");
  for (std::string& message : objects_.check_invariants()) broken.push_back(std::move(message));
  if (group_ != nullptr) {
    expect(group_->live(), heap_bytes, "live bytes of the heap are not the sum of blocks and slabs");
    if (group_->live() > group_->reserved()) broken.emplace_back("more bytes are live than reserved");
    for (std::string& message : group_->check_invariants()) broken.push_back(std::move(message));
  }
  if (active - views > reserved) broken.emplace_back("active + cached is not reserved: more is active than reserved");
  if (figures_.peak() < figures_.active()) broken.emplace_back("the peak is below what is active");
  for (const core::ThreadCache* cache = caches_; cache != nullptr; cache = cache->next) {
    if (!cache->check_invariants()) broken.emplace_back("a thread cache's bins do not match its grants");
  }
  return broken;
}

std::vector<std::string> DeviceAllocator::check_invariants() {
  const Central::Lock lock(central_);
  return central_.check_invariants(lock);
}

}  // namespace cistern::allocation
