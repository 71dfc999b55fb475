// Checks problems and plans. Shares no code with the planner, so that a fault in the planner's geometry cannot hide
// itself. No state, no locking; any code may call it.
#include <algorithm>
#include <map>
#include <string>
#include <unordered_map>

#include "cistern/plan.hpp"

namespace cistern {
namespace {

// Sums of sizes stay below this, so that no sum of offsets and sizes in the planner can overflow 63 bits.
constexpr std::int64_t kMaxTotal = std::int64_t{1} << 62;

std::string name_of(const PlanProblem& problem, std::size_t i) {
  return problem.ids.empty() ? "buffer " + std::to_string(i) : "buffer '" + problem.ids[i] + "'";
}

struct Window {
  std::int64_t lower = 0;
  std::int64_t upper = 0;
};

// Bytes in use from time `at` on, until the next time at which a gap begins or ends.
std::vector<Window> used_at(const PlanBuffer& b, std::int64_t at) {
  std::vector<Window> holes;
  for (const PlanGap& g : b.gaps) {
    if (g.lower <= at && at < g.upper && g.window_lower < g.window_upper) {
      holes.push_back({g.window_lower, g.window_upper});
    }
  }
  std::sort(holes.begin(), holes.end(), [](const Window& x, const Window& y) { return x.lower < y.lower; });
  std::vector<Window> used;
  std::int64_t from = 0;
  for (const Window& h : holes) {
    if (h.lower > from) used.push_back({from, h.lower});
    from = std::max(from, h.upper);
  }
  if (from < b.size) used.push_back({from, b.size});
  return used;
}

// The sweep over time. `begins` adds a range of bytes, otherwise it is taken away.
struct Event {
  std::int64_t time = 0;
  std::int64_t lower = 0;
  std::int64_t upper = 0;
  std::uint32_t buffer = 0;
  bool begins = false;
};

void add_events(const PlanBuffer& b, std::int64_t offset, std::uint32_t index, std::vector<Event>& events) {
  if (b.gaps.empty()) {
    events.push_back({b.lower, offset, offset + b.size, index, true});
    events.push_back({b.upper, offset, offset + b.size, index, false});
    return;
  }
  std::vector<std::int64_t> times{b.lower, b.upper};
  for (const PlanGap& g : b.gaps) {
    times.push_back(g.lower);
    times.push_back(g.upper);
  }
  std::sort(times.begin(), times.end());
  times.erase(std::unique(times.begin(), times.end()), times.end());
  for (std::size_t k = 0; k + 1 < times.size(); ++k) {
    for (const Window& w : used_at(b, times[k])) {
      events.push_back({times[k], offset + w.lower, offset + w.upper, index, true});
      events.push_back({times[k + 1], offset + w.lower, offset + w.upper, index, false});
    }
  }
}

std::optional<PlanFault> find_overlap(const PlanProblem& problem, std::vector<Event>& events) {
  // Ends come before begins of the same time: lives are half open.
  std::sort(events.begin(), events.end(), [](const Event& x, const Event& y) {
    if (x.time != y.time) return x.time < y.time;
    if (x.begins != y.begins) return y.begins;
    return x.buffer != y.buffer ? x.buffer < y.buffer : x.lower < y.lower;
  });
  std::map<std::int64_t, std::pair<std::int64_t, std::uint32_t>> live;  // start -> end, buffer
  for (const Event& e : events) {
    if (!e.begins) {
      live.erase(e.lower);
      continue;
    }
    auto next = live.lower_bound(e.lower);
    auto clash = live.end();
    if (next != live.end() && next->first < e.upper) clash = next;
    if (next != live.begin() && std::prev(next)->second.first > e.lower) clash = std::prev(next);
    if (clash != live.end()) {
      const std::uint32_t other = clash->second.second;
      return PlanFault{std::max(e.buffer, other), "shares bytes with " + name_of(problem, std::min(e.buffer, other)) +
                                                      " at time " + std::to_string(e.time)};
    }
    live.emplace_hint(next, e.lower, std::pair{e.upper, e.buffer});
  }
  return std::nullopt;
}

std::optional<std::string> check_buffer(const PlanBuffer& b) {
  const auto text = [](std::int64_t v) { return std::to_string(v); };
  if (b.lower < 0) return "lower " + text(b.lower) + " is below zero";
  if (b.upper <= b.lower) return "upper " + text(b.upper) + " must be above lower " + text(b.lower);
  if (b.size < 1) return "size " + text(b.size) + " must be at least 1";
  if (b.size > kMaxTotal) return "size " + text(b.size) + " is above 2^62";
  if (b.alignment < 1) return "alignment " + text(b.alignment) + " must be at least 1";
  if (b.alignment > kMaxTotal) return "alignment " + text(b.alignment) + " is above 2^62";
  if (b.offset) {
    if (*b.offset < 0) return "fixed offset " + text(*b.offset) + " is below zero";
    if (*b.offset > kMaxTotal) return "fixed offset " + text(*b.offset) + " is above 2^62";
    if (*b.offset % b.alignment != 0) {
      return "fixed offset " + text(*b.offset) + " is no multiple of the alignment " + text(b.alignment);
    }
  }
  if (b.hint && *b.hint < 0) return "hint " + text(*b.hint) + " is below zero";
  for (const PlanGap& g : b.gaps) {
    if (g.lower >= g.upper || g.lower < b.lower || g.upper > b.upper) {
      return "gap " + text(g.lower) + "-" + text(g.upper) + " must be a part of the life " + text(b.lower) + "-" +
             text(b.upper);
    }
    if (g.window_lower < 0 || g.window_upper < g.window_lower || g.window_upper > b.size) {
      return "window " + text(g.window_lower) + ":" + text(g.window_upper) + " of a gap must lie in the size " +
             text(b.size);
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<PlanFault> check_problem(const PlanProblem& problem) {
  const std::size_t n = problem.buffers.size();
  if (!problem.ids.empty() && problem.ids.size() != n) {
    return PlanFault{std::min(n, problem.ids.size()), "ids must be empty or one for each buffer"};
  }
  if (n >= std::size_t{1} << 31) return PlanFault{n - 1, "more than 2^31 buffers"};
  std::int64_t total = 0;
  std::int64_t fixed_end = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const PlanBuffer& b = problem.buffers[i];
    if (auto text = check_buffer(b)) return PlanFault{i, *text};
    if (b.offset) fixed_end = std::max(fixed_end, *b.offset + (b.size - 1));
    // size and alignment are at most 2^62 each, so their sum fits once the total does.
    if (b.size + (b.alignment - 1) > kMaxTotal - total) return PlanFault{i, "sizes and alignments sum up beyond 2^62"};
    total += b.size + (b.alignment - 1);
    if (fixed_end > kMaxTotal - total) return PlanFault{i, "sizes and fixed offsets sum up beyond 2^62"};
  }
  if (!problem.ids.empty()) {
    std::unordered_map<std::string_view, std::size_t> seen;
    seen.reserve(n);
    for (std::size_t i = 0; i < n; ++i) {
      const auto [it, fresh] = seen.emplace(problem.ids[i], i);
      if (!fresh) return PlanFault{i, "the id was given before, to buffer " + std::to_string(it->second)};
    }
  }
  std::vector<Event> events;
  for (std::size_t i = 0; i < n; ++i) {
    const PlanBuffer& b = problem.buffers[i];
    if (b.offset) add_events(b, *b.offset, static_cast<std::uint32_t>(i), events);
  }
  if (auto fault = find_overlap(problem, events)) {
    fault->text = "fixed offset " + std::to_string(*problem.buffers[fault->buffer].offset) + ": " + fault->text;
    return fault;
  }
  return std::nullopt;
}

std::optional<PlanFault> validate_plan(const PlanProblem& problem, const std::vector<std::int64_t>& offsets,
                                       std::optional<std::int64_t> capacity) {
  const std::size_t n = problem.buffers.size();
  if (offsets.size() != n) return PlanFault{std::min(n, offsets.size()), "offsets must be one for each buffer"};
  for (std::size_t i = 0; i < n; ++i) {
    const PlanBuffer& b = problem.buffers[i];
    const std::int64_t o = offsets[i];
    if (o < 0) return PlanFault{i, "offset " + std::to_string(o) + " is below zero"};
    if (o > INT64_MAX - b.size) return PlanFault{i, "offset " + std::to_string(o) + " overflows"};
    if (b.alignment > 1 && o % b.alignment != 0) {
      return PlanFault{i, "offset " + std::to_string(o) + " is no multiple of " + std::to_string(b.alignment)};
    }
    if (b.offset && *b.offset != o) {
      return PlanFault{i, "offset " + std::to_string(o) + " is not the fixed " + std::to_string(*b.offset)};
    }
    if (capacity && o + b.size > *capacity) {
      return PlanFault{i, "end " + std::to_string(o + b.size) + " is above the capacity " + std::to_string(*capacity)};
    }
  }
  std::vector<Event> events;
  events.reserve(2 * n);
  for (std::size_t i = 0; i < n; ++i) {
    add_events(problem.buffers[i], offsets[i], static_cast<std::uint32_t>(i), events);
  }
  return find_overlap(problem, events);
}

}  // namespace cistern
