// Repairs windows of a plan. See repair.hpp.
#include "plan/repair.hpp"

#include <algorithm>

#include "plan/exact.hpp"

namespace cistern::planner {
namespace {

constexpr std::size_t kMostFree = 1500;   // boxes planned anew in one window
constexpr std::size_t kMostBoxes = 4096;  // boxes in one window

std::size_t idx(std::int32_t i) { return static_cast<std::size_t>(i); }

constexpr Branching kBranchings[] = {Branching::lowest_box, Branching::tightest_section, Branching::lowest_section};
constexpr int kTries = 4;  // searches of one window, each with another order

}  // namespace

bool Repair::repair(std::int32_t box, std::int32_t from, std::int32_t to, std::vector<Bytes>& offsets, Bytes target,
                    std::uint64_t& nodes, const Control& control) {
  std::vector<std::int32_t> boxes;
  std::vector<char> free;
  std::size_t freed = 0;
  const auto end = std::lower_bound(strip_.first.begin(), strip_.first.end(), to) - strip_.first.begin();
  for (std::int32_t i = 0; i < end; ++i) {
    const std::size_t b = idx(i);
    if (strip_.last[b] <= from) continue;
    const bool inside = strip_.first[b] >= from && strip_.last[b] <= to && strip_.fixed[b] == kNoBytes;
    if (!inside && strip_.end(i, offsets[b]) > target) return false;
    boxes.push_back(i);
    free.push_back(inside ? 1 : 0);
    freed += inside ? 1 : 0;
    if (freed > kMostFree || boxes.size() > kMostBoxes) return false;
  }
  if (!std::binary_search(boxes.begin(), boxes.end(), box)) return false;
  const Strip window = window_of(strip_, from, to, boxes, free, offsets);
  if (!ExactSearch::handles(window)) return false;
  ExactSearch exact(window);
  for (int t = 0; t < kTries && nodes > 0; ++t) {
    const std::uint64_t budget = std::min<std::uint64_t>(nodes, boxes.size() + boxes.size() / 4 + 64);
    const Branching branching = kBranchings[random_.below(std::size(kBranchings))];
    const Order order = kOrders[random_.below(std::size(kOrders))];
    const double blur = 0.2 * random_.real() * random_.real();
    const Verdict verdict =
        exact.run(target, branching, ranks_of(blurred(order_of(window, order), blur, random_)), budget, control);
    nodes -= std::min(nodes, exact.nodes());
    if (verdict == Verdict::never_fits) return false;
    if (verdict == Verdict::unknown) continue;
    for (std::size_t b = 0; b < window.size.size(); ++b) offsets[idx(window.source[b])] = exact.offsets()[b];
    return true;
  }
  return false;
}

bool Repair::run(std::vector<Bytes>& offsets, Bytes target, int effort, std::uint64_t& nodes, const Control& control) {
  const std::uint64_t budget = nodes;
  std::vector<std::int32_t> offenders;
  for (std::int32_t i = 0; i < strip_.boxes(); ++i) {
    if (strip_.end(i, offsets[idx(i)]) > target && strip_.fixed[idx(i)] == kNoBytes) offenders.push_back(i);
  }
  for (const std::int32_t box : offenders) {
    if (strip_.end(box, offsets[idx(box)]) <= target) continue;  // repaired with another
    // Wider and wider windows; they need not lie evenly round the box.
    std::int32_t reach = 8 << std::min(effort, 16);
    for (int step = 0; step < 6 && nodes > 0 && !control.stopped(); ++step, reach *= 2) {
      const auto side = static_cast<std::int32_t>(random_.below(static_cast<std::uint64_t>(reach) + 1));
      const std::int32_t from = std::max(0, strip_.first[idx(box)] - reach + side / 2);
      const std::int32_t to = std::min(strip_.sections, strip_.last[idx(box)] + reach - side / 2);
      if (repair(box, from, to, offsets, target, nodes, control)) break;
    }
    if (nodes == 0 || control.stopped()) break;
  }
  nodes = budget - nodes;
  return peak_of(strip_, offsets) <= target;
}

}  // namespace cistern::planner
