// The skyline heuristic: fills a valley of the skyline with the box of best priority that fits in its time,
// and lifts valleys that nothing fits in. O(n log n) plus the queries of a kd-tree; never looks at pairs of boxes.
// Ignores gaps (its plans stay valid); knows no fixed offsets. Internal to src/plan. One object a thread.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/control.hpp"
#include "plan/span_tree.hpp"
#include "plan/strip.hpp"

namespace cistern::planner {

class Skyline {
 public:
  // pre: no box of `strip` is fixed.
  explicit Skyline(const Strip& strip);

  // Places all boxes by priority `ranks`. False, with offsets unchanged, if the peak will reach `limit` or `control`
  // stops. In a valley whose fullest section would end less than `slack` under `target`, only boxes that live in that
  // section are considered: `slack` < 0 never does so, kAlways always.
  bool place(const std::vector<std::int32_t>& ranks, Bytes limit, Bytes target, Bytes slack, const Control& control,
             std::vector<Bytes>& offsets);
  static constexpr Bytes kAlways = INT64_MAX / 2;

 private:
  struct Segment {
    std::int32_t start = 0;
    std::int32_t end = 0;
    Bytes height = 0;
    std::int32_t prev = -1;
    std::int32_t next = -1;
  };
  std::int32_t add(const Segment& s);
  std::int32_t descend(std::int32_t segment) const;
  void lift(std::int32_t segment);

  const Strip& strip_;
  SpanTree tree_;
  SectionTree waiting_;  // size of the boxes of each section not yet placed
  const std::vector<Bytes> totals_;
  std::vector<Segment> segments_;
  std::vector<std::int32_t> unused_;
  std::vector<Bytes> work_;
};

}  // namespace cistern::planner
