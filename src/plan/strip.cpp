// Compression of a problem: units, sections, parts. See strip.hpp.
#include "plan/strip.hpp"

#include <algorithm>
#include <numeric>

namespace cistern::planner {
namespace {

std::size_t idx(std::int32_t i) { return static_cast<std::size_t>(i); }

// Every offset of a plan that is pushed down as far as it goes is a multiple of the result. Alignments that divide it
// have no effect; the others join the common divisor unless they are multiples of it.
Bytes common_unit(const PlanProblem& problem) {
  Bytes unit = 0;
  for (const PlanBuffer& b : problem.buffers) {
    unit = std::gcd(unit, b.size);
    if (b.offset) unit = std::gcd(unit, *b.offset);
    for (const PlanGap& g : b.gaps) unit = std::gcd(std::gcd(unit, g.window_lower), g.window_upper);
  }
  if (unit == 0) return 1;
  for (bool again = true; again;) {
    again = false;
    for (const PlanBuffer& b : problem.buffers) {
      if (unit % b.alignment == 0 || b.alignment % unit == 0) continue;
      unit = std::gcd(unit, b.alignment);
      again = true;
    }
  }
  return unit;
}

// The life of a buffer, before its times are compressed.
struct Life {
  std::int64_t lower = 0;
  std::int64_t upper = 0;
  std::int32_t buffer = 0;
};

// Maps lives to sections. A section stands for a maximal set of boxes live at once: a new one begins at a begin that
// follows an end. Two boxes overlap in time if and only if they share such a section.
void cliques(const std::vector<Life>& lives, Strip& strip) {
  const std::size_t n = lives.size();
  std::vector<std::int64_t> uppers(n);
  for (std::size_t i = 0; i < n; ++i) uppers[i] = lives[i].upper;
  std::sort(uppers.begin(), uppers.end());
  std::vector<std::int64_t> instant;  // of each section, its last begin: all its boxes are live then
  std::size_t next_upper = 0;
  strip.first.resize(n);
  strip.last.resize(n);
  for (std::size_t i = 0; i < n; ++i) {
    const bool ended = next_upper < n && uppers[next_upper] <= lives[i].lower;
    while (next_upper < n && uppers[next_upper] <= lives[i].lower) ++next_upper;
    if (instant.empty() || ended) instant.push_back(0);
    strip.first[i] = static_cast<std::int32_t>(instant.size()) - 1;
    instant.back() = lives[i].lower;
  }
  strip.sections = static_cast<std::int32_t>(instant.size());
  for (std::size_t i = 0; i < n; ++i) {
    const auto it = std::lower_bound(instant.begin(), instant.end(), lives[i].upper);
    strip.last[i] = static_cast<std::int32_t>(it - instant.begin());
  }
}

// Maps lives to sections and orders the boxes by span: lives that differ may become spans that do not.
void compress(std::vector<Life>& lives, Strip& strip) {
  cliques(lives, strip);
  const std::vector<Life> old_lives = lives;
  const std::vector<std::int32_t> first = std::move(strip.first);
  const std::vector<std::int32_t> last = std::move(strip.last);
  std::vector<std::int32_t> order(lives.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t x, std::int32_t y) {
    return first[idx(x)] != first[idx(y)] ? first[idx(x)] < first[idx(y)] : last[idx(x)] < last[idx(y)];
  });
  strip.first.assign(lives.size(), 0);
  strip.last.assign(lives.size(), 0);
  for (std::size_t i = 0; i < order.size(); ++i) {
    strip.first[i] = first[idx(order[i])];
    strip.last[i] = last[idx(order[i])];
    lives[i] = old_lives[idx(order[i])];
  }
}

// With gaps, sections are the times between two neighbouring begins, ends and edges of gaps: sets of live boxes alone
// do not say which of their bytes meet.
void instants(const PlanProblem& problem, const std::vector<Life>& lives, Bytes unit, Strip& strip) {
  std::vector<std::int64_t> times;
  for (const Life& l : lives) {
    times.push_back(l.lower);
    times.push_back(l.upper);
    for (const PlanGap& g : problem.buffers[idx(l.buffer)].gaps) {
      times.push_back(g.lower);
      times.push_back(g.upper);
    }
  }
  std::sort(times.begin(), times.end());
  times.erase(std::unique(times.begin(), times.end()), times.end());
  const auto rank = [&](std::int64_t t) {
    return static_cast<std::int32_t>(std::lower_bound(times.begin(), times.end(), t) - times.begin());
  };
  strip.sections = static_cast<std::int32_t>(times.size()) - 1;
  strip.piece_start.push_back(0);
  std::vector<std::int32_t> cuts;
  std::vector<std::pair<Bytes, Bytes>> holes;
  for (const Life& l : lives) {
    const PlanBuffer& b = problem.buffers[idx(l.buffer)];
    strip.first.push_back(rank(l.lower));
    strip.last.push_back(rank(l.upper));
    cuts.assign({rank(l.lower), rank(l.upper)});
    for (const PlanGap& g : b.gaps) {
      cuts.push_back(rank(g.lower));
      cuts.push_back(rank(g.upper));
    }
    std::sort(cuts.begin(), cuts.end());
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    for (std::size_t k = 0; k + 1 < cuts.size(); ++k) {
      const std::int64_t at = times[idx(cuts[k])];
      holes.clear();
      for (const PlanGap& g : b.gaps) {
        if (g.lower <= at && at < g.upper) holes.emplace_back(g.window_lower / unit, g.window_upper / unit);
      }
      std::sort(holes.begin(), holes.end());
      Bytes from = 0;
      for (const auto& [lower, upper] : holes) {
        if (lower > from) strip.pieces.push_back({cuts[k], cuts[k + 1], from, lower});
        from = std::max(from, upper);
      }
      if (from < b.size / unit) strip.pieces.push_back({cuts[k], cuts[k + 1], from, b.size / unit});
    }
    strip.piece_start.push_back(static_cast<std::uint32_t>(strip.pieces.size()));
  }
  strip.any_gap = true;
}

void fill(Strip& strip, std::size_t n) {
  strip.size.reserve(n);
  strip.alignment.reserve(n);
  strip.fixed.reserve(n);
  strip.hint.reserve(n);
  strip.width.reserve(n);
  strip.source.reserve(n);
}

// All of a box but its span, whether it is fixed, and its source.
void copy_box(const Strip& from, std::size_t box, Strip& to) {
  to.size.push_back(from.size[box]);
  to.alignment.push_back(from.alignment[box]);
  to.fixed.push_back(from.fixed[box]);
  to.hint.push_back(from.hint[box]);
  to.width.push_back(from.width[box]);
  to.any_alignment = to.any_alignment || from.alignment[box] > 1;
  to.any_hint = to.any_hint || from.hint[box] != kNoBytes;
}

Strip build(const PlanProblem& problem, std::vector<Life>& lives, Bytes unit) {
  Strip strip;
  bool gaps = false;
  for (const Life& l : lives) gaps = gaps || !problem.buffers[idx(l.buffer)].gaps.empty();
  if (gaps) {
    instants(problem, lives, unit, strip);
  } else {
    compress(lives, strip);
  }
  fill(strip, lives.size());
  for (const Life& l : lives) {
    const PlanBuffer& b = problem.buffers[idx(l.buffer)];
    strip.size.push_back(b.size / unit);
    strip.alignment.push_back(std::max<Bytes>(1, b.alignment / unit));
    strip.fixed.push_back(b.offset ? *b.offset / unit : kNoBytes);
    strip.hint.push_back(b.hint ? *b.hint / unit : kNoBytes);
    strip.width.push_back(b.upper - b.lower);
    strip.source.push_back(l.buffer);
    strip.any_alignment = strip.any_alignment || strip.alignment.back() > 1;
    strip.any_fixed = strip.any_fixed || b.offset;
    strip.any_hint = strip.any_hint || b.hint;
  }
  return strip;
}

}  // namespace

