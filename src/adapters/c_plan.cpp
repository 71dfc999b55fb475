// The C interface: the static planner. Thin calls of the C++ interface; a problem is read by any number of threads.
#include "cistern/c_plan.h"

#include <chrono>
#include <memory>
#include <optional>

#include "adapters/c_api.hpp"
#include "cistern/plan.hpp"

struct cistern_plan_problem {
  cistern::PlanProblem value;
};

// NOLINTBEGIN(google-build-using-namespace): functions of C stand in no namespace.
using namespace cistern;
using namespace cistern::c;
// NOLINTEND(google-build-using-namespace)

namespace {

std::optional<std::int64_t> optional_from_c(std::int64_t value) {
  return value == CISTERN_PLAN_NONE ? std::nullopt : std::optional(value);
}

std::optional<std::int64_t> at(const std::int64_t* values, std::size_t i) {
  return values == nullptr ? std::nullopt : optional_from_c(values[i]);
}

// What no array can have is refused before it is read.
void check_count(const char* call, std::size_t count) {
  if (count <= std::size_t{1} << 40) return;
  throw invalid_argument(std::string(call) + ": no memory holds " + std::to_string(count) + " entries");
}

PlanProblem problem_from_c(const cistern_plan_arrays& arrays) {
  const char* call = "cistern_plan_create";
  check_count(call, std::max(arrays.count, arrays.gap_count));
  if (arrays.count > 0) {
    require(arrays.lower, call, "lower");
    require(arrays.upper, call, "upper");
    require(arrays.size, call, "size");
  }
  if (arrays.gap_count > 0) require(arrays.gaps, call, "gaps");
  PlanProblem problem;
  for (std::size_t i = 0; i < arrays.count; ++i) {
    PlanBuffer buffer;
    buffer.lower = arrays.lower[i];
    buffer.upper = arrays.upper[i];
    buffer.size = arrays.size[i];
    if (arrays.alignment != nullptr) buffer.alignment = arrays.alignment[i];
    buffer.offset = at(arrays.offset, i);
    buffer.hint = at(arrays.hint, i);
    problem.buffers.push_back(std::move(buffer));
    if (arrays.ids == nullptr) continue;
    require(arrays.ids[i], call, "an id");
    problem.ids.emplace_back(arrays.ids[i]);
  }
  for (std::size_t i = 0; i < arrays.gap_count; ++i) {
    const cistern_plan_gap& gap = arrays.gaps[i];
    if (gap.buffer >= arrays.count) {
      throw invalid_argument("cistern_plan_create: gap " + std::to_string(i) + " is of buffer " +
                             std::to_string(gap.buffer) + "; there are " + std::to_string(arrays.count));
    }
    problem.buffers[gap.buffer].gaps.push_back({gap.lower, gap.upper, gap.window_lower, gap.window_upper});
  }
  return problem;
}

cistern_plan_options defaults() {
  const PlanOptions options;
  return {.struct_size = 0,
          .capacity = CISTERN_PLAN_NONE,
          .deadline = -1,
          .node_budget = options.node_budget,
          .threads = options.threads,
          .seed = options.seed,
          .progress = nullptr,
          .context = nullptr};
}

PlanOptions options_from_c(const cistern_plan_options* options) {
  const cistern_plan_options given = read_versioned(options, defaults());
  PlanOptions wanted;
  if (given.capacity == 0) {
    throw invalid_argument(
        "cistern_plan_solve: capacity 0: expected at least 1, or CISTERN_PLAN_NONE for the least peak; "
        "cistern_plan_default_options() sets the defaults, which are not all zero");
  }
  wanted.capacity = optional_from_c(given.capacity);
  // Not a comparison with 0: what is not a number goes on, and is refused.
  if (!(given.deadline < 0)) wanted.deadline = std::chrono::duration<double>(given.deadline);
  wanted.node_budget = given.node_budget;
  wanted.threads = given.threads;
  wanted.seed = given.seed;
  if (given.progress != nullptr) {
    wanted.progress = [given](const PlanProgress& now) {
      const cistern_plan_progress shown{sizeof(cistern_plan_progress), now.seconds, now.peak, now.lower_bound,
                                        now.nodes};
      return given.progress(&shown, given.context) != 0;
    };
  }
  return wanted;
}

void check_count(const PlanProblem& problem, const int64_t* offsets, std::size_t count, const char* call) {
  if (count != problem.buffers.size()) {
    throw invalid_argument(std::string(call) + ": room for " + std::to_string(count) + " offsets, the problem has " +
                           std::to_string(problem.buffers.size()) + " buffers");
  }
  if (count > 0) require(offsets, call, "offsets");
}

std::vector<std::int64_t> offsets_from_c(const PlanProblem& problem, const int64_t* offsets, std::size_t count,
                                         const char* call) {
  check_count(problem, offsets, count, call);
  return {offsets, offsets + count};
}

void throw_fault(const PlanProblem& problem, const std::optional<PlanFault>& fault, const char* call, size_t* buffer) {
  if (!fault) return;
  if (buffer != nullptr) *buffer = fault->buffer;
  const std::string name =
      fault->buffer < problem.ids.size() ? "'" + problem.ids[fault->buffer] + "'" : std::to_string(fault->buffer);
  throw invalid_argument(std::string(call) + ": buffer " + name + ": " + fault->text);
}

const PlanBuffer& buffer_at(const cistern_plan_problem* problem, std::size_t index, const char* call) {
  if (index >= problem->value.buffers.size()) {
    throw invalid_argument(std::string(call) + ": buffer " + std::to_string(index) + "; the problem has " +
                           std::to_string(problem->value.buffers.size()));
  }
  return problem->value.buffers[index];
}

template <class Make>
cistern_status give_problem(cistern_plan_problem** out, const char* call, Make&& make) {
  return guarded([&] {
    require(out, call, "out");
    auto problem = std::make_unique<cistern_plan_problem>();
    problem->value = make();
    *out = problem.release();
  });
}

}  // namespace

