// Search trees of the skyline heuristic. Internal to src/plan. One object a thread.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/strip.hpp"

namespace cistern::planner {

// Points (first, last) with a rank each: the least rank among the points inside a span. Points can be taken out.
class SpanTree {
 public:
  explicit SpanTree(const Strip& strip);
  // Puts every point back but those of rank INT32_MAX.
  void reset(const std::vector<std::int32_t>& ranks);
  // The box of least rank with from <= first and last <= to, -1 if there is none. With `section` >= 0 it also lives
  // then.
  std::int32_t best_inside(std::int32_t from, std::int32_t to, std::int32_t section = -1) const;
  // The same, up to `count` boxes in the order of their ranks, into `out`. Returns how many.
  std::size_t few_inside(std::int32_t from, std::int32_t to, std::int32_t section, std::size_t count,
                         std::int32_t* out) const;
  static constexpr std::size_t kFew = 16;  // the most that `count` may be
  void erase(std::int32_t box);
  void put_back(std::int32_t box, std::int32_t rank);
  bool holds(std::int32_t box) const {
    return points_[static_cast<std::size_t>(place_[static_cast<std::size_t>(box)])].rank != INT32_MAX;
  }

 private:
  struct Node {
    std::int32_t min_first = INT32_MAX;
    std::int32_t max_first = -1;
    std::int32_t min_last = INT32_MAX;
    std::int32_t max_last = -1;
    std::int32_t min_rank = INT32_MAX;
    friend bool operator==(const Node&, const Node&) = default;
  };
  struct Point {
    std::int32_t first = 0;
    std::int32_t last = 0;
    std::int32_t rank = INT32_MAX;  // INT32_MAX: taken out or empty
    std::int32_t box = -1;
  };
  void pull(std::size_t node);
  void pull_leaf(std::size_t leaf);
  void set_rank(std::int32_t box, std::int32_t rank);

  static constexpr std::size_t kLeaf = 8;  // boxes a leaf
  std::size_t leaves_ = 1;                 // a power of two; node i has children 2i and 2i + 1, leaves begin at leaves_
  std::vector<Point> points_;              // by leaf, kLeaf places a leaf
  std::vector<std::int32_t> place_;        // of each box in points_
  std::vector<Node> nodes_;
};

// A number for each section: add to a range, find the greatest in a range. O(log sections) each.
class SectionTree {
 public:
  explicit SectionTree(std::int32_t sections);
  void reset(const std::vector<Bytes>& values);
  void add(std::int32_t from, std::int32_t to, Bytes value);
  struct Top {
    Bytes value = INT64_MIN;
    std::int32_t section = -1;
  };
  // The greatest of [from, to); which of several equal ones is left open, but depends on the arguments only.
  Top top(std::int32_t from, std::int32_t to) const;

 private:
  struct Node {
    Bytes top = 0;    // greatest below, without what was added to this node's ancestors
    Bytes added = 0;  // to all below
  };
  std::size_t leaves_ = 1;
  std::vector<Node> nodes_;
};

}  // namespace cistern::planner
