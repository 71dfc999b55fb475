// ArenaCore: the policy of a PlannedArena: which plan a cycle follows, what happens when it departs from it, when to
// record and plan.
//
//   request                                            served by
//   matches the step, bytes free                       the slab
//   matches the step, bytes in use                     the pool; counted (longer life)
//   no match, all requests so far fit another shape    that shape from here on; counted (switch)
//   no match                                           the pool; counted (other size). The next requests are looked for
//                                                      in the steps around, so that one request more, one less or one
//                                                      of another size costs one or two requests
//
// Locking: none; one thread at a time. A plan is made by a thread that shares the PlanJob only.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cistern/planned_arena.hpp"
#include "pool/planned_arena_plan.hpp"
#include "pool/planned_arena_recorder.hpp"

namespace cistern::pooling {

class ArenaCore {
 public:
  ArenaCore(Allocator& allocator, const Stream& stream, ArenaOptions options, std::uint64_t id,
            detail::ArenaFront& front);
  ~ArenaCore();
  ArenaCore(const ArenaCore&) = delete;
  ArenaCore& operator=(const ArenaCore&) = delete;

  // pre: the request is valid.
  PlannedBuffer alloc(std::size_t bytes, DType dtype, const Shape& shape);
  // The next request is as it was last time, and its bytes were those of several others.
  PlannedBuffer alloc_again();
  void release(TypedBuffer& buffer);
  void end_cycle();
  bool in_cycle() const noexcept { return asked_ || position() != first_; }
  void finish_planning();
  void learn(const Recording& recording);
  void clear();

  ArenaFigures figures() const;
  std::vector<std::string> check_invariants() const;
  const Stream& stream() const noexcept { return stream_; }
  const ArenaOptions& options() const noexcept { return options_; }

 private:
  static constexpr std::uint32_t kNone = UINT32_MAX;

  // Cycles alike. Planned after some of them were recorded.
  struct Cycle {
    Recording recording;
    std::uint64_t number = 0;  // Names it; never used again.
    unsigned seen = 0;
    std::uint64_t last_used = 0;
    std::uint64_t followed_by = 0;  // Number of the shape that came after it last.
    ArenaPlan* plan = nullptr;
  };
  struct PlanJob {
    std::uint64_t number = 0;  // Of the shape.
    Recording recording;
    std::vector<std::uint32_t> steps;
    PlanProblem problem;
    PlanOptions options;
    PlanResult result;
    std::exception_ptr failure;
    std::atomic<bool> done{false};
    std::atomic<bool> stop{false};
    std::thread thread;
    void run() noexcept;
  };

  // The next step: the front's, or put aside while the front shows nothing.
  detail::HandleCell* next() const noexcept { return aside_ != nullptr ? aside_ : front_.next; }
  void go_to(detail::HandleCell* cell) noexcept {
    front_.next = cell;
    aside_ = nullptr;
  }
  std::uint32_t position() const noexcept { return plan_ == nullptr ? 0 : plan_->index_of(next()); }
  // Something has to be looked at besides the next step.
  bool is_busy() const noexcept { return recording_ || unmatched_ != 0 || (plan_ != nullptr && plan_->holds()); }
  void miss(std::size_t bytes);
  PlannedBuffer from_pool(std::size_t bytes, DType dtype, const Shape& shape);
  // The step that the request is, and those before it passed; kNone: none.
  std::uint32_t find_step(std::size_t bytes);
  bool switch_shape(std::size_t bytes);
  void follow(Cycle* cycle);
  void leave_plan();
  void set_attention() noexcept;

  void learn_recorded();
  Cycle* shape_like(const Recording& recording, bool must);
  void start_plan(Cycle& cycle);
  void finish_job();
  // Returns why the plan is not in service, else null.
  std::exception_ptr put_in_service(PlanJob& job);
  void stop_job() noexcept;
  void decide_recording(bool was_recording, bool planned);
  Cycle* find(std::uint64_t number) noexcept;
  Cycle* guess_next(std::uint64_t ended) noexcept;

  Allocator& allocator_;
  const Stream stream_;
  const ArenaOptions options_;
  const std::uint64_t id_;
  const std::size_t alignment_;
  detail::ArenaFront& front_;
  detail::HandleCell* aside_ = nullptr;  // The next step while the front shows `nothing_`.
  detail::HandleCell nothing_;           // No request agrees with it.
  BufferPool pool_;
  Recorder recorder_;
  std::vector<std::unique_ptr<Cycle>> cycles_;
  std::uint64_t next_number_ = 1;
  std::unique_ptr<PlanJob> job_;

  // The cycle going on.
  Cycle* current_ = nullptr;
  ArenaPlan* plan_ = nullptr;       // Of current_.
  std::uint32_t first_ = 0;         // Step at which the plan was taken up.
  std::uint32_t missed_ = 0;        // Steps passed and not served by the slab.
  std::uint32_t unmatched_ = 0;     // Requests since the last that matched.
  std::size_t last_unmatched_ = 0;  // Bytes of the last of them.
  bool asked_ = false;              // A request came by the slow way.
  bool matched_all_ = true;         // No request was of another size so far.
  bool departed_ = false;
  bool pool_used_ = false;
  bool recording_ = true;
  bool recorded_last_ = false;  // The cycle before was recorded.
  bool displaced_ = false;      // A shape took the place of one with a plan, since the last plan.

  unsigned ragged_ = 0;            // Cycles with departures, one after the other.
  unsigned clean_ = 0;             // Cycles without, likewise.
  unsigned patience_ = 0;          // How many ragged cycles until the next recording.
  unsigned in_vain_ = 0;           // Recorded cycles since the last plan.
  unsigned pause_ = 0;             // Cycles in which nothing is recorded.
  std::uint64_t last_number_ = 0;  // Shape of the cycle before; 0: it departed from all.
  ArenaFigures figures_;
};

}  // namespace cistern::pooling
