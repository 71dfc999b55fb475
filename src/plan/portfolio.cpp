// Plans one part of a problem. See portfolio.hpp.
#include "plan/portfolio.hpp"

#include <algorithm>
#include <cmath>
#include <span>

#include "plan/online_fit.hpp"
#include "plan/repair.hpp"
#include "plan/team.hpp"

namespace cistern::planner {
namespace {

std::size_t idx(std::int32_t i) { return static_cast<std::size_t>(i); }

// How a skyline is built: see Skyline::Rule. `slack` is a share of the target.
struct SkylineRecipe {
  Order order;
  double slack;
  bool mirrored;
  std::size_t compared = 1;
  bool fillers = false;
};
constexpr double kAlways = 2;
// What wins most often comes first: large problems see only the first few in time.
constexpr SkylineRecipe kSkylines[] = {
    {Order::earliest_start, 0.02, false},
    {Order::width, kAlways, false},
    {Order::total_area_width, 0.05, false},
    {Order::latest_end, 0.05, true},
    {Order::width_squared_size, 0.001, false},
    {Order::earliest_start, 0.035, false},
    {Order::area, 0.05, false},
    {Order::earliest_start, kAlways, false},
    {Order::latest_end, 0.2, true},
    {Order::width, 0.05, false},
    {Order::latest_end, 0.05, false},
    {Order::size, 0.05, false},
    {Order::earliest_start, -1, false},
    {Order::total_area_width, -1, false},
    {Order::area, -1, false},
    {Order::width_squared_size, -1, false},
    {Order::latest_end, -1, false},
    {Order::size, -1, false},
    {Order::width, -1, false},
    {Order::earliest_start, 0.05, true},
    {Order::area, 0.05, true},
    {Order::total_area_width, 0.05, true},
    {Order::width_squared_size, kAlways, false},
};
// Strips of this many boxes leave time for a few skylines only; comparing boxes is worth it there.
constexpr std::int32_t kLarge = 20000;
constexpr std::int32_t kHuge = 300000;  // so many: these come first of all
constexpr std::size_t kCompared = 8;
constexpr SkylineRecipe kLargeSkylines[] = {
    {Order::width, kAlways, false, kCompared, true}, {Order::width, kAlways, false, kCompared},
    {Order::width, kAlways, true, kCompared, true},  {Order::width, 0.05, false, 1},
    {Order::width, 0.05, true, kCompared},           {Order::width, kAlways, true, kCompared},
};
constexpr std::ptrdiff_t kFirstSkylines = 5;  // so many before a search that decides a capacity
constexpr int kRestRound = 2;                 // and the others in this round
// Orders of the random recipes that later rounds try on large strips.
constexpr Order kRandomOrders[] = {Order::earliest_start, Order::latest_end, Order::total_area_width,
                                   Order::width_squared_size};

struct SearchRecipe {
  Branching branching;
  Order order;
};
// Each is fast on instances on which others are hopeless; in the order that solves the most soonest.
constexpr SearchRecipe kSearches[] = {
    {Branching::tightest_section, Order::earliest_start},
    {Branching::tightest_section, Order::width},
    {Branching::lowest_section, Order::total_area_width},
    {Branching::tightest_section, Order::width_squared_size},
    {Branching::lowest_box, Order::latest_end},
    {Branching::lowest_section, Order::width},
    {Branching::tightest_section, Order::size},
    {Branching::lowest_box, Order::width},
    {Branching::lowest_box, Order::width_squared_size},
    {Branching::lowest_box, Order::total_area_width},
    {Branching::tightest_section, Order::latest_end},
    {Branching::lowest_section, Order::earliest_start},
    {Branching::lowest_section, Order::width_squared_size},
    {Branching::lowest_section, Order::size},
    {Branching::tightest_section, Order::total_area_width},
    {Branching::lowest_box, Order::size},
    {Branching::lowest_section, Order::latest_end},
    {Branching::lowest_box, Order::earliest_start},
    {Branching::lowest_section, Order::area},
    {Branching::lowest_box, Order::area},
    {Branching::tightest_section, Order::area},
};

// In place of these where most sections may waste nothing: there, most others stall.
constexpr SearchRecipe kFullSearches[] = {
    {Branching::fewest_boxes, Order::width_squared_size},
    {Branching::fewest_boxes, Order::width},
    {Branching::fewest_boxes, Order::total_area_width},
    {Branching::fewest_boxes, Order::earliest_start},
    {Branching::fewest_boxes, Order::size},
    {Branching::fewest_boxes, Order::latest_end},
    {Branching::fewest_boxes, Order::area},
    {Branching::lowest_section, Order::total_area_width},
    {Branching::lowest_box, Order::size},
    {Branching::tightest_section, Order::latest_end},
};

constexpr std::int32_t kWorthKeeping = 1000;  // boxes: the skyline of the first plan is kept for the next
constexpr std::size_t kDives = 64;
constexpr int kBumpRound = 2;  // where the exact search applies, it gets two rounds before first fit is bumped
constexpr std::int32_t kMostBumped = 4000;  // boxes: first fit over and over costs too much beyond

// Boxes smaller than this are fillers: a share of the size of a box, averaged over all bytes and times in use.
Bytes filler_size(const Strip& strip) {
  constexpr double kShare = 0.35;
  double area = 0;
  double weighted = 0;
  for (std::size_t b = 0; b < strip.size.size(); ++b) {
    const auto size = static_cast<double>(strip.size[b]);
    const double own = size * (strip.last[b] - strip.first[b]);
    area += own;
    weighted += own * size;
  }
  return area > 0 ? static_cast<Bytes>(kShare * weighted / area) : 0;
}

Skyline::Rule rule_of(const SkylineRecipe& recipe, Bytes target, const Strip& strip) {
  const Bytes slack = recipe.slack == kAlways ? Skyline::kAlways
                      : recipe.slack < 0      ? -1
                                              : static_cast<Bytes>(recipe.slack * static_cast<double>(target));
  return {target, slack, recipe.compared, recipe.fillers ? filler_size(strip) : 0};
}

std::uint64_t seed_for(std::uint64_t seed, int turn, std::size_t task) {
  return Random(seed * 0x9E3779B97F4A7C15u + static_cast<std::uint64_t>(turn) * 1000003u + task).next();
}

bool waste_nothing(const Strip& strip, Bytes target) {
  const std::vector<Bytes> totals = section_totals(strip);
  return ExactSearch::mostly_full(std::count(totals.begin(), totals.end(), target), strip.sections);
}

}  // namespace

Portfolio::Portfolio(Strip strip, unsigned threads, std::uint64_t seed)
    : strip_(std::move(strip)), threads_(threads), seed_(seed), bound_(lower_bound(strip_)) {}

const std::vector<std::int32_t>& Portfolio::order(Order o) {
  orders_.resize(static_cast<std::size_t>(Order::hint) + 1);
  std::vector<std::int32_t>& cached = orders_[static_cast<std::size_t>(o)];
  if (cached.empty()) cached = order_of(strip_, o);
  return cached;
}

bool Portfolio::take(const std::vector<Bytes>& offsets) {
  const Bytes peak = peak_of(strip_, offsets);
  if (!offsets_.empty() && peak >= peak_) return false;
  offsets_ = offsets;
  peak_ = peak;
  return true;
}

void Portfolio::begin(Control& control) {
  const auto n = static_cast<std::uint64_t>(strip_.boxes());
  control.charge(n);
  if (strip_.any_fixed || strip_.any_gap) {
    FirstFit first_fit(strip_);
    first_fit.decode(order(strip_.any_hint ? Order::hint : Order::size), control);
    take(first_fit.offsets());
  } else {
    auto skyline = std::make_unique<Skyline>(strip_);
    std::vector<Bytes> offsets;
    const SkylineRecipe& recipe = strip_.boxes() >= kHuge ? kLargeSkylines[0] : kSkylines[0];
    const std::vector<std::int32_t> ranks = ranks_of(order(recipe.order));
    if (!skyline->place(ranks, INT64_MAX, rule_of(recipe, bound_, strip_), control, offsets)) {  // no time
      offsets = online_fit(strip_);
    }
    if (strip_.boxes() >= kWorthKeeping) {
      workers_.resize(threads_);
      workers_[0].skyline = std::move(skyline);
    } else {
      orders_ = {};
    }
    take(offsets);
    if (strip_.any_hint && !control.stopped()) {
      FirstFit first_fit(strip_);
      first_fit.decode(order(Order::hint), control);
      take(first_fit.offsets());
      control.charge(n);
    }
  }
}

void Portfolio::skylines(Bytes goal, Fixed which, Control& control) {
  const auto n = static_cast<std::uint64_t>(strip_.boxes());
  std::vector<SkylineRecipe> recipes;
  if (which != Fixed::none) {
    recipes.assign(std::begin(kSkylines) + (which == Fixed::rest ? kFirstSkylines : 0),
                   which == Fixed::first ? std::begin(kSkylines) + kFirstSkylines : std::end(kSkylines));
    if (which == Fixed::all && strip_.boxes() >= kLarge) {
      recipes.insert(recipes.begin() + (strip_.boxes() >= kHuge ? 0 : kFirstSkylines), std::begin(kLargeSkylines),
                     std::end(kLargeSkylines));
    }
    if (which != Fixed::rest) recipes.erase(recipes.begin());  // It made the first plan.
  } else {
    constexpr std::size_t kRandom = 8;
    Random random(seed_for(seed_, round_, std::size(kSkylines)));
    while (recipes.size() < kRandom) {
      const double slack = 0.003 * std::pow(100.0, random.real());  // 0.3 % to 30 %
      const Order order = kRandomOrders[random.below(std::size(kRandomOrders))];
      recipes.push_back({order, slack, random.below(2) == 1, random.below(2) == 1 ? kCompared : 1});
    }
  }
  const std::size_t tasks = std::min<std::size_t>(recipes.size(), static_cast<std::size_t>(control.left() / n) + 1);
  for (const SkylineRecipe& r : recipes) {
    if (control.stopped()) return;
    order(r.order);
  }
  if (control.stopped()) return;
  if (!mirror_) mirror_ = std::make_unique<Strip>(mirrored(strip_));
  struct Best {
    Bytes peak = INT64_MAX;
    std::size_t task = SIZE_MAX;
    std::vector<Bytes> offsets;
  };
  std::vector<Best> best(threads_);
  std::atomic<Bytes> lowest{peak_};
  const std::size_t winner = first_success(tasks, threads_, [&](std::size_t task, unsigned w, Cancel cancel) {
    if (control.stopped() || cancel()) return false;
    const SkylineRecipe& recipe = recipes[task];
    std::unique_ptr<Skyline>& skyline = recipe.mirrored ? workers_[w].mirrored : workers_[w].skyline;
    const Strip& strip = recipe.mirrored ? *mirror_ : strip_;
    if (!skyline) skyline = std::make_unique<Skyline>(strip);
    // What cannot be the best, nor reach the goal, may stop early; what is as good may not, or the answer would depend
    // on which thread is faster.
    const Bytes limit = std::max(lowest.load(), goal) + 1;
    const std::vector<std::int32_t> ranks = recipe.mirrored ? ranks_of(order_of(strip, recipe.order))
                                                            : ranks_of(orders_[static_cast<std::size_t>(recipe.order)]);
    std::vector<Bytes>& offsets = workers_[w].offsets;
    if (!skyline->place(ranks, limit, rule_of(recipe, goal, strip), control, offsets)) return false;
    if (recipe.mirrored) {
      std::vector<Bytes> turned(offsets.size());
      for (std::size_t b = 0; b < offsets.size(); ++b) turned[idx(strip.source[b])] = offsets[b];
      offsets = std::move(turned);
    }
    const Bytes peak = peak_of(strip_, offsets);
    Bytes seen = lowest.load();
    while (peak < seen && !lowest.compare_exchange_weak(seen, peak)) {
    }
    const Bytes key = peak <= goal ? 0 : peak;
    const Bytes held = best[w].peak <= goal ? 0 : best[w].peak;
    if (key < held || (key == held && task < best[w].task)) best[w] = {peak, task, offsets};
    return peak <= goal;
  });
  control.charge(n * std::min(winner + 1, tasks));
  std::sort(best.begin(), best.end(), [&](const Best& x, const Best& y) {
    const Bytes kx = x.peak <= goal ? 0 : x.peak;
    const Bytes ky = y.peak <= goal ? 0 : y.peak;
    return kx != ky ? kx < ky : x.task < y.task;
  });
  if (best[0].task != SIZE_MAX) take(best[0].offsets);
}

void Portfolio::bumps(Bytes goal, std::uint64_t steps, Control& control) {
  const std::size_t tasks = std::size(kOrders);
  if (control.left() < steps * tasks) steps = control.left() / tasks;
  if (steps == 0) return;
  for (const Order o : kOrders) order(o);
  struct Outcome {
    Bytes peak = INT64_MAX;
    std::uint64_t steps = 0;
    std::vector<Bytes> offsets;
  };
  std::vector<Outcome> outcomes(tasks);
  const std::size_t winner = first_success(tasks, threads_, [&](std::size_t task, unsigned w, Cancel cancel) {
    if (control.stopped() || cancel()) return false;
    if (!workers_[w].first_fit) workers_[w].first_fit = std::make_unique<FirstFit>(strip_);
    Random random(seed_for(seed_, round_, task));
    std::vector<std::int32_t> start = orders_[static_cast<std::size_t>(kOrders[task])];
    if (round_ > 0) start = blurred(start, 0.2 * random.real(), random);
    Outcome& out = outcomes[task];
    out.steps = steps;
    out.peak = workers_[w].first_fit->bump(std::move(start), goal, out.steps, random, control, out.offsets);
    return out.peak <= goal;
  });
  std::size_t best = 0;
  for (std::size_t task = 0; task < tasks; ++task) {
    if (task > winner) break;
    control.charge(outcomes[task].steps);
    if (outcomes[task].peak < outcomes[best].peak) best = task;
  }
  if (winner < tasks) best = winner;
  if (!outcomes[best].offsets.empty()) take(outcomes[best].offsets);
}

// `nodes` for each of the plain recipes (none if 0), then `dives` with random recipes and small budgets: a plan that
// exists is mostly found with next to no backtracking, or not for a long time.
Verdict Portfolio::search(Bytes target, std::uint64_t nodes, std::size_t dives, Control& control) {
  const bool full = waste_nothing(strip_, target);
  const std::span<const SearchRecipe> all = full ? std::span<const SearchRecipe>(kFullSearches) : kSearches;
  const std::size_t plain = nodes == 0 ? 0 : all.size();
  const std::size_t tasks = plain + dives;
  const auto n = static_cast<std::uint64_t>(strip_.boxes());
  ++searches_;
  struct Outcome {
    Verdict verdict = Verdict::unknown;
    std::uint64_t nodes = 0;
    std::size_t recipe = 0;
  };
  std::vector<Outcome> outcomes(tasks);
  // Recipes that found plans of this part before are drawn more often.
  if (full != successes_full_) successes_.clear();
  successes_full_ = full;
  std::vector<std::size_t> recipes = successes_;
  for (std::size_t k = 0; k < all.size(); ++k) recipes.push_back(k);
  std::vector<std::vector<Bytes>> found(threads_);
  std::vector<std::size_t> found_by(threads_, SIZE_MAX);
  for (const SearchRecipe& r : all) order(r.order);
  const std::uint64_t most = control.left() / tasks + 1;
  const std::size_t winner = first_success(tasks, threads_, [&](std::size_t task, unsigned w, Cancel cancel) {
    if (control.stopped() || cancel()) return false;
    if (!workers_[w].exact) workers_[w].exact = std::make_unique<ExactSearch>(strip_);
    ExactSearch& exact = *workers_[w].exact;
    Random random(seed_for(seed_, searches_, task));
    const bool is_plain = task < plain;
    const std::size_t chosen = is_plain ? task : recipes[random.below(recipes.size())];
    const SearchRecipe& recipe = all[chosen];
    const std::vector<std::int32_t>& base = orders_[static_cast<std::size_t>(recipe.order)];
    const double blur = random.real() * random.real() * 0.5;
    const std::vector<std::int32_t> ranks = ranks_of(is_plain ? base : blurred(base, blur, random));
    // Mostly too little to backtrack far, sometimes more. Where nothing may be wasted, errors show soon: backtracking
    // pays.
    const std::uint64_t dive = full ? 8 * n << random.below(4) : 32 + n * 3 / 2 * (random.below(4) == 0 ? 3 : 1);
    const std::uint64_t budget = std::min(most, is_plain ? nodes * (full ? 4 : 1) : dive);
    outcomes[task].verdict = exact.run(target, recipe.branching, ranks, budget, control, cancel);
    outcomes[task].nodes = exact.nodes();
    outcomes[task].recipe = chosen;
    if (outcomes[task].verdict == Verdict::unknown) return false;
    if (outcomes[task].verdict == Verdict::fits && task < found_by[w]) {
      found[w] = exact.offsets();
      found_by[w] = task;
    }
    return true;
  });
  for (std::size_t task = 0; task < tasks && task <= winner; ++task) control.charge(outcomes[task].nodes);
  if (winner == tasks) return Verdict::unknown;
  if (outcomes[winner].verdict == Verdict::fits) {
    constexpr std::size_t kMostSuccesses = 40;  // remembered, each as good as one more recipe in the draw
    constexpr std::size_t kWeight = 2;
    successes_.insert(successes_.end(), kWeight, outcomes[winner].recipe);
    if (successes_.size() > kMostSuccesses) successes_.erase(successes_.begin(), successes_.begin() + kWeight);
  }
  for (std::size_t w = 0; w < threads_; ++w) {
    if (found_by[w] == winner) take(found[w]);
  }
  return outcomes[winner].verdict;
}

Verdict Portfolio::search_gaps(Bytes target, std::uint64_t nodes, Control& control) {
  Worker& worker = workers_[0];
  if (!worker.disjunctive) worker.disjunctive = std::make_unique<DisjunctiveSearch>(strip_);
  const Verdict verdict = worker.disjunctive->run(target, std::min(nodes, control.left()), control);
  control.charge(worker.disjunctive->nodes());
  if (verdict == Verdict::fits) take(worker.disjunctive->offsets());
  return verdict;
}

// Frees windows of the best plan round what ends above `target`. True if that went well.
bool Portfolio::repair(Bytes target, std::uint64_t nodes, Control& control) {
  Repair repair(strip_, seed_for(seed_, round_, static_cast<std::size_t>(++repairs_)));
  std::vector<Bytes> offsets = offsets_;
  std::uint64_t budget = std::min(control.left(), nodes);
  const bool better = repair.run(offsets, target, round_, budget, control);
  control.charge(budget + 1);
  take(offsets);
  return better;
}

void Portfolio::improve(Bytes goal, bool decide, Control& control) {
  const auto n = static_cast<std::uint64_t>(strip_.boxes());
  const int round = round_;
  workers_.resize(threads_);
  const auto done = [&] { return peak_ <= goal || settled() || control.exhausted(); };
  const bool gaps = strip_.any_gap;
  const bool small = gaps ? strip_.boxes() <= DisjunctiveSearch::kMostBoxes : ExactSearch::handles(strip_);
  const bool brief = decide && small;
  if (round == 0 && !strip_.any_fixed) skylines(goal, brief ? Fixed::first : Fixed::all, control);
  if (done()) return;
  if (round == kRestRound && !strip_.any_fixed && brief) skylines(goal, Fixed::rest, control);
  if (done()) return;
  // Tries `target`; learns from the verdict.
  // Budgets double every second round: between, other random orders get their chance.
  const std::uint64_t nodes = (decide ? 2 * n + 64 : n + n / 4 + 64) << std::min((round + 1) / 2, 40);
  const auto attempt = [&](Bytes target) {
    const Verdict verdict =
        gaps ? search_gaps(target, nodes, control) : search(target, nodes, round == 0 ? 0 : kDives, control);
    if (verdict == Verdict::never_fits) bound_ = std::max(bound_, target + 1);
    return verdict;
  };
  if (small) {
    if (decide || round == 0 || round % 4 == 3) attempt(goal);
    if (done()) return;
    // The goal is hard: get closer to it.
    for (int tries = 0; tries < (round == 0 ? 4 : 1) && !decide && !done();) {
      const Bytes from = std::max(bound_, goal);
      const Bytes target = peak_ - std::max<Bytes>(1, (peak_ - from) >> (1 + tries));
      if (attempt(target) == Verdict::unknown) ++tries;
    }
  } else if (!gaps) {
    if (round > 0 && !strip_.any_fixed) skylines(goal, Fixed::none, control);
    // Half way to the goal, as long as that works.
    while (!done() &&
           repair(decide ? goal : std::max(bound_, goal) + (peak_ - std::max(bound_, goal)) / 2, 4 * nodes, control)) {
    }
  }
  if (small && !gaps && !decide && round > 0) {
    // Down in steps, shorter ones where dives fail.
    Bytes step = (peak_ - std::max(bound_, goal)) / 8;
    for (int failed = 0; failed < 3 && !done();) {
      step = std::max<Bytes>(1, step);
      const Verdict verdict = search(peak_ - step, 0, kDives << std::min(failed + round / 4, 6), control);
      if (verdict == Verdict::never_fits) bound_ = std::max(bound_, peak_ - step + 1);
      if (verdict != Verdict::unknown) continue;
      failed += step == 1 ? 1 : 0;
      step /= 2;
    }
  }
  const bool bump =
      gaps ? strip_.boxes() <= kMostBumped || round == 0 : strip_.boxes() <= kMostBumped && round >= kBumpRound;
  if (!done() && bump) bumps(goal, 8 * nodes, control);
  control.charge(1);  // a round without work must not go on for ever
  ++round_;
}

}  // namespace cistern::planner
