// Where a block is put: the cost functions of the placement policy, and the search in mapped memory. Reads only, but
// for allocate_mapped(). Under the device's lock. Found by simulation over recorded traces; docs/design.md has the
// figures and what did not help.
#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "core/page_heap_impl.hpp"

namespace cistern::core {

namespace {

// Costs are in thousandths of a cell.
constexpr std::int64_t kCell = 1000;
constexpr std::uint64_t kMappedWeight = 30;  // Of what is left, and of the address, in best_mapped().
// With three of them the second passes of the recorded traces take four times the operations on pieces.
constexpr std::size_t kRunCandidates = 6;
// Under a tight limit: more of them, and the lowest address whatever is left of the run. Over ten passes of `serving`
// within 1.05 x its live bytes no request is refused; by the usual cost 1 to 3 a pass are.
constexpr std::size_t kTightCandidates = 64;
constexpr std::size_t kHoleCandidates = 8;

// Compilers make a branch of the plain way to say it.
void take_if_less(std::uint64_t cost, std::size_t index, std::uint64_t& least, std::size_t& chosen) {
  const std::uint64_t less = -std::uint64_t{cost < least};
  least ^= (least ^ cost) & less;
  chosen ^= (chosen ^ index) & static_cast<std::size_t>(less);
}

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
// looked up for the cheapest without it first, nearly always the last one looked at; the second end only where the
// first has one. Other streams than the first come from the top, so that what is freed beside a block is rather of its
// own stream.
template <PageHeap::Impl::Sharing kSharing>
PageHeap::Impl::Place PageHeap::Impl::best_mapped_among(std::uint64_t bytes, std::uint64_t alignment, Taker by) const {
  const std::uint64_t size_matters = group.gauge.tight ? 0 : ~std::uint64_t{0};
  const std::size_t candidates = group.gauge.tight ? kTightCandidates : kRunCandidates;
  const bool from_top = kSharing != Sharing::none && by.stream != lowest;
  const std::uint64_t top = std::uint64_t{range_cells} << cell_shift;
  // In bytes, without the constant part; UINT64_MAX where the block does not fit.
  std::array<HeapNode*, kTightCandidates> found;
  std::array<std::uint64_t, kTightCandidates> costs;
  std::uint64_t cheapest = UINT64_MAX;
  std::size_t chosen = 0, count = 0;
  for (HeapNode* run = runs.first_from(bytes); run != runs.end() && cheapest == UINT64_MAX;) {
    // Without branches: whether a run fits and is cheaper is a toss.
    for (count = 0; count < candidates && run != runs.end(); ++count, run = run->bin_next) {
      const std::uint64_t low = align_up(run->offset, alignment), end = run->offset + run->size;
      const std::uint64_t place = from_top ? top - align_down(end - bytes, alignment) : low;
      std::uint64_t fits = low + bytes <= end ? 1 : 0;
      if (kSharing == Sharing::only_ready) fits &= group.ledger.ready(by.stream, run->freed) ? 1 : 0;
      found[count] = run;
      costs[count] = ((run->size & size_matters) + place) | (fits - 1);
      take_if_less(costs[count], count, cheapest, chosen);
    }
  }
  const bool any_free = group.pieces.free_cells() != 0;
  // 0.03 of a cell a cell, so a pinned cell is 1000 / 30 of them.
  const std::uint64_t pinned_cell = (std::uint64_t{kCell} << cell_shift) / kMappedWeight;
  Place best{nullptr, 0, 0};
  std::uint64_t best_cost = UINT64_MAX;
  while (cheapest < best_cost) {
    HeapNode* const run = found[chosen];
    const std::uint64_t low = align_up(run->offset, alignment);
    const std::uint64_t high = align_down(run->offset + run->size - bytes, alignment);
    const std::uint64_t cost =
        kSharing == Sharing::some && !group.ledger.ready(by.stream, run->freed) ? cheapest + kWait : cheapest;
    // Whether there is a pin, which makes the other end worth a look.
    const auto pinned_at = [&](std::uint64_t offset, std::uint64_t price) {
      const std::uint64_t pin = any_free ? static_cast<std::uint64_t>(pin_cells(offset, bytes)) * pinned_cell : 0;
      if (price + pin < best_cost) best.node = run, best.offset = offset, best_cost = price + pin;
      return pin != 0;
    };
    const bool pinned = pinned_at(from_top ? high : low, cost);
    if (pinned) pinned_at(from_top ? low : high, cost + (high - low));
    if (cheapest == best_cost) break;
    costs[chosen] = cheapest = UINT64_MAX;
    for (std::size_t i = 0; i < count; ++i) take_if_less(costs[i], i, cheapest, chosen);
  }
  return best;
}

PageHeap::Impl::Place PageHeap::Impl::best_mapped(std::uint64_t bytes, std::uint64_t alignment, Taker by) const {
  const bool shared = group.ledger.several() || by.stream != StreamIndex{};
  if (!shared) return best_mapped_among<Sharing::none>(bytes, alignment, by);
  if (by.over == Over::any) return best_mapped_among<Sharing::some>(bytes, alignment, by);
  return best_mapped_among<Sharing::only_ready>(bytes, alignment, by);
}

// Here, beside the search, so that it is one function with it.
HeapNode* PageHeap::allocate_mapped(std::uint64_t bytes, std::uint64_t alignment, StreamIndex stream) {
  Impl::Place place = impl_->best_mapped(bytes, alignment, {stream, Impl::Over::any});
  if (place.node != nullptr && !impl_->group.order(stream, place.node->freed, impl_->backing)) {
    place = impl_->best_mapped(bytes, alignment, {stream, Impl::Over::ready});
  }
  return place.node == nullptr ? nullptr : impl_->carve(place.node, place.offset, bytes, stream);
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
