// What happens when no mapped run fits: a place is chosen and its gaps are filled with pieces that are moved or made,
// under the limit; at the limit pieces leave, the host waits, and pinned pieces are split. Under the device's lock.
#include <algorithm>
#include <cassert>
#include <utility>
#include <vector>

#include "core/page_heap_impl.hpp"

namespace cistern::core {

HeapNode* PageHeap::Impl::grow(std::uint64_t bytes, std::uint64_t alignment, StreamIndex stream) {
  if (!group.config.virtual_memory) return grow_segment(bytes, alignment, stream);
  group.collect(false);
  // Each attempt gives up more: the best place, the place with fewest missing cells, a host wait, split pieces,
  // and at last the cell that is kept for splits.
  enum { kBest, kFewest, kWait, kSplit, kReserve, kAttempts };
  taker = {stream, Over::any};
  group.use_reserve = false;
  for (int attempt = kBest; attempt < kAttempts; ++attempt) {
    if (attempt == kWait) group.collect(true);
    const Place place = best_unmapped(bytes, alignment, attempt != kBest);
    if (place.node == nullptr) continue;
    // Before new memory is merged with what lies beside the place. Where some stream cannot be waited for (a graph
    // capture): once more, beside what it freed.
    const Stretch where{place.offset, place.offset + bytes};
    if (!group.order(stream, freed_in(node_at(place.offset), where.end), where, backing)) {
      if (std::exchange(taker.over, Over::ready) == Over::any) attempt = kBest - 1;
      continue;
    }
    const Span wanted = cells_of(place.offset, bytes);
    if (attempt == kSplit) split_until_enough(wanted);
    group.use_reserve = attempt == kReserve;
    const bool filled = fill(wanted);
    group.use_reserve = false;
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

bool PageHeap::Impl::fill(Span wanted) {
  for (std::uint32_t c = wanted.first; c < wanted.last;) {
    if (cell_piece[c] != 0) {
      ++c;
      continue;
    }
    const HeapNode* gap = node_at(std::uint64_t{c} << cell_shift);
    if (gap->state != NodeState::gap) return false;
    const auto gap_end = static_cast<std::uint32_t>((gap->offset + gap->size) >> cell_shift);
    const std::uint32_t end = std::min(gap_end, wanted.last);
    if (!fill_gap({c, gap_end}, end - c, wanted)) return false;
    c = end;
  }
  return true;
}

// Fills the first `need` cells of the gap, left to right; the last piece may reach beyond them.
bool PageHeap::Impl::fill_gap(Span gap, std::uint32_t need, Span wanted) {
  const std::uint32_t cap = group.cap();
  const std::uint64_t part = group.config.commit_on_touch ? 0 : floor_pow2(group.held_cells() / HeapTuning::chunk_part);
  const auto chunk = static_cast<std::uint32_t>(std::min<std::uint64_t>(cap, part));
  std::uint32_t at = gap.first;
  while (need > 0) {
    const std::uint32_t room = gap.last - at - need;
    const std::uint64_t allowed = group.allowed_cells();
    auto d = static_cast<std::uint32_t>(floor_pow2(std::min(need, cap)));
    if (d < chunk && chunk <= need + room && group.held_cells() + chunk <= allowed) d = chunk;
    const bool may_create = group.held_cells() + d <= std::min(allowed, group.create_limit_cells());
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
  const std::uint64_t limit = group.create_limit_cells();
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

// Makes headroom for the missing cells: free pieces are given back, then pinned ones are split, one after the other.
void PageHeap::Impl::split_until_enough(Span wanted) {
  const auto missing = static_cast<std::uint64_t>(
      std::count(cell_piece.begin() + wanted.first, cell_piece.begin() + wanted.last, PieceTable::Index{0}));
  while (release_one(1, wanted, true)) {
  }
  while (group.held_cells() + missing > group.create_limit_cells() && split_pinned(wanted)) {
  }
}

// Splits the piece that holds most memory without a live byte: its live cells move into pieces of their own at the same
// addresses. pre: at the limit; needs as many cells of headroom as the piece has live ones.
bool PageHeap::Impl::split_pinned(Span keep) {
  const std::uint64_t limit = group.limit_cells();
  const std::uint64_t headroom = limit > group.held_cells() ? limit - group.held_cells() : 0;
  const auto live_cells = [&](const PieceInfo& p, std::vector<Part>& parts) {
    parts.clear();
    std::uint32_t count = 0;
    std::uint32_t next_free = p.start;  // Cells before it are counted.
    const std::uint64_t end = stretch_of(p).end;
    for (const HeapNode* n = node_of(p); n != nullptr && n->offset < end; n = n->next) {
      if (n->state != NodeState::live) continue;
      const Span span = cells_of(n->offset, n->size);
      const std::uint32_t from = std::max(span.first, next_free);
      const std::uint32_t to = std::min(span.last, p.start + p.cells);
      if (from >= to) continue;
      if (!parts.empty() && raw(parts.back().at) + parts.back().cells == from) {
        parts.back().cells += to - from;
      } else {
        parts.push_back({Cell{from}, to - from, Piece::none});
      }
      count += to - from;
      next_free = to;
    }
    return count;
  };
  if (held) return false;
  PieceTable::Index best = 0;
  std::uint32_t gain = 0;
  std::vector<Part> parts;
  for (PieceTable::Index i = 1; i < group.pieces.slots(); ++i) {
    const PieceInfo& p = group.pieces[i];
    if (p.heap != &self || p.pinned != 0 || p.cells < 2 || is_free(p)) continue;
    if (p.start < keep.last && keep.first < p.start + p.cells) continue;
    const std::uint32_t live = live_cells(p, parts);
    if (live <= headroom && p.cells - live > gain) {
      best = i;
      gain = p.cells - live;
    }
  }
  if (best == 0) return false;
  PieceInfo old = group.pieces[best];
  live_cells(old, parts);
  // Before and behind each part may be a gap.
  if (!group.make_room(2 * (parts.size() + 1), parts.size(), 0)) return false;
  std::size_t made = 0;
  while (made < parts.size() && backing.create(parts[made].cells, parts[made].piece)) ++made;
  if (made < parts.size() || !backing.replace(Cell{old.start}, old.cells, parts.data(), parts.size())) {
    while (made-- > 0) backing.destroy(parts[made].piece, parts[made].cells);
    return false;
  }
  backing.destroy(old.id, old.cells);
  ++group.counts.waits;
  replace_entry(best, parts);
  ++group.counts.split;
  return true;
}

// The table and the nodes after a split: each part stands where the piece stood, the rest of it is a gap.
void PageHeap::Impl::replace_entry(PieceTable::Index index, const std::vector<Part>& parts) {
  const PieceInfo old = group.pieces[index];
  group.pieces.erase(index);
  std::fill_n(cell_piece.begin() + old.start, old.cells, PieceTable::Index{0});
  for (const Part& part : parts) {
    const PieceTable::Index i = group.pieces.add(part.piece, &self, raw(part.at), part.cells);
    std::fill_n(cell_piece.begin() + raw(part.at), part.cells, i);
    group.counts.created += 1;
  }
  group.counts.released += 1;
  group.note();
  for (std::uint32_t c = old.start; c < old.start + old.cells;) {
    if (cell_piece[c] != 0) {
      ++c;
      continue;
    }
    std::uint32_t end = c;
    while (end < old.start + old.cells && cell_piece[end] == 0) ++end;
    change_state({c, end}, NodeState::gap);
    c = end;
  }
}

}  // namespace cistern::core
