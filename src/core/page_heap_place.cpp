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

}  // namespace

// Cells of wholly free pieces that a block would touch without covering them: memory that it keeps from moving. Pieces
// inside the block are covered whole, so only the outer two count; nothing moves in a held heap. `pieces`: the free
// ones that it touches.
std::uint32_t PageHeap::Impl::pin_cells(Span pieces, Span block) const {
  const std::uint32_t left = block.first > pieces.first ? block.first - pieces.first : 0;
  const std::uint32_t right = pieces.last > block.last ? pieces.last - block.last : 0;
  return pieces.last > pieces.first && !held ? left + right : 0;
}

// Start and end of the smallest runs that fit: least pin + 0.03 x what is left of the run + 0.03 x address. The pin is
// looked up for the cheapest without it first, nearly always the last one looked at; the second end only where the
// first has one. Other streams than the first come from the top, so that what is freed beside a block is rather of its
// own stream.
template <PageHeap::Impl::Sharing kSharing, bool kPlain>
PageHeap::Impl::Place PageHeap::Impl::best_mapped_among(std::uint64_t bytes, std::uint64_t alignment, Taker by) const {
  const auto up = [&](std::uint64_t offset) { return kPlain ? offset : align_up(offset, alignment); };
  const auto down = [&](std::uint64_t offset) { return kPlain ? offset : align_down(offset, alignment); };
  const std::uint64_t size_matters = kPlain || !group.gauge.tight ? ~std::uint64_t{0} : 0;
  const std::size_t candidates = kPlain || !group.gauge.tight ? kRunCandidates : kTightCandidates;
  const bool from_top = kSharing != Sharing::none && by.stream != lowest;
  const std::uint64_t top = std::uint64_t{range_cells} << cell_shift;
  const auto ready_at = [&](const HeapNode* run, std::uint64_t offset) {
    return kSharing == Sharing::none || group.ledger.ready(by.stream, run->freed, {offset, offset + bytes});
  };
  // Costs in bytes, without the constant part; UINT64_MAX where the block does not fit. Sizes and places are multiples
  // of 64, so that the candidate's number has room below: the least of them needs no branch.
  constexpr std::uint64_t kNumber = kTightCandidates - 1;
  std::array<HeapNode*, kTightCandidates> found;
  std::array<std::uint64_t, kTightCandidates> costs;
  std::uint64_t cheapest = UINT64_MAX;
  for (HeapNode* run = runs.first_from(bytes); run != runs.end() && cheapest == UINT64_MAX;) {
    // Without branches: whether a run fits and is cheaper is a toss. The end of the runs is a run that never fits.
    for (std::size_t i = 0; i < candidates; ++i, run = run->bin_next) {
      const std::uint64_t low = up(run->offset), end = run->offset + run->size;
      const std::uint64_t place = from_top ? top - down(end - bytes) : low;
      std::uint64_t fits = (kPlain ? bytes <= run->size : low + bytes <= end) ? 1 : 0;
      if (kSharing == Sharing::only_ready) {
        const std::uint64_t high = down(end - bytes);
        fits = fits != 0 && (ready_at(run, low) || ready_at(run, high)) ? 1 : 0;
      }
      found[i] = run;
      costs[i] = ((run->size & size_matters) + place) | i | (fits - 1);
      cheapest = std::min(cheapest, costs[i]);
    }
  }
  const bool any_free = free_cells != 0;
  Place best{nullptr, 0, 0};
  std::uint64_t best_cost = UINT64_MAX;
  while (cheapest < best_cost) {
    HeapNode* const run = found[cheapest & kNumber];
    const std::uint64_t low = up(run->offset);
    const std::uint64_t high = down(run->offset + run->size - bytes);
    const std::uint64_t cost = cheapest & ~kNumber;
    // Whether there is a pin or a wait, which makes the other end worth a look.
    const auto look_at = [&](std::uint64_t offset, std::uint64_t price) {
      const bool ready = ready_at(run, offset);
      if (!ready) price += kWait;  // More than at the other end, where only what is ready may be taken.
      std::uint64_t pin = 0;
      std::uint32_t covered = 0;
      if (any_free) {
        // 0.03 of a cell a cell, so a pinned cell is 1000 / 30 of them.
        constexpr std::uint64_t kPinned = kCell / kMappedWeight;
        const Span block = cells_of(offset, bytes), pieces = free_pieces(stretch_of(*run), block);
        pin = (pin_cells(pieces, block) * kPinned) << cell_shift;
        covered = count_of(pieces);
      }
      if (price + pin < best_cost) best = {run, offset, 0, covered}, best_cost = price + pin;
      return pin != 0 || !ready;
    };
    const bool other_end = look_at(from_top ? high : low, cost);
    if (other_end) look_at(from_top ? low : high, cost + (high - low));
    if ((cheapest & ~kNumber) == best_cost) break;
    costs[cheapest & kNumber] = UINT64_MAX;
    cheapest = UINT64_MAX;
    for (std::size_t i = 0; i < candidates; ++i) cheapest = std::min(cheapest, costs[i]);
  }
  return best;
}

