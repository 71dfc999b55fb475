// Exact search: what both of its files inline. Internal to exact*.cpp.
#pragma once

#include <bit>

#include "plan/exact.hpp"

namespace cistern::planner {

// Calls visit(other) for each open box that overlaps `box` in time, until one returns false; that is the result.
template <class F>
bool ExactSearch::each_open_neighbour(std::int32_t box, F&& visit) const {
  const Word* row = neighbour_.data() + static_cast<std::size_t>(box) * words_;
  for (std::size_t w = 0; w < words_; ++w) {
    for (Word left = row[w] & open_[w]; left != 0; left &= left - 1) {
      if (!visit(static_cast<std::int32_t>(w * 64) + std::countr_zero(left))) return false;
    }
  }
  return true;
}

}  // namespace cistern::planner
