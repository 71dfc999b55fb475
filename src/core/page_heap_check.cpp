// The invariants of the heaps, one message a rule. Reads only; slow; for tests. Under the device's lock.
#include <string>

#include "core/page_heap_impl.hpp"

namespace cistern::core {

namespace {

std::string at(std::uint64_t offset) { return " at offset " + std::to_string(offset); }

}  // namespace

std::vector<std::string> HeapGroup::check_invariants() const {
  std::vector<std::string> broken;
  const auto require = [&](bool ok, const char* rule) {
    if (!ok) broken.emplace_back(rule);
  };
  // Text is made for a broken rule only: a range has many cells.
  const auto require_at = [&](bool ok, const char* rule, const HeapNode* n) {
    if (!ok) broken.push_back(rule + at(n->offset));
  };
  const Impl& g = *impl_;
  const std::uint64_t cell = g.config.cell_bytes;

  std::uint64_t live = 0;
  std::uint64_t mapped_bytes = 0;
  std::uint64_t leaving = 0;
  std::size_t stale = 0;
  std::vector<std::uint32_t> touched(g.pieces.slots(), 0);
  for (const auto& heap : g.heaps) {
    const PageHeap::Impl& h = *heap->impl_;
    std::uint64_t expected = 0;
    std::uint64_t runs = 0;
    std::uint64_t gaps = 0;
    const HeapNode* before = nullptr;
    for (const HeapNode* n = h.first; n != nullptr; before = n, n = n->next) {
      require_at(n->offset == expected, "nodes tile the range", n);
      require_at(n->size > 0, "no node is empty", n);
      require_at(n->prev == before, "links agree", n);
      require_at(n->heap == heap.get(), "a node knows its heap", n);
      if (before != nullptr && n->state == before->state) {
        require_at(n->state == NodeState::live || n->state == NodeState::stale, "free neighbours are merged", n);
      }
      expected = n->offset + n->size;
      const auto span = h.cells_of(n->offset, n->size);
      const bool mapped = n->state == NodeState::live || n->state == NodeState::run;
      for (std::uint32_t c = span.first; c < span.last; ++c) {
        require_at((h.cell_piece[c] != 0) == mapped, "live and run bytes are mapped, others are not", n);
      }
      if (!mapped) require_at(n->offset % cell == 0 && n->size % cell == 0, "unmapped nodes are whole cells", n);
      if (n->state == NodeState::live) {
        live += n->size;
        for (std::uint32_t c = span.first; c < span.last;) {
          const PieceTable::Index i = h.cell_piece[c];
          if (i == 0) break;
          ++touched[i];
          c = g.pieces[i].start + g.pieces[i].cells;
        }
      }
      if (mapped) mapped_bytes += n->size;
      if (n->state == NodeState::run) {
        require_at(n->freed.within(h.stretch_of(*n)), "who freed a run did so within it", n);
      }
      runs += n->state == NodeState::run;
      gaps += n->state == NodeState::gap;
      stale += n->state == NodeState::stale;
    }
    require(expected == g.config.range_bytes / cell * cell, "nodes reach the end of the range");
    for (const HeapNode* n = h.runs.first_from(0); n != h.runs.end(); n = n->bin_next) --runs;
    for (const HeapNode* n = h.gaps.head; n != nullptr; n = n->bin_next) --gaps;
    require(runs == 0, "every run is in one bin");
    require(gaps == 0, "every gap is in the gap list");
    for (std::uint32_t c = 0; c < h.range_cells; ++c) {
      const HeapNode* n = h.cell_node[c];
      if (n == nullptr) continue;
      require(n->offset / cell == c, "the node of a cell starts in it");
      require(n->next == nullptr || n->next->offset / cell != c, "the node of a cell is the last that starts in it");
    }
  }
  require(stale == g.stale.size(), "every stale node has a record");
  for (const StaleAddress& s : g.stale) {
    require(s.node->state == NodeState::stale, "a record names a stale node");
    if (s.leaving) leaving += s.node->size / cell;
  }
  std::uint64_t held = 0;
  std::uint64_t free_cells = 0;
  for (std::size_t i = 1; i < g.pieces.slots(); ++i) {
    const PieceInfo& p = g.pieces[static_cast<PieceTable::Index>(i)];
    if (p.heap == nullptr) continue;
    held += p.cells;
    if (touched[i] == 0 && !p.heap->impl_->held) free_cells += p.cells;
    require((touched[i] == 0) == p.heap->impl_->is_free(p), "a piece is free when no live node touches it");
    for (std::uint32_t c = p.start; c < p.start + p.cells; ++c) {
      require(p.heap->impl_->cell_piece[c] == i, "a piece is shown at its cells");
    }
  }
  require(mapped_bytes == held * cell, "conservation: live + run bytes = bytes of the pieces");
  require(live == g.gauge.live, "conservation: live bytes");
  require(held == g.pieces.cells(), "conservation: cells of the pieces");
  require(free_cells == g.free_cells(), "conservation: cells of free pieces");
  require(leaving == g.releasing_cells, "conservation: cells that are leaving");
  require(gauge_.reserved == g.held_cells() * cell, "conservation: the gauge shows what is held");
  require(g.held_cells() <= g.held_ceiling, "held memory keeps the limit");
  return broken;
}

}  // namespace cistern::core
