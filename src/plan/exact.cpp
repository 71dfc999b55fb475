// Exact search: the decisions. The inferences are in exact_infer.cpp. See exact.hpp.
#include "plan/exact.hpp"

#include <algorithm>
#include <bit>

#include "plan/exact_inline.hpp"

namespace cistern::planner {
namespace {

constexpr std::size_t kFailedStates = std::size_t{1} << 14;  // remembered: 256 KiB

std::size_t idx(std::int32_t i) { return static_cast<std::size_t>(i); }

std::uint64_t mix(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

}  // namespace

ExactSearch::ExactSearch(const Strip& strip)
    : strip_(strip), n_(strip.boxes()), m_(strip.sections), words_((idx(n_) + 63) / 64) {
  neighbour_.assign(idx(n_) * words_, 0);
  next_twin_.assign(idx(n_), -1);
  for (std::int32_t i = 0; i < n_; ++i) {
    for (std::int32_t j = i + 1; j < n_ && strip.first[idx(j)] < strip.last[idx(i)]; ++j) {
      neighbour_[idx(i) * words_ + idx(j) / 64] |= Word{1} << (j % 64);
      neighbour_[idx(j) * words_ + idx(i) / 64] |= Word{1} << (i % 64);
      const bool twins = strip.first[idx(i)] == strip.first[idx(j)] && strip.last[idx(i)] == strip.last[idx(j)] &&
                         strip.size[idx(i)] == strip.size[idx(j)] &&
                         strip.alignment[idx(i)] == strip.alignment[idx(j)] && strip.fixed[idx(i)] == kNoBytes &&
                         strip.fixed[idx(j)] == kNoBytes;
      if (twins && next_twin_[idx(i)] < 0) next_twin_[idx(i)] = j;
    }
  }
  member_start_.assign(idx(m_) + 1, 0);
  slot_start_.assign(idx(n_) + 1, 0);
  for (std::int32_t i = 0; i < n_; ++i) {
    slot_start_[idx(i) + 1] =
        slot_start_[idx(i)] + static_cast<std::uint32_t>(strip.last[idx(i)] - strip.first[idx(i)]);
    for (std::int32_t t = strip.first[idx(i)]; t < strip.last[idx(i)]; ++t) ++member_start_[idx(t) + 1];
  }
  for (std::size_t t = 0; t < idx(m_); ++t) member_start_[t + 1] += member_start_[t];
  member_.resize(member_start_.back());
  slot_.resize(slot_start_.back());
  first_box_.assign(idx(m_) + 1, n_);
  for (std::int32_t i = n_; i-- > 0;) first_box_[idx(strip.first[idx(i)])] = i;
  for (std::int32_t t = m_; t-- > 0;) first_box_[idx(t)] = std::min(first_box_[idx(t)], first_box_[idx(t) + 1]);
  last_start_.assign(idx(m_) + 2, 0);
  for (std::int32_t i = 0; i < n_; ++i) ++last_start_[idx(strip.last[idx(i)]) + 1];
  for (std::size_t t = 0; t <= idx(m_); ++t) last_start_[t + 1] += last_start_[t];
  by_last_.resize(idx(n_));
  std::vector<std::int32_t> next = last_start_;
  for (std::int32_t i = 0; i < n_; ++i) by_last_[idx(next[idx(strip.last[idx(i)])]++)] = i;
  failed_.resize(kFailedStates);
}

bool ExactSearch::handles(const Strip& strip) {
  constexpr std::int32_t kMostBoxes = 8192;                   // 8 MiB
  constexpr std::int64_t kMostSlots = std::int64_t{1} << 24;  // 128 MiB
  if (strip.any_gap || strip.boxes() > kMostBoxes) return false;
  std::int64_t slots = 0;
  for (std::size_t b = 0; b < strip.size.size(); ++b) slots += strip.last[b] - strip.first[b];
  return slots <= kMostSlots;
}

bool ExactSearch::start(Bytes capacity) {
  capacity_ = capacity;
  nodes_ = 0;
  trail_.clear();
  frames_.clear();
  parts_.clear();
  ++runs_;
  bound_.assign(idx(n_), 0);
  floor_.assign(idx(n_), 0);
  ceiling_.assign(idx(n_), 0);
  support_.assign(idx(n_), -1);
  open_.assign(words_, 0);
  hanging_.assign(words_, 0);
  total_.assign(idx(m_), 0);
  crossing_.assign(idx(m_), 0);
  members_open_.assign(idx(m_), 0);
  dirty_.assign((idx(m_) + 63) / 64, 0);
  highest_bound_.assign(idx(m_), 0);
  for (std::int32_t i = 0; i < n_; ++i) {
    const std::size_t b = idx(i);
    open_[b / 64] |= Word{1} << (i % 64);
    const bool fixed = strip_.fixed[b] != kNoBytes;
    ceiling_[b] = fixed ? strip_.fixed[b] : capacity - strip_.size[b];
    if (ceiling_[b] < 0 || ceiling_[b] > capacity - strip_.size[b]) return false;
    if (fixed) bound_[b] = floor_[b] = strip_.fixed[b];
    for (std::int32_t t = strip_.first[b]; t < strip_.last[b]; ++t) {
      const std::uint32_t place = member_start_[idx(t)] + static_cast<std::uint32_t>(members_open_[idx(t)]++);
      member_[place] = i;
      slot_[slot_start_[b] + static_cast<std::uint32_t>(t - strip_.first[b])] = place;
      total_[idx(t)] += strip_.size[b];
      highest_bound_[idx(t)] = std::max(highest_bound_[idx(t)], bound_[b]);
      if (t + 1 < strip_.last[b]) ++crossing_[idx(t)];
    }
  }
  find_full();
  touched_from_ = 0;
  touched_to_ = m_;
  for (std::int32_t t = 0; t < m_; ++t) mark_if_tight(t, highest_bound_[idx(t)]);
  for (std::int32_t i = 0; i < n_; ++i) {
    const std::int32_t twin = next_twin_[idx(i)];
    if (twin >= 0 && !raise(twin, bound_[idx(i)] + strip_.size[idx(i)])) return false;
  }
  return propagate();
}

// Takes a box out of the open ones, at its bound; the boxes that overlap it in time must rise above it.
bool ExactSearch::place(std::int32_t box) {
  const std::size_t b = idx(box);
  const Bytes size = strip_.size[b];
  const Bytes end = bound_[b] + size;
  open_[b / 64] &= ~(Word{1} << (box % 64));
  const std::int32_t first = strip_.first[b];
  const std::int32_t last = strip_.last[b];
  for (std::int32_t t = first; t < last; ++t) {
    total_[idx(t)] -= size;
    if (t + 1 < last) --crossing_[idx(t)];
    // Swap with the last open one of the section.
    std::uint32_t& slot = slot_[slot_start_[b] + static_cast<std::uint32_t>(t - first)];
    const std::uint32_t back = member_start_[idx(t)] + static_cast<std::uint32_t>(--members_open_[idx(t)]);
    const std::int32_t other = member_[back];
    slot_[slot_start_[idx(other)] + static_cast<std::uint32_t>(t - strip_.first[idx(other)])] = slot;
    std::swap(member_[slot], member_[back]);
    slot = back;
    mark_if_tight(t, highest_bound_[idx(t)]);
  }
  touch(box);
  return each_open_neighbour(box, [&](std::int32_t other) {
    if (floor_[idx(other)] < end) lift_floor(other, end);
    return raise(other, end);
  });
}

void ExactSearch::unplace(std::int32_t box) {
  const std::size_t b = idx(box);
  open_[b / 64] |= Word{1} << (box % 64);
  const std::int32_t last = strip_.last[b];
  for (std::int32_t t = strip_.first[b]; t < last; ++t) {
    total_[idx(t)] += strip_.size[b];
    if (t + 1 < last) ++crossing_[idx(t)];
    ++members_open_[idx(t)];
    highest_bound_[idx(t)] = std::max(highest_bound_[idx(t)], bound_[b]);
  }
}

// The other branch of a decision: box lies above its bound, so it rests on a box that is still open.
bool ExactSearch::refuse(std::int32_t box) {
  const std::size_t b = idx(box);
  if (strip_.fixed[b] != kNoBytes) return false;
  Bytes lowest = INT64_MAX;
  each_open_neighbour(box, [&](std::int32_t other) {
    lowest = std::min(lowest, bound_[idx(other)] + strip_.size[idx(other)]);
    return true;
  });
  return lowest != INT64_MAX && raise(box, lowest);
}

// The open box of a part that can lie lowest: nothing fits under it. Also hashes the state of the part.
std::int32_t ExactSearch::choose(const Part& part, std::uint64_t key[2]) const {
  std::int32_t best = -1;
  Bytes best_bound = INT64_MAX;
  std::int32_t best_rank = INT32_MAX;
  std::uint64_t k0 = 0;
  std::uint64_t k1 = 0;
  const std::int32_t end = first_box_[idx(part.to)];
  for (std::int32_t i = first_box_[idx(part.from)]; i < end;) {
    const Word word = open_[idx(i) / 64] >> (i % 64);
    if (word == 0) {
      i = (i / 64 + 1) * 64;
      continue;
    }
    i += std::countr_zero(word);
    if (i >= end) break;
    const Bytes bound = bound_[idx(i)];
    const std::uint64_t hanging = hanging_[idx(i) / 64] >> (i % 64) & 1;
    const std::uint64_t h = mix(static_cast<std::uint64_t>(bound) * 2 + hanging + idx(i) * 0x9E3779B97F4A7C15u);
    k0 += h;
    k1 ^= h * 0xD1342543DE82EF95u + idx(i);
    const std::int32_t rank = (*ranks_)[idx(i)];
    if (bound < best_bound || (bound == best_bound && rank < best_rank)) {
      best = i;
      best_bound = bound;
      best_rank = rank;
    }
    ++i;
  }
  key[0] = k0;
  key[1] = k1 ^ mix(runs_);  // what another run noted is of no use: it may have had another capacity
  if (best < 0 || branching_ == Branching::lowest_box) return best;
  best = lowest_in(critical_section(part, best_bound));
  // Boxes of other sections may fit under it: go down to one that nothing fits under.
  for (std::int32_t under = best; under >= 0;) {
    best = under;
    under = -1;
    each_open_neighbour(best, [&](std::int32_t other) {
      const bool fits = bound_[idx(other)] + strip_.size[idx(other)] <= bound_[idx(best)];
      if (fits && (under < 0 || before(other, under))) under = other;
      return true;
    });
  }
  return best;
}

bool ExactSearch::before(std::int32_t x, std::int32_t y) const {
  if (bound_[idx(x)] != bound_[idx(y)]) return bound_[idx(x)] < bound_[idx(y)];
  return (*ranks_)[idx(x)] < (*ranks_)[idx(y)];
}

std::int32_t ExactSearch::lowest_in(std::int32_t section) const {
  const std::int32_t* member = member_.data() + member_start_[idx(section)];
  std::int32_t best = member[0];
  for (std::int32_t k = 1; k < members_open_[idx(section)]; ++k) {
    if (before(member[k], best)) best = member[k];
  }
  return best;
}

// pre: the part has an open box; `least` is the least bound of its boxes.
std::int32_t ExactSearch::critical_section(const Part& part, Bytes least) const {
  std::int32_t best = -1;
  Bytes best_room = 0;
  if (branching_ == Branching::lowest_section) {
    // Only sections of boxes at the least bound are in question; the fullest has the least room.
    for (std::int32_t i = first_box_[idx(part.from)]; i < first_box_[idx(part.to)]; ++i) {
      if (!open(i) || bound_[idx(i)] != least) continue;
      for (std::int32_t t = strip_.first[idx(i)]; t < strip_.last[idx(i)]; ++t) {
        if (best < 0 || total_[idx(t)] > total_[idx(best)] || (total_[idx(t)] == total_[idx(best)] && t < best))
          best = t;
      }
    }
    return best;
  }
  if (branching_ == Branching::fewest_boxes) {
    std::int32_t fewest = INT32_MAX;
    Bytes best_level = 0;
    for (std::int32_t t = part.from; t < part.to; ++t) {
      const std::int32_t count = members_open_[idx(t)];
      if (count == 0) continue;
      const Bytes level = capacity_ - total_[idx(t)];
      const std::int32_t* member = member_.data() + member_start_[idx(t)];
      std::int32_t able = 0;
      for (std::int32_t k = 0; k < count; ++k) able += bound_[idx(member[k])] <= level ? 1 : 0;
      if (able > fewest || (able == fewest && level >= best_level)) continue;
      best = t;
      fewest = able;
      best_level = level;
    }
    return best;
  }
  Bytes best_lowest = 0;
  for (std::int32_t t = part.from; t < part.to; ++t) {
    const std::int32_t count = members_open_[idx(t)];
    // The lowest is at most the highest: often that says that this section is not the one.
    if (count == 0 || (best >= 0 && capacity_ - total_[idx(t)] - highest_bound_[idx(t)] > best_room)) continue;
    const std::int32_t* member = member_.data() + member_start_[idx(t)];
    Bytes lowest = INT64_MAX;
    for (std::int32_t k = 0; k < count; ++k) lowest = std::min(lowest, bound_[idx(member[k])]);
    const Bytes room = capacity_ - total_[idx(t)] - lowest;
    if (best >= 0 && (room != best_room ? room > best_room : lowest >= best_lowest)) continue;
    best = t;
    best_room = room;
    best_lowest = lowest;
  }
  return best;
}

// After `box` was placed: cuts the part where no open box crosses any more. Returns the part to go on with; the others
// wait.
ExactSearch::Part ExactSearch::split(std::int32_t box, const Part& part, std::int32_t frame) {
  const std::int32_t last = strip_.last[idx(box)];
  std::int32_t from = part.from;
  Part current = part;
  current.parent = frame;
  bool cut = false;
  const auto add = [&](std::int32_t to) {
    parts_.push_back({from, to, frame, current.next});
    current.next = static_cast<std::int32_t>(parts_.size()) - 1;
    from = to;
    cut = true;
  };
  for (std::int32_t t = strip_.first[idx(box)]; t + 1 < last; ++t) {
    if (crossing_[idx(t)] == 0) add(t + 1);
  }
  if (!cut) return current;
  add(part.to);
  current = parts_[idx(current.next)];
  return current;
}

bool ExactSearch::known_failure(const std::uint64_t key[2]) const {
  const Failed& f = failed_[key[0] % kFailedStates];
  return f.key[0] == key[0] && f.key[1] == key[1];
}

void ExactSearch::note_failure(const std::uint64_t key[2]) {
  Failed& f = failed_[key[0] % kFailedStates];
  f.key[0] = key[0];
  f.key[1] = key[1];
}

Verdict ExactSearch::run(Bytes capacity, Branching branching, const std::vector<std::int32_t>& ranks,
                         std::uint64_t nodes, const Control& control, Cancel cancel) {
  constexpr std::uint64_t kClockPeriod = 256;  // decisions between two looks at the clock
  ranks_ = &ranks;
  branching_ = branching;
  if (!start(capacity)) return Verdict::never_fits;
  Part part{0, m_, -1, -1};
  for (;;) {
    Frame frame;
    const std::int32_t box = choose(part, frame.key);
    if (box < 0) {  // all placed here: on to the next part
      if (part.next < 0) return Verdict::fits;
      part = parts_[idx(part.next)];
      continue;
    }
    if (nodes_ >= nodes) return Verdict::unknown;
    if (++nodes_ % kClockPeriod == 0) {
      if (control.stopped() || cancel()) return Verdict::unknown;
    }
    std::int32_t at = part.parent;  // where to go back to on failure
    if (!known_failure(frame.key)) {
      frame.box = box;
      frame.parent = part.parent;
      frame.part = part;
      frame.parts = static_cast<std::uint32_t>(parts_.size());
      frame.trail = static_cast<std::uint32_t>(trail_.size());
      frames_.push_back(frame);
      at = static_cast<std::int32_t>(frames_.size()) - 1;
      if (place(box) && propagate()) {
        part = split(box, part, at);
        continue;
      }
    }
    // Back to the last decision of this part whose other branch is open. Decisions of parts solved in between are
    // dropped: they have no say in this failure.
    for (;; at = frames_[idx(at)].parent) {
      if (at < 0) return Verdict::never_fits;
      while (static_cast<std::int32_t>(frames_.size()) > at + 1) {
        const Frame& f = frames_.back();
        undo(f.trail);
        if (!f.refused) unplace(f.box);
        frames_.pop_back();
      }
      Frame& f = frames_.back();
      undo(f.trail);
      parts_.resize(f.parts);
      if (!f.refused) {
        unplace(f.box);
        f.refused = true;
        if (refuse(f.box) && propagate()) {
          part = f.part;
          part.parent = at;
          break;
        }
        undo(f.trail);
      }
      note_failure(f.key);
    }
  }
}

}  // namespace cistern::planner
