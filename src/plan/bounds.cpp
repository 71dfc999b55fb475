// Lower bounds that need no search. See strip.hpp and docs/planner.md.
#include <algorithm>
#include <functional>

#include "plan/strip.hpp"

namespace cistern::planner {
namespace {

std::size_t idx(std::int32_t i) { return static_cast<std::size_t>(i); }

constexpr std::size_t kMostAlignments = 16;  // distinct alignments that get a bound of their own, the largest first

// Of the boxes whose alignment is a multiple of `alignment`, each takes its size rounded up, but for the topmost, which
// may save up to the largest rounding.
Bytes aligned_bound(const Strip& strip, Bytes alignment) {
  std::vector<std::pair<std::int32_t, std::int32_t>> events;  // section, box; ends are ~box
  for (std::int32_t i = 0; i < strip.boxes(); ++i) {
    if (strip.alignment[idx(i)] % alignment != 0) continue;
    events.emplace_back(strip.first[idx(i)], i);
    events.emplace_back(strip.last[idx(i)], ~i);
  }
  std::sort(events.begin(), events.end());            // ~i < 0: ends come first
  std::vector<std::pair<Bytes, std::int32_t>> saved;  // a heap of what the topmost may save; entries die with their box
  Bytes sum = 0;
  Bytes bound = 0;
  for (std::size_t k = 0; k < events.size(); ++k) {
    const auto [section, code] = events[k];
    const std::int32_t i = code < 0 ? ~code : code;
    const Bytes rounded = align_up(strip.size[idx(i)], alignment);
    if (code < 0) {
      sum -= rounded;
      continue;
    }
    sum += rounded;
    saved.emplace_back(rounded - strip.size[idx(i)], i);
    std::push_heap(saved.begin(), saved.end());
    while (strip.last[idx(saved.front().second)] <= section) {
      std::pop_heap(saved.begin(), saved.end());
      saved.pop_back();
    }
    bound = std::max(bound, sum - saved.front().first);
  }
  return bound;
}

}  // namespace

Bytes lower_bound(const Strip& strip) {
  Bytes bound = 0;
  for (const Bytes total : section_totals(strip)) bound = std::max(bound, total);
  for (std::int32_t i = 0; i < strip.boxes(); ++i) {
    bound = std::max(bound, strip.size[idx(i)] + std::max<Bytes>(0, strip.fixed[idx(i)]));
  }
  if (strip.any_alignment && !strip.any_gap) {
    std::vector<Bytes> alignments = strip.alignment;
    std::sort(alignments.begin(), alignments.end(), std::greater<>());
    alignments.erase(std::unique(alignments.begin(), alignments.end()), alignments.end());
    alignments.resize(std::min(alignments.size(), kMostAlignments));
    for (const Bytes a : alignments) bound = std::max(bound, aligned_bound(strip, a));
  }
  return bound;
}

}  // namespace cistern::planner
