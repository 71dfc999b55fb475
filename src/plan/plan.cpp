// plan(): checks, splits, improves the part with the highest peak until it is good enough, verifies. See plan.hpp.
#include "cistern/plan.hpp"

#include <algorithm>
#include <cmath>
#include <deque>
#include <stdexcept>
#include <thread>

#include "cistern/error.hpp"
#include "plan/control.hpp"
#include "plan/portfolio.hpp"
#include "plan/strip.hpp"

namespace cistern {

namespace {

using planner::Bytes;
using planner::Control;
using planner::Portfolio;

std::string buffer_name(const PlanProblem& problem, std::size_t i) {
  return i < problem.ids.size() ? "buffer '" + problem.ids[i] + "'" : "buffer " + std::to_string(i);
}

unsigned thread_count(const PlanOptions& options) {
  constexpr unsigned kMostThreads = 256;
  const unsigned wanted = options.threads == 0 ? std::thread::hardware_concurrency() : options.threads;
  return std::clamp(wanted, 1u, kMostThreads);
}

void check_options(const PlanOptions& options) {
  if (options.capacity && *options.capacity < 0) throw invalid_argument("plan: the capacity is below zero");
  if (options.deadline && !(options.deadline->count() >= 0)) throw invalid_argument("plan: the deadline is below zero");
}

// The parts of a problem and where each stands.
class Planner {
 public:
  Planner(const PlanProblem& problem, const PlanOptions& options, Control& control)
      : problem_(problem), options_(options), control_(control), whole_(planner::decompose(problem)) {
    const unsigned threads = thread_count(options);
    for (const std::int32_t b : whole_.singles) {
      const PlanBuffer& buffer = problem.buffers[static_cast<std::size_t>(b)];
      single_peak_ = std::max(single_peak_, (buffer.offset.value_or(0) + buffer.size) / whole_.unit);
    }
    bound_ = single_peak_;
    for (planner::Strip& strip : whole_.parts) {
      parts_.emplace_back(std::move(strip), threads, options.seed);
      bound_ = std::max(bound_, parts_.back().bound());
    }
    whole_.parts.clear();
    if (options.capacity) capacity_ = *options.capacity / whole_.unit;
  }

  // pre: `setup` seconds were spent so far. The answer is checked before it is returned, and a plan that takes too long
  // is given up for one that takes little: both cost about as much as the setup, and end by the deadline, too.
  PlanResult run(double setup) {
    constexpr double kCheck = 1;
    constexpr double kQuickPlan = 1.5;
    control_.keep((kCheck + kQuickPlan) * setup);
    for (Portfolio& part : parts_) part.begin(control_);
    report();
    control_.keep(kCheck * setup);
    while (!finished() && !control_.exhausted()) {
      Portfolio& part = highest();
      const Bytes before = part.peak();
      part.improve(goal(), options_.capacity.has_value(), control_);
      bound_ = std::max(bound_, part.bound());
      if (part.peak() != before || options_.progress) report();
    }
    return result();
  }

 private:
  Bytes goal() const { return options_.capacity ? capacity_ : bound_; }

  Portfolio& highest() {
    return *std::max_element(parts_.begin(), parts_.end(),
                             [](const Portfolio& x, const Portfolio& y) { return x.peak() < y.peak(); });
  }

  Bytes peak() const {
    Bytes peak = single_peak_;
    for (const Portfolio& part : parts_) peak = std::max(peak, part.peak());
    return peak;
  }

  bool finished() const {
    const Bytes now = peak();
    if (options_.capacity && (now <= capacity_ || bound_ > capacity_)) return true;
    return now <= bound_;
  }

  void report() { control_.report(peak() * whole_.unit, bound_ * whole_.unit); }

  PlanResult result() const {
    PlanResult result;
    result.offsets.assign(problem_.buffers.size(), 0);
    for (const std::int32_t b : whole_.singles) {
      const auto i = static_cast<std::size_t>(b);
      result.offsets[i] = problem_.buffers[i].offset.value_or(0);
    }
    for (const Portfolio& part : parts_) {
      for (std::size_t b = 0; b < part.offsets().size(); ++b) {
        result.offsets[static_cast<std::size_t>(part.strip().source[b])] = part.offsets()[b] * whole_.unit;
      }
    }
    const Bytes top = peak();
    result.peak = top * whole_.unit;
    result.lower_bound = bound_ * whole_.unit;
    if (top <= bound_) {
      result.status = options_.capacity && top > capacity_ ? PlanStatus::infeasible : PlanStatus::optimal;
    } else if (!options_.capacity || top <= capacity_) {
      result.status = PlanStatus::feasible;
    } else {
      result.status = bound_ > capacity_ ? PlanStatus::infeasible : PlanStatus::timeout;
    }
    result.seconds = control_.seconds();
    result.nodes = control_.nodes();
    return result;
  }

  const PlanProblem& problem_;
  const PlanOptions& options_;
  Control& control_;
  planner::Decomposition whole_;
  std::deque<Portfolio> parts_;
  Bytes single_peak_ = 0;
  Bytes bound_ = 0;
  Bytes capacity_ = 0;
};

void throw_fault(const PlanProblem& problem, const PlanFault& fault) {
  throw invalid_argument("plan: " + buffer_name(problem, fault.buffer) + ": " + fault.text);
}

}  // namespace

const char* to_string(PlanStatus status) noexcept {
  switch (status) {
    case PlanStatus::optimal:
      return "optimal";
    case PlanStatus::feasible:
      return "feasible";
    case PlanStatus::infeasible:
      return "infeasible";
    case PlanStatus::timeout:
      return "timeout";
  }
  return "unknown";
}

PlanResult plan(const PlanProblem& problem, const PlanOptions& options) {
  check_options(options);
  Control control(options);
  if (const auto fault = check_problem(problem)) throw_fault(problem, *fault);
  Planner planner(problem, options, control);
  PlanResult result = planner.run(control.seconds());
  // The planner's own answer is not trusted either.
  const bool within = result.status == PlanStatus::feasible || result.status == PlanStatus::optimal;
  if (const auto fault = validate_plan(problem, result.offsets, within ? options.capacity : std::nullopt)) {
    throw std::logic_error("plan: invalid result: " + buffer_name(problem, fault->buffer) + ": " + fault->text);
  }
  result.seconds = control.seconds();
  return result;
}

std::int64_t plan_lower_bound(const PlanProblem& problem) {
  if (const auto fault = check_problem(problem)) throw_fault(problem, *fault);
  const planner::Decomposition whole = planner::decompose(problem);
  Bytes bound = 0;
  for (const planner::Strip& strip : whole.parts) bound = std::max(bound, planner::lower_bound(strip) * whole.unit);
  for (const std::int32_t b : whole.singles) {
    const PlanBuffer& buffer = problem.buffers[static_cast<std::size_t>(b)];
    bound = std::max(bound, buffer.offset.value_or(0) + buffer.size);
  }
  return bound;
}

}  // namespace cistern
