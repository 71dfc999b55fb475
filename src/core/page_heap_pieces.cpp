// Pieces that arrive, move and leave. A move shows the piece at its new address first; the old address is stale until
// all work that was submitted before has passed, so the host never waits for a move. Under the device's lock.
#include <algorithm>
#include <cassert>
#include <utility>

#include "core/page_heap_impl.hpp"

namespace cistern::core {

namespace {

bool overlaps(const PieceInfo& p, std::uint32_t first, std::uint32_t last) {
  return p.start < last && first < p.start + p.cells;
}

}  // namespace

// The piece, just mapped, becomes part of the runs. pre: room for two nodes.
void PageHeap::Impl::show_piece(PieceTable::Index index, const Freed& freed) {
  const PieceInfo& p = group.pieces[index];
  std::fill_n(cell_piece.begin() + p.start, p.cells, index);
  change_state({p.start, p.start + p.cells}, NodeState::run, freed);
  free_cells += p.cells;
}

// The address of a free piece becomes stale. finish_moves() gives it a ticket. pre: room for two nodes, one address.
void PageHeap::Impl::hide_piece(PieceTable::Index index, bool leaving) {
  const PieceInfo& p = group.pieces[index];
  std::fill_n(cell_piece.begin() + p.start, p.cells, PieceTable::Index{0});
  free_cells -= p.cells;
  group.stale.push_back({change_state({p.start, p.start + p.cells}, NodeState::stale), kUnmarked, p.id, leaving});
}

// The largest free piece of at most `need` cells, else the smallest of at most `most`; of the same size one that the
// stream need not wait for, then of this heap.
PieceTable::Index PageHeap::Impl::find_victim(std::uint32_t need, std::uint32_t most, Span keep) {
  PieceTable::Index below = 0;
  PieceTable::Index above = 0;
  const auto ready = [&](const PieceInfo& p) {
    const Impl& heap = *p.heap->impl_;
    return group.ledger.ready(taker.stream, heap.node_of(p)->freed, heap.stretch_of(p));
  };
  const auto better = [&](const PieceInfo& p, PieceTable::Index than, bool larger) {
    if (than == 0) return true;
    const PieceInfo& q = group.pieces[than];
    if (p.cells != q.cells) return larger == (p.cells > q.cells);
    if (group.ledger.several() && ready(p) != ready(q)) return ready(p);
    if ((p.heap == &self) != (q.heap == &self)) return p.heap == &self;
    return p.heap == &self && p.start > q.start;  // High addresses leave first.
  };
  group.for_each_free([&](PieceTable::Index i, const PieceInfo& p) {
    if (p.heap == &self && overlaps(p, keep.first, keep.last)) return;
    if (taker.over == Over::ready && !ready(p)) return;
    if (p.cells <= need) {
      if (better(p, below, true)) below = i;
    } else if (p.cells <= most) {
      if (better(p, above, false)) above = i;
    }
  });
  return below != 0 ? below : above;
}

bool PageHeap::Impl::move_piece(PieceTable::Index index, std::uint32_t to) {
  PieceInfo& p = group.pieces[index];
  Impl& from = *p.heap->impl_;
  Freed freed = from.node_of(p)->freed;
  freed.clip(from.stretch_of(p));
  if (!group.order(taker.stream, freed, {}, backing)) {
    taker.over = Over::ready;
    return false;
  }
  if (!group.make_room(4, 0, 1) || !backing.map(Cell{to}, p.id, p.cells)) return false;
  from.hide_piece(index, false);
  group.pieces.relocate(index, &self, to);
  freed.move_to(stretch_of(p));
  show_piece(index, freed);
  ++group.counts.moved;
  group.note();
  return true;
}

// Gives a free piece back: the smallest of at least `excess` cells, else the largest, high addresses first; none that
// touches `keep`.
// Without `may_wait` a piece whose address may still be in use leaves later, and counts as held until then.
bool PageHeap::Impl::release_one(std::uint64_t excess, Span keep, bool may_wait) {
  PieceTable::Index best = 0;
  const auto better = [&](const PieceInfo& p, const PieceInfo& q) {
    if (p.cells == q.cells) return p.heap == q.heap && p.start > q.start;
    return q.cells >= excess ? p.cells >= excess && p.cells < q.cells : p.cells > q.cells;
  };
  group.for_each_free([&](PieceTable::Index i, const PieceInfo& p) {
    if (p.heap == &self && overlaps(p, keep.first, keep.last)) return;
    if (best == 0 || better(p, group.pieces[best])) best = i;
  });
  if (best == 0) return false;
  if (!group.pieces[best].heap->impl_->let_go(best)) return false;
  group.finish_moves(backing);
  group.collect(may_wait);
  return true;
}

// A free piece of this heap leaves once its ticket has passed. False when the host has no memory for the books.
bool PageHeap::Impl::let_go(PieceTable::Index index) {
  if (!group.make_room(2, 0, 1)) return false;
  const PieceInfo p = group.pieces[index];
  hide_piece(index, true);
  group.pieces.erase(index);
  group.releasing_cells += p.cells;
  ++group.counts.released;
  group.note();
  return true;
}

void PageHeap::hold(bool on) { impl_->held = on; }

bool PageHeap::release_pieces() {
  const PieceTable& pieces = impl_->group.pieces;
  for (PieceTable::Index i = 1; i < pieces.slots(); ++i) {
    if (pieces[i].heap == this && impl_->is_free(pieces[i]) && !impl_->let_go(i)) break;
  }
  impl_->group.finish_moves(impl_->backing);
  impl_->group.collect(true);
  return mapped() == 0;
}

std::uint64_t PageHeap::mapped() const {
  const PieceTable& pieces = impl_->group.pieces;
  std::uint64_t cells = 0;
  for (PieceTable::Index i = 1; i < pieces.slots(); ++i) {
    if (pieces[i].heap == this) cells += pieces[i].cells;
  }
  return cells << impl_->cell_shift;
}

void PageHeap::for_each_node(const std::function<void(const HeapNode& node)>& visit) const {
  for (const HeapNode* node = impl_->first; node != nullptr; node = node->next) visit(*node);
}

void HeapGroup::Impl::finish_moves(Backing& backing) {
  if (stale.empty() || stale.back().ticket != kUnmarked) return;
  const Ticket ticket = backing.mark();
  for (auto it = stale.rbegin(); it != stale.rend() && it->ticket == kUnmarked; ++it) it->ticket = ticket;
  if (ticket == Ticket::none) collect(false);
}

void HeapGroup::Impl::collect(bool may_wait) {
  std::size_t done = 0;
  for (; done < stale.size() && stale[done].ticket != kUnmarked; ++done) {
    const StaleAddress entry = stale[done];
    PageHeap::Impl& heap = *entry.node->heap->impl_;
    if (entry.ticket != Ticket::none && !heap.backing.passed(entry.ticket) &&
        (!may_wait || !heap.backing.wait(entry.ticket))) {
      break;
    }
    const PageHeap::Impl::Span span = heap.cells_of(entry.node->offset, entry.node->size);
    const std::uint32_t cells = span.last - span.first;
    heap.backing.unmap(Cell{span.first}, entry.piece, cells);
    if (entry.leaving) {
      heap.backing.destroy(entry.piece, cells);
      releasing_cells -= cells;
      note();
    }
    entry.node->state = NodeState::gap;
    heap.merge(entry.node);
  }
  stale.erase(stale.begin(), stale.begin() + static_cast<std::ptrdiff_t>(done));
}

}  // namespace cistern::core
