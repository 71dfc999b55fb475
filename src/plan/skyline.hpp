// The skyline heuristic: fills a valley of the skyline with the box of best priority that fits in its time,
// and lifts valleys that nothing fits in. O(n log n) plus the queries of a kd-tree; never looks at pairs of boxes.
// Ignores gaps (its plans stay valid); knows no fixed offsets. Internal to src/plan. One object a thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "plan/control.hpp"
#include "plan/span_tree.hpp"
#include "plan/strip.hpp"

namespace cistern::planner {

class Skyline {
 public:
  // pre: no box of `strip` is fixed.
  explicit Skyline(const Strip& strip);

  static constexpr Bytes kAlways = INT64_MAX / 2;
  // How boxes are chosen.
  struct Rule {
    Bytes target = 0;  // that the peak should not exceed
    // In a valley whose fullest section would end less than this under `target`, only boxes that live in that section
    // are considered: below 0 never, kAlways always.
    Bytes slack = -1;
    // So many boxes of best priority are compared: the first is taken that leaves no side of the valley which nothing
    // fits in and which, lifted, would end above `target`; else the one that does least harm. At most SpanTree::kFew.
    std::size_t compared = 1;
    // Boxes smaller than this are fillers: where nothing else fits in a valley they are placed below its lower wall.
    // Once all others are placed the number shrinks, until no box is a filler. The comparison then also looks at what
    // lies behind a wall that the box rises above, and is left out where there is room to spare. 0: no fillers.
    Bytes filler = 0;
  };

  // Places all boxes by priority `ranks`. False, with offsets unchanged, if the peak will reach `limit` or `control`
  // stops.
  bool place(const std::vector<std::int32_t>& ranks, Bytes limit, const Rule& rule, const Control& control,
             std::vector<Bytes>& offsets);

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
  Bytes wall(std::int32_t segment) const;
  std::int32_t choose(const Segment& valley, std::int32_t section, const Rule& rule) const;
  std::int32_t choose_filler(const Segment& valley, std::int32_t section) const;
  Bytes harm(const Segment& valley, std::int32_t box, Bytes target) const;
  void split_fillers(const std::vector<std::int32_t>& ranks, Bytes filler);
  void shrink_fillers(const std::vector<std::int32_t>& ranks);
  bool is_filler(std::int32_t box) const { return strip_.size[static_cast<std::size_t>(box)] < filler_; }
  void put(std::int32_t valley, std::int32_t box, Bytes offset);

  const Strip& strip_;
  SpanTree tree_;
  std::unique_ptr<SpanTree> fillers_;       // built when first used
  std::vector<std::int32_t> filler_boxes_;  // placed or not
  Bytes filler_ = 0;                        // smaller boxes are in fillers_, the others in tree_
  std::int32_t left_ = 0;                   // boxes to be placed that are no fillers
  SectionTree waiting_;                     // size of the boxes of each section not yet placed
  const std::vector<Bytes> totals_;
  std::vector<Segment> segments_;
  std::vector<std::int32_t> unused_;
  std::vector<Bytes> work_;
};

}  // namespace cistern::planner