Decomposition decompose(const PlanProblem& problem) {
  Decomposition result;
  result.unit = common_unit(problem);
  std::vector<Life> lives;
  lives.reserve(problem.buffers.size());
  for (std::size_t i = 0; i < problem.buffers.size(); ++i) {
    lives.push_back({problem.buffers[i].lower, problem.buffers[i].upper, static_cast<std::int32_t>(i)});
  }
  std::sort(lives.begin(), lives.end(), [](const Life& x, const Life& y) {
    if (x.lower != y.lower) return x.lower < y.lower;
    return x.upper != y.upper ? x.upper < y.upper : x.buffer < y.buffer;
  });
  std::vector<Life> part;
  std::int64_t until = 0;
  const auto finish = [&] {
    if (part.size() == 1) {
      result.singles.push_back(part[0].buffer);
    } else {
      result.parts.push_back(build(problem, part, result.unit));
    }
    part.clear();
  };
  for (const Life& l : lives) {
    if (!part.empty() && l.lower >= until) finish();
    until = part.empty() ? l.upper : std::max(until, l.upper);
    part.push_back(l);
  }
  if (!part.empty()) finish();
  return result;
}

Strip window_of(const Strip& strip, std::int32_t from, std::int32_t to, const std::vector<std::int32_t>& boxes,
                const std::vector<char>& free, const std::vector<Bytes>& offsets) {
  std::vector<Life> lives;
  lives.reserve(boxes.size());
  for (std::size_t k = 0; k < boxes.size(); ++k) {
    const std::size_t b = idx(boxes[k]);
    lives.push_back({std::max(strip.first[b], from), std::min(strip.last[b], to), static_cast<std::int32_t>(k)});
  }
  std::stable_sort(lives.begin(), lives.end(), [](const Life& x, const Life& y) { return x.lower < y.lower; });
  Strip window;
  fill(window, boxes.size());
  compress(lives, window);
  for (const Life& l : lives) {
    const std::size_t b = idx(boxes[idx(l.buffer)]);
    copy_box(strip, b, window);
    if (free[idx(l.buffer)] == 0) window.fixed.back() = offsets[b];
    window.any_fixed = window.any_fixed || window.fixed.back() != kNoBytes;
    window.source.push_back(static_cast<std::int32_t>(b));
  }
  return window;
}

