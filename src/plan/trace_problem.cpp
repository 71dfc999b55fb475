// Turns the events of an allocation trace into a planning problem. No state, no locking; any code may call it.
#include <unordered_map>

#include "cistern/error.hpp"
#include "cistern/plan.hpp"

namespace cistern {

PlanProblem problem_from_trace(const std::vector<PlanTraceEvent>& events) {
  constexpr std::size_t kNotPlanned = SIZE_MAX;  // live, but of size 0
  PlanProblem problem;
  std::unordered_map<std::uint64_t, std::size_t> live;
  const auto fail = [](std::size_t event, std::uint64_t id, const char* what) {
    throw invalid_argument("event " + std::to_string(event) + ": id " + std::to_string(id) + " " + what);
  };
  for (std::size_t k = 0; k < events.size(); ++k) {
    const PlanTraceEvent& e = events[k];
    if (!e.allocate) {
      const auto it = live.find(e.id);
      if (it == live.end()) fail(k, e.id, "is freed but not live");
      if (it->second != kNotPlanned) problem.buffers[it->second].upper = static_cast<std::int64_t>(k);
      live.erase(it);
      continue;
    }
    if (e.size < 0) fail(k, e.id, "has a negative size");
    if (!live.emplace(e.id, e.size == 0 ? kNotPlanned : problem.buffers.size()).second) {
      fail(k, e.id, "is allocated while it is live");
    }
    if (e.size == 0) continue;
    PlanBuffer b;
    b.lower = static_cast<std::int64_t>(k);
    b.upper = static_cast<std::int64_t>(events.size());
    b.size = e.size;
    problem.buffers.push_back(std::move(b));
  }
  return problem;
}

}  // namespace cistern
