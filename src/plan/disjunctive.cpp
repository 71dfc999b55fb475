// Exact search for strips with gaps. See disjunctive.hpp.
#include "plan/disjunctive.hpp"

#include <algorithm>

namespace cistern::planner {
namespace {

std::size_t idx(std::int32_t i) { return static_cast<std::size_t>(i); }

}  // namespace

DisjunctiveSearch::DisjunctiveSearch(const Strip& strip) : strip_(strip) {
  const std::int32_t n = strip.boxes();
  std::vector<Range> ranges;
  for (std::int32_t i = 0; i < n; ++i) {
    for (std::int32_t j = i + 1; j < n && strip.first[idx(j)] < strip.last[idx(i)]; ++j) {
      ranges.clear();
      if (!strip.any_gap) {
        ranges.push_back({-strip.size[idx(j)], strip.size[idx(i)]});
      } else {
        for (std::uint32_t p = strip.piece_start[idx(i)]; p < strip.piece_start[idx(i) + 1]; ++p) {
          for (std::uint32_t q = strip.piece_start[idx(j)]; q < strip.piece_start[idx(j) + 1]; ++q) {
            const Piece& a = strip.pieces[p];
            const Piece& b = strip.pieces[q];
            if (a.first < b.last && b.first < a.last) ranges.push_back({a.lower - b.upper, a.upper - b.lower});
          }
        }
      }
      if (ranges.empty()) continue;
      std::sort(ranges.begin(), ranges.end(), [](const Range& x, const Range& y) { return x.above < y.above; });
      Pair pair;
      pair.first = i;
      pair.second = j;
      pair.from = static_cast<std::uint32_t>(ranges_.size());
      for (const Range& r : ranges) {  // open ranges that overlap are one
        if (ranges_.size() > pair.from && r.above < ranges_.back().below) {
          ranges_.back().below = std::max(ranges_.back().below, r.below);
        } else {
          ranges_.push_back(r);
        }
      }
      pair.to = static_cast<std::uint32_t>(ranges_.size());
      pairs_.push_back(pair);
    }
  }
  of_start_.assign(idx(n) + 1, 0);
  for (const Pair& p : pairs_) {
    ++of_start_[idx(p.first) + 1];
    ++of_start_[idx(p.second) + 1];
  }
  for (std::size_t i = 0; i < idx(n); ++i) of_start_[i + 1] += of_start_[i];
  of_.resize(2 * pairs_.size());
  std::vector<std::uint32_t> fill(of_start_.begin(), of_start_.end() - 1);
  for (std::size_t k = 0; k < pairs_.size(); ++k) {
    of_[fill[idx(pairs_[k].first)]++] = static_cast<std::int32_t>(k);
    of_[fill[idx(pairs_[k].second)]++] = static_cast<std::int32_t>(k);
  }
}

bool DisjunctiveSearch::raise(std::int32_t box, Bytes low) {
  const std::size_t b = idx(box);
  if (low <= low_[b]) return true;
  ++pushes_;
  trail_.push_back({Undo::Kind::low, box, low_[b]});
  low_[b] = align_up(low, strip_.alignment[b]);
  if (queued_[b] == 0) {
    queued_[b] = 1;
    queue_.push_back(box);
  }
  return low_[b] <= high_[b];
}

// Pushes boxes up until every decided difference holds. Lower bounds only grow and are capped, so this ends.
bool DisjunctiveSearch::propagate() {
  bool ok = true;
  while (!queue_.empty()) {
    const std::int32_t box = queue_.back();
    queue_.pop_back();
    queued_[idx(box)] = 0;
    for (std::uint32_t k = of_start_[idx(box)]; k < of_start_[idx(box) + 1] && ok; ++k) {
      const Pair& p = pairs_[idx(of_[k])];
      if (p.first == box) {
        if (p.least != INT64_MIN) ok = raise(p.second, low_[idx(box)] + p.least);
      } else {
        if (p.most != INT64_MAX) ok = raise(p.first, low_[idx(box)] - p.most);
      }
    }
    ok = ok && pushes_ < most_pushes_;
    if (ok) continue;
    for (const std::int32_t rest : queue_) queued_[idx(rest)] = 0;
    queue_.clear();
  }
  return ok;
}

bool DisjunctiveSearch::limit(std::int32_t pair, bool least, Bytes value) {
  Pair& p = pairs_[idx(pair)];
  Bytes& bound = least ? p.least : p.most;
  trail_.push_back({least ? Undo::Kind::least : Undo::Kind::most, pair, bound});
  bound = value;
  if (p.least > p.most) return false;
  const bool ok = least ? raise(p.second, low_[idx(p.first)] + value) : raise(p.first, low_[idx(p.second)] - value);
  return propagate() && ok;
}

void DisjunctiveSearch::undo(std::uint32_t mark) {
  while (trail_.size() > mark) {
    const Undo& u = trail_.back();
    if (u.kind == Undo::Kind::low) {
      low_[idx(u.index)] = u.old;
    } else {
      (u.kind == Undo::Kind::least ? pairs_[idx(u.index)].least : pairs_[idx(u.index)].most) = u.old;
    }
    trail_.pop_back();
  }
}

// A pair whose boxes collide at their least offsets: the one with the most to lose. -1: the least offsets are a plan.
std::int32_t DisjunctiveSearch::collision(Range& range) const {
  std::int32_t worst = -1;
  Bytes most = 0;
  for (std::size_t k = 0; k < pairs_.size(); ++k) {
    const Pair& p = pairs_[k];
    const Bytes difference = low_[idx(p.second)] - low_[idx(p.first)];
    for (std::uint32_t r = p.from; r < p.to; ++r) {
      if (difference <= ranges_[r].above || difference >= ranges_[r].below) continue;
      const Bytes weight = std::min(difference - ranges_[r].above, ranges_[r].below - difference);
      if (weight > most) {
        most = weight;
        worst = static_cast<std::int32_t>(k);
        range = ranges_[r];
      }
    }
  }
  return worst;
}

Verdict DisjunctiveSearch::run(Bytes capacity, std::uint64_t nodes, const Control& control, Cancel cancel) {
  constexpr std::uint64_t kClockPeriod = 64;  // decisions between two looks at the clock
  const std::size_t n = strip_.size.size();
  constexpr std::uint64_t kPushes = 1024;  // raised bounds a decision, on average, before the search gives up
  capacity_ = capacity;
  nodes_ = 0;
  pushes_ = 0;
  most_pushes_ = nodes < UINT64_MAX / kPushes ? (nodes + 1) * kPushes : UINT64_MAX;
  trail_.clear();
  frames_.clear();
  queue_.clear();
  queued_.assign(n, 0);
  low_.assign(n, 0);
  high_.assign(n, 0);
  for (Pair& p : pairs_) {
    p.least = INT64_MIN;
    p.most = INT64_MAX;
  }
  for (std::size_t b = 0; b < n; ++b) {
    const bool fixed = strip_.fixed[b] != kNoBytes;
    if (fixed) low_[b] = strip_.fixed[b];
    high_[b] = capacity - strip_.size[b];
    if (low_[b] > high_[b]) return Verdict::never_fits;
    if (fixed) high_[b] = strip_.fixed[b];
  }
  for (;;) {
    Range range;
    const std::int32_t pair = collision(range);
    if (pair < 0) return Verdict::fits;
    if (nodes_ >= nodes) return Verdict::unknown;
    if (++nodes_ % kClockPeriod == 0 && (control.stopped() || cancel())) return Verdict::unknown;
    // First the branch that pushes less.
    const Bytes difference = low_[idx(pairs_[idx(pair)].second)] - low_[idx(pairs_[idx(pair)].first)];
    const bool least_first = range.below - difference <= difference - range.above;
    Frame frame;
    frame.pair = least_first ? pair : ~pair;
    frame.below = least_first ? range.above : range.below;  // of the second branch
    frame.trail = static_cast<std::uint32_t>(trail_.size());
    frames_.push_back(frame);
    bool ok = limit(pair, least_first, least_first ? range.below : range.above);
    while (!ok) {
      if (pushes_ >= most_pushes_) return Verdict::unknown;
      while (!frames_.empty() && frames_.back().second) frames_.pop_back();
      if (frames_.empty()) return Verdict::never_fits;
      Frame& f = frames_.back();
      undo(f.trail);
      f.second = true;
      ok = f.pair >= 0 ? limit(f.pair, false, f.below) : limit(~f.pair, true, f.below);
    }
  }
}

}  // namespace cistern::planner
