// PieceTable: the physical pieces of all heaps of a device: where each is mapped, how many live nodes touch it, and the
// lists of those that no live node touches. Does not call the backing. Used by PageHeap alone, under the device's lock.
//
//   live > 0   some live node touches the piece.
//   live == 0  free: may move to another place or be released. listed in its size class
//
// A piece that becomes live stays listed until the list is walked: blocks come and go much more often than pieces move.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <vector>

#include "core/backing.hpp"
#include "core/units.hpp"

namespace cistern::core {

class PageHeap;

struct PieceInfo {
  Piece id = Piece::none;
  PageHeap* heap = nullptr;  // Null: the entry is unused.
  std::uint32_t start = 0;   // First cell.
  std::uint32_t cells = 0;
  std::uint32_t live = 0;    // Live nodes that touch it.
  std::uint32_t pinned = 0;  // Those of them that are pinned.
  std::uint32_t prev = 0;    // In its free list; 0 ends it.
  std::uint32_t next = 0;
  bool listed = false;
};

class PieceTable {
 public:
  using Index = std::uint32_t;  // 0 is no piece.

  PieceTable() : pieces_(1) {}

  PieceInfo& operator[](Index i) { return pieces_[i]; }
  const PieceInfo& operator[](Index i) const { return pieces_[i]; }
  std::size_t slots() const { return pieces_.size(); }

  // Makes sure that so many pieces can be added, and that all can be erased, without the host's memory. Throws
  // std::bad_alloc.
  void reserve(std::size_t count) {
    if (unused_.size() >= count) return;
    const std::size_t slots = pieces_.size() + count - unused_.size();
    if (slots > pieces_.capacity()) pieces_.reserve(std::max(slots, 2 * pieces_.capacity()));
    unused_.reserve(pieces_.capacity());
  }

  // A free piece at `start` of `heap`. pre: reserve().
  Index add(Piece id, PageHeap* heap, std::uint32_t start, std::uint32_t cells) {
    Index i;
    if (unused_.empty()) {
      i = static_cast<Index>(pieces_.size());
      pieces_.emplace_back();
    } else {
      i = unused_.back();
      unused_.pop_back();
    }
    pieces_[i] = {.id = id, .heap = heap, .start = start, .cells = cells};
    link(i);
    ++count_;
    cells_ += cells;
    free_cells_ += cells;
    return i;
  }

  // pre: free.
  void erase(Index i) {
    unlink(i);
    cells_ -= pieces_[i].cells;
    free_cells_ -= pieces_[i].cells;
    --count_;
    pieces_[i] = {};
    unused_.push_back(i);
  }

  // pre: free.
  void relocate(Index i, PageHeap* heap, std::uint32_t start) {
    pieces_[i].heap = heap;
    pieces_[i].start = start;
  }

  void retain(Index i) {
    PieceInfo& p = pieces_[i];
    if (p.live++ == 0) free_cells_ -= p.cells;
  }
  void drop(Index i) {
    PieceInfo& p = pieces_[i];
    if (--p.live != 0) return;
    free_cells_ += p.cells;
    if (!p.listed) link(i);
  }

  std::uint64_t cells() const { return cells_; }            // Held.
  std::uint64_t free_cells() const { return free_cells_; }  // In free pieces.
  std::uint64_t count() const { return count_; }

  // Visits the free pieces of less than 2^(class + 1) cells, small classes first.
  template <class F>
  void for_each_free(unsigned last_class, F&& f) {
    for (unsigned k = 0; k <= last_class; ++k) {
      for (Index i = heads_[k]; i != 0;) {
        const Index next = pieces_[i].next;
        if (pieces_[i].live != 0) {
          unlink(i);
        } else {
          f(i, pieces_[i]);
        }
        i = next;
      }
    }
  }
  static constexpr unsigned kClasses = 20;
  static unsigned class_of(std::uint32_t cells) {
    return std::min(kClasses - 1, static_cast<unsigned>(std::bit_width(cells)) - 1);
  }

 private:
  void link(Index i) {
    PieceInfo& p = pieces_[i];
    Index& head = heads_[class_of(p.cells)];
    p.prev = 0;
    p.next = head;
    if (head != 0) pieces_[head].prev = i;
    head = i;
    p.listed = true;
  }
  void unlink(Index i) {
    PieceInfo& p = pieces_[i];
    if (p.next != 0) pieces_[p.next].prev = p.prev;
    if (p.prev != 0) {
      pieces_[p.prev].next = p.next;
    } else {
      heads_[class_of(p.cells)] = p.next;
    }
    p.listed = false;
  }

  std::vector<PieceInfo> pieces_;
  std::vector<Index> unused_;
  std::array<Index, kClasses> heads_{};
  std::uint64_t cells_ = 0;
  std::uint64_t free_cells_ = 0;
  std::uint64_t count_ = 0;
};

}  // namespace cistern::core
