// Mappings: which piece is shown where, in use or not. Addresses that pieces left when they moved away go on showing
// them: to end a mapping costs the driver tens of microseconds, and to make one again more; most addresses that a piece
// left are not needed for a long time, and some by the same piece. A mapping ends when another piece is to be shown
// there, or its piece is given back.
//
//   state    becomes
//   in use   put_aside(): aside
//   aside    use_again(): in use; end...(): gone, or aside as before where the driver refused
//
// Does: know pieces and mappings, from before these are made, so that no later step needs memory of the host's. Does
// not: call the driver, or know work in flight: what is aside may be ended at once. Used by DeviceWork alone, under the
// device's lock.
#pragma once

#include <cstddef>
#include <iterator>
#include <map>
#include <unordered_map>

#include "drivers/driver.hpp"

namespace cistern::allocation {

class Mappings {
 public:
  // May throw std::bad_alloc; nothing has changed then.
  void add_piece(drivers::Physical piece) { pieces_.emplace(piece, nullptr); }
  // pre: it is shown nowhere.
  void remove_piece(drivers::Physical piece) { pieces_.erase(piece); }
  std::size_t pieces() const { return pieces_.size(); }

  // A mapping in use. May throw std::bad_alloc; nothing has changed then. pre: the piece is known, and no mapping
  // overlaps.
  void add(drivers::Address at, std::size_t bytes, drivers::Physical piece) {
    Mapping*& first = pieces_.at(piece);
    first = &all_.emplace(at, Mapping{at, bytes, piece, first}).first->second;
  }
  // It was not made after all.
  void remove(drivers::Address at) { erase(all_.find(at)); }
  // pre: in use.
  void put_aside(drivers::Address at) { all_.at(at).aside = true; }
  // Whether the piece is shown from the address on, aside; it is in use from now on.
  bool use_again(drivers::Address at, drivers::Physical piece) {
    const auto found = all_.find(at);
    if (found == all_.end() || found->second.piece != piece) return false;
    found->second.aside = false;
    return true;
  }
  // Calls end(address, bytes) for each that is aside and overlaps the range; it is gone where that returned true.
  // Whether nothing is left in the range.
  template <class End>
  bool end_overlapping(drivers::Address at, std::size_t bytes, End end) {
    bool none = true;
    auto next = all_.lower_bound(at);
    if (next != all_.begin() && std::prev(next)->first + std::prev(next)->second.bytes > at) --next;
    while (next != all_.end() && next->first < at + bytes) none = end_one(next++, end) && none;
    return none;
  }
  // The same for all of a piece.
  template <class End>
  bool end_all_of(drivers::Physical piece, End end) {
    bool none = true;
    for (const Mapping* one = pieces_.at(piece); one != nullptr;) {
      const drivers::Address at = one->at;
      one = one->next;
      none = end_one(all_.find(at), end) && none;
    }
    return none;
  }
  std::size_t count() const { return all_.size(); }

 private:
  struct Mapping {
    drivers::Address at;
    std::size_t bytes;
    drivers::Physical piece;
    Mapping* next;  // Of the piece.
    bool aside = false;
  };
  using All = std::map<drivers::Address, Mapping>;

  template <class End>
  bool end_one(All::iterator one, End end) {
    if (!one->second.aside || !end(one->first, one->second.bytes)) return false;
    erase(one);
    return true;
  }
  void erase(All::iterator one) {
    Mapping** link = &pieces_.at(one->second.piece);
    while (*link != &one->second) link = &(*link)->next;
    *link = one->second.next;
    all_.erase(one);
  }

  All all_;
  std::unordered_map<drivers::Physical, Mapping*> pieces_;  // The first mapping of each; null when there is none.
};

}  // namespace cistern::allocation
