// ArenaCore: serving requests and ending cycles. Learning and planning are in planned_arena_learn.cpp.
#include "pool/planned_arena_core.hpp"

#include <algorithm>
#include <new>
#include <utility>

#include "cistern/error.hpp"
#include "pool/pool_core.hpp"
#include "pool/slot_store.hpp"

namespace cistern::pooling {

using detail::detail_of;
using detail::HandleAccess;
using detail::Slot;

namespace {

constexpr std::uint32_t kAhead = 16;  // Steps that a request is looked for beyond where it is expected.
constexpr std::uint32_t kLost = 64;   // Requests without a match after which the cycle is given up.

// What every device of the kind is content with.
std::size_t alignment_of(Device device) noexcept { return device.type == DeviceType::cpu ? 64 : 512; }

}  // namespace

ArenaCore::ArenaCore(Allocator& allocator, const Stream& stream, ArenaOptions options, std::uint64_t id,
                     detail::ArenaFront& front)
    : allocator_(allocator),
      stream_(stream),
      options_(options),
      id_(id),
      alignment_(alignment_of(allocator.device())),
      front_(front),
      pool_(allocator, stream, {.bucketing = options.bucketing}),
      patience_(std::max(options.replan_after, 1u)) {
  front_.next = &nothing_;
  recorder_.begin_cycle(false);
  set_attention();
}

ArenaCore::~ArenaCore() {
  stop_job();
  for (const auto& cycle : cycles_) {
    if (cycle->plan != nullptr) cycle->plan->close();
  }
}

void ArenaCore::set_attention() noexcept {
  if (plan_ == nullptr || is_busy() == (aside_ != nullptr)) return;
  if (aside_ != nullptr) {
    go_to(aside_);
  } else {
    aside_ = std::exchange(front_.next, &nothing_);
  }
}

// --- Serving
// ----------------------------------------------------------------------------------------------------------

PlannedBuffer ArenaCore::alloc_again() {
  const std::uint32_t index = position();
  if (!plan_->others_are_free(index)) {
    const TypedBuffer& last = plan_->cell(index)->handle;
    return alloc(last.byte_len(), last.dtype(), last.shape());
  }
  go_to(plan_->cell(index + 1));
  return plan_->serve_again(index);
}

PlannedBuffer ArenaCore::alloc(std::size_t bytes, DType dtype, const Shape& shape) {
  asked_ = true;
  if (recording_) recorder_.look();
  PlannedBuffer out;
  if (const std::uint32_t index = find_step(bytes); index == kNone) {
    if (plan_ != nullptr) miss(bytes);
  } else {
    const bool planned = !plan_->pool_only(index);
    const bool free = planned && plan_->is_free(index);
    go_to(plan_->cell(index + 1));
    unmatched_ = 0;
    if (free) {
      out = plan_->serve(index, bytes, dtype, shape);
    } else {
      ++missed_;
      if (planned) {
        ++figures_.longer_life;
        departed_ = true;
      }
    }
  }
  set_attention();
  if (!out) out = from_pool(bytes, dtype, shape);
  if (recording_) recorder_.add(bytes, HandleAccess::slot(*out));
  return out;
}

void ArenaCore::miss(std::size_t bytes) {
  if (matched_all_ && position() == 0 && !recording_ && pause_ == 0 && job_ == nullptr) {
    // The first request fits no shape known: recorded from here on, this is the whole of another one.
    recording_ = true;
    recorder_.begin_cycle(false);
  }
  ++figures_.other_size;
  departed_ = true;
  matched_all_ = false;
  last_unmatched_ = bytes;
  if (unmatched_ < kLost) ++unmatched_;
}

PlannedBuffer ArenaCore::from_pool(std::size_t bytes, DType dtype, const Shape& shape) {
  TypedBuffer handle = pool_.alloc(bytes, dtype, shape);
  detail::HandleCell& cell = cell_of(*HandleAccess::slot(handle));
  HandleAccess::write(cell.handle, handle, 0);
  HandleAccess::forget(handle);
  pool_used_ = true;
  ++figures_.from_pool;
  return detail::PlannedAccess::make(cell.handle);
}

std::uint32_t ArenaCore::find_step(std::size_t bytes) {
  if (plan_ == nullptr || unmatched_ >= kLost) return kNone;
  const std::uint32_t at = position();
  if (unmatched_ == 0) {
    if (plan_->matches(at, bytes)) return at;
    if (matched_all_ && switch_shape(bytes)) return position();
    return kNone;
  }
  // `unmatched_` requests were of other sizes, more than expected, or steps were left out. A place other than the next
  // one is believed only when the request before fits there too, and steps far ahead only after many requests without
  // a match: many steps have the same size.
  const std::uint32_t expected = at + unmatched_;
  const auto fits = [&](std::uint32_t index) {
    return plan_->matches(index, bytes) &&
           (index == expected || (index > at && plan_->matches(index - 1, last_unmatched_)));
  };
  const std::uint32_t ahead = std::min(unmatched_ / 2 + 1, kAhead);
  for (std::uint32_t d = 0; d <= std::max(unmatched_, ahead); ++d) {
    const bool back = d <= unmatched_ && fits(expected - d);
    if (!back && (d > ahead || !fits(expected + d))) continue;
    const std::uint32_t to = back ? expected - d : expected + d;
    for (std::uint32_t i = at; i < to; ++i) plan_->skip(i);
    missed_ += to - at;
    return to;
  }
  return kNone;
}

bool ArenaCore::switch_shape(std::size_t bytes) {
  const std::uint32_t at = position();
  for (const auto& other : cycles_) {
    if (other->plan == nullptr || other->plan == plan_ || !other->plan->matches(at, bytes)) continue;
    if (!other->plan->same_prefix(*plan_, at)) continue;
    leave_plan();
    current_ = other.get();
    plan_ = other->plan;
    first_ = at;
    plan_->begin(at);
    go_to(plan_->cell(at));
    if (at != 0) ++figures_.switches;
    return true;
  }
  return false;
}

void ArenaCore::release(TypedBuffer& buffer) {
  Slot* slot = HandleAccess::slot(buffer);
  const auto refuse = [](const char* why) { throw invalid_argument(std::string("PlannedArena::release: ") + why); };
  if (slot == nullptr) refuse("the handle is empty (released before, or never filled)");
  detail::SlotOwner* const owner = detail_of(*slot).owner;
  if (owner->pool_id() != id_) {
    const bool last = detail::handle_count(*slot) == 1;
    if (const char* why = pool_.core_->may_release(buffer)) refuse(why);
    pool_.core_->release(buffer);
    if (recording_ && last) recorder_.released(slot);
    return;
  }
  // Of a plan that is followed, or of one that was replaced: the caller need not know.
  auto* const plan = static_cast<ArenaPlan*>(owner);
  if (plan->forgotten()) {
    refuse("the buffer is from before clear(); drop its handles instead");
  }
  if (buffer.is_view()) refuse("the handle is a view; release the buffer that it is part of");
  if (slot->state == detail::SlotState::released) refuse("the buffer was released before through another handle");
  if (detail::handle_count(*slot) != 1) {
    slot->state = detail::SlotState::released;
    // Elsewhere it is held already, or nobody's any more.
    if (plan == plan_) plan->hold_slot(*slot, position());
  }
  buffer.reset();
  set_attention();
}

// --- Cycles
// -----------------------------------------------------------------------------------------------------------

void ArenaCore::follow(Cycle* cycle) {
  current_ = cycle;
  plan_ = cycle == nullptr ? nullptr : cycle->plan;
  first_ = 0;
  if (plan_ != nullptr) plan_->begin(0);
  go_to(plan_ == nullptr ? &nothing_ : plan_->cell(0));
}

void ArenaCore::leave_plan() {
  if (plan_ == nullptr) return;
  plan_->finish(position());
  figures_.from_slab += position() - first_ - missed_;
  missed_ = 0;
}

void ArenaCore::end_cycle() {
  if (!in_cycle()) {
    finish_job();
    set_attention();
    return;
  }
  ++figures_.cycles;
  const bool was_recording = recording_;
  if (was_recording) recorder_.end_cycle();
  leave_plan();
  const std::uint64_t ended = current_ == nullptr ? 0 : current_->number;
  if (current_ != nullptr) {
    current_->last_used = figures_.cycles;
    if (Cycle* before = departed_ ? nullptr : find(last_number_)) before->followed_by = ended;
  }
  last_number_ = departed_ ? 0 : ended;
  if (pool_used_ || pool_.escaped_count() != 0) pool_.reset();

  const std::uint64_t plans = figures_.plans + (job_ != nullptr ? 1 : 0);
  if (was_recording) {
    try {
      learn_recorded();
    } catch (const std::bad_alloc&) {
      ++figures_.failed_plans;  // The cycle has ended all the same; another one like it may be learned.
    }
  }
  decide_recording(was_recording, figures_.plans + (job_ != nullptr ? 1 : 0) != plans);
  finish_job();
  follow(guess_next(ended));
  asked_ = departed_ = pool_used_ = false;
  matched_all_ = true;
  unmatched_ = 0;
  set_attention();
}

// The shape that came next last time; the first request that differs corrects it.
ArenaCore::Cycle* ArenaCore::guess_next(std::uint64_t ended) noexcept {
  Cycle* last = find(ended);
  if (last != nullptr) {
    if (Cycle* next = find(last->followed_by); next != nullptr && next->plan != nullptr) return next;
    if (last->plan != nullptr) return last;
  }
  const auto it =
      std::find_if(cycles_.begin(), cycles_.end(), [](const auto& cycle) { return cycle->plan != nullptr; });
  return it == cycles_.end() ? nullptr : it->get();
}

void ArenaCore::clear() {
  stop_job();
  leave_plan();
  for (const auto& cycle : cycles_) {
    if (cycle->plan == nullptr) continue;
    cycle->plan->forget();
    cycle->plan->close();
  }
  cycles_.clear();
  follow(nullptr);
  pool_.clear();
  recorder_ = Recorder();
  recorder_.begin_cycle(false);
  recording_ = matched_all_ = true;
  recorded_last_ = displaced_ = asked_ = departed_ = pool_used_ = false;
  missed_ = unmatched_ = 0;
  ragged_ = clean_ = in_vain_ = pause_ = 0;
  last_number_ = 0;
  patience_ = std::max(options_.replan_after, 1u);
  set_attention();
}

// --- Figures
// ----------------------------------------------------------------------------------------------------------

ArenaFigures ArenaCore::figures() const {
  ArenaFigures out = figures_;
  if (plan_ != nullptr) out.from_slab += position() - first_ - missed_;
  for (const auto& cycle : cycles_) {
    if (cycle->plan == nullptr) continue;
    ++out.shapes;
    out.slab_bytes += cycle->plan->slab_bytes();
    out.held += cycle->plan->held_count();
  }
  out.pool_bytes = pool_.total_bytes();
  return out;
}

std::vector<std::string> ArenaCore::check_invariants() const {
  std::vector<std::string> broken = pool_.check_invariants();
  const auto require = [&](bool holds, const char* rule) {
    if (!holds) broken.emplace_back(rule);
  };
  for (const auto& cycle : cycles_) {
    if (cycle->plan != nullptr) cycle->plan->check(cycle->plan == plan_ ? position() : 0, broken);
  }
  require(plan_ == nullptr ? next() == &nothing_ : plan_->owns(next()), "the next step is of the plan followed");
  require((plan_ == nullptr) == (current_ == nullptr) && (plan_ == nullptr || current_->plan == plan_),
          "the plan followed is that of the shape followed");
  require(plan_ == nullptr || (first_ <= position() && missed_ <= position() - first_), "steps passed are counted");
  require(front_.next == &nothing_ || !is_busy(), "held buffers, recordings and lost places are attended to");
  require(aside_ == nullptr || front_.next == &nothing_, "a step is put aside only for nothing");
  require(!nothing_.handle, "without a plan no request agrees");
  require(cycles_.size() <= std::max(options_.max_shapes, 1u), "no more shapes are kept than allowed");
  return broken;
}

}  // namespace cistern::pooling
