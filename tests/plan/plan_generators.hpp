// Generators of planning problems for tests: random ones, and cuts of a rectangle whose best peak is known.
// Reproducible from the seed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "cistern/plan.hpp"

namespace cistern::test {

inline std::int64_t pick(std::mt19937_64& random, std::int64_t from, std::int64_t to) {  // inclusive
  return from + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(to - from + 1));
}

inline PlanBuffer buffer(std::int64_t lower, std::int64_t upper, std::int64_t size) {
  PlanBuffer b;
  b.lower = lower;
  b.upper = upper;
  b.size = size;
  return b;
}

struct Cut {
  std::int64_t left = 0, bottom = 0, right = 0, top = 0;
};

inline PlanProblem shuffled(const std::vector<Cut>& cuts, std::mt19937_64& random) {
  PlanProblem problem;
  for (const Cut& c : cuts) problem.buffers.push_back(buffer(c.left, c.right, c.top - c.bottom));
  std::shuffle(problem.buffers.begin(), problem.buffers.end(), random);
  return problem;
}

// Cuts a rectangle `width` x `height` edge to edge, again and again, into `count` pieces: the best peak is `height`.
inline PlanProblem guillotine(std::uint64_t seed, std::size_t count, std::int64_t width, std::int64_t height) {
  std::mt19937_64 random(seed);
  std::vector<Cut> cuts{{0, 0, width, height}};
  while (cuts.size() < count) {
    // Large pieces are likelier to be cut.
    std::size_t best = random() % cuts.size();
    for (int k = 0; k < 3; ++k) {
      const std::size_t other = random() % cuts.size();
      const auto area = [&](std::size_t i) { return (cuts[i].right - cuts[i].left) * (cuts[i].top - cuts[i].bottom); };
      if (area(other) > area(best)) best = other;
    }
    Cut& c = cuts[best];
    const bool vertical = random() % 2 == 0;
    if (vertical && c.right - c.left >= 2) {
      const std::int64_t at = pick(random, c.left + 1, c.right - 1);
      const Cut rest{at, c.bottom, c.right, c.top};
      c.right = at;
      cuts.push_back(rest);
    } else if (!vertical && c.top - c.bottom >= 2) {
      const std::int64_t at = pick(random, c.bottom + 1, c.top - 1);
      const Cut rest{c.left, at, c.right, c.top};
      c.top = at;
      cuts.push_back(rest);
    }
  }
  return shuffled(cuts, random);
}

// The same with cuts into five pieces that turn round a middle one, which no cut from edge to edge can make.
inline PlanProblem pinwheel(std::uint64_t seed, std::size_t count, std::int64_t width, std::int64_t height) {
  std::mt19937_64 random(seed);
  std::vector<Cut> cuts{{0, 0, width, height}};
  for (int tries = 0; cuts.size() + 4 <= count && tries < 100000; ++tries) {
    std::size_t best = random() % cuts.size();
    for (int k = 0; k < 3; ++k) {
      const std::size_t other = random() % cuts.size();
      const auto area = [&](std::size_t i) { return (cuts[i].right - cuts[i].left) * (cuts[i].top - cuts[i].bottom); };
      if (area(other) > area(best)) best = other;
    }
    const Cut c = cuts[best];
    if (c.right - c.left < 3 || c.top - c.bottom < 3) continue;
    const std::int64_t x1 = pick(random, c.left + 1, c.right - 2);
    const std::int64_t x2 = pick(random, x1 + 1, c.right - 1);
    const std::int64_t y1 = pick(random, c.bottom + 1, c.top - 2);
    const std::int64_t y2 = pick(random, y1 + 1, c.top - 1);
    cuts[best] = {c.left, c.bottom, x2, y1};
    cuts.push_back({x2, c.bottom, c.right, y2});
    cuts.push_back({x1, y2, c.right, c.top});
    cuts.push_back({c.left, y1, x1, c.top});
    cuts.push_back({x1, y1, x2, y2});
  }
  return shuffled(cuts, random);
}

}  // namespace cistern::test
