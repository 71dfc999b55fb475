// ArenaCore: recording, planning, and putting plans in service.
#include <algorithm>
#include <utility>

#include "cistern/error.hpp"
#include "pool/planned_arena_core.hpp"

namespace cistern::pooling {

namespace {

constexpr unsigned kMostPatience = 256;
constexpr unsigned kCalm = 8;     // Clean cycles after which a change is met with the first patience again.
constexpr unsigned kInUse = 8;    // Cycles: a shape that was used so lately keeps its place.
constexpr unsigned kInVain = 16;  // Recorded cycles without a plan after which recording pauses.

}  // namespace

ArenaCore::Cycle* ArenaCore::find(std::uint64_t number) noexcept {
  const auto it =
      std::find_if(cycles_.begin(), cycles_.end(), [number](const auto& cycle) { return cycle->number == number; });
  return it == cycles_.end() ? nullptr : it->get();
}

// The shape that the recording is of, merged with it, or a new one. Null: there is no place for a new one, unless it
// `must` be kept. Shapes in use keep their places: by turns, they would drive each other out before any is planned.
ArenaCore::Cycle* ArenaCore::shape_like(const Recording& recording, bool must) {
  for (const auto& cycle : cycles_) {
    if (!alike(cycle->recording, recording)) continue;
    merge(cycle->recording, recording);
    ++cycle->seen;
    return cycle.get();
  }
  if (cycles_.size() >= std::max(options_.max_shapes, 1u)) {
    // One that was never planned, else the one not used for longest.
    const auto oldest = std::min_element(cycles_.begin(), cycles_.end(), [](const auto& a, const auto& b) {
      return std::pair(a->plan != nullptr, a->last_used) < std::pair(b->plan != nullptr, b->last_used);
    });
    if (!must && (*oldest)->last_used + kInUse > figures_.cycles) return nullptr;
    if (oldest->get() == current_) follow(nullptr);
    if ((*oldest)->plan != nullptr) {
      (*oldest)->plan->close();
      displaced_ = true;
    }
    cycles_.erase(oldest);
  }
  auto cycle = std::make_unique<Cycle>();
  cycle->recording = recording;
  cycle->number = next_number_++;
  cycle->seen = 1;
  cycles_.push_back(std::move(cycle));
  return cycles_.back().get();
}

void ArenaCore::learn_recorded() {
  ++figures_.recorded;
  const Recording& recording = recorder_.cycle();
  if (recording.empty() || recording.size() >= UINT32_MAX) return;
  // What lives on into the next cycle is planned for the case that a cycle of its own shape follows.
  Cycle* before = nullptr;
  if (const Recording& previous = recorder_.previous(); recorded_last_ && alike(previous, recording)) {
    for (const auto& cycle : cycles_) {
      if (alike(cycle->recording, previous)) {
        merge(cycle->recording, previous);
        before = cycle.get();
        break;
      }
    }
  }
  Cycle* const shape = shape_like(recording, false);
  if (shape == nullptr) {
    in_vain_ += kInVain / 4;
    return;
  }
  Cycle& cycle = *shape;
  cycle.last_used = figures_.cycles + 1;
  if (cycle.plan != nullptr) cycle.plan->note_pool_only(cycle.recording);
  const bool enough = cycle.seen >= options_.record_cycles &&
                      (before == &cycle || options_.record_cycles <= 1 || cycle.seen > options_.record_cycles);
  if (job_ == nullptr && enough && (cycle.plan == nullptr || departed_)) start_plan(cycle);
}

void ArenaCore::PlanJob::run() noexcept {
  try {
    options.progress = [this](const PlanProgress&) { return !stop.load(std::memory_order_relaxed); };
    result = plan(problem, options);
  } catch (...) {
    failure = std::current_exception();
  }
  done.store(true, std::memory_order_release);
}

void ArenaCore::start_plan(Cycle& cycle) {
  auto job = std::make_unique<PlanJob>();
  job->number = cycle.number;
  job->recording = cycle.recording;
  job->problem = problem_of(cycle.recording, alignment_, job->steps);
  if (job->steps.empty()) return;
  job->options.deadline = options_.plan_time;
  job_ = std::move(job);
  if (options_.background) {
    try {
      job_->thread = std::thread([job = job_.get()] { job->run(); });
      return;
    } catch (const std::exception&) {
      // No thread to be had: plan here.
    }
  }
  job_->run();
  finish_job();
}

void ArenaCore::finish_job() {
  if (job_ == nullptr || !job_->done.load(std::memory_order_acquire)) return;
  if (job_->thread.joinable()) job_->thread.join();
  const std::unique_ptr<PlanJob> job = std::move(job_);
  put_in_service(*job);
}

std::exception_ptr ArenaCore::put_in_service(PlanJob& job) {
  Cycle* cycle = find(job.number);
  if (cycle == nullptr) return nullptr;
  ArenaPlan* made = nullptr;
  try {
    if (job.failure) std::rethrow_exception(job.failure);
    pool_.trim();
    made = new ArenaPlan(allocator_, stream_, id_, job.recording, job.steps, job.result.offsets, job.result.peak,
                         alignment_);
  } catch (const std::exception&) {
    ++figures_.failed_plans;
    return std::current_exception();
  }
  const bool followed = cycle == current_;
  if (cycle->plan != nullptr) cycle->plan->close();
  cycle->plan = made;
  if (followed || plan_ == nullptr) follow(cycle);
  ++figures_.plans;
  figures_.last_peak = static_cast<std::size_t>(job.result.peak) * alignment_;
  figures_.last_lower_bound = static_cast<std::size_t>(job.result.lower_bound) * alignment_;
  return nullptr;
}

void ArenaCore::stop_job() noexcept {
  if (job_ == nullptr) return;
  job_->stop.store(true, std::memory_order_relaxed);
  if (job_->thread.joinable()) job_->thread.join();
  job_.reset();
}

void ArenaCore::finish_planning() {
  if (job_ == nullptr) return;
  if (job_->thread.joinable()) job_->thread.join();
  finish_job();
  set_attention();
}

void ArenaCore::learn(const Recording& recording) {
  stop_job();
  Cycle& cycle = *shape_like(recording, true);
  cycle.seen = std::max(cycle.seen, options_.record_cycles);
  cycle.last_used = figures_.cycles;
  PlanJob job;
  job.number = cycle.number;
  job.recording = cycle.recording;
  job.problem = problem_of(cycle.recording, alignment_, job.steps);
  if (job.steps.empty()) return;
  job.options.deadline = options_.plan_time;
  job.result = plan(job.problem, job.options);
  if (const std::exception_ptr failure = put_in_service(job)) std::rethrow_exception(failure);
  recording_ = false;
  set_attention();
}

void ArenaCore::decide_recording(bool was_recording, bool planned) {
  const bool any = std::any_of(cycles_.begin(), cycles_.end(), [](const auto& c) { return c->plan != nullptr; });
  ragged_ = departed_ ? ragged_ + 1 : 0;
  clean_ = departed_ || plan_ == nullptr ? 0 : clean_ + 1;
  if (clean_ >= kCalm) patience_ = std::max(options_.replan_after, 1u);
  if (was_recording) ++in_vain_;
  if (planned) {
    ragged_ = in_vain_ = 0;
    // A loop that changes all the time is not worth a plan each time.
    if (any) patience_ = std::min(patience_ * 2, kMostPatience);
    // More shapes than are kept: else they would take each other's place in every cycle.
    if (displaced_) pause_ = patience_ + 1;
    displaced_ = false;
  } else if (in_vain_ >= kInVain) {
    ragged_ = in_vain_ = 0;
    pause_ = patience_ + 1;
    patience_ = std::min(patience_ * 2, kMostPatience);
  }
  if (pause_ > 0) --pause_;
  recording_ = job_ == nullptr && !planned && pause_ == 0 && (!any || ragged_ >= patience_);
  if (recording_) recorder_.begin_cycle(was_recording);
  recorded_last_ = was_recording && recording_;
}

}  // namespace cistern::pooling
