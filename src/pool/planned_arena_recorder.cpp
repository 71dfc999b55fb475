// Recorder, and what is made of recordings.
#include "pool/planned_arena_recorder.hpp"

#include <algorithm>

namespace cistern::pooling {

namespace {

// Appends to `dead` what has no handle any more, and removes it from `watched`.
template <typename Watched, typename Died>
void sweep(std::vector<Watched>& watched, Died died) {
  for (std::size_t i = 0; i < watched.size();) {
    if (detail::handle_count(*watched[i].slot) != 0) {
      ++i;
      continue;
    }
    died(watched[i]);
    watched[i] = watched.back();
    watched.pop_back();
  }
}

// Room for a size that changes from cycle to cycle: grown by a quarter, so that slow growth means few plans.
std::size_t with_room(std::size_t bytes) noexcept { return bytes > SIZE_MAX / 8 ? bytes : bytes + bytes / 4; }

}  // namespace

bool alike(const Recording& a, const Recording& b) noexcept {
  if (a.size() != b.size()) return false;
  std::size_t same = 0;
  for (std::size_t i = 0; i < a.size(); ++i) same += a[i].least <= b[i].most && b[i].least <= a[i].most;
  return same * 2 >= a.size();
}

void merge(Recording& into, const Recording& cycle) {
  for (std::size_t i = 0; i < into.size(); ++i) {
    RecordedStep& step = into[i];
    const RecordedStep& seen = cycle[i];
    if (seen.most > step.most) step.most = with_room(seen.most);
    step.least = std::min(step.least, seen.least);
    step.dead_at = std::max(step.dead_at, seen.dead_at);
    step.wrap = std::max(step.wrap, seen.wrap);
    step.pool_only |= seen.pool_only;
  }
}

PlanProblem problem_of(const Recording& recording, std::size_t alignment, std::vector<std::uint32_t>& steps) {
  PlanProblem problem;
  const auto length = static_cast<std::int64_t>(recording.size());
  steps.clear();
  for (std::size_t i = 0; i < recording.size(); ++i) {
    const RecordedStep& step = recording[i];
    if (step.pool_only) continue;
    PlanBuffer buffer;
    buffer.lower = static_cast<std::int64_t>(i);
    buffer.upper = std::max<std::int64_t>(step.dead_at, buffer.lower + 1);
    // An empty buffer has an address of its own as well.
    buffer.size = static_cast<std::int64_t>(std::max<std::size_t>((step.most + alignment - 1) / alignment, 1));
    if (step.wrap > 0 && buffer.upper == length) {
      // Live in the first part of the next cycle, which has the same plan: one buffer with a hole in its life.
      const std::int64_t wrap = std::min<std::int64_t>(step.wrap, buffer.lower);
      if (wrap < buffer.lower) buffer.gaps.push_back({wrap, buffer.lower, 0, buffer.size});
      buffer.lower = 0;
    }
    problem.buffers.push_back(std::move(buffer));
    steps.push_back(static_cast<std::uint32_t>(i));
  }
  return problem;
}

void Recorder::begin_cycle(bool follows_recorded_cycle) {
  if (follows_recorded_cycle) {
    std::swap(previous_, cycle_);
  } else {
    previous_.clear();
    older_.clear();
  }
  cycle_.clear();
  live_.clear();
}

void Recorder::look() {
  const auto now = static_cast<std::uint32_t>(cycle_.size());
  const auto used_elsewhere = [](const detail::Slot* slot) {
    return (slot->shared.load(std::memory_order_relaxed) & detail::kUsedElsewhere) != 0;
  };
  sweep(live_, [&](const Watched& dead) {
    cycle_[dead.step].dead_at = now;
    cycle_[dead.step].pool_only |= used_elsewhere(dead.slot);
  });
  sweep(older_, [&](const Watched& dead) {
    previous_[dead.step].wrap = now;
    previous_[dead.step].pool_only |= now > dead.step || used_elsewhere(dead.slot);
  });
}

void Recorder::add(std::size_t bytes, const detail::Slot* slot) {
  const auto step = static_cast<std::uint32_t>(cycle_.size());
  cycle_.push_back({bytes, bytes, step + 1, 0, false});
  live_.push_back({slot, step});
}

void Recorder::released(const detail::Slot* slot) {
  const auto now = static_cast<std::uint32_t>(cycle_.size());
  const auto is_it = [slot](const Watched& watched) { return watched.slot == slot; };
  if (const auto it = std::find_if(live_.begin(), live_.end(), is_it); it != live_.end()) {
    cycle_[it->step].dead_at = now;
    live_.erase(it);
  }
  if (const auto it = std::find_if(older_.begin(), older_.end(), is_it); it != older_.end()) {
    previous_[it->step].wrap = now;
    previous_[it->step].pool_only |= now > it->step;
    older_.erase(it);
  }
}

void Recorder::end_cycle() {
  look();
  for (const Watched& held : older_) previous_[held.step].pool_only = true;
  for (const Watched& open : live_) cycle_[open.step].dead_at = static_cast<std::uint32_t>(cycle_.size());
  older_.clear();
  std::swap(older_, live_);
}

}  // namespace cistern::pooling
