// The skyline heuristic. See skyline.hpp.
#include "plan/skyline.hpp"

#include <algorithm>
#include <numeric>

namespace cistern::planner {
namespace {

std::size_t idx(std::int32_t i) { return static_cast<std::size_t>(i); }

// Like section_totals, but gaps count as used: the skyline does not use them.
std::vector<Bytes> box_totals(const Strip& strip) {
  std::vector<Bytes> totals(idx(strip.sections) + 1, 0);
  for (std::size_t i = 0; i < strip.size.size(); ++i) {
    totals[idx(strip.first[i])] += strip.size[i];
    totals[idx(strip.last[i])] -= strip.size[i];
  }
  std::partial_sum(totals.begin(), totals.end(), totals.begin());
  totals.pop_back();
  return totals;
}

}  // namespace

Skyline::Skyline(const Strip& strip)
    : strip_(strip), tree_(strip), waiting_(strip.sections), totals_(box_totals(strip)) {}

std::int32_t Skyline::add(const Segment& s) {
  if (unused_.empty()) {
    segments_.push_back(s);
    return static_cast<std::int32_t>(segments_.size()) - 1;
  }
  const std::int32_t i = unused_.back();
  unused_.pop_back();
  segments_[idx(i)] = s;
  return i;
}

// From a segment down to a valley: lower than its neighbours, or the leftmost of a level ground. Valleys do not meet
// before they are lifted, so it does not matter in which order they are filled; the nearest is the one still in the
// cache.
std::int32_t Skyline::descend(std::int32_t segment) const {
  for (;;) {
    const Segment& s = segments_[idx(segment)];
    if (s.prev >= 0 && segments_[idx(s.prev)].height <= s.height) {
      segment = s.prev;
    } else if (s.next >= 0 && segments_[idx(s.next)].height < s.height) {
      segment = s.next;
    } else {
      return segment;
    }
  }
}

// Height of a segment; there is a wall without end at either side.
Bytes Skyline::wall(std::int32_t segment) const { return segment < 0 ? INT64_MAX : segments_[idx(segment)].height; }

// Raises a valley to its lower neighbour and joins the two (or all three if both neighbours are level).
void Skyline::lift(std::int32_t segment) {
  Segment& s = segments_[idx(segment)];
  const Bytes left = wall(s.prev);
  const Bytes right = wall(s.next);
  const Bytes height = std::min(left, right);
  s.height = height;
  if (right == height) {
    const std::int32_t gone = s.next;
    s.end = segments_[idx(gone)].end;
    s.next = segments_[idx(gone)].next;
    if (s.next >= 0) segments_[idx(s.next)].prev = segment;
    unused_.push_back(gone);
  }
  if (left == height) {
    const std::int32_t gone = s.prev;
    s.start = segments_[idx(gone)].start;
    s.prev = segments_[idx(gone)].prev;
    if (s.prev >= 0) segments_[idx(s.prev)].next = segment;
    unused_.push_back(gone);
  }
}

// How high a section would end at least if `box` were placed and nothing fitted where it leaves too little room: in
// what is left of the valley beside it and, if there are fillers, between it and what lies behind a wall that it rises
// above. What is not above `target` counts as nothing.
Bytes Skyline::harm(const Segment& valley, std::int32_t box, Bytes target) const {
  const Bytes top = align_up(valley.height, strip_.alignment[idx(box)]) + strip_.size[idx(box)];
  const bool look_behind = filler_ > 0;
  Bytes worst = target;
  const auto side = [&](std::int32_t from, std::int32_t to, std::int32_t neighbour, bool left) {
    const Bytes height = wall(neighbour);
    const bool joins = look_behind && top > height;  // the box will join the wall
    if (from < to) {
      const SectionTree::Top fullest = waiting_.top(from, to);
      const Bytes end = std::min(top, height) + fullest.value;
      if (end > worst) {
        if (tree_.best_inside(from, to) < 0) {
          worst = end;
        } else if (joins && tree_.best_inside(from, to, fullest.section) >= 0) {
          return;
        }
      }
    }
    if (!joins) return;
    const Segment& s = segments_[idx(neighbour)];
    const Bytes behind = wall(left ? s.prev : s.next);
    if (behind <= height) return;  // no valley
    const std::int32_t start = left || from == to ? s.start : from;
    const std::int32_t stop = !left || from == to ? s.end : to;
    const SectionTree::Top fullest = waiting_.top(start, stop);
    const Bytes end = std::min(top, behind) + fullest.value;
    if (end > worst && tree_.best_inside(start, stop, fullest.section) < 0) worst = end;
  };
  side(valley.start, strip_.first[idx(box)], valley.prev, true);
  side(strip_.last[idx(box)], valley.end, valley.next, false);
  return worst;
}

// -1: nothing fits.
std::int32_t Skyline::choose(const Segment& valley, std::int32_t section, const Rule& rule) const {
  if (rule.compared <= 1) return tree_.best_inside(valley.start, valley.end, section);
  std::int32_t boxes[SpanTree::kFew];
  const std::size_t count = tree_.few_inside(valley.start, valley.end, section, rule.compared, boxes);
  if (count <= 1) return count == 0 ? -1 : boxes[0];
  std::int32_t best = -1;
  Bytes least = INT64_MAX;
  for (std::size_t k = 0; k < count && least > rule.target; ++k) {
    const Bytes end = harm(valley, boxes[k], rule.target);
    if (end < least) {
      least = end;
      best = boxes[k];
    }
  }
  return best;
}

// The filler of most area, of the longest few, that stays below the walls; -1: none does. With `section` >= 0, one that
// also lives then comes first.
std::int32_t Skyline::choose_filler(const Segment& valley, std::int32_t section) const {
  constexpr std::size_t kQuick = 8;  // looked at where there is room to spare
  const Bytes most = std::min(wall(valley.prev), wall(valley.next));
  std::int32_t boxes[SpanTree::kFew];
  const auto largest = [&](std::int32_t lives_in, std::size_t few) {
    const std::size_t count = fillers_->few_inside(valley.start, valley.end, lives_in, few, boxes);
    std::int32_t best = -1;
    double most_area = -1;
    for (std::size_t k = 0; k < count; ++k) {
      const std::size_t b = idx(boxes[k]);
      if (align_up(valley.height, strip_.alignment[b]) + strip_.size[b] > most) continue;
      const double area = static_cast<double>(strip_.size[b]) * (strip_.last[b] - strip_.first[b]);
      if (area <= most_area) continue;
      most_area = area;
      best = boxes[k];
    }
    return best;
  };
  if (section < 0) return largest(-1, kQuick);
  const std::int32_t best = largest(section, SpanTree::kFew);
  return best >= 0 ? best : largest(-1, SpanTree::kFew);
}

// Divides the boxes among the two trees.
void Skyline::split_fillers(const std::vector<std::int32_t>& ranks, Bytes filler) {
  filler_ = filler;
  left_ = strip_.boxes();
  filler_boxes_.clear();
  if (filler <= 0) {
    tree_.reset(ranks);
    return;
  }
  if (!fillers_) fillers_ = std::make_unique<SpanTree>(tree_);
  std::vector<std::int32_t> others = ranks;
  std::vector<std::int32_t> fillers(ranks.size(), INT32_MAX);
  for (std::int32_t i = 0; i < strip_.boxes(); ++i) {
    if (!is_filler(i)) continue;
    filler_boxes_.push_back(i);
    std::swap(others[idx(i)], fillers[idx(i)]);
  }
  left_ -= static_cast<std::int32_t>(filler_boxes_.size());
  tree_.reset(others);
  fillers_->reset(fillers);
}

// Makes some of the fillers that are not placed yet boxes like the others.
void Skyline::shrink_fillers(const std::vector<std::int32_t>& ranks) {
  constexpr Bytes kLeast = 2;       // a filler of less is not worth a step of its own
  constexpr double kShrink = 0.25;  // the larger ones are stacked first, the smaller ones still fill between them
  filler_ = static_cast<Bytes>(kShrink * static_cast<double>(filler_));
  if (filler_ < kLeast) filler_ = 0;
  std::vector<std::int32_t> still;
  for (const std::int32_t i : filler_boxes_) {
    if (!fillers_->holds(i)) continue;
    if (is_filler(i)) {
      still.push_back(i);
      continue;
    }
    fillers_->erase(i);
    tree_.put_back(i, ranks[idx(i)]);
    ++left_;
  }
  filler_boxes_ = std::move(still);
}

// The valley splits into what is left of the box, the box, and what is right of it.
void Skyline::put(std::int32_t valley, std::int32_t box, Bytes offset) {
  const Segment s = segments_[idx(valley)];
  const std::int32_t first = strip_.first[idx(box)];
  const std::int32_t last = strip_.last[idx(box)];
  std::int32_t middle = valley;
  if (first > s.start) {
    segments_[idx(valley)].end = first;
    middle = add({first, s.end, s.height, valley, s.next});
    segments_[idx(valley)].next = middle;
    if (s.next >= 0) segments_[idx(s.next)].prev = middle;
  }
  if (last < s.end) {
    const std::int32_t next = segments_[idx(middle)].next;
    const std::int32_t right = add({last, s.end, s.height, middle, next});
    segments_[idx(middle)].next = right;
    segments_[idx(middle)].end = last;
    if (next >= 0) segments_[idx(next)].prev = right;
  }
  segments_[idx(middle)].height = offset + strip_.size[idx(box)];
  work_[idx(box)] = offset;
  if (is_filler(box)) {
    fillers_->erase(box);
  } else {
    tree_.erase(box);
    --left_;
  }
  waiting_.add(first, last, -strip_.size[idx(box)]);
}

bool Skyline::place(const std::vector<std::int32_t>& ranks, Bytes limit, const Rule& rule, const Control& control,
                    std::vector<Bytes>& offsets) {
  constexpr std::uint32_t kClockPeriod = 1024;  // placements between two looks at the clock
  constexpr double kRoomy = 0.96;               // of the target
  const auto roomy_below = static_cast<Bytes>(kRoomy * static_cast<double>(rule.target));
  split_fillers(ranks, rule.filler);
  waiting_.reset(totals_);
  segments_.clear();
  unused_.clear();
  work_.assign(idx(strip_.boxes()), 0);
  std::int32_t valley = add({0, strip_.sections, 0, -1, -1});
  for (std::uint32_t steps = 1; left_ > 0 || !filler_boxes_.empty(); ++steps) {
    if (steps % kClockPeriod == 0 && control.stopped()) return false;
    if (left_ == 0) {
      shrink_fillers(ranks);
      continue;
    }
    valley = descend(valley);
    const Segment s = segments_[idx(valley)];
    const SectionTree::Top fullest = waiting_.top(s.start, s.end);
    if (s.height + fullest.value >= limit) return false;
    std::int32_t box = -1;
    // With fillers, care is taken only where room may run out.
    const bool roomy = filler_ > 0 && s.height + fullest.value < roomy_below;
    if (roomy) {
      box = tree_.best_inside(s.start, s.end);
    } else {
      if (rule.target - s.height - fullest.value < rule.slack) box = choose(s, fullest.section, rule);
      if (box < 0) box = choose(s, -1, rule);
    }
    if (box < 0 && filler_ > 0) box = choose_filler(s, roomy ? -1 : fullest.section);
    if (box < 0) {
      lift(valley);
      continue;
    }
    const Bytes offset = align_up(s.height, strip_.alignment[idx(box)]);
    if (offset + strip_.size[idx(box)] >= limit) return false;
    put(valley, box, offset);
  }
  offsets = work_;
  return true;
}

}  // namespace cistern::planner
