// The state of PageHeap and HeapGroup, shared by the page_heap*.cpp files only. Under the device's lock.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "core/node_pool.hpp"
#include "core/page_heap.hpp"
#include "core/piece_table.hpp"
#include "core/run_bins.hpp"
#include "core/zeroed_array.hpp"

namespace cistern::core {

// A doubly linked list of nodes through their bin links.
struct NodeList {
  HeapNode* head = nullptr;

  void insert(HeapNode* n) {
    n->bin_prev = nullptr;
    n->bin_next = head;
    if (head != nullptr) head->bin_prev = n;
    head = n;
  }
  void remove(HeapNode* n) {
    if (n->bin_next != nullptr) n->bin_next->bin_prev = n->bin_prev;
    (n->bin_prev != nullptr ? n->bin_prev->bin_next : head) = n->bin_next;
  }
};

// Numbers of the policy; source: simulation over recorded traces (docs/design.md).
struct HeapTuning {
  // Largest piece: 1/48 of the peak, within 2 and 16 cells; of a large heap 1/128 of the peak, at most 32 cells. What
  // an operation costs does not depend on its bytes; heaps of 90 GiB take 0.6 of the operations. With 128 cells they
  // take a third, but on a full device live blocks keep more from a request for all that is free.
  static constexpr std::uint64_t cap_part = 48;
  static constexpr std::uint64_t cap_least = 2;
  static constexpr std::uint64_t cap_most = 16;
  static constexpr std::uint64_t large_cap_part = 128;
  static constexpr std::uint64_t large_cap_most = 32;
  static constexpr std::uint64_t tight_part = 64;  // Under a limit: 1/64 of it, within 2 and 4 cells.
  static constexpr std::uint64_t tight_least = 2;
  static constexpr std::uint64_t tight_most = 4;
  // Added to the slack where streams share the heap: a move makes one wait for another, too. Over 29 traces of several
  // streams, recorded and generated, 5 to 6 % fewer operations in later passes for 0.6 % of memory.
  static constexpr std::uint64_t shared_slack_percent = 1;
  // For requests that touch up to two cells, pieces grow beyond the need, up to 1/48 of what is held. Those of larger
  // requests end with them: a piece that two large blocks share is kept by either. From 16 cells on a last cell that is
  // not filled is a piece of its own, for the same reason; with 3 the recorded traces take a fifth more operations.
  static constexpr std::uint64_t chunk_part = 48;
  static constexpr std::uint32_t chunk_request = 2;
  static constexpr std::uint32_t own_end_request = 16;
  static constexpr std::uint64_t segment_part = 16;  // Segments (no virtual memory): 1/16 of what is held, at most the
  static constexpr std::uint64_t segment_count = 512;  // configured size or 1/512, so that their number stays bounded.
};

// An address that still shows a piece that moved away or leaves.
struct StaleAddress {
  HeapNode* node = nullptr;
  Ticket ticket = Ticket::none;
  Piece piece = Piece::none;
  bool leaving = false;  // The piece is destroyed once the ticket has passed.
};

// A stale address that finish_moves() has not given its ticket yet.
inline constexpr Ticket kUnmarked{UINT64_MAX};

struct HeapGroup::Impl {
  Impl(HeapConfig c, HeapGauge& g) : config(c), gauge(g) {}

  HeapConfig config;
  HeapGauge& gauge;
  std::vector<std::unique_ptr<PageHeap>> heaps;
  NodePool nodes;
  PieceTable pieces;
  HeapCounts counts;
  std::uint64_t peak_cells = 0;
  std::uint64_t releasing_cells = 0;  // In pieces that leave once their ticket has passed.
  std::vector<StaleAddress>
      stale;  // Of all heaps, in the order of their tickets: a piece is unmapped before it is destroyed.
  OrderLedger ledger;
  std::uint64_t held_ceiling = UINT64_MAX;  // The limit in cells, or what was held when it was set below that.

