// Where a block is put: the cost functions of the placement policy. Reads only. Under the device's lock.
// Found by simulation over recorded traces; docs/design.md has the figures and what did not help.
#include <algorithm>
#include <array>
#include <bit>
#include <climits>

#include "core/page_heap_impl.hpp"

namespace cistern::core {

namespace {

// Costs are in thousandths of a cell.
constexpr std::int64_t kCell = 1000;
constexpr std::uint64_t kMappedWeight = 30;  // Of what is left, and of the address, in best_mapped().
// With three of them the second passes of the recorded traces take four times the operations on pieces.
constexpr int kRunCandidates = 6;
// Under a tight limit: more of them, and the lowest address whatever is left of the run. Over ten passes of `serving`
// within 1.05 x its live bytes no request is refused; by the usual cost 1 to 3 a pass are.
constexpr int kTightCandidates = 64;
constexpr std::size_t kHoleCandidates = 8;

}  // namespace

// Cells of wholly free pieces that the block would touch without covering them: memory that it keeps from moving.
// Pieces inside the block are covered whole, so only the outer two count.
std::int64_t PageHeap::Impl::pin_cells(std::uint64_t offset, std::uint64_t bytes) const {
  const Span span = cells_of(offset, bytes);
  const PieceTable::Index left = cell_piece[span.first], right = cell_piece[span.last - 1];
  std::int64_t cells = 0;
  if (const PieceInfo& p = group.pieces[left]; left != 0 && p.live == 0) {
    cells = static_cast<std::int64_t>(p.cells) - (std::min(p.start + p.cells, span.last) - span.first);
  }
  if (right == left) return cells;
  if (const PieceInfo& p = group.pieces[right]; right != 0 && p.live == 0) {
    cells += static_cast<std::int64_t>(p.cells) - (span.last - std::max(p.start, span.first));
  }
  return cells;
}

// Start and end of the smallest runs that fit: least pin + 0.03 x what is left of the run + 0.03 x address. The pin is
// looked up only where the rest of the cost is below the best so far; the second end, which costs more, only where the
// first has one. Other streams than the first come from the top, so that what is freed beside a block is rather of its
// own stream.
template <bool kShared>
PageHeap::Impl::Place PageHeap::Impl::best_mapped_among(std::uint64_t bytes, std::uint64_t alignment, Taker by) const {
  HeapNode* best_run = nullptr;
  std::uint64_t best_offset = 0;
  // In bytes, without the constant part: 0.03 of a cell a cell, so a pinned cell is 1000 / 30 of them.
  std::uint64_t best_cost = UINT64_MAX;
  const std::uint64_t pinned_cell = cell_bytes * std::uint64_t{kCell} / kMappedWeight;
  const bool any_free = group.pieces.free_cells() != 0;
  const bool tight = group.gauge.tight;
  const bool from_top = kShared && by.stream != lowest;
  const std::uint64_t top = std::uint64_t{range_cells} << cell_shift;
  const auto consider = [&](HeapNode* run) {
    std::uint64_t rest = tight ? 0 : run->size;
    if (!from_top && rest + run->offset >= best_cost) return;
    const std::uint64_t end = run->offset + run->size, low = align_up(run->offset, alignment);
    if (low + bytes > end) return;
    if (kShared && !group.ledger.ready(by.stream, run->freed)) {
      if (by.over == Over::ready) return;
      rest += kWait;
    }
    // Whether there is a pin, which makes the other end worth a look.
    const auto pinned_at = [&](std::uint64_t offset) {
      const std::uint64_t cost = rest + (from_top ? top - offset : offset);
      if (cost >= best_cost) return false;
      const std::uint64_t pin = any_free ? static_cast<std::uint64_t>(pin_cells(offset, bytes)) * pinned_cell : 0;
      if (cost + pin < best_cost) best_run = run, best_offset = offset, best_cost = cost + pin;
      return pin != 0;
    };
    const std::uint64_t high = align_down(end - bytes, alignment);
    if (pinned_at(from_top ? high : low)) pinned_at(from_top ? low : high);
  };
  const int candidates = by.over == Over::ready ? INT_MAX : tight ? kTightCandidates : kRunCandidates;
  // When none of the candidates has an aligned place, larger ones have.
  for (std::uint64_t least = bytes, most = bytes + alignment - group.config.alignment;; least = most) {
    runs.for_fitting(least, candidates, consider);
    if (best_run != nullptr || least == most) break;
  }
  return {best_run, best_offset, 0};
}

PageHeap::Impl::Place PageHeap::Impl::best_mapped(std::uint64_t bytes, std::uint64_t alignment, Taker by) const {
  const bool shared = group.ledger.several() || by.stream != StreamIndex{};
  return shared ? best_mapped_among<true>(bytes, alignment, by) : best_mapped_among<false>(bytes, alignment, by);
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
  const auto part_of_hole = [&](const HeapNode* n) {
    if (n == nullptr || n->state != NodeState::run) return n != nullptr && n->state == NodeState::gap;
    return taker.over == Over::any || group.ledger.ready(taker.stream, n->freed);
  };
  for (HeapNode* gap = gaps.head; gap != nullptr; gap = gap->bin_next) {
    HeapNode* left = gap;
    while (part_of_hole(left->prev) && left->prev->state == NodeState::run) left = left->prev;
    if (part_of_hole(left->prev)) continue;  // Another gap stands before: that one brings the hole.
    HeapNode* right = gap;
    while (part_of_hole(right->next)) right = right->next;
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
