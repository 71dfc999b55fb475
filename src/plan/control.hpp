// When to stop, and whom to tell. One Control a call of plan(); shared by its threads. Internal to src/plan.
// Locking: none. stopped() and cancel() are for any thread; everything else for the thread that called plan().
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "cistern/plan.hpp"

namespace cistern::planner {

class Control {
 public:
  explicit Control(const PlanOptions& options);

  // True once the deadline has passed or the caller asked to stop. Reads the clock: call it every few microseconds at
  // most.
  bool stopped() const noexcept;

  // Seconds before the deadline at which to stop, for work that follows in any case. Replaces what was kept before.
  void keep(double seconds) noexcept;

  // Work left in the node budget.
  std::uint64_t left() const noexcept { return nodes_ >= budget_ ? 0 : budget_ - nodes_; }
  bool exhausted() const noexcept { return left() == 0 || stopped(); }
  void charge(std::uint64_t nodes) noexcept { nodes_ += nodes; }
  std::uint64_t nodes() const noexcept { return nodes_; }
  double seconds() const noexcept;

  // Tells the caller, who may stop the search. Bytes, not units.
  void report(std::int64_t peak, std::int64_t lower_bound);

 private:
  using Clock = std::chrono::steady_clock;
  const PlanOptions& options_;
  Clock::time_point start_;
  Clock::time_point deadline_;
  Clock::time_point stop_at_;  // deadline_ less what is kept
  bool has_deadline_ = true;
  std::uint64_t budget_;
  std::uint64_t nodes_ = 0;
  mutable std::atomic<bool> stopped_{false};
};

}  // namespace cistern::planner
