// First fit and bump-the-offender. See first_fit.hpp.
#include "plan/first_fit.hpp"

#include <algorithm>

namespace cistern::planner {
namespace {

constexpr std::size_t kMostListed = std::size_t{1} << 23;  // overlapping pairs that are listed: 32 MiB

std::size_t idx(std::int32_t i) { return static_cast<std::size_t>(i); }

}  // namespace

FirstFit::FirstFit(const Strip& strip) : strip_(strip) {
  const std::int32_t n = strip.boxes();
  offsets_.assign(idx(n), 0);
  placed_.assign(idx(n), 0);
  // Boxes are sorted by first section: those that overlap box i and come after it are a run.
  const auto after = [&](std::int32_t i) {
    const auto it = std::lower_bound(strip.first.begin() + i, strip.first.end(), strip.last[idx(i)]);
    return static_cast<std::int32_t>(it - strip.first.begin());
  };
  std::size_t pairs = 0;
  for (std::int32_t i = 0; i < n; ++i) pairs += 2 * idx(after(i) - i - 1);
  listed_ = pairs <= kMostListed && !strip.any_gap;
  if (!listed_) {
    while (leaves_ < idx(n)) leaves_ *= 2;
    tree_.assign(2 * leaves_, 0);
    return;
  }
  list_start_.assign(idx(n) + 1, 0);
  for (std::int32_t i = 0; i < n; ++i) {
    for (std::int32_t j = i + 1; j < after(i); ++j) {
      ++list_start_[idx(i) + 1];
      ++list_start_[idx(j) + 1];
    }
  }
  for (std::size_t i = 0; i < idx(n); ++i) list_start_[i + 1] += list_start_[i];
  list_.resize(pairs);
  std::vector<std::uint32_t> fill(list_start_.begin(), list_start_.end() - 1);
  for (std::int32_t i = 0; i < n; ++i) {
    for (std::int32_t j = i + 1; j < after(i); ++j) {
      list_[fill[idx(i)]++] = j;
      list_[fill[idx(j)]++] = i;
    }
  }
}

void FirstFit::set_placed(std::int32_t box, bool placed) {
  placed_[idx(box)] = placed ? 1 : 0;
  if (listed_) return;
  std::size_t node = leaves_ + idx(box);
  tree_[node] = placed ? strip_.last[idx(box)] : 0;
  for (node /= 2; node >= 1; node /= 2) tree_[node] = std::max(tree_[2 * node], tree_[2 * node + 1]);
}

void FirstFit::reset() {
  std::fill(placed_.begin(), placed_.end(), char{0});
  std::fill(tree_.begin(), tree_.end(), 0);
}

// Notes the offsets of `box` that `other`, which is placed, rules out.
void FirstFit::block(std::int32_t box, std::int32_t other) {
  const Bytes at = offsets_[idx(other)];
  if (!strip_.any_gap) {
    blocked_.push_back({at - strip_.size[idx(box)], at + strip_.size[idx(other)]});
    return;
  }
  for (std::uint32_t p = strip_.piece_start[idx(box)]; p < strip_.piece_start[idx(box) + 1]; ++p) {
    const Piece& mine = strip_.pieces[p];
    for (std::uint32_t q = strip_.piece_start[idx(other)]; q < strip_.piece_start[idx(other) + 1]; ++q) {
      const Piece& its = strip_.pieces[q];
      if (mine.first >= its.last || its.first >= mine.last) continue;
      blocked_.push_back({at + its.lower - mine.upper, at + its.upper - mine.lower});
    }
  }
}

Bytes FirstFit::lowest_free(std::int32_t box) {
  blocked_.clear();
  if (listed_) {
    for (std::uint32_t k = list_start_[idx(box)]; k < list_start_[idx(box) + 1]; ++k) {
      if (placed_[idx(list_[k])] != 0) block(box, list_[k]);
    }
  } else {
    // Placed boxes that begin before this one ends and end after it begins.
    const std::int32_t begins = strip_.first[idx(box)];
    const auto limit =
        std::lower_bound(strip_.first.begin(), strip_.first.end(), strip_.last[idx(box)]) - strip_.first.begin();
    stack_.assign(1, 1);
    while (!stack_.empty()) {
      const std::size_t node = stack_.back();
      stack_.pop_back();
      if (tree_[node] <= begins) continue;
      if (node >= leaves_) {
        const auto other = static_cast<std::int32_t>(node - leaves_);
        if (other < limit) block(box, other);
        continue;
      }
      // First leaf under the right child: skip it if it lies beyond the limit.
      std::size_t leaf = 2 * node + 1;
      while (leaf < leaves_) leaf *= 2;
      if (static_cast<std::ptrdiff_t>(leaf - leaves_) < limit) stack_.push_back(2 * node + 1);
      stack_.push_back(2 * node);
    }
  }
  std::sort(blocked_.begin(), blocked_.end(), [](const Blocked& x, const Blocked& y) { return x.above < y.above; });
  Bytes offset = 0;
  for (const Blocked& b : blocked_) {
    if (b.above >= offset) break;
    if (b.below > offset) offset = align_up(b.below, strip_.alignment[idx(box)]);
  }
  return offset;
}

Bytes FirstFit::decode(const std::vector<std::int32_t>& order, const Control& control) {
  constexpr std::size_t kClockPeriod = 64;  // placements between two looks at the clock
  reset();
  Bytes peak = 0;
  if (strip_.any_fixed) {
    for (std::int32_t i = 0; i < strip_.boxes(); ++i) {
      if (strip_.fixed[idx(i)] == kNoBytes) continue;
      offsets_[idx(i)] = strip_.fixed[idx(i)];
      set_placed(i, true);
      peak = std::max(peak, strip_.end(i, offsets_[idx(i)]));
    }
  }
  bool stopped = false;
  for (std::size_t k = 0; k < order.size(); ++k) {
    const std::int32_t box = order[k];
    if (strip_.fixed[idx(box)] != kNoBytes) continue;
    if (!stopped && k % kClockPeriod == 0) stopped = control.stopped();
    offsets_[idx(box)] = stopped ? align_up(peak, strip_.alignment[idx(box)]) : lowest_free(box);
    if (!stopped) set_placed(box, true);
    peak = std::max(peak, strip_.end(box, offsets_[idx(box)]));
  }
  return peak;
}

Bytes FirstFit::bump(std::vector<std::int32_t> order, Bytes target, std::uint64_t& steps, Random& random,
                     const Control& control, std::vector<Bytes>& best) {
  const std::uint64_t budget = steps;
  steps = 0;
  Bytes best_peak = INT64_MAX;
  while (!order.empty()) {
    const Bytes peak = decode(order, control);
    steps += order.size();
    if (peak < best_peak) {
      best_peak = peak;
      best = offsets_;
    }
    if (best_peak <= target || steps >= budget || control.stopped()) break;
    // The offender: the first in the order that ends above the target.
    std::size_t at = 0;
    while (at < order.size() && strip_.end(order[at], offsets_[idx(order[at])]) <= target) ++at;
    while (at < order.size() && strip_.fixed[idx(order[at])] != kNoBytes) ++at;
    if (at >= order.size()) break;  // only fixed boxes end that high
    const std::size_t to = at == 0 ? 0 : random.below(at);
    std::rotate(order.begin() + static_cast<std::ptrdiff_t>(to), order.begin() + static_cast<std::ptrdiff_t>(at),
                order.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    if (at == 0) break;  // alone it is too high already: nothing helps
  }
  return best_peak;
}

}  // namespace cistern::planner
