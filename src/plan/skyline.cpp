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

bool Skyline::place(const std::vector<std::int32_t>& ranks, Bytes limit, Bytes target, Bytes slack,
                    const Control& control, std::vector<Bytes>& offsets) {
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
    if (target - s.height - fullest.value < slack) box = tree_.best_inside(s.start, s.end, fullest.section);
    if (box < 0) box = tree_.best_inside(s.start, s.end);
    if (box < 0) {
      lift(valley);
      continue;
    }
    const std::size_t b = idx(box);
    const Bytes offset = align_up(s.height, strip_.alignment[b]);
    if (offset + strip_.size[b] >= limit) return false;
    work_[b] = offset;
    tree_.erase(box);
    waiting_.add(strip_.first[b], strip_.last[b], -strip_.size[b]);
    --left;
    // The valley splits into what is left of the box, the box, and what is right of it.
    const std::int32_t first = strip_.first[b];
    const std::int32_t last = strip_.last[b];
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
    segments_[idx(middle)].height = offset + strip_.size[b];
  }
  offsets = work_;
  return true;
}

}  // namespace cistern::planner