  std::uint64_t cells_of(std::uint64_t bytes) const { return bytes / config.cell_bytes; }
  std::uint64_t limit_cells() const { return cells_of(config.limit_bytes); }
  std::uint64_t held_cells() const { return pieces.cells() + releasing_cells; }
  bool has_limit() const { return config.limit_bytes != UINT64_MAX; }
  // Largest piece that is made, in cells.
  std::uint32_t cap() const;
  // Cells that may be held without giving others back first: the peak of live bytes and the slack.
  std::uint64_t allowed_cells() const;
  // Segments only: cells that may be held while some of them wait for work to end, 1.12 x the peak of live bytes.
  std::uint64_t tolerated_cells() const { return cells_of(gauge.peak_live / 25 * 28); }
  // In pieces without a live byte that may leave their place.
  std::uint64_t free_cells() const;
  // At most so many can be brought to a place.
  std::uint64_t obtainable_cells() const {
    return free_cells() + std::max(limit_cells(), pieces.cells()) - pieces.cells();
  }
  // Visits these pieces.
  template <class F>
  void for_each_free(F&& f) const;
  // Makes the stream wait for those that freed memory in the stretch. False when one of them cannot be waited for now.
  bool order(StreamIndex stream, const Freed& freed, Stretch where, Backing& backing) {
    if (ledger.ready(stream, freed, where)) return true;
    return ledger.order(stream, freed, where, [&](StreamIndex other) { return backing.order(other, stream); });
  }
  // Makes room in the books, before a step has changed anything: it must not stop half way. False when the host has no
  // memory for so many new nodes, pieces and stale addresses.
  bool make_room(std::size_t new_nodes, std::size_t new_pieces, std::size_t new_stale) noexcept;
  // One ticket for all addresses that became stale since the last call; where nothing runs they are unmapped at once.
  void finish_moves(Backing& backing);
  // Unmaps stale addresses whose work is done; with `may_wait` all of them.
  void collect(bool may_wait);
  // After each change of what is held, moved or allowed.
  void note();
};

struct PageHeap::Impl {
  Impl(PageHeap& self_, HeapGroup::Impl& group_, Backing& backing_, StreamIndex lowest_);

  // A stretch of cells, [first, last).
  struct Span {
    std::uint32_t first = 0;
    std::uint32_t last = 0;
  };
  // Which free memory a request may take: all, or what its stream need not wait for.
  enum class Over : std::uint8_t { any, ready };
  // Cost of a place where the stream would have to wait for another one: only when none of the candidates is ready it
  // does. With less of it streams wait for each other up to four times as often.
  static constexpr std::uint64_t kWait = std::uint64_t{1} << 60;
  // Whom grow() works for.
  struct Taker {
    StreamIndex stream{};
    Over over = Over::any;
  };
  // Where a block is put, and what that costs.
  struct Place {
    HeapNode* node = nullptr;  // The first free node that it covers.
    std::uint64_t offset = 0;
    std::int64_t cost = INT64_MAX;
    std::uint32_t free_cells = 0;  // In a run: cells of the free pieces that it touches.
  };

  // --- Nodes (page_heap.cpp) ---
  HeapNode* carve(const Place& place, std::uint64_t bytes, StreamIndex stream);
  HeapNode* carve(HeapNode* run, std::uint64_t offset, std::uint64_t bytes, StreamIndex stream) {
    return carve({run, offset, 0, free_cells_in(stretch_of(*run), cells_of(offset, bytes))}, bytes, stream);
  }
  HeapNode* cut_front(HeapNode* run, std::uint64_t bytes);
  HeapNode* cut_back(HeapNode* run, std::uint64_t bytes);
  void free(HeapNode* node);
  void drop(HeapNode* node);
  void link_free(HeapNode* node);
  void unlink_free(HeapNode* node);
  // A run became shorter.
  void clip_freed(HeapNode* run) const {
    if (group.ledger.several()) run->freed.clip(stretch_of(*run));
  }
  HeapNode* split(HeapNode* node, std::uint64_t at);
  HeapNode* merge(HeapNode* node);
  void absorb_next(HeapNode* node);
  void note_start(HeapNode* node);
  void forget_start(HeapNode* node);
  HeapNode* node_at(std::uint64_t offset) const;
  HeapNode* node_of(const PieceInfo& piece) const { return node_at(stretch_of(piece).begin); }
  static Stretch stretch_of(const HeapNode& node) { return {node.offset, node.offset + node.size}; }
  Stretch stretch_of(const PieceInfo& piece) const {
    return {std::uint64_t{piece.start} << cell_shift, std::uint64_t{piece.start + piece.cells} << cell_shift};
  }
  Span cells_of(std::uint64_t offset, std::uint64_t bytes) const {
    return {static_cast<std::uint32_t>(offset >> cell_shift),
            static_cast<std::uint32_t>((offset + bytes + cell_bytes - 1) >> cell_shift)};
  }
  // The pieces that the cells touch, as far as they lie within a stretch of free memory: such pieces are free. None
  // where first >= last. pre: the cells are mapped and within it.
  Span free_pieces(Stretch memory, Span cells) const {
    const PieceInfo& left = group.pieces[cell_piece[cells.first]];
    const PieceInfo& right = group.pieces[cell_piece[cells.last - 1]];
    const std::uint64_t left_end = left.start + left.cells, right_end = right.start + right.cells;
    const bool left_free = std::uint64_t{left.start} << cell_shift >= memory.begin;
    const bool right_free = right_end << cell_shift <= memory.end;
    return {left_free ? left.start : static_cast<std::uint32_t>(left_end),
            right_free ? static_cast<std::uint32_t>(right_end) : right.start};
  }
  static std::uint32_t count_of(Span cells) { return cells.last > cells.first ? cells.last - cells.first : 0; }
  std::uint32_t free_cells_in(Stretch memory, Span cells) const { return count_of(free_pieces(memory, cells)); }
  bool is_free(const PieceInfo& piece) const;
  HeapNode* change_state(Span cells, NodeState state, const Freed& freed = {});

