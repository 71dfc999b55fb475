// HeapGroup: the budget of a device's heaps, and trimming. Under the device's lock.
#include <algorithm>
#include <new>

#include "core/page_heap_impl.hpp"

namespace cistern::core {

std::uint32_t HeapGroup::Impl::cap() const {
  if (gauge.tight) {
    return static_cast<std::uint32_t>(std::clamp(floor_pow2(limit_cells() / HeapTuning::tight_part),
                                                 HeapTuning::tight_least, HeapTuning::tight_most));
  }
  const std::uint64_t peak = cells_of(gauge.peak_live);
  const std::uint64_t large = std::min(floor_pow2(peak / HeapTuning::large_cap_part), HeapTuning::large_cap_most);
  return static_cast<std::uint32_t>(std::clamp(floor_pow2(peak / HeapTuning::cap_part), HeapTuning::cap_least,
                                               std::max(HeapTuning::cap_most, large)));
}

std::uint64_t HeapGroup::Impl::free_cells() const {
  std::uint64_t cells = 0;
  for (const auto& heap : heaps) cells += heap->impl_->held ? 0 : heap->impl_->free_cells;
  return cells;
}

std::uint64_t HeapGroup::Impl::allowed_cells() const {
  const std::uint64_t slack = config.slack_percent + (ledger.shared() ? HeapTuning::shared_slack_percent : 0);
  return cells_of(gauge.peak_live / 100 * (100 + slack));
}

void HeapGroup::Impl::note() {
  const std::uint64_t held = held_cells();
  gauge.reserved = held * config.cell_bytes;
  gauge.over = gauge.reserved > config.limit_bytes;
  gauge.tight = config.tight || (has_limit() && held > limit_cells() / 4 * 3);
  ++gauge.changes;
  peak_cells = std::max(peak_cells, held);
}

bool HeapGroup::Impl::make_room(std::size_t new_nodes, std::size_t new_pieces, std::size_t new_stale) noexcept {
  try {
    nodes.reserve(new_nodes);
    pieces.reserve(new_pieces);
    if (stale.size() + new_stale > stale.capacity()) stale.reserve(2 * stale.capacity() + new_stale);
  } catch (const std::bad_alloc&) {
    return false;
  }
  return true;
}

HeapGroup::HeapGroup(HeapConfig config) : impl_(std::make_unique<Impl>(config, gauge_)) {
  set_limit(config.limit_bytes, config.tight);
}
HeapGroup::~HeapGroup() = default;

PageHeap& HeapGroup::add_heap(Backing& backing, StreamIndex lowest) {
  impl_->heaps.push_back(std::unique_ptr<PageHeap>(new PageHeap(*this, backing, lowest)));
  return *impl_->heaps.back();
}

void HeapGroup::replace_stream(StreamIndex stream) { impl_->ledger.forget(stream); }
void HeapGroup::come_after(StreamIndex stream, StreamIndex other) { impl_->ledger.come_after(stream, other); }
void HeapGroup::all_done() { impl_->ledger.all_done(); }

std::uint64_t HeapGroup::peak_reserved() const { return impl_->peak_cells * impl_->config.cell_bytes; }
void HeapGroup::reset_peak_reserved() { impl_->peak_cells = impl_->held_cells(); }
void HeapGroup::forget_peak_live() { gauge_.peak_live = gauge_.live - gauge_.idle; }
std::uint64_t HeapGroup::pieces() const { return impl_->pieces.count(); }
const HeapCounts& HeapGroup::counts() const { return impl_->counts; }
std::uint64_t HeapGroup::limit() const { return impl_->config.limit_bytes; }
void HeapGroup::set_limit(std::uint64_t bytes, bool tight) {
  impl_->config.tight = tight;
  impl_->config.limit_bytes = bytes;
  impl_->held_ceiling = std::max(impl_->limit_cells(), impl_->held_cells());
  impl_->note();
}
void HeapGroup::collect() { impl_->collect(false); }
std::uint64_t HeapGroup::wholly_free() const { return impl_->free_cells() * impl_->config.cell_bytes; }

std::uint64_t HeapGroup::trim(std::uint64_t keep, bool wait) {
  const std::uint64_t before = impl_->held_cells();
  impl_->collect(wait);
  while (wholly_free() > keep) {
    const std::uint64_t excess = (wholly_free() - keep + impl_->config.cell_bytes - 1) / impl_->config.cell_bytes;
    if (!impl_->heaps.front()->impl_->release_one(excess, {0, 0}, wait)) break;
  }
  return (before - impl_->held_cells()) * impl_->config.cell_bytes;
}

std::uint64_t HeapGroup::largest_free() const {
  std::uint64_t largest = 0;
  for (const auto& heap : impl_->heaps) {
    const bool held = heap->impl_->held;  // For captures only.
    if (const HeapNode* run = held ? nullptr : heap->impl_->runs.largest()) largest = std::max(largest, run->size);
  }
  return impl_->config.virtual_memory ? std::max(largest, wholly_free()) : largest;
}

}  // namespace cistern::core
