// Best fit as an allocator would do it: in the order of begins, each box into the smallest free range that holds it.
// O(n log n), the fallback when there is no time for more. Ignores gaps; knows no fixed offsets. Internal to src/plan.
#pragma once

#include <vector>

#include "plan/strip.hpp"

namespace cistern::planner {

// A valid plan. pre: !strip.any_fixed.
std::vector<Bytes> online_fit(const Strip& strip);

}  // namespace cistern::planner
