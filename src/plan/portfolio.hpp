// Plans one part of a problem: several methods by turns, with budgets that double. Internal to src/plan.
// Used by the thread that called plan(); starts helpers inside improve() only.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "plan/control.hpp"
#include "plan/disjunctive.hpp"
#include "plan/exact.hpp"
#include "plan/first_fit.hpp"
#include "plan/orders.hpp"
#include "plan/skyline.hpp"
#include "plan/strip.hpp"

namespace cistern::planner {

class Portfolio {
 public:
  Portfolio(Strip strip, unsigned threads, std::uint64_t seed);

  // A first valid plan. Call it once, before anything else; cheap, and never stopped.
  void begin(Control& control);

  // One round of work for a plan of a peak of at most `goal`. With `decide` nothing between the peak and the goal is of
  // use.
  void improve(Bytes goal, bool decide, Control& control);

  // No round can get further: the peak is proven the least (or, in the last improve with `decide`, the goal out of
  // reach).
  bool settled() const { return bound_ >= peak_; }

  Bytes bound() const { return bound_; }  // no plan has a lower peak
  Bytes peak() const { return peak_; }
  const Strip& strip() const { return strip_; }
  const std::vector<Bytes>& offsets() const { return offsets_; }

 private:
  struct Worker {  // what one thread works with, built when first used
    std::unique_ptr<Skyline> skyline;
    std::unique_ptr<Skyline> mirrored;
    std::unique_ptr<FirstFit> first_fit;
    std::unique_ptr<ExactSearch> exact;
    std::unique_ptr<DisjunctiveSearch> disjunctive;
    std::vector<Bytes> offsets;
    std::uint64_t nodes = 0;
  };
  const std::vector<std::int32_t>& order(Order o);
  bool take(const std::vector<Bytes>& offsets);
  enum class Fixed : std::uint8_t { first, rest, all, none };  // Which of the fixed recipes; none: random ones.
  void skylines(Bytes goal, Fixed which, Control& control);
  void bumps(Bytes goal, std::uint64_t steps, Control& control);
  Verdict search(Bytes target, std::uint64_t nodes, std::size_t dives, Control& control);
  bool repair(Bytes target, std::uint64_t nodes, Control& control);
  Verdict search_gaps(Bytes target, std::uint64_t nodes, Control& control);

  Strip strip_;
  unsigned threads_;
  std::uint64_t seed_;
  std::vector<Worker> workers_;
  std::vector<std::vector<std::int32_t>> orders_;
  std::unique_ptr<Strip> mirror_;  // time runs backwards
  std::vector<Bytes> offsets_;
  Bytes peak_ = 0;
  Bytes bound_ = 0;
  int round_ = 0;
  std::uint64_t repairs_ = 0;  // so far; seeds of the random choices
  int searches_ = 0;
  std::vector<std::size_t> successes_;  // recipes of the latest searches that found a plan
  bool successes_full_ = false;         // whether they are those for strips that may waste nothing
};

}  // namespace cistern::planner
