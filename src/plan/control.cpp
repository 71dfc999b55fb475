// Deadline, budget, progress. See control.hpp.
#include "plan/control.hpp"

namespace cistern::planner {
namespace {

constexpr double kDefaultSeconds = 10;     // if neither a deadline nor a budget is given
constexpr double kLongestSeconds = 3.0e8;  // ten years: longer deadlines would overflow the clock

}  // namespace

Control::Control(const PlanOptions& options)
    : options_(options), start_(Clock::now()), budget_(options.node_budget == 0 ? UINT64_MAX : options.node_budget) {
  has_deadline_ = options.deadline || options.node_budget == 0;
  const double seconds = options.deadline ? options.deadline->count() : kDefaultSeconds;
  if (seconds >= kLongestSeconds) {
    has_deadline_ = false;
  } else {
    deadline_ = start_ + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    stop_at_ = deadline_;
  }
}

bool Control::stopped() const noexcept {
  if (stopped_.load(std::memory_order_relaxed)) return true;
  if (!has_deadline_ || Clock::now() < stop_at_) return false;
  stopped_.store(true, std::memory_order_relaxed);
  return true;
}

void Control::keep(double seconds) noexcept {
  stop_at_ = deadline_ - std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

double Control::seconds() const noexcept { return std::chrono::duration<double>(Clock::now() - start_).count(); }

void Control::report(std::int64_t peak, std::int64_t lower_bound) {
  if (!options_.progress) return;
  if (!options_.progress({seconds(), peak, lower_bound, nodes_})) stopped_.store(true, std::memory_order_relaxed);
}

}  // namespace cistern::planner
