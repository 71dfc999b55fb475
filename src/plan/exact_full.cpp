// Exact search: inferences for sections whose boxes sum to the capacity. Nothing may be wasted in such a section: its
// open boxes fill all that is above its level. See exact.hpp, and docs/planner.md for why they are sound.
#include <algorithm>
#include <bit>

#include "plan/exact.hpp"
#include "plan/exact_inline.hpp"

namespace cistern::planner {
namespace {

constexpr Bytes kMostSummed = 2047;  // units of capacity up to which sums of sizes are listed

std::size_t idx(std::int32_t i) { return static_cast<std::size_t>(i); }

// Bit s of the result is set if it was, or if bit s - by was.
void shift_in(std::vector<std::uint64_t>& bits, Bytes by) {
  const auto words = static_cast<std::size_t>(by) / 64;
  const auto rest = static_cast<unsigned>(by % 64);
  for (std::size_t w = bits.size(); w-- > words;) {
    std::uint64_t in = bits[w - words] << rest;
    if (rest != 0 && w > words) in |= bits[w - words - 1] >> (64 - rest);
    bits[w] |= in;
  }
}

}  // namespace

// Where a few sections only are full, the other inferences do as well.
void ExactSearch::find_full() {
  full_.assign(idx(m_), 0);
  std::int32_t count = 0;
  for (std::int32_t t = 0; t < m_; ++t) {
    full_[idx(t)] = total_[idx(t)] == capacity_ ? 1 : 0;
    count += full_[idx(t)];
  }
  any_full_ = mostly_full(count, m_);
  if (!any_full_) return;
  from_left_.assign(idx(m_) + 1, 0);
  to_right_.assign(idx(m_) + 1, 0);
  least_end_.assign(idx(m_), 0);
  const std::size_t words = capacity_ <= kMostSummed ? static_cast<std::size_t>(capacity_) / 64 + 1 : 0;
  left_sums_.assign(words, 0);
  right_sums_.assign(words, 0);
}

bool ExactSearch::check_full(bool& raised) {
  const auto in_question = [&](std::int32_t t) { return full_[idx(t)] != 0 && members_open_[idx(t)] > 0; };
  // The runs of one level that were touched, and the one before them, for the edge between.
  std::int32_t from = std::max(0, touched_from_ - 1);
  while (from > 0 && total_[idx(from) - 1] == total_[idx(from)]) --from;
  const std::int32_t end = std::min(touched_to_ + 1, m_);
  touch_nothing();
  while (from < end) {
    if (!in_question(from)) {
      ++from;
      continue;
    }
    std::int32_t to = from + 1;
    while (to < m_ && in_question(to) && total_[idx(to)] == total_[idx(from)]) ++to;
    if (!check_level(from, to, raised)) return false;
    if (to < m_ && !left_sums_.empty() && in_question(to) && crossing_[idx(to) - 1] > 0 && !check_edge(to, raised)) {
      return false;
    }
    from = to;
  }
  return true;
}

// Full sections of one level: the boxes that lie at the level cover them without gaps and overlaps. A box that no such
// cover contains lies higher: in each section, above one that some cover contains.
bool ExactSearch::check_level(std::int32_t from, std::int32_t to, bool& raised) {
  const Bytes level = capacity_ - total_[idx(from)];
  candidates_.clear();
  std::fill(from_left_.begin() + from, from_left_.begin() + to + 1, char{0});
  std::fill(to_right_.begin() + from, to_right_.begin() + to + 1, char{0});
  from_left_[idx(from)] = 1;
  to_right_[idx(to)] = 1;
  const auto add = [&](std::int32_t box, std::int32_t at) {
    if (bound_[idx(box)] > level) return;
    const std::int32_t end = std::min(strip_.last[idx(box)], to);
    candidates_.push_back({box, at, end});
    if (from_left_[idx(at)] != 0) from_left_[idx(end)] = 1;
  };
  const std::int32_t* members = member_.data() + member_start_[idx(from)];
  for (std::int32_t k = 0; k < members_open_[idx(from)]; ++k) add(members[k], from);
  for (std::int32_t i = first_box_[idx(from) + 1]; i < first_box_[idx(to)]; ++i) {
    if (open(i)) add(i, strip_.first[idx(i)]);
  }
  if (from_left_[idx(to)] == 0) return false;
  std::fill(least_end_.begin() + from, least_end_.begin() + to, INT64_MAX);
  bool all = true;
  for (auto c = candidates_.rbegin(); c != candidates_.rend(); ++c) {
    if (to_right_[idx(c->to)] != 0) to_right_[idx(c->from)] = 1;
    if (to_right_[idx(c->to)] == 0 || from_left_[idx(c->from)] == 0) {
      all = false;
      continue;
    }
    const Bytes end = level + strip_.size[idx(c->box)];
    for (std::int32_t t = c->from; t < c->to; ++t) least_end_[idx(t)] = std::min(least_end_[idx(t)], end);
  }
  if (all) return true;
  for (const Candidate& c : candidates_) {
    if (to_right_[idx(c.to)] != 0 && from_left_[idx(c.from)] != 0) continue;
    const Bytes above = *std::max_element(least_end_.begin() + c.from, least_end_.begin() + c.to);
    if (above == INT64_MAX || !raise(c.box, above)) return false;
    raised = true;
  }
  return true;
}

// Two full neighbour sections: up to the lowest box that lives in both, boxes that end here fill the one and boxes that
// begin here the other. So its offset is a sum of sizes on both sides.
bool ExactSearch::check_edge(std::int32_t edge, bool& raised) {
  const Bytes left = capacity_ - total_[idx(edge) - 1];
  const Bytes right = capacity_ - total_[idx(edge)];
  std::fill(left_sums_.begin(), left_sums_.end(), Word{0});
  std::fill(right_sums_.begin(), right_sums_.end(), Word{0});
  left_sums_[static_cast<std::size_t>(left) / 64] = Word{1} << (left % 64);
  right_sums_[static_cast<std::size_t>(right) / 64] = Word{1} << (right % 64);
  for (std::int32_t k = last_start_[idx(edge)]; k < last_start_[idx(edge) + 1]; ++k) {
    const std::int32_t box = by_last_[idx(k)];
    if (open(box)) shift_in(left_sums_, strip_.size[idx(box)]);
  }
  for (std::int32_t i = first_box_[idx(edge)]; i < first_box_[idx(edge) + 1]; ++i) {
    if (open(i)) shift_in(right_sums_, strip_.size[idx(i)]);
  }
  Bytes lowest = -1;
  for (std::size_t w = 0; w < left_sums_.size() && lowest < 0; ++w) {
    const Word both = left_sums_[w] & right_sums_[w];
    if (both != 0) lowest = static_cast<Bytes>(w) * 64 + std::countr_zero(both);
  }
  if (lowest < 0) return false;
  if (lowest == std::max(left, right)) return true;
  const std::int32_t* members = member_.data() + member_start_[idx(edge)];
  for (std::int32_t k = 0; k < members_open_[idx(edge)]; ++k) {
    if (strip_.first[idx(members[k])] >= edge || bound_[idx(members[k])] >= lowest) continue;
    if (!raise(members[k], lowest)) return false;
    raised = true;
  }
  return true;
}

}  // namespace cistern::planner
