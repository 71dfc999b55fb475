// ArenaPlan: building it, looking at what is in use, ending.
#include "pool/planned_arena_plan.hpp"

#include <algorithm>
#include <exception>
#include <functional>
#include <map>
#include <queue>
#include <utility>

#include "allocator/kept_buffers.hpp"
#include "cistern/error.hpp"
#include "cistern/memory.hpp"
#include "pool/heavy_fence.hpp"
#include "pool/slot_store.hpp"

namespace cistern::pooling {

using detail::detail_of;
using detail::Slot;

namespace {

// Handles, or work on another stream that the slab's bytes must wait for.
bool in_use(const Slot& slot) noexcept { return detail::users_of(slot) != 0; }

// Bytes of a plan's slab. Throws out_of_memory for more than any device could have.
std::size_t slab_size(std::int64_t peak, std::size_t alignment, Device device) {
  const auto units = static_cast<std::size_t>(peak);
  if (units <= detail::kMaxRequest / alignment) return units * alignment;
  throw out_of_memory("cistern: PlannedArena: the plan needs " + std::to_string(units) + " times " +
                          std::to_string(alignment) + " bytes, more than any device could have",
                      units > SIZE_MAX / alignment ? SIZE_MAX : units * alignment, get_memory_limit(device));
}

// What may live on into the next cycle: there, the first steps of its slot come before its end.
bool has_own_slot(const Recording& recording, std::uint32_t step) noexcept {
  return recording[step].dead_at >= recording.size();
}

}  // namespace

ArenaPlan::ArenaPlan(Allocator& allocator, const Stream& stream, std::uint64_t arena_id, const Recording& recording,
                     const std::vector<std::uint32_t>& steps, const std::vector<std::int64_t>& offsets,
                     std::int64_t peak, std::size_t alignment)
    : SlotOwner(arena_id),
      allocator_(allocator),
      stream_(stream),
      slab_bytes_(slab_size(peak, alignment, stream.device())),
      cells_(recording.size() + 1),
      infos_(recording.size()) {
  for (std::size_t i = 0; i < recording.size(); ++i) {
    const std::size_t room = std::max<std::size_t>((recording[i].most + alignment - 1) / alignment, 1) * alignment;
    Info& info = infos_[i];
    info.most = room;
    // Sizes that take the same room are the same to a plan.
    const std::size_t least = (std::max<std::size_t>(recording[i].least, 1) - 1) / alignment * alignment;
    info.least = least + (least != 0);
    info.pool_only = true;
  }
  for (std::size_t i = 0; i < steps.size(); ++i) {
    Info& info = infos_[steps[i]];
    info.pool_only = false;
    info.lower = static_cast<std::size_t>(offsets[i]) * alignment;
    info.upper = info.lower + info.most;
  }
  held_.reserve(infos_.size());
  slab_ = allocator_.malloc(slab_bytes_, stream_);
  slab_kept_ = allocation::keep(slab_, allocation::Keeper::slab) == allocation::Keeper::none;
  try {
    share_slots(recording);
    take_slots_for_tracks();
  } catch (...) {
    give_slots_back();
    free_slab();
    throw;
  }
}

// The first step after each that needs some of its bytes; kNone: no other in the cycle. Goes through the cycle with a
// map of who lies on top: start of a piece of the slab -> its end and step.
std::vector<std::uint32_t> ArenaPlan::first_reuses() const {
  std::vector<std::uint32_t> out(size(), kNone);
  std::map<std::size_t, std::pair<std::size_t, std::uint32_t>> top;
  for (std::uint32_t i = 0; i < size(); ++i) {
    if (infos_[i].pool_only) continue;
    const std::size_t lower = infos_[i].lower;
    const std::size_t upper = infos_[i].upper;
    auto it = top.upper_bound(lower);
    if (it != top.begin()) --it;
    while (it != top.end() && it->first < upper) {
      const auto [from, piece] = *it;
      if (piece.first <= lower) {
        ++it;
        continue;
      }
      out[piece.second] = std::min(out[piece.second], i);
      it = top.erase(it);
      if (from < lower) top[from] = {lower, piece.second};
      if (piece.first > upper) it = top.insert_or_assign(upper, piece).first;
    }
    top[lower] = {upper, i};
  }
  return out;
}

// For each buffer whose bytes are needed again, the step that looks at it. One a step where that is possible, and as
// late as it can be, because lives vary: backwards, and of those that may be looked at the one that dies last.
std::vector<std::uint32_t> ArenaPlan::when_to_look(const Recording& recording,
                                                   const std::vector<std::uint32_t>& due) const {
  std::vector<std::uint32_t> out = due;
  std::vector<std::vector<std::uint32_t>> due_at(size());
  for (std::uint32_t i = 0; i < size(); ++i) {
    if (due[i] != kNone) due_at[due[i]].push_back(i);
  }
  std::priority_queue<std::pair<std::uint32_t, std::uint32_t>> waiting;  // Death and step.
  for (std::uint32_t i = size(); i-- > 0;) {
    for (const std::uint32_t step : due_at[i]) waiting.emplace(recording[step].dead_at, step);
    if (infos_[i].pool_only || has_own_slot(recording, i)) continue;
    // Whose time is over is looked at when it is due, beside another one.
    while (!waiting.empty() && waiting.top().first > i) waiting.pop();
    if (waiting.empty()) continue;
    out[waiting.top().second] = i;
    waiting.pop();
  }
  return out;
}

void ArenaPlan::share_slots(const Recording& recording) {
  const std::vector<std::uint32_t> look = when_to_look(recording, first_reuses());
  std::vector<std::vector<std::uint32_t>> to_look_at(size());
  for (std::uint32_t i = 0; i < size(); ++i) {
    if (look[i] != kNone) to_look_at[look[i]].push_back(i);
  }
  std::vector<std::uint32_t> idle;  // Tracks whose last buffer has been looked at.
  for (std::uint32_t i = 0; i < size(); ++i) {
    Info& info = infos_[i];
    const std::size_t before = idle.size();
    for (const std::uint32_t step : to_look_at[i]) idle.push_back(infos_[step].track);
    if (info.pool_only) continue;
    if (has_own_slot(recording, i) || idle.empty()) {
      info.track = static_cast<std::uint32_t>(tracks_.size());
      tracks_.emplace_back();
    } else {
      info.track = idle.back();
      idle.pop_back();
    }
    tracks_[info.track].steps.push_back(i);
    for (std::size_t k = before; k < idle.size(); ++k) earlier_tracks_.push_back(idle[k]);
    info.earlier_count = static_cast<std::uint32_t>(idle.size() - std::min(before, idle.size()));
  }
}

// As many slots as there are tracks, in the order of their addresses: a cycle then goes through memory in one
// direction, and its end through few runs of it.
std::vector<Slot*> ArenaPlan::slots_by_address() const {
  std::vector<Slot*> out;
  out.reserve(tracks_.size());
  Slot* spare = nullptr;
  const auto give_back = [&spare] {
    while (spare != nullptr) put_slot(*std::exchange(spare, detail_of(*spare).next));
  };
  try {
    while (out.size() < tracks_.size()) {
      if (spare == nullptr) spare = take_slots();
      out.push_back(std::exchange(spare, detail_of(*spare).next));
    }
  } catch (...) {
    give_back();
    for (Slot* slot : out) put_slot(*slot);
    throw;
  }
  give_back();
  std::sort(out.begin(), out.end(), std::less<>());
  return out;
}

void ArenaPlan::take_slots_for_tracks() {
  earlier_.reserve(earlier_tracks_.size());
  runs_.reserve(tracks_.size());
  const bool on_cpu = allocator_.device().type == DeviceType::cpu;
  const std::vector<Slot*> slots = slots_by_address();
  for (std::uint32_t i = 0; i < tracks_.size(); ++i) {
    Slot& slot = *slots[i];
    tracks_[i].slot = &slot;
    if (runs_.empty() || runs_.back().data() + runs_.back().size() != &slot) {
      runs_.emplace_back(&slot, 1);
    } else {
      runs_.back() = {runs_.back().data(), runs_.back().size() + 1};
    }
    slot.host = on_cpu ? static_cast<std::byte*>(slab_.ptr()) : nullptr;
    slot.state = detail::SlotState::listed;
    detail::SlotDetail& detail = detail_of(slot);
    detail.owner = this;
    detail.buffer = slab_;
    detail.index = i;
    detail.owned = true;
  }
  for (const std::uint32_t track : earlier_tracks_) earlier_.push_back(tracks_[track].slot);
  std::size_t at = 0;
  for (Info& info : infos_) {
    info.earlier_at = at;
    at += info.earlier_count;
  }
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

// The step that was served last from the slot in this cycle; kNone: none was.
std::uint32_t ArenaPlan::user_of(const Track& track, std::uint32_t passed) const noexcept {
  auto it = std::lower_bound(track.steps.begin(), track.steps.end(), passed);
  while (it != track.steps.begin()) {
    --it;
    if (*it < first_) break;
    if (infos_[*it].missed_in != cycle_) return *it;
  }
  return kNone;
}

void ArenaPlan::hold(std::uint32_t index) {
  // What is of no step of this cycle is of an earlier one's, and held since its end.
  if (index == kNone || infos_[index].held) return;
  infos_[index].held = true;
  held_.push_back(index);
}

void ArenaPlan::hold_earlier(std::uint32_t index) {
  const auto look = [&](const Slot& slot) {
    if (in_use(slot)) hold(user_of(tracks_[detail_of(slot).index], index));
  };
  look(slot_of(index));
  const Info& info = infos_[index];
  for (std::uint32_t i = 0; i < info.earlier_count; ++i) look(*earlier_[info.earlier_at + i]);
}

bool ArenaPlan::is_free(std::uint32_t index) {
  hold_earlier(index);
  bool all = true;
  for (std::size_t i = 0; i < held_.size();) {
    const std::uint32_t other = held_[i];
    if (!in_use(slot_of(other))) {
      slot_of(other).state = detail::SlotState::listed;
      infos_[other].held = false;
      held_[i] = held_.back();
      held_.pop_back();
      continue;
    }
    all = all && (infos_[other].upper <= infos_[index].lower || infos_[index].upper <= infos_[other].lower);
    ++i;
  }
  all = all && !in_use(slot_of(index));
  if (!all) infos_[index].missed_in = cycle_;
  return all;
}

bool ArenaPlan::others_are_free(std::uint32_t index) const noexcept {
  const Info& info = infos_[index];
  std::uint32_t busy = detail::users_of(slot_of(index));
  for (std::uint32_t i = 0; i < info.earlier_count; ++i) busy |= detail::users_of(*earlier_[info.earlier_at + i]);
  return busy == 0;
}

PlannedBuffer ArenaPlan::serve(std::uint32_t index, std::size_t bytes, DType dtype, const Shape& shape) noexcept {
  Slot& slot = slot_of(index);
  slot.primary.store(1, std::memory_order_relaxed);
  TypedBuffer handle = detail::HandleAccess::make(&slot, infos_[index].lower, bytes, dtype, shape);
  // No handle of the step exists: it would use the slot, or be held.
  detail::HandleAccess::write(cells_[index].handle, handle, infos_[index].earlier_count != 0 ? detail::kMore : 0);
  detail::HandleAccess::forget(handle);
  return detail::PlannedAccess::make(cells_[index].handle);
}

void ArenaPlan::skip(std::uint32_t index) {
  if (infos_[index].pool_only) return;
  hold_earlier(index);
  infos_[index].missed_in = cycle_;
}

void ArenaPlan::finish(std::uint32_t passed) {
  std::uint32_t busy = 0;
  for (const auto& run : runs_) {
    for (const Slot& slot : run) busy |= detail::users_of(slot);
  }
  if (busy != 0) {
    for (const Track& track : tracks_) {
      if (in_use(*track.slot)) hold(user_of(track, passed));
    }
  }
  ++cycle_;
}

void ArenaPlan::hold_slot(const Slot& slot, std::uint32_t passed) {
  hold(user_of(tracks_[detail_of(slot).index], passed));
}

void ArenaPlan::note_pool_only(Recording& recording) const {
  for (const std::uint32_t index : held_) {
    if ((slot_of(index).shared.load(std::memory_order_relaxed) & detail::kUsedElsewhere) != 0)
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
  for (Track& track : tracks_) {
    if (detail::handle_count(*track.slot) != 0) {
      ++used;
    } else {
      put_slot(*std::exchange(track.slot, nullptr));
    }
  }
  remaining_.store(used + 1, std::memory_order_relaxed);
  if (used != 0) {
    const auto for_each = [this](auto visit) {
      for (const Track& track : tracks_) {
        if (track.slot != nullptr) visit(*track.slot);
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
  for (Track& track : tracks_) {
    if (track.slot != nullptr) put_slot(*std::exchange(track.slot, nullptr));
  }
}

void ArenaPlan::free_slab() noexcept {
  if (slab_kept_) allocation::let_go(slab_);
  try {
    allocator_.free(slab_);
  } catch (const std::exception&) {
    // The allocator's fault; this may run in a destructor.
  }
}

void ArenaPlan::let_go() noexcept {
  if (remaining_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  free_slab();
  delete this;
}

// --- Check
// ------------------------------------------------------------------------------------------------------------

void ArenaPlan::check(std::uint32_t passed, std::vector<std::string>& broken) const {
  const auto require = [&](bool holds, const char* rule) {
    if (!holds) broken.emplace_back(rule);
  };
  bool inside = true;
  bool owned = true;
  bool room = true;
  bool written = true;
  std::size_t on_tracks = 0;
  for (std::uint32_t i = 0; i < size(); ++i) {
    const Info& info = infos_[i];
    if (info.pool_only) continue;
    inside = inside && info.lower < info.upper && info.upper <= slab_bytes_;
    room = room && info.least <= info.most && info.most == info.upper - info.lower;
    owned = owned && info.track < tracks_.size();
    const TypedBuffer& handle = cells_[i].handle;
    if (!handle) continue;
    written = written && detail::HandleAccess::slot(handle) == tracks_[info.track].slot;
    written = written && handle.byte_offset() == info.lower && handle.byte_len() <= info.most;
  }
  for (const Info& info : infos_) on_tracks += !info.pool_only;
  std::vector<std::uint32_t> holder(tracks_.size(), kNone);
  bool listed = held_.capacity() >= infos_.size();
  for (const std::uint32_t index : held_) {
    std::uint32_t& of_track = holder[infos_[index].track];
    listed = listed && infos_[index].held && of_track == kNone;
    of_track = index;
  }
  std::size_t marked = 0;
  for (const Info& info : infos_) marked += info.held;

  std::vector<std::pair<std::size_t, std::size_t>> live;
  bool known = true;
  for (std::uint32_t t = 0; t < tracks_.size(); ++t) {
    const Track& track = tracks_[t];
    owned = owned && detail_of(*track.slot).owner == this && detail_of(*track.slot).index == t;
    owned = owned && std::is_sorted(track.steps.begin(), track.steps.end());
    on_tracks -= track.steps.size();
    if (!in_use(*track.slot)) continue;
    const std::uint32_t user = holder[t] != kNone ? holder[t] : user_of(track, passed);
    known = known && user != kNone;
    if (user != kNone) live.emplace_back(infos_[user].lower, infos_[user].upper);
  }
  std::size_t in_runs = 0;
  for (const auto& run : runs_) {
    for (const Slot& slot : run) owned = owned && in_runs < tracks_.size() && tracks_[in_runs++].slot == &slot;
  }
  owned = owned && in_runs == tracks_.size();
  std::sort(live.begin(), live.end());
  bool apart = true;
  for (std::size_t i = 1; i < live.size(); ++i) apart = apart && live[i - 1].second <= live[i].first;
  std::vector<std::uint32_t> looked(size(), kNone);
  for (const Track& track : tracks_) {
    for (std::size_t k = 1; k < track.steps.size(); ++k) looked[track.steps[k - 1]] = track.steps[k];
  }
  for (std::uint32_t i = 0; i < size(); ++i) {
    for (std::uint32_t k = 0; k < infos_[i].earlier_count; ++k) {
      const std::vector<std::uint32_t>& steps = tracks_[earlier_tracks_[infos_[i].earlier_at + k]].steps;
      const auto after = std::lower_bound(steps.begin(), steps.end(), i);
      if (after != steps.begin()) looked[*std::prev(after)] = std::min(looked[*std::prev(after)], i);
    }
  }
  const std::vector<std::uint32_t> needed = first_reuses();
  bool in_time = true;
  for (std::uint32_t i = 0; i < size(); ++i) in_time = in_time && looked[i] <= needed[i];
  require(in_time, "a buffer is looked at before its bytes are given to another");
  require(inside, "every step of a plan lies within its slab");
  require(room, "a step has room for the requests that it serves");
  require(owned && on_tracks == 0,
          "every step of a plan has a slot, which belongs to the plan and is in one of its runs");
  require(apart, "no two live buffers share a byte");
  require(known, "a slot in use is held, or of a step of this cycle");
  require(listed && marked == held_.size(), "held buffers are listed once");
  require(written, "a handle written ahead is of its step's slot and bytes");
  require(!cells_.back().handle, "a plan has an end");
}

}  // namespace cistern::pooling
