// The static planner: buffers with lifetimes in, offsets out. Depends on nothing else in the library and touches no
// device. Any code may call it; calls share no state, so any number may run at once on different threads.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cistern {

/// A part of a buffer's life, `[lower, upper)`, in which the bytes `[window_lower, window_upper)` of it are not used
/// and may hold other buffers. Gaps of one buffer may touch and overlap; what they leave unused adds up.
struct PlanGap {
  std::int64_t lower = 0;
  std::int64_t upper = 0;
  std::int64_t window_lower = 0;
  std::int64_t window_upper = 0;

  friend bool operator==(const PlanGap&, const PlanGap&) = default;
};

/// One buffer: live during `[lower, upper)`, in any unit of time that only grows.
struct PlanBuffer {
  std::int64_t lower = 0;
  std::int64_t upper = 0;
  std::int64_t size = 0;               ///< bytes, at least 1
  std::int64_t alignment = 1;          ///< the offset is a multiple of it; need not be a power of two
  std::optional<std::int64_t> offset;  ///< the offset it must have
  /// An offset to try first, for example from an earlier plan; never binding. At least 0: unlike in C, where -1
  /// (CISTERN_PLAN_NONE) stands for none, a number below 0 is refused.
  std::optional<std::int64_t> hint;
  std::vector<PlanGap> gaps;

  friend bool operator==(const PlanBuffer&, const PlanBuffer&) = default;
};

struct PlanProblem {
  std::vector<PlanBuffer> buffers;
  std::vector<std::string> ids;  ///< names for messages and files: empty, or one a buffer
};

enum class PlanStatus {
  optimal,     ///< the plan is valid and no plan has a lower peak
  feasible,    ///< the plan is valid (and within the capacity, if one was asked); a lower peak was not excluded
  infeasible,  ///< proven: no plan fits in the capacity. The offsets are a valid plan that needs more
  timeout,  ///< neither decided in time nor in budget. The offsets are a valid plan that needs more than the capacity
};

/// "optimal", "feasible", "infeasible" or "timeout".
const char* to_string(PlanStatus status) noexcept;

struct PlanProgress {
  double seconds = 0;            ///< since the start
  std::int64_t peak = 0;         ///< of the best plan so far
  std::int64_t lower_bound = 0;  ///< no plan has a lower peak
  std::uint64_t nodes = 0;       ///< work done so far, in the unit of `PlanOptions::node_budget`
};

struct PlanOptions {
  /// Bytes. Set: decide whether the buffers fit and stop at the first plan that does. Unset: find the least peak.
  std::optional<std::int64_t> capacity;
  /// Wall time to stop after. Unset: 10 s, or no limit if `node_budget` is set. One plan is made and checked in any
  /// case, which takes seconds for a million buffers.
  std::optional<std::chrono::duration<double>> deadline;
  /// Work to stop after: decisions of the exact search, buffers placed by the heuristics. 0: no limit.
  /// With a budget and no deadline in the way, the answer depends on problem, options and seed only (not on `threads`).
  std::uint64_t node_budget = 0;
  unsigned threads = 1;    ///< 0: one for each processor
  std::uint64_t seed = 1;  ///< of the random choices
  /// Called by the thread that called plan(), from time to time and at every better plan. False stops the search.
  std::function<bool(const PlanProgress&)> progress;
};

struct PlanResult {
  std::vector<std::int64_t> offsets;  ///< one a buffer; always a valid plan
  std::int64_t peak = 0;              ///< the highest end of a buffer
  std::int64_t lower_bound = 0;       ///< no plan has a lower peak
  PlanStatus status = PlanStatus::optimal;
  double seconds = 0;
  std::uint64_t nodes = 0;
};

/// Plans `problem`. Throws `cistern::invalid_argument`, naming the buffer and the fault, if the problem is malformed
/// (see check_problem) or `options` are out of range.
PlanResult plan(const PlanProblem& problem, const PlanOptions& options = {});

