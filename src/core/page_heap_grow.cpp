// What happens when no mapped run fits: a place is chosen and its gaps are filled with pieces that are moved or made,
// under the limit; at the limit pieces leave and the host waits. Under the device's lock.
#include <algorithm>
#include <cassert>
#include <utility>

#include "core/page_heap_impl.hpp"

namespace cistern::core {

// Makes the taker's stream wait for those that freed the runs in the stretch: run by run, since of more than a few
// streams together it is not known which. False when one of them cannot be waited for now.
bool PageHeap::Impl::order(Stretch where) {
  for (const HeapNode* node = node_at(where.begin); node != nullptr && node->offset < where.end; node = node->next) {
    if (node->state == NodeState::run && !group.order(taker.stream, node->freed, where, backing)) return false;
  }
  return true;
}

HeapNode* PageHeap::Impl::grow(std::uint64_t bytes, std::uint64_t alignment, StreamIndex stream) {
  if (!group.config.virtual_memory) return grow_segment(bytes, alignment, stream);
  group.collect(false);
  // Each attempt gives up more: the best place, the place with fewest missing cells, a host wait, all free pieces.
  enum { kBest, kFewest, kWait, kRelease, kAttempts };
  taker = {stream, Over::any};
  for (int attempt = kBest; attempt < kAttempts; ++attempt) {
    if (attempt == kWait) group.collect(true);
    const Place place = best_unmapped(bytes, alignment, attempt != kBest);
    if (place.node == nullptr) continue;
    // Before new memory is merged with what lies beside the place. Where some stream cannot be waited for (a graph
    // capture): once more, beside what it freed.
    const Stretch where{place.offset, place.offset + bytes};
    if (!order(where)) {
      if (std::exchange(taker.over, Over::ready) == Over::any) attempt = kBest - 1;
      continue;
    }
    const Span wanted = cells_of(place.offset, bytes);
    if (missing(wanted) > group.obtainable_cells()) continue;  // Not after pieces have moved for nothing.
    while (attempt == kRelease && release_one(1, wanted, true)) {
    }
    const bool filled = fill(wanted, where.end);
    group.finish_moves(backing);
    if (filled) return carve(node_at(place.offset), place.offset, bytes, stream);
  }
  return nullptr;
}

// A segment never moves and no block crosses its end: an unmapped cell stays between segments. Many small ones waste
// less than few large ones; over the recorded traces 1/16 of what is held, at most 16 MiB, did best (docs/metal.md).
HeapNode* PageHeap::Impl::grow_segment(std::uint64_t bytes, std::uint64_t alignment, StreamIndex stream) {
  const std::uint64_t least = align_up(bytes + (alignment > cell_bytes ? alignment : 0), cell_bytes) >> cell_shift;
  const std::uint64_t held = group.pieces.cells();
  const std::uint64_t most = std::max(group.config.segment_bytes >> cell_shift, held / HeapTuning::segment_count);
  std::uint64_t cells = std::max({least, std::min(held / HeapTuning::segment_part, most), std::uint64_t{1}});
  if (group.held_cells() + cells > group.limit_cells()) cells = least;
  // Not by another search, which looks at few candidates and might miss the new run.
  const auto place_in = [&](std::uint32_t first) {
    HeapNode* const run = node_at(std::uint64_t{first} << cell_shift);
    return carve(run, align_up(run->offset, alignment), bytes, stream);
  };
  for (;; cells = least) {
    while (group.held_cells() + cells > group.limit_cells() && release_one(cells, {0, 0}, true)) {
    }
    if (group.held_cells() + cells > group.limit_cells()) return nullptr;
    // Free segments leave before others come. One that work may still use counts until that is done: rather than hold
    // much more than is live, the host waits.
    while (group.held_cells() - group.releasing_cells + cells > group.allowed_cells() &&
           release_one(cells, {0, 0}, false)) {
    }
    if (group.releasing_cells > 0 && group.held_cells() + cells > group.tolerated_cells()) group.collect(true);
    const std::uint32_t first = segment_place(cells);
    if (first == 0) return nullptr;
    std::uint32_t made = 0;
    if (create_piece(static_cast<std::uint32_t>(cells), first, {0, 0}, made)) return place_in(first);
    if (cells == least) return nullptr;
  }
}

// Where a segment goes: into the smallest gap, with an unmapped cell on either side. 0 when none has room.
std::uint32_t PageHeap::Impl::segment_place(std::uint64_t cells) const {
  const HeapNode* at = nullptr;
  for (const HeapNode* gap = gaps.head; gap != nullptr; gap = gap->bin_next) {
    if (gap->size >> cell_shift >= cells + 2 && (at == nullptr || gap->size < at->size)) at = gap;
  }
  return at == nullptr ? 0 : static_cast<std::uint32_t>(at->offset >> cell_shift) + 1;
}

std::uint32_t PageHeap::Impl::missing(Span cells) const {
  std::uint32_t count = 0;
  for (std::uint32_t c = cells.first; c < cells.last; ++c) count += cell_piece[c] == 0 ? 1 : 0;
  return count;
}

bool PageHeap::Impl::fill(Span wanted, std::uint64_t block_end) {
  const bool shares_end = block_end % cell_bytes != 0 && wanted.last - wanted.first >= HeapTuning::own_end_request;
  const std::uint32_t cut = shares_end ? wanted.last - 1 : wanted.last;
  for (std::uint32_t c = wanted.first; c < wanted.last;) {
    if (cell_piece[c] != 0) {
      ++c;
      continue;
    }
    const HeapNode* gap = node_at(std::uint64_t{c} << cell_shift);
    if (gap->state != NodeState::gap) return false;
    const auto gap_end = static_cast<std::uint32_t>((gap->offset + gap->size) >> cell_shift);
    const std::uint32_t end = std::min(gap_end, wanted.last);
    if (!fill_gap({c, gap_end}, end - c, wanted, cut)) return false;
    c = end;
  }
  return true;
}

// Fills the first `need` cells of the gap, left to right; the last piece may reach beyond them. None that is made
// reaches across `cut`, a cell of what is wanted.
bool PageHeap::Impl::fill_gap(Span gap, std::uint32_t need, Span wanted, std::uint32_t cut) {
  const std::uint32_t cap = group.cap();
  const std::uint64_t part = group.config.commit_on_touch ? 0 : floor_pow2(group.held_cells() / HeapTuning::chunk_part);
  const auto chunk = static_cast<std::uint32_t>(std::min<std::uint64_t>(cap, part));
  std::uint32_t at = gap.first;
  while (need > 0) {
    const std::uint32_t room = gap.last - at - need;
    const std::uint64_t allowed = group.allowed_cells();
    std::uint32_t d = std::min(need, cap);
    if (d < chunk && wanted.last - wanted.first <= HeapTuning::chunk_request && chunk <= need + room &&
        group.held_cells() + chunk <= allowed)
      d = chunk;
    if (at < cut && cut < wanted.last) d = std::min(d, cut - at);
    const bool may_create = group.held_cells() + d <= std::min(allowed, group.limit_cells());
    // One much larger leaves a rest, but to give it back and make a smaller one holds both until work has passed.
    const std::uint32_t most = may_create ? std::min(2 * need, need + room) : need + room;
    PieceTable::Index victim = held ? 0 : find_victim(need, most, wanted);
    // A move between streams makes one of them wait, too.
    const bool prefer_new =
        group.config.commit_on_touch || group.ledger.several() || 4 * group.pieces[victim].cells < std::min(need, cap);
    if (may_create && prefer_new) victim = 0;
    std::uint32_t done = 0;
    const Over before = taker.over;
    if (victim != 0 && move_piece(victim, at)) {
      done = group.pieces[victim].cells;
    } else if (taker.over != before) {
      continue;  // That one's stream cannot be waited for: another victim.
    } else if (!create_piece(d, at, wanted, done)) {
      return false;
    }
    at += done;
    need -= std::min(need, done);
  }
  return true;
}

// A new piece at `at`, of `cells` cells or, at the limit, of fewer. Gives free pieces back before it takes more, unless
// some are about to leave: until work has passed that would save nothing, and the next block may use what is free.
bool PageHeap::Impl::create_piece(std::uint32_t cells, std::uint32_t at, Span keep, std::uint32_t& made) {
  const std::uint64_t limit = group.limit_cells();
  const std::uint64_t allowed = group.allowed_cells();
  while (group.releasing_cells == 0 && group.held_cells() + cells > allowed &&
         release_one(group.held_cells() + cells - allowed, keep, false)) {
  }
  while (group.held_cells() + cells > limit) {
    if (const std::uint64_t leaving = group.releasing_cells; leaving > 0) {
      group.collect(true);
      if (group.releasing_cells == leaving) break;  // The device cannot be waited for now.
    } else if (!release_one(group.held_cells() + cells - limit, keep, true)) {
      break;
    }
  }
  Piece piece = Piece::none;
  for (;;) {
    if (group.held_cells() + cells > limit) {
      if (!group.config.virtual_memory || group.held_cells() >= limit) return false;
      cells = static_cast<std::uint32_t>(floor_pow2(limit - group.held_cells()));
    }
    if (!group.make_room(2, 1, 0)) return false;
    if (backing.create(cells, piece)) break;
    // The device has less than the limit promises.
    if (release_one(cells, keep, true)) continue;
    if (!group.config.virtual_memory || cells == 1) return false;
    cells = static_cast<std::uint32_t>(floor_pow2(cells / 2));
  }
  if (!backing.map(Cell{at}, piece, cells)) {
    backing.destroy(piece, cells);
    return false;
  }
  show_piece(group.pieces.add(piece, &self, at, cells), {});
  ++group.counts.created;
  group.note();
  made = cells;
  return true;
}

}  // namespace cistern::core
