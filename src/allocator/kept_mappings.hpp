// KeptMappings: addresses that pieces left when they moved away, and that still show them. To end a mapping costs the
// driver tens of microseconds, and to make one again more; most addresses that a piece left are not needed for a long
// time, and some by the same piece. A mapping ends when another piece is to be shown there, or its piece is given back.
//
// Does: know them. Does not: call the driver, or know work in flight: what is kept may be ended at once. Used by
// DeviceWork alone, under the device's lock.
#pragma once

#include <cstddef>
#include <iterator>
#include <map>

#include "drivers/driver.hpp"

namespace cistern::allocation {

class KeptMappings {
 public:
  // May throw std::bad_alloc; nothing has changed then. pre: nothing that is kept overlaps.
  void add(drivers::Address at, std::size_t bytes, drivers::Physical piece) { kept_.emplace(at, Kept{bytes, piece}); }
  // The piece that is shown from an address on, whole; none when there is none.
  drivers::Physical piece_at(drivers::Address at) const {
    const auto found = kept_.find(at);
    return found == kept_.end() ? drivers::Physical::none : found->second.piece;
  }
  // The mapping is in use again.
  void take(drivers::Address at) { kept_.erase(at); }
  // Calls end(address, bytes) for each that overlaps the range; it is kept no longer.
  template <class End>
  void end_overlapping(drivers::Address at, std::size_t bytes, End end) {
    auto kept = kept_.lower_bound(at);
    if (kept != kept_.begin() && std::prev(kept)->first + std::prev(kept)->second.bytes > at) --kept;
    while (kept != kept_.end() && kept->first < at + bytes) {
      end(kept->first, kept->second.bytes);
      kept = kept_.erase(kept);
    }
  }
  // The same for all of a piece.
  template <class End>
  void end_all_of(drivers::Physical piece, End end) {
    std::erase_if(kept_, [&](const auto& kept) {
      if (kept.second.piece != piece) return false;
      end(kept.first, kept.second.bytes);
      return true;
    });
  }
  std::size_t count() const { return kept_.size(); }

 private:
  struct Kept {
    std::size_t bytes;
    drivers::Physical piece;
  };
  std::map<drivers::Address, Kept> kept_;  // None overlaps another.
};

}  // namespace cistern::allocation
