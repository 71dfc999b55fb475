// Where a block is put: the cost functions of the placement policy. Reads only. Under the device's lock.
// Found by simulation over recorded traces; docs/design.md has the figures and what did not help.
#include <algorithm>
#include <array>
#include <bit>

#include "core/page_heap_impl.hpp"

namespace cistern::core {

namespace {

// Costs are in thousandths of a cell.
constexpr std::int64_t kCell = 1000;
constexpr std::uint64_t kMappedWeight = 30;  // Of what is left, and of the address, in best_mapped().
constexpr int kRunCandidates = 6;
// Under a tight limit: more of them, and the lowest address whatever is left of the run. Over ten passes of `serving`
// within 1.05 x its live bytes no request is refused; by the usual cost 1 to 3 a pass are.
constexpr int kTightCandidates = 64;
constexpr std::size_t kHoleCandidates = 8;

}  // namespace

// Cells of wholly free pieces that the block would touch without covering them: memory that it keeps from moving.
// Pieces inside the block are covered whole, so only the outer two count.
std::int64_t PageHeap::Impl::pin_cells(std::uint64_t offset, std::uint64_t bytes) const {
  if (group.pieces.free_cells() == 0) return 0;
  const Span span = cells_of(offset, bytes);
  const auto uncovered = [&](PieceTable::Index i) -> std::int64_t {
    const PieceInfo& p = group.pieces[i];
    if (i == 0 || p.live != 0) return 0;
    const std::uint32_t from = std::max(p.start, span.first);
    const std::uint32_t to = std::min(p.start + p.cells, span.last);
    return static_cast<std::int64_t>(p.cells) - (to - from);
  };
  const PieceTable::Index left = cell_piece[span.first];
  const PieceTable::Index right = cell_piece[span.last - 1];
  return uncovered(left) + (right != left ? uncovered(right) : 0);
}

// Start and end of the smallest runs that fit: least pin + 0.03 x what is left of the run + 0.03 x address.
// The pin is looked up only where the rest of the cost is below the best so far; a run's end, which costs more than its
// start, only where the start has one.
PageHeap::Impl::Place PageHeap::Impl::best_mapped(std::uint64_t bytes, std::uint64_t alignment) const {
  HeapNode* best_run = nullptr;
  std::uint64_t best_offset = 0;
  // In bytes, without the constant part: 0.03 of a cell a cell, so a pinned cell is 1000 / 30 of them.
  std::uint64_t best_cost = UINT64_MAX;
  const bool any_free = group.pieces.free_cells() != 0;
  const bool tight = group.tight();
  const auto pin = [&](std::uint64_t offset) -> std::uint64_t {
    if (!any_free) return 0;
    return (static_cast<std::uint64_t>(pin_cells(offset, bytes)) << cell_shift) * std::uint64_t{kCell} / kMappedWeight;
  };
  runs.for_fitting(bytes, tight ? kTightCandidates : kRunCandidates, [&](HeapNode* run) {
    const std::uint64_t low = align_up(run->offset, alignment);
    const std::uint64_t rest = tight ? 0 : run->size;
    const std::uint64_t cost = rest + low;
    if (cost >= best_cost || low + bytes > run->offset + run->size) return;
    const std::uint64_t low_pin = pin(low);
    if (cost + low_pin < best_cost) best_run = run, best_offset = low, best_cost = cost + low_pin;
    if (low_pin == 0) return;
    const std::uint64_t high = align_down(run->offset + run->size - bytes, alignment);
    if (rest + high >= best_cost) return;
    const std::uint64_t high_cost = rest + high + pin(high);
    if (high_cost < best_cost) best_run = run, best_offset = high, best_cost = high_cost;
  });
  // None of those candidates has an aligned place: larger ones have.
  if (best_run == nullptr && alignment > group.config.alignment) {
    runs.for_fitting(bytes + alignment - group.config.alignment, kRunCandidates, [&](HeapNode* run) {
      const std::uint64_t low = align_up(run->offset, alignment);
      const std::uint64_t cost = run->size + low + pin(low);
      if (cost < best_cost) best_run = run, best_offset = low, best_cost = cost;
    });
  }
  return {best_run, best_offset, 0};
}

// Price of a place in a hole: cells to be mapped + 0.3 x operations + 0.1 x pin + 0.1 x address.
std::int64_t PageHeap::Impl::unmapped_cost(const HeapNode* hole, std::uint64_t offset, std::uint64_t bytes,
                                           bool fewest_cells) const {
  const Span span = cells_of(offset, bytes);
  const std::uint64_t begin = std::uint64_t{span.first} << cell_shift;
  const std::uint64_t end = std::uint64_t{span.last} << cell_shift;
  const std::uint64_t cap = group.cap();
  std::int64_t cells = 0;
  std::int64_t operations = 0;
  for (const HeapNode* n = hole; n != nullptr && n->offset < end; n = n->next) {
    if (n->state != NodeState::gap || n->offset + n->size <= begin) continue;
    const std::uint64_t from = std::max(n->offset, begin);
    const std::uint64_t to = std::min(n->offset + n->size, end);
    const std::uint64_t count = (to - from) >> cell_shift;
    cells += static_cast<std::int64_t>(count);
    operations += static_cast<std::int64_t>(count / cap) + std::popcount(count % cap);
  }
  if (fewest_cells) return cells * kCell + operations;
  return cells * kCell + 300 * operations + 100 * pin_cells(offset, bytes) +
         static_cast<std::int64_t>((100 * offset) >> cell_shift);
}

// Among the smallest holes that fit and the open end: hole start and end, start and end of the mapped runs in it.
PageHeap::Impl::Place PageHeap::Impl::best_unmapped(std::uint64_t bytes, std::uint64_t alignment,
                                                    bool fewest_cells) const {
  struct Hole {
    HeapNode* first = nullptr;
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
  };
  std::vector<Hole> holes;
  const auto usable = [](const HeapNode* n) {
    return n != nullptr && (n->state == NodeState::run || n->state == NodeState::gap);
  };
  for (HeapNode* gap = gaps.head; gap != nullptr; gap = gap->bin_next) {
    HeapNode* left = gap;
    while (usable(left->prev) && left->prev->state == NodeState::run) left = left->prev;
    if (usable(left->prev)) continue;  // Another gap stands before: that one brings the hole.
    HeapNode* right = gap;
    while (usable(right->next)) right = right->next;
    const Hole hole{left, left->offset, right->offset + right->size};
    if (align_up(hole.begin, alignment) + bytes <= hole.end) holes.push_back(hole);
  }
  const std::uint64_t range_end = std::uint64_t{range_cells} << cell_shift;
  if (!fewest_cells && holes.size() > kHoleCandidates + 1) {
    std::nth_element(holes.begin(), holes.begin() + kHoleCandidates, holes.end(),
                     [](const Hole& a, const Hole& b) { return a.end - a.begin < b.end - b.begin; });
    const auto largest =
        std::max_element(holes.begin() + kHoleCandidates, holes.end(),
                         [](const Hole& a, const Hole& b) { return a.end - a.begin < b.end - b.begin; });
    holes[kHoleCandidates] = *largest;
    holes.resize(kHoleCandidates + 1);
  }
  Place best;
  for (const Hole& hole : holes) {
    const bool open = hole.end == range_end;
    const std::int64_t slack =
        open ? 0 : static_cast<std::int64_t>((3 * (hole.end - hole.begin - bytes)) >> cell_shift);
    const auto consider = [&](std::uint64_t offset) {
      if (offset < hole.begin || offset + bytes > hole.end) return;
      const std::int64_t cost = unmapped_cost(hole.first, offset, bytes, fewest_cells) + slack;
      if (cost < best.cost) best = {hole.first, offset, cost};
    };
    consider(align_up(hole.begin, alignment));
    if (!open) consider(align_down(hole.end - bytes, alignment));
    for (const HeapNode* n = hole.first; n != nullptr && n->offset < hole.end; n = n->next) {
      if (n->state != NodeState::run) continue;
      consider(align_up(n->offset, alignment));
      if (n->offset + n->size >= bytes) consider(align_down(n->offset + n->size - bytes, alignment));
    }
  }
  return best;
}

}  // namespace cistern::core