  // --- Choice of place (page_heap_place.cpp) ---
  // Free nodes side by side: [begin, end).
  struct Hole {
    HeapNode* first = nullptr;
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
  };
  std::uint32_t pin_cells(Span pieces, Span block) const;
  std::uint32_t pin_cells_in(const HeapNode& run, std::uint64_t offset, std::uint64_t bytes) const {
    const Span block = cells_of(offset, bytes);
    return pin_cells(free_pieces(stretch_of(run), block), block);
  }
  // Which streams freed memory: one; several; several, and only what is ready may be taken.
  enum class Sharing : std::uint8_t { none, some, only_ready };
  template <Sharing kSharing, bool kPlain>
  Place best_mapped_among(std::uint64_t bytes, std::uint64_t alignment, Taker by) const;
  Place best_mapped(std::uint64_t bytes, std::uint64_t alignment, Taker by) const;
  Place best_unmapped(std::uint64_t bytes, std::uint64_t alignment, bool fewest_cells) const;
  std::int64_t unmapped_cost(const Hole& hole, std::uint64_t offset, std::uint64_t bytes, bool fewest_cells) const;

  // --- Growth (page_heap_grow.cpp) ---
  bool order(Stretch where);
  HeapNode* grow(std::uint64_t bytes, std::uint64_t alignment, StreamIndex stream);
  HeapNode* grow_segment(std::uint64_t bytes, std::uint64_t alignment, StreamIndex stream);
  std::uint32_t segment_place(std::uint64_t cells) const;
  std::uint32_t missing(Span cells) const;
  bool fill(Span wanted, std::uint64_t block_end);
  bool fill_gap(Span gap, std::uint32_t need, Span wanted, std::uint32_t cut);
  bool create_piece(std::uint32_t cells, std::uint32_t at, Span keep, std::uint32_t& made);

  // --- Pieces that move and leave (page_heap_pieces.cpp) ---
  void show_piece(PieceTable::Index index, const Freed& freed);
  void hide_piece(PieceTable::Index index, bool leaving);
  bool let_go(PieceTable::Index index);
  PieceTable::Index find_victim(std::uint32_t need, std::uint32_t most, Span keep);
  bool move_piece(PieceTable::Index index, std::uint32_t to);
  bool release_one(std::uint64_t excess, Span keep, bool may_wait);

  PageHeap& self;
  HeapGroup::Impl& group;
  Backing& backing;
  const std::uint64_t cell_bytes;
  const unsigned cell_shift;
  const StreamIndex lowest;  // Its blocks come from the low end.
  const std::uint32_t range_cells;
  RunBins runs;
  NodeList gaps;
  HeapNode* first = nullptr;
  Taker taker;
  bool held = false;                          // No piece moves or leaves.
  std::uint64_t free_cells = 0;               // In pieces without a live byte.
  ZeroedArray<PieceTable::Index> cell_piece;  // By cell; 0 where nothing is mapped or the address is stale.
  ZeroedArray<HeapNode*> cell_node;           // By cell: the last node that starts in it.
};

template <class F>
void HeapGroup::Impl::for_each_free(F&& f) const {
  for (const auto& heap : heaps) {
    const PageHeap::Impl& h = *heap->impl_;
    if (h.held || h.free_cells == 0) continue;
    for (const HeapNode* run = h.runs.first_from(h.cell_bytes); run != h.runs.end(); run = run->bin_next) {
      const auto end = static_cast<std::uint32_t>((run->offset + run->size) >> h.cell_shift);
      for (auto c = static_cast<std::uint32_t>((run->offset + h.cell_bytes - 1) >> h.cell_shift); c < end;) {
        const PieceTable::Index i = h.cell_piece[c];
        const PieceInfo& p = pieces[i];
        if (p.start >= c && p.start + p.cells <= end) f(i, p);
        c = p.start + p.cells;
      }
    }
  }
}

}  // namespace cistern::core
