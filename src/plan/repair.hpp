// Improves a plan that is too large to search as a whole: frees a window of time round a box that ends too high, keeps
// all else where it is, and plans the window anew with the exact search. Internal to src/plan. One object a thread.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/control.hpp"
#include "plan/orders.hpp"
#include "plan/strip.hpp"

namespace cistern::planner {

class Repair {
 public:
  // pre: !strip.any_gap.
  Repair(const Strip& strip, std::uint64_t seed) : strip_(strip), random_(seed) {}

  // Works on the boxes of `offsets` that end above `target`, until none is left, `nodes` decisions were made or
  // `control` stops. The plan stays valid. Larger `effort`: larger windows. `nodes` becomes the decisions made. True if
  // no box ends above `target` any more.
  bool run(std::vector<Bytes>& offsets, Bytes target, int effort, std::uint64_t& nodes, const Control& control);

 private:
  bool repair(std::int32_t box, std::int32_t from, std::int32_t to, std::vector<Bytes>& offsets, Bytes target,
              std::uint64_t& nodes, const Control& control);

  const Strip& strip_;
  Random random_;
};

}  // namespace cistern::planner