Strip mirrored(const Strip& strip) {
  std::vector<std::int32_t> order(strip.size.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](std::int32_t x, std::int32_t y) {
    if (strip.last[idx(x)] != strip.last[idx(y)]) return strip.last[idx(x)] > strip.last[idx(y)];
    return strip.first[idx(x)] != strip.first[idx(y)] ? strip.first[idx(x)] > strip.first[idx(y)] : x < y;
  });
  Strip mirror;
  fill(mirror, order.size());
  mirror.sections = strip.sections;
  for (const std::int32_t i : order) {
    mirror.first.push_back(strip.sections - strip.last[idx(i)]);
    mirror.last.push_back(strip.sections - strip.first[idx(i)]);
    copy_box(strip, idx(i), mirror);
    mirror.any_fixed = mirror.any_fixed || mirror.fixed.back() != kNoBytes;
    mirror.source.push_back(i);
  }
  return mirror;
}

std::vector<Bytes> section_totals(const Strip& strip) {
  std::vector<Bytes> delta(idx(strip.sections) + 1, 0);
  if (strip.any_gap) {
    for (const Piece& p : strip.pieces) {
      delta[idx(p.first)] += p.upper - p.lower;
      delta[idx(p.last)] -= p.upper - p.lower;
    }
  } else {
    for (std::int32_t i = 0; i < strip.boxes(); ++i) {
      delta[idx(strip.first[idx(i)])] += strip.size[idx(i)];
      delta[idx(strip.last[idx(i)])] -= strip.size[idx(i)];
    }
  }
  delta.pop_back();
  std::partial_sum(delta.begin(), delta.end(), delta.begin());
  return delta;
}

Bytes peak_of(const Strip& strip, const std::vector<Bytes>& offsets) {
  Bytes peak = 0;
  for (std::int32_t i = 0; i < strip.boxes(); ++i) peak = std::max(peak, strip.end(i, offsets[idx(i)]));
  return peak;
}

}  // namespace cistern::planner