PageHeap::Impl::Place PageHeap::Impl::best_mapped(std::uint64_t bytes, std::uint64_t alignment, Taker by) const {
  const bool shared = group.ledger.several() || by.stream != StreamIndex{};
  // Every run starts and ends at multiples of the heap's alignment.
  const bool plain = alignment <= group.config.alignment && !group.gauge.tight;
  if (!shared && plain) return best_mapped_among<Sharing::none, true>(bytes, alignment, by);
  if (!shared) return best_mapped_among<Sharing::none, false>(bytes, alignment, by);
  if (by.over == Over::any && plain) return best_mapped_among<Sharing::some, true>(bytes, alignment, by);
  if (by.over == Over::any) return best_mapped_among<Sharing::some, false>(bytes, alignment, by);
  return best_mapped_among<Sharing::only_ready, false>(bytes, alignment, by);
}

// Here, beside the search, so that it is one function with it.
HeapNode* PageHeap::allocate_mapped(std::uint64_t bytes, std::uint64_t alignment, StreamIndex stream) {
  Impl::Place place = impl_->best_mapped(bytes, alignment, {stream, Impl::Over::any});
  const Stretch where{place.offset, place.offset + bytes};
  if (place.node != nullptr && !impl_->group.order(stream, place.node->freed, where, impl_->backing)) {
    place = impl_->best_mapped(bytes, alignment, {stream, Impl::Over::ready});
  }
  return place.node == nullptr ? nullptr : impl_->carve(place, bytes, stream);
}

// Price of a place in a hole: cells to be mapped + 0.3 x operations + 0.1 x pin + 0.1 x address.
std::int64_t PageHeap::Impl::unmapped_cost(const Hole& hole, std::uint64_t offset, std::uint64_t bytes,
                                           bool fewest_cells) const {
  const Span span = cells_of(offset, bytes);
  const std::uint64_t begin = std::uint64_t{span.first} << cell_shift;
  const std::uint64_t end = std::uint64_t{span.last} << cell_shift;
  const std::uint64_t cap = group.cap();
  std::int64_t cells = 0;
  std::int64_t operations = 0;
  for (const HeapNode* n = hole.first; n != nullptr && n->offset < end; n = n->next) {
    if (n->state != NodeState::gap || n->offset + n->size <= begin) continue;
    const std::uint64_t from = std::max(n->offset, begin);
    const std::uint64_t to = std::min(n->offset + n->size, end);
    const std::uint64_t count = (to - from) >> cell_shift;
    cells += static_cast<std::int64_t>(count);
    operations += static_cast<std::int64_t>((count + cap - 1) / cap);
  }
  if (fewest_cells) return cells * kCell + operations;
  Span pieces = free_pieces({hole.begin, hole.end}, span);
  if (cell_piece[span.first] == 0) pieces.first = span.first;
  if (cell_piece[span.last - 1] == 0) pieces.last = span.last;
  return cells * kCell + 300 * operations + 100 * std::int64_t{pin_cells(pieces, span)} +
         static_cast<std::int64_t>((100 * offset) >> cell_shift);
}

// Among the smallest holes that fit and the open end: hole start and end, start and end of the mapped runs in it.
PageHeap::Impl::Place PageHeap::Impl::best_unmapped(std::uint64_t bytes, std::uint64_t alignment,
                                                    bool fewest_cells) const {
  std::vector<Hole> holes;
  const auto part_of_hole = [&](const HeapNode* n) {
    if (n == nullptr || n->state != NodeState::run) return n != nullptr && n->state == NodeState::gap;
    return taker.over == Over::any || group.ledger.ready(taker.stream, n->freed, stretch_of(*n));
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
      const std::int64_t cost = unmapped_cost(hole, offset, bytes, fewest_cells) + slack;
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
