// PieceTable: the physical pieces of all heaps of a device, and where each is mapped. Does not call the backing. Used
// by PageHeap alone, under the device's lock.
//
// Whether a piece is free is not kept: it is when one run covers it. Blocks come and go much more often than pieces
// move, so what a block touches is not counted; the heaps keep the sum alone.
#pragma once

#include <algorithm>
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

  // A piece at `start` of `heap`. pre: reserve().
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
    ++count_;
    cells_ += cells;
    return i;
  }

  void erase(Index i) {
    cells_ -= pieces_[i].cells;
    --count_;
    pieces_[i] = {};
    unused_.push_back(i);
  }

  void relocate(Index i, PageHeap* heap, std::uint32_t start) {
    pieces_[i].heap = heap;
    pieces_[i].start = start;
  }

  std::uint64_t cells() const { return cells_; }  // Held.
  std::uint64_t count() const { return count_; }

 private:
  std::vector<PieceInfo> pieces_;
  std::vector<Index> unused_;
  std::uint64_t cells_ = 0;
  std::uint64_t count_ = 0;
};

}  // namespace cistern::core
