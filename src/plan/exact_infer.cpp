// Exact search: the inferences. See exact.hpp, and docs/planner.md for why they are sound.
#include <algorithm>
#include <bit>

#include "plan/exact.hpp"
#include "plan/exact_inline.hpp"

namespace cistern::planner {
namespace {

std::size_t idx(std::int32_t i) { return static_cast<std::size_t>(i); }

}  // namespace

// A section needs a look only if an open box of it, with this bound, is too high to be the lowest there.
void ExactSearch::mark_if_tight(std::int32_t section, Bytes bound) {
  if (bound > capacity_ - total_[idx(section)]) dirty_[idx(section) / 64] |= Word{1} << (section % 64);
}

// Raises the bound of an open box to at least `bound`, and those of its twins, which lie above it. False: no room.
bool ExactSearch::raise(std::int32_t box, Bytes bound) {
  for (;;) {
    const std::size_t b = idx(box);
    if (bound <= bound_[b]) return true;
    bound = align_up(bound, strip_.alignment[b]);
    trail_.push_back({box, bound_[b]});
    bound_[b] = bound;
    if (bound > ceiling_[b]) return false;
    touch(box);
    const Word bit = Word{1} << (box % 64);
    if (bound > floor_[b]) {
      hanging_[b / 64] |= bit;
    } else {
      hanging_[b / 64] &= ~bit;
    }
    for (std::int32_t t = strip_.first[b]; t < strip_.last[b]; ++t) {
      highest_bound_[idx(t)] = std::max(highest_bound_[idx(t)], bound);
      mark_if_tight(t, bound);
    }
    box = next_twin_[b];
    if (box < 0 || !open(box)) return true;
    bound += strip_.size[b];
  }
}

// Notes that a box of this end was placed under `box`.
void ExactSearch::lift_floor(std::int32_t box, Bytes floor) {
  const std::size_t b = idx(box);
  floor = align_up(floor, strip_.alignment[b]);
  trail_.push_back({~box, floor_[b]});
  floor_[b] = floor;
  if (bound_[b] <= floor) hanging_[b / 64] &= ~(Word{1} << (box % 64));
}

void ExactSearch::undo(std::uint32_t mark) {
  while (trail_.size() > mark) {
    const Undo& u = trail_.back();
    const std::int32_t box = u.box < 0 ? ~u.box : u.box;
    const std::size_t b = idx(box);
    (u.box < 0 ? floor_ : bound_)[b] = u.old;
    const Word bit = Word{1} << (box % 64);
    if (bound_[b] > floor_[b]) {
      hanging_[b / 64] |= bit;
    } else {
      hanging_[b / 64] &= ~bit;
    }
    trail_.pop_back();
  }
}

bool ExactSearch::propagate() {
  bool ok = true;
  for (bool again = true; again && ok;) {
    for (std::size_t w = 0; w < dirty_.size() && ok; ++w) {
      while (dirty_[w] != 0 && ok) {
        const int bit = std::countr_zero(dirty_[w]);
        dirty_[w] &= dirty_[w] - 1;
        ok = check_section(static_cast<std::int32_t>(w * 64) + bit);
      }
      // A check may have marked sections before this one.
    }
    again = ok && std::any_of(dirty_.begin(), dirty_.end(), [](Word w) { return w != 0; });
    if (again || !ok) continue;
    for (std::size_t w = 0; w < words_ && ok; ++w) {
      for (Word left = hanging_[w] & open_[w]; left != 0 && ok; left &= left - 1) {
        ok = check_support(static_cast<std::int32_t>(w * 64) + std::countr_zero(left), again);
      }
    }
    if (ok && !again && any_full_) ok = check_full(again);
  }
  if (!ok) std::fill(dirty_.begin(), dirty_.end(), 0);
  touch_nothing();
  return ok;
}

// What is open in a section must fit above the lowest of it. Boxes too high to be the lowest rise above one that can
// be.
bool ExactSearch::check_section(std::int32_t section) {
  const std::size_t t = idx(section);
  const std::int32_t count = members_open_[t];
  if (count == 0) return true;
  const Bytes highest = capacity_ - total_[t];  // of the lowest box
  const std::int32_t* members = member_.data() + member_start_[t];
  // Without branches: which boxes can be the lowest is a matter of chance.
  Bytes lowest_end = INT64_MAX;
  Bytes highest_bound = 0;
  std::int32_t able = 0;
  for (std::int32_t k = 0; k < count; ++k) {
    const std::size_t b = idx(members[k]);
    const Bytes bound = bound_[b];
    const bool can = bound <= highest;
    const Bytes end = can ? bound + strip_.size[b] : INT64_MAX;
    able += can ? 1 : 0;
    lowest_end = end < lowest_end ? end : lowest_end;
    highest_bound = bound > highest_bound ? bound : highest_bound;
  }
  highest_bound_[t] = highest_bound;
  if (able == 0) return false;
  if (able == count) return true;
  for (std::int32_t k = 0; k < count; ++k) {
    const Bytes bound = bound_[idx(members[k])];
    if (bound > highest && bound < lowest_end && !raise(members[k], lowest_end)) return false;
  }
  return true;
}

// A box that hangs in the air rests, in the end, on a box that is open now.
bool ExactSearch::check_support(std::int32_t box, bool& raised) {
  const std::size_t b = idx(box);
  if (strip_.fixed[b] != kNoBytes) return true;
  const std::int32_t known = support_[b];
  if (known >= 0 && open(known) && bound_[idx(known)] + strip_.size[idx(known)] <= bound_[b]) return true;
  Bytes lowest = INT64_MAX;
  std::int32_t which = -1;
  each_open_neighbour(box, [&](std::int32_t other) {
    const Bytes end = bound_[idx(other)] + strip_.size[idx(other)];
    if (end < lowest) {
      lowest = end;
      which = other;
    }
    return true;
  });
  if (which < 0) return false;
  support_[b] = which;
  if (lowest <= bound_[b]) return true;
  raised = true;
  return raise(box, lowest);
}

}  // namespace cistern::planner