/// A fault of a problem or of a plan.
struct PlanFault {
  std::size_t buffer = 0;  ///< index of the buffer at fault
  std::string text;        ///< what is wrong, without naming the buffer
};

/// The first fault of a problem: an empty or negative life, a time below zero, a size or alignment below 1, sizes that
/// sum up beyond 2^62, a gap outside its buffer, a negative or misaligned fixed offset, two fixed buffers that overlap,
/// an id given twice. O(n log n).
std::optional<PlanFault> check_problem(const PlanProblem& problem);

/// The first fault of a plan: a missing, negative, misaligned or wrongly fixed offset, an end above `capacity`, two
/// buffers that share a byte while both use it. Shares no code with the planner. O(n log n) for n buffers and gaps.
std::optional<PlanFault> validate_plan(const PlanProblem& problem, const std::vector<std::int64_t>& offsets,
                                       std::optional<std::int64_t> capacity = std::nullopt);

/// A bound that needs no search: the most bytes live at once, raised for alignment and fixed offsets.
std::int64_t plan_lower_bound(const PlanProblem& problem);

// ---- files --------------------------------------------------------------------------------------------------------

/// Reads a problem from CSV. Columns, in any order: `id` (or `buffer`, `buffer_id`), `lower` (`begin`, `start`),
/// `upper` (or `end`, which is inclusive), `size`, and optionally `alignment`, `hint`, `offset` (fixed; may be empty)
/// and `gaps`: a list, separated by spaces, of `lower-upper` (nothing is used), `lower-upper@from:to` (only these bytes
/// are used) or `lower-upper!from:to` (these bytes are not used). Fields may be quoted as in RFC 4180. Other columns
/// are refused. Blank lines are skipped, spaces round a number ignored, lines end in LF or CR LF; a byte order mark may
/// come first. There are no comments. Text only: `cistern plan` unpacks gzip, this does not. A header without buffers
/// is a problem, whose plan is empty and optimal. Throws `cistern::invalid_argument`: "file:line: what was expected".
PlanProblem read_plan_csv(const std::string& path);

/// The same from text in memory; `name` stands for the file in messages.
PlanProblem parse_plan_csv(std::string_view text, const std::string& name = "input");

/// Writes the problem with an `offset` column, as text whatever the name says. Columns that no buffer uses are left
/// out. read_plan_csv reads it back. Throws `cistern::invalid_argument` if the file cannot be written.
void write_plan_csv(const std::string& path, const PlanProblem& problem, const std::vector<std::int64_t>& offsets);
void write_plan_csv(std::ostream& out, const PlanProblem& problem, const std::vector<std::int64_t>& offsets);

struct PlanSvgOptions {
  int width = 1600;   ///< pixels, 100 to 20,000
  int height = 900;   ///< pixels, 100 to 20,000
  std::string title;  ///< above the drawing; empty: buffers and peak
};

/// Draws a plan: time to the right, offset upwards, one rectangle a buffer. Buffers too small to be seen are drawn as a
/// grid of shades, so that the file stays small at any number of buffers. Throws `cistern::invalid_argument` for a plan
/// that is not valid, sides out of range (then no file is touched) and a file that cannot be written.
void write_plan_svg(const std::string& path, const PlanProblem& problem, const std::vector<std::int64_t>& offsets,
                    const PlanSvgOptions& options = {});
void write_plan_svg(std::ostream& out, const PlanProblem& problem, const std::vector<std::int64_t>& offsets,
                    const PlanSvgOptions& options = {});

/// One event of an allocation trace.
struct PlanTraceEvent {
  bool allocate = true;  ///< false: free
  std::uint64_t id = 0;  ///< may be used again after it was freed
  std::int64_t size = 0;
};

/// The planning problem of a trace: time is the index of the event, what is live at the end lives to the end,
/// allocations of size 0 are left out. Throws `cistern::invalid_argument`, naming the event, if an id is allocated
/// while live or freed while not live.
PlanProblem problem_from_trace(const std::vector<PlanTraceEvent>& events);

}  // namespace cistern
