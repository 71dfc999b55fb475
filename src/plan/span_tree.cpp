// Search trees of the skyline heuristic. See span_tree.hpp.
#include "plan/span_tree.hpp"

#include <algorithm>
#include <numeric>

namespace cistern::planner {
namespace {

std::size_t idx(std::int32_t i) { return static_cast<std::size_t>(i); }

}  // namespace

SpanTree::SpanTree(const Strip& strip) {
  const std::size_t n = idx(strip.boxes());
  while (leaves_ * kLeaf < n) leaves_ *= 2;
  // Boxes are sorted so that each leaf is a run; the runs are then spread over leaves of kLeaf places.
  std::vector<std::int32_t> boxes(n);
  std::iota(boxes.begin(), boxes.end(), 0);
  points_.resize(leaves_ * kLeaf);
  place_.resize(n);
  struct Range {
    std::size_t node, from, to;
    bool by_last;
  };
  std::vector<Range> todo{{1, 0, n, false}};
  while (!todo.empty()) {
    const Range r = todo.back();
    todo.pop_back();
    const auto at = [&](std::size_t k) { return boxes.begin() + static_cast<std::ptrdiff_t>(k); };
    if (r.node >= leaves_) {
      for (std::size_t k = r.from; k < r.to; ++k) {
        const std::int32_t box = boxes[k];
        const std::size_t place = (r.node - leaves_) * kLeaf + (k - r.from);
        points_[place] = {strip.first[idx(box)], strip.last[idx(box)], INT32_MAX, box};
        place_[idx(box)] = static_cast<std::int32_t>(place);
      }
      continue;
    }
    const std::size_t middle = r.from + (r.to - r.from) / 2;
    std::nth_element(at(r.from), at(middle), at(r.to), [&](std::int32_t x, std::int32_t y) {
      const auto& key = r.by_last ? strip.last : strip.first;
      return key[idx(x)] != key[idx(y)] ? key[idx(x)] < key[idx(y)] : x < y;
    });
    todo.push_back({2 * r.node, r.from, middle, !r.by_last});
    todo.push_back({2 * r.node + 1, middle, r.to, !r.by_last});
  }
  nodes_.resize(2 * leaves_);
}

void SpanTree::reset(const std::vector<std::int32_t>& ranks) {
  for (Point& p : points_) {
    if (p.box >= 0) p.rank = ranks[idx(p.box)];
  }
  for (std::size_t leaf = 0; leaf < leaves_; ++leaf) pull_leaf(leaf);
  for (std::size_t node = leaves_; node-- > 1;) pull(node);
}

void SpanTree::pull_leaf(std::size_t leaf) {
  Node node;
  for (std::size_t p = leaf * kLeaf; p < (leaf + 1) * kLeaf; ++p) {
    const Point& point = points_[p];
    if (point.rank == INT32_MAX) continue;
    node.min_first = std::min(node.min_first, point.first);
    node.max_first = std::max(node.max_first, point.first);
    node.min_last = std::min(node.min_last, point.last);
    node.max_last = std::max(node.max_last, point.last);
    node.min_rank = std::min(node.min_rank, point.rank);
  }
  nodes_[leaves_ + leaf] = node;
}

void SpanTree::pull(std::size_t node) {
  const Node& a = nodes_[2 * node];
  const Node& b = nodes_[2 * node + 1];
  nodes_[node] = {std::min(a.min_first, b.min_first), std::max(a.max_first, b.max_first),
                  std::min(a.min_last, b.min_last), std::max(a.max_last, b.max_last), std::min(a.min_rank, b.min_rank)};
}

void SpanTree::set_rank(std::int32_t box, std::int32_t rank) {
  const std::size_t place = idx(place_[idx(box)]);
  points_[place].rank = rank;
  pull_leaf(place / kLeaf);
  for (std::size_t node = (leaves_ + place / kLeaf) / 2; node >= 1; node /= 2) {
    const Node before = nodes_[node];
    pull(node);
    if (before == nodes_[node]) break;
  }
}

void SpanTree::erase(std::int32_t box) { set_rank(box, INT32_MAX); }

void SpanTree::put_back(std::int32_t box, std::int32_t rank) { set_rank(box, rank); }

std::int32_t SpanTree::best_inside(std::int32_t from, std::int32_t to, std::int32_t section) const {
  const std::int32_t most_first = section < 0 ? INT32_MAX : section;
  const std::int32_t least_last = section < 0 ? 0 : section + 1;
  std::int32_t best_rank = INT32_MAX;
  std::int32_t best = -1;
  std::size_t stack[128];  // at most one sibling a level waits
  std::size_t depth = 0;
  stack[depth++] = 1;
  while (depth > 0) {
    const std::size_t node = stack[--depth];
    const Node& n = nodes_[node];
    if (n.max_first < from || n.min_last > to || n.min_rank >= best_rank) continue;
    if (n.min_first > most_first || n.max_last < least_last) continue;
    if (node >= leaves_) {
      for (std::size_t p = (node - leaves_) * kLeaf, end = p + kLeaf; p < end; ++p) {
        const Point& point = points_[p];
        if (point.rank >= best_rank || point.first < from || point.last > to) continue;
        if (point.first > most_first || point.last < least_last) continue;
        best_rank = point.rank;
        best = point.box;
      }
      continue;
    }
    const bool left_first = nodes_[2 * node].min_rank < nodes_[2 * node + 1].min_rank;
    stack[depth++] = 2 * node + (left_first ? 1 : 0);
    stack[depth++] = 2 * node + (left_first ? 0 : 1);
  }
  return best;
}

std::size_t SpanTree::few_inside(std::int32_t from, std::int32_t to, std::int32_t section, std::size_t count,
                                 std::int32_t* out) const {
  const std::int32_t most_first = section < 0 ? INT32_MAX : section;
  const std::int32_t least_last = section < 0 ? 0 : section + 1;
  std::int32_t ranks[kFew] = {};
  std::size_t found = 0;
  const auto add = [&](std::int32_t rank, std::int32_t box) {
    std::size_t at = found < count ? found++ : found - 1;
    for (; at > 0 && ranks[at - 1] > rank; --at) {
      ranks[at] = ranks[at - 1];
      out[at] = out[at - 1];
    }
    ranks[at] = rank;
    out[at] = box;
  };
  std::size_t stack[128];  // as in best_inside
  std::size_t depth = 0;
  stack[depth++] = 1;
  while (depth > 0) {
    const std::size_t node = stack[--depth];
    const Node& n = nodes_[node];
    const std::int32_t worst = found < count ? INT32_MAX : ranks[found - 1];
    if (n.max_first < from || n.min_last > to || n.min_rank >= worst) continue;
    if (n.min_first > most_first || n.max_last < least_last) continue;
    if (node < leaves_) {
      const bool left_first = nodes_[2 * node].min_rank < nodes_[2 * node + 1].min_rank;
      stack[depth++] = 2 * node + (left_first ? 1 : 0);
      stack[depth++] = 2 * node + (left_first ? 0 : 1);
      continue;
    }
    for (std::size_t p = (node - leaves_) * kLeaf, end = p + kLeaf; p < end; ++p) {
      const Point& point = points_[p];
      if (point.rank >= (found < count ? INT32_MAX : ranks[found - 1])) continue;
      if (point.first < from || point.last > to) continue;
      if (point.first > most_first || point.last < least_last) continue;
      add(point.rank, point.box);
    }
  }
  return found;
}

SectionTree::SectionTree(std::int32_t sections) {
  while (leaves_ < idx(sections)) leaves_ *= 2;
  nodes_.resize(2 * leaves_);
}

void SectionTree::reset(const std::vector<Bytes>& values) {
  for (std::size_t i = 0; i < leaves_; ++i) nodes_[leaves_ + i] = {i < values.size() ? values[i] : 0, 0};
  for (std::size_t node = leaves_; node-- > 1;)
    nodes_[node] = {std::max(nodes_[2 * node].top, nodes_[2 * node + 1].top), 0};
}

void SectionTree::add(std::int32_t from, std::int32_t to, Bytes value) {
  std::size_t left = leaves_ + idx(from);
  std::size_t right = leaves_ + idx(to);
  const std::size_t first = left;
  const std::size_t last = right - 1;
  const auto apply = [&](std::size_t node) {
    nodes_[node].top += value;
    nodes_[node].added += value;
  };
  for (; left < right; left /= 2, right /= 2) {
    if (left % 2 == 1) apply(left++);
    if (right % 2 == 1) apply(--right);
  }
  const auto pull = [&](std::size_t node) {
    nodes_[node].top = std::max(nodes_[2 * node].top, nodes_[2 * node + 1].top) + nodes_[node].added;
  };
  for (std::size_t a = first / 2, b = last / 2; a >= 1; a /= 2, b /= 2) {
    pull(a);
    if (a != b) pull(b);
  }
}

SectionTree::Top SectionTree::top(std::int32_t from, std::int32_t to) const {
  // Climbs from both ends. Every node of the range hangs under the path of its end, so what was added to the path above
  // it can be added on the way up.
  struct Side {
    std::size_t path;  // node of the path of this end
    std::size_t best;  // node with the greatest value so far
    Bytes value;
  };
  Side left{leaves_ + idx(from), leaves_ + idx(from), nodes_[leaves_ + idx(from)].top};
  Side right{leaves_ + idx(to) - 1, leaves_ + idx(to) - 1, nodes_[leaves_ + idx(to) - 1].top};
  const auto look = [&](Side& side, std::size_t node) {
    if (nodes_[node].top > side.value) side = {side.path, node, nodes_[node].top};
  };
  while (left.path / 2 != right.path / 2) {
    if (left.path % 2 == 0) look(left, left.path + 1);
    if (right.path % 2 == 1) look(right, right.path - 1);
    left.path /= 2;
    right.path /= 2;
    left.value += nodes_[left.path].added;
    right.value += nodes_[right.path].added;
  }
  Side best = left.value >= right.value ? left : right;
  for (std::size_t up = best.path / 2; up >= 1; up /= 2) best.value += nodes_[up].added;
  while (best.best < leaves_) {
    best.best = nodes_[2 * best.best].top >= nodes_[2 * best.best + 1].top ? 2 * best.best : 2 * best.best + 1;
  }
  return {best.value, static_cast<std::int32_t>(best.best - leaves_)};
}

}  // namespace cistern::planner