extern "C" {

cistern_status cistern_plan_create(const cistern_plan_arrays* arrays, cistern_plan_problem** out) {
  return give_problem(out, "cistern_plan_create", [&] {
    require(arrays, "cistern_plan_create", "arrays");
    return problem_from_c(read_versioned(arrays, {}));
  });
}

cistern_status cistern_plan_read_csv(const char* path, cistern_plan_problem** out) {
  return give_problem(out, "cistern_plan_read_csv", [&] {
    require(path, "cistern_plan_read_csv", "path");
    return read_plan_csv(path);
  });
}

cistern_status cistern_plan_parse_csv(const char* text, size_t length, const char* name, cistern_plan_problem** out) {
  return give_problem(out, "cistern_plan_parse_csv", [&] {
    if (length > 0) require(text, "cistern_plan_parse_csv", "text");
    return parse_plan_csv(std::string_view(text, length), name != nullptr ? name : "input");
  });
}

cistern_status cistern_plan_from_events(const cistern_plan_event* events, size_t count, cistern_plan_problem** out) {
  return give_problem(out, "cistern_plan_from_events", [&] {
    check_count("cistern_plan_from_events", count);
    if (count > 0) require(events, "cistern_plan_from_events", "events");
    std::vector<PlanTraceEvent> trace;
    for (const cistern_plan_event& event : std::span(events, count)) {
      trace.push_back({event.allocate != 0, event.id, event.size});
    }
    return problem_from_trace(trace);
  });
}

void cistern_plan_destroy(cistern_plan_problem* problem) { delete problem; }

size_t cistern_plan_count(const cistern_plan_problem* problem) {
  return problem != nullptr ? problem->value.buffers.size() : 0;
}

cistern_status cistern_plan_get_buffer(const cistern_plan_problem* problem, size_t index, cistern_plan_buffer* out) {
  return guarded([&] {
    require(problem, "cistern_plan_get_buffer", "problem");
    require(out, "cistern_plan_get_buffer", "out");
    const PlanBuffer& buffer = buffer_at(problem, index, "cistern_plan_get_buffer");
    copy_versioned({.struct_size = 0,
                    .lower = buffer.lower,
                    .upper = buffer.upper,
                    .size = buffer.size,
                    .alignment = buffer.alignment,
                    .offset = buffer.offset.value_or(CISTERN_PLAN_NONE),
                    .hint = buffer.hint.value_or(CISTERN_PLAN_NONE),
                    .id = problem->value.ids.empty() ? nullptr : problem->value.ids[index].c_str(),
                    .gap_count = buffer.gaps.size()},
                   out);
  });
}

cistern_status cistern_plan_get_gap(const cistern_plan_problem* problem, size_t index, size_t gap,
                                    cistern_plan_gap* out) {
  return guarded([&] {
    require(problem, "cistern_plan_get_gap", "problem");
    require(out, "cistern_plan_get_gap", "out");
    const PlanBuffer& buffer = buffer_at(problem, index, "cistern_plan_get_gap");
    if (gap >= buffer.gaps.size()) {
      throw invalid_argument("cistern_plan_get_gap: gap " + std::to_string(gap) + "; the buffer has " +
                             std::to_string(buffer.gaps.size()));
    }
    const PlanGap& found = buffer.gaps[gap];
    *out = {index, found.lower, found.upper, found.window_lower, found.window_upper};
  });
}

cistern_status cistern_plan_check(const cistern_plan_problem* problem, size_t* buffer) {
  return guarded([&] {
    require(problem, "cistern_plan_check", "problem");
    throw_fault(problem->value, check_problem(problem->value), "cistern_plan_check", buffer);
  });
}

cistern_status cistern_plan_validate(const cistern_plan_problem* problem, const int64_t* offsets, size_t count,
                                     int64_t capacity, size_t* buffer) {
  return guarded([&] {
    require(problem, "cistern_plan_validate", "problem");
    const auto given = offsets_from_c(problem->value, offsets, count, "cistern_plan_validate");
    throw_fault(problem->value, validate_plan(problem->value, given, optional_from_c(capacity)),
                "cistern_plan_validate", buffer);
  });
}

cistern_status cistern_plan_lower_bound(const cistern_plan_problem* problem, int64_t* out) {
  return guarded([&] {
    require(problem, "cistern_plan_lower_bound", "problem");
    require(out, "cistern_plan_lower_bound", "out");
    *out = plan_lower_bound(problem->value);
  });
}

const char* cistern_plan_status_name(uint32_t status) {
  return status <= CISTERN_PLAN_TIMEOUT ? to_string(static_cast<PlanStatus>(status)) : "";
}

cistern_status cistern_plan_default_options(cistern_plan_options* out) {
  return guarded([&] {
    require(out, "cistern_plan_default_options", "out");
    copy_versioned(defaults(), out);
  });
}

cistern_status cistern_plan_solve(const cistern_plan_problem* problem, const cistern_plan_options* options,
                                  int64_t* offsets, size_t count, cistern_plan_result* result) {
  return guarded([&] {
    require(problem, "cistern_plan_solve", "problem");
    check_count(problem->value, offsets, count, "cistern_plan_solve");
    if (result != nullptr) check_struct_size(*result);
    const PlanResult found = plan(problem->value, options_from_c(options));
    std::copy(found.offsets.begin(), found.offsets.end(), offsets);
    if (result == nullptr) return;
    copy_versioned({.struct_size = 0,
                    .status = static_cast<uint32_t>(found.status),
                    .peak = found.peak,
                    .lower_bound = found.lower_bound,
                    .seconds = found.seconds,
                    .nodes = found.nodes},
                   result);
  });
}

cistern_status cistern_plan_write_csv(const char* path, const cistern_plan_problem* problem, const int64_t* offsets,
                                      size_t count) {
  return guarded([&] {
    require(path, "cistern_plan_write_csv", "path");
    require(problem, "cistern_plan_write_csv", "problem");
    write_plan_csv(path, problem->value, offsets_from_c(problem->value, offsets, count, "cistern_plan_write_csv"));
  });
}

cistern_status cistern_plan_write_svg(const char* path, const cistern_plan_problem* problem, const int64_t* offsets,
                                      size_t count, int32_t width, int32_t height, const char* title) {
  return guarded([&] {
    require(path, "cistern_plan_write_svg", "path");
    require(problem, "cistern_plan_write_svg", "problem");
    PlanSvgOptions options;
    if (width != 0) options.width = width;
    if (height != 0) options.height = height;
    if (title != nullptr) options.title = title;
    write_plan_svg(path, problem->value, offsets_from_c(problem->value, offsets, count, "cistern_plan_write_svg"),
                   options);
  });
}

}  // extern "C"
