// ArenaPlan: building it, looking at what is in use, ending.
#include "pool/planned_arena_plan.hpp"

#include <algorithm>
#include <exception>
#include <map>
#include <utility>

#include "pool/heavy_fence.hpp"
#include "pool/slot_store.hpp"

namespace cistern::pooling {

using detail::ArenaStep;
using detail::detail_of;
using detail::Slot;

namespace {

// Handles, or work on another stream that the slab's bytes must wait for.
bool in_use(const Slot& slot) noexcept {
  std::uint32_t busy = slot.primary.load(std::memory_order_acquire);
  busy |= slot.shared.load(std::memory_order_acquire);
  return busy != 0;
}

}  // namespace

ArenaPlan::ArenaPlan(Allocator& allocator, const Stream& stream, std::uint64_t arena_id, const Recording& recording,
                     const std::vector<std::uint32_t>& steps, const std::vector<std::int64_t>& offsets,
                     std::int64_t peak, std::size_t alignment)
    : SlotOwner(arena_id),
      allocator_(allocator),
      stream_(stream),
      slab_bytes_(static_cast<std::size_t>(peak) * alignment),
      steps_(recording.size() + 1),
      infos_(recording.size()) {
  for (std::size_t i = 0; i < recording.size(); ++i) {
    const std::size_t room = std::max<std::size_t>((recording[i].most + alignment - 1) / alignment, 1) * alignment;
    Info& info = infos_[i];
    info.most = room;
    // Sizes that take the same room are the same to a plan.
    const std::size_t least = (std::max<std::size_t>(recording[i].least, 1) - 1) / alignment * alignment;
    info.least = least + (least != 0);
    info.least = std::max<std::size_t>(info.least, room > UINT32_MAX ? room - UINT32_MAX : 0);
    info.pool_only = true;
  }
  for (std::size_t i = 0; i < steps.size(); ++i) {
    Info& info = infos_[steps[i]];
    ArenaStep& step = steps_[steps[i]];
    info.pool_only = false;
    step.most = info.most;
    step.slack = static_cast<std::uint32_t>(info.most - info.least);
    step.offset = static_cast<std::size_t>(offsets[i]) * alignment;
    info.upper = step.offset + info.most;
  }
  held_.reserve(infos_.size());
  slab_ = allocator_.malloc(slab_bytes_, stream_);
  try {
    take_slots_for_steps();
    find_earlier();
  } catch (...) {
    give_slots_back();
    free_slab();
    throw;
  }
}

void ArenaPlan::take_slots_for_steps() {
  const bool on_cpu = allocator_.device().type == DeviceType::cpu;
  Slot* spare = nullptr;
  try {
    for (std::uint32_t i = 0; i < size(); ++i) {
      if (infos_[i].pool_only) continue;
      if (spare == nullptr) spare = take_slots();
      Slot& slot = *std::exchange(spare, detail_of(*spare).next);
      steps_[i].slot = &slot;
      slot.host = on_cpu ? static_cast<std::byte*>(slab_.ptr()) : nullptr;
      slot.state = detail::SlotState::listed;
      detail::SlotDetail& detail = detail_of(slot);
      detail.owner = this;
      detail.buffer = slab_;
      detail.index = i;
      detail.owned = true;
    }
  } catch (...) {
    while (spare != nullptr) put_slot(*std::exchange(spare, detail_of(*spare).next));
    throw;
  }
  while (spare != nullptr) put_slot(*std::exchange(spare, detail_of(*spare).next));
}

// Goes through a cycle with a map of who lies on top: start of a piece of the slab -> its end and step.
void ArenaPlan::find_earlier() {
  std::map<std::size_t, std::pair<std::size_t, std::uint32_t>> top;
  std::vector<std::size_t> begins(infos_.size() + 1, 0);
  std::vector<std::uint32_t> found;
  for (std::uint32_t i = 0; i < size(); ++i) {
    begins[i] = earlier_.size();
    if (infos_[i].pool_only) continue;
    const std::size_t lower = steps_[i].offset;
    const std::size_t upper = infos_[i].upper;
    found.clear();
    auto it = top.upper_bound(lower);
    if (it != top.begin()) --it;
    while (it != top.end() && it->first < upper) {
      const auto [from, piece] = *it;
      if (piece.first <= lower) {
        ++it;
        continue;
      }
      found.push_back(piece.second);
      it = top.erase(it);
      if (from < lower) top[from] = {lower, piece.second};
      if (piece.first > upper) it = top.insert_or_assign(upper, piece).first;
    }
    top[lower] = {upper, i};
    std::sort(found.begin(), found.end());
    found.erase(std::unique(found.begin(), found.end()), found.end());
    for (const std::uint32_t step : found) earlier_.push_back(steps_[step].slot);
  }
  begins[infos_.size()] = earlier_.size();
  for (std::uint32_t i = 0; i < size(); ++i) {
    steps_[i].earlier = earlier_.data() + begins[i];
    steps_[i].earlier_count = static_cast<std::uint32_t>(begins[i + 1] - begins[i]);
  }
  for (const auto& [from, piece] : top) last_.push_back(piece.second);
  std::sort(last_.begin(), last_.end());
  last_.erase(std::unique(last_.begin(), last_.end()), last_.end());
}

bool ArenaPlan::same_prefix(const ArenaPlan& other, std::uint32_t count) const noexcept {
  if (count > size() || count > other.size()) return false;
  for (std::uint32_t i = 0; i < count; ++i) {
    if (infos_[i].least > other.infos_[i].most || other.infos_[i].least > infos_[i].most) return false;
  }
  return true;
}

// --- What is in use
// ---------------------------------------------------------------------------------------------------

void ArenaPlan::hold(std::uint32_t index) {
  if (infos_[index].held) return;
  infos_[index].held = true;
  held_.push_back(index);
}

bool ArenaPlan::earlier_are_free(std::uint32_t index) {
  bool all = true;
  const ArenaStep& step = steps_[index];
  for (std::uint32_t i = 0; i < step.earlier_count; ++i) {
    if (!in_use(*step.earlier[i])) continue;
    hold(detail_of(*step.earlier[i]).index);
    all = false;
  }
  return all;
}

bool ArenaPlan::is_free(std::uint32_t index) {
  bool all = earlier_are_free(index);
  for (std::size_t i = 0; i < held_.size();) {
    const std::uint32_t other = held_[i];
    if (!in_use(*steps_[other].slot)) {
      infos_[other].held = false;
      held_[i] = held_.back();
      held_.pop_back();
      continue;
    }
    all = all && (infos_[other].upper <= steps_[index].offset || infos_[index].upper <= steps_[other].offset);
    ++i;
  }
  return all;
}

void ArenaPlan::finish(std::uint32_t first, std::uint32_t passed) {
  const auto look = [this](std::uint32_t index) {
    if (!infos_[index].pool_only && in_use(*steps_[index].slot)) hold(index);
  };
  if (first == 0 && passed == size()) {
    for (const std::uint32_t index : last_) look(index);
  } else {
    for (std::uint32_t i = first; i < passed; ++i) look(i);
  }
}

void ArenaPlan::note_pool_only(Recording& recording) const {
  for (const std::uint32_t index : held_) {
    if ((steps_[index].slot->shared.load(std::memory_order_relaxed) & detail::kUsedElsewhere) != 0)
      recording[index].pool_only = true;
  }
}

void ArenaPlan::record_use(Slot& slot, const Stream& stream) {
  if (stream == stream_) return;
  allocator_.record_use(slab_, stream);
  slot.shared.fetch_or(detail::kUsedElsewhere, std::memory_order_relaxed);
}

// --- The end
// ----------------------------------------------------------------------------------------------------------

void ArenaPlan::close() noexcept {
  std::size_t used = 0;
  for (ArenaStep& step : steps_) {
    if (step.slot == nullptr) continue;
    if (detail::handle_count(*step.slot) != 0) {
      ++used;
    } else {
      put_slot(*std::exchange(step.slot, nullptr));
    }
  }
  remaining_.store(used + 1, std::memory_order_relaxed);
  if (used != 0) {
    const auto for_each = [this](auto visit) {
      for (const ArenaStep& step : steps_) {
        if (step.slot != nullptr) visit(*step.slot);
      }
    };
    for_each([](Slot& slot) { make_orphan(slot); });
    heavy_fence();
    for_each([](Slot& slot) { detail::last_look(slot); });
  }
  let_go();
}

void ArenaPlan::retire(Slot& slot) noexcept {
  put_slot(slot);
  let_go();
}

void ArenaPlan::give_slots_back() noexcept {
  for (ArenaStep& step : steps_) {
    if (step.slot != nullptr) put_slot(*std::exchange(step.slot, nullptr));
  }
}

void ArenaPlan::free_slab() noexcept {
  try {
    allocator_.free(slab_);
  } catch (const std::exception&) {
    // Somebody freed the slab by a plain handle: it is gone already, and this may run in a destructor.
  }
}

void ArenaPlan::let_go() noexcept {
  if (remaining_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  free_slab();
  delete this;
}

// --- Check
// ------------------------------------------------------------------------------------------------------------

void ArenaPlan::check(std::vector<std::string>& broken) const {
  bool inside = true;
  bool owned = true;
  bool room = true;
  std::vector<std::pair<std::size_t, std::size_t>> live;
  for (std::uint32_t i = 0; i < size(); ++i) {
    const Info& info = infos_[i];
    if (info.pool_only) continue;
    inside = inside && steps_[i].offset < info.upper && info.upper <= slab_bytes_;
    room = room && info.least <= info.most && steps_[i].most == info.upper - steps_[i].offset;
    owned = owned && detail_of(*steps_[i].slot).owner == this && detail_of(*steps_[i].slot).index == i;
    if (detail::handle_count(*steps_[i].slot) != 0) live.emplace_back(steps_[i].offset, info.upper);
  }
  std::sort(live.begin(), live.end());
  bool apart = true;
  for (std::size_t i = 1; i < live.size(); ++i) apart = apart && live[i - 1].second <= live[i].first;
  std::size_t marked = 0;
  for (const Info& info : infos_) marked += info.held;
  bool listed = marked == held_.size() && held_.capacity() >= infos_.size();
  for (const std::uint32_t index : held_) listed = listed && infos_[index].held;
  if (!inside) broken.emplace_back("every step of a plan lies within its slab");
  if (!room) broken.emplace_back("a step has room for the requests that it serves");
  if (!owned) broken.emplace_back("every step of a plan has a slot of its own");
  if (!apart) broken.emplace_back("no two live buffers share a byte");
  if (!listed) broken.emplace_back("held buffers are listed once");
  if (steps_.back().most != SIZE_MAX || steps_.back().slot != nullptr) broken.emplace_back("a plan has an end");
}

}  // namespace cistern::pooling
