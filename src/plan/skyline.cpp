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

// Raises a valley to its lower neighbour and joins the two (or all three if both neighbours are level).
void Skyline::lift(std::int32_t segment) {
  Segment& s = segments_[idx(segment)];
  const Bytes left = s.prev < 0 ? INT64_MAX : segments_[idx(s.prev)].height;
  const Bytes right = s.next < 0 ? INT64_MAX : segments_[idx(s.next)].height;
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

// How high a side of the valley would end at least if `box` were placed and nothing fitted in what is left of that
// side. What is not above `target` counts as nothing.
Bytes Skyline::harm(const Segment& valley, std::int32_t box, Bytes target) const {
  const Bytes top = align_up(valley.height, strip_.alignment[idx(box)]) + strip_.size[idx(box)];
  Bytes worst = target;
  const auto side = [&](std::int32_t from, std::int32_t to, std::int32_t wall) {
    if (from >= to) return;
    const Bytes height = wall < 0 ? top : std::min(top, segments_[idx(wall)].height);
    const Bytes end = height + waiting_.top(from, to).value;
    if (end > worst && tree_.best_inside(from, to) < 0) worst = end;
  };
  side(valley.start, strip_.first[idx(box)], valley.prev);
  side(strip_.last[idx(box)], valley.end, valley.next);
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
  tree_.erase(box);
  waiting_.add(first, last, -strip_.size[idx(box)]);
}

bool Skyline::place(const std::vector<std::int32_t>& ranks, Bytes limit, const Rule& rule, const Control& control,
                    std::vector<Bytes>& offsets) {
  constexpr std::uint32_t kClockPeriod = 1024;  // placements between two looks at the clock
  tree_.reset(ranks);
  waiting_.reset(totals_);
  segments_.clear();
  unused_.clear();
  work_.assign(idx(strip_.boxes()), 0);
  std::int32_t valley = add({0, strip_.sections, 0, -1, -1});
  std::uint32_t steps = 0;
  for (std::int32_t left = strip_.boxes(); left > 0;) {
    if (++steps % kClockPeriod == 0 && control.stopped()) return false;
    valley = descend(valley);
    const Segment s = segments_[idx(valley)];
    const SectionTree::Top fullest = waiting_.top(s.start, s.end);
    if (s.height + fullest.value >= limit) return false;
    std::int32_t box = -1;
    if (rule.target - s.height - fullest.value < rule.slack) box = choose(s, fullest.section, rule);
    if (box < 0) box = choose(s, -1, rule);
    if (box < 0) {
      lift(valley);
      continue;
    }
    const Bytes offset = align_up(s.height, strip_.alignment[idx(box)]);
    if (offset + strip_.size[idx(box)] >= limit) return false;
    put(valley, box, offset);
    --left;
  }
  offsets = work_;
  return true;
}

}  // namespace cistern::planner
