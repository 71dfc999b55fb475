// `cistern plan`: offsets for buffers with lifetimes, from a problem (csv) or a trace.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string_view>

#include "cistern/error.hpp"
#include "cistern/plan.hpp"
#include "cistern/trace.hpp"
#include "cli.hpp"
#include "report/text.hpp"
#include "terminal.hpp"
#include "trace/convert.hpp"
#include "trace/source.hpp"
#include "values.hpp"
#include "write_file.hpp"

namespace cistern::tools {
namespace {

using report::clean_utf8;
using report::format_bytes;
using report::format_count;

constexpr double kDefaultSeconds = 10, kLeastSeconds = 1e-6, kMostSeconds = 1e8;  // The most: three years.
constexpr std::size_t kHeader = 1024;                         // Bytes in which a header is looked for.
constexpr std::uint64_t kMostBytes = std::uint64_t{8} << 30;  // Of a problem as text: 200 million buffers.

struct Arguments {
  std::string capacity, output, svg;
  double timeout = kDefaultSeconds;
  unsigned threads = 1;
  std::uint64_t seed = 1;
  std::vector<std::string> inputs;
  bool json = false;
};

// A trace is told from a problem by its first line, also inside gzip: a trace's csv has a column "event" or "action".
// What is binary is a trace.
bool is_trace(std::string_view begin) {
  const auto first = static_cast<unsigned char>(begin.front());
  if (first == 0x80 || first == 'P') return true;  // Pickle, zip.
  std::string header(begin.substr(0, begin.find_first_of("\r\n")));
  std::transform(header.begin(), header.end(), header.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return header.find("event") != std::string::npos || header.find("action") != std::string::npos;
}

// What cannot be read is left to the reader of problems, which says why. Opens nothing: a pipe is read once.
bool has_content(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status) || fs::is_directory(status)) return false;
  return !fs::is_regular_file(status) || (fs::file_size(path, error) != 0 && std::ifstream(path).good());
}

// Where a buffer of a problem comes from: "FILE:LINE: buffer NAME".
enum class Origin { problem, csv_trace, other_trace };

struct Input {
  PlanProblem problem;
  Origin origin = Origin::problem;

  std::string name_of(std::size_t buffer) const {
    return buffer < problem.ids.size() ? problem.ids[buffer] : fmt::format("{}", buffer);
  }
  // A buffer of a trace begins with the event that allocates it, which in a csv file is a line below the header.
  std::string place(const std::string& path, std::size_t buffer) const {
    const std::int64_t event = problem.buffers[buffer].lower;
    if (origin == Origin::csv_trace) return fmt::format("{}:{}: buffer {}", path, event + 2, name_of(buffer));
    if (origin == Origin::other_trace) return fmt::format("{}: event {}: buffer {}", path, event, name_of(buffer));
    return fmt::format("{}: buffer {}", path, name_of(buffer));
  }
};

Input read_input(const std::string& path) {
  if (!has_content(path)) return {read_plan_csv(path), Origin::problem};
  trace::ByteSource source(path);
  const std::string_view begin = source.peek(kHeader);
  if (begin.empty() || !is_trace(begin)) {
    return {parse_plan_csv(trace::read_all(source, kMostBytes), path), Origin::problem};
  }
  TraceFormat format{};
  const Trace trace = trace::read_trace(path, {}, format);
  std::vector<PlanTraceEvent> events;
  events.reserve(trace.events.size());
  for (const TraceEvent& event : trace.events) {
    events.push_back({event.kind == TraceEventKind::allocate, event.id, static_cast<std::int64_t>(event.size)});
  }
  return {problem_from_trace(events), format == TraceFormat::csv ? Origin::csv_trace : Origin::other_trace};
}

struct Outcome {
  std::string input;
  std::size_t buffers = 0;
  PlanResult result;
  std::optional<std::int64_t> capacity;

  bool fits() const { return !capacity || result.peak <= *capacity; }
};

std::string outcome_json(const Outcome& o) {
  nlohmann::ordered_json out;
  out["input"] = clean_utf8(o.input);
  out["buffers"] = o.buffers;
  out["lower_bound"] = o.result.lower_bound;
  out["peak"] = o.result.peak;
  out["optimal"] = o.result.status == PlanStatus::optimal || o.result.peak == o.result.lower_bound;
  out["feasible"] = o.fits();
  out["seconds"] = o.result.seconds;
  out["status"] = to_string(o.result.status);
  out["nodes"] = o.result.nodes;
  if (o.capacity) out["capacity"] = *o.capacity;
  return out.dump();
}

std::vector<std::string> outcome_row(const Outcome& o) {
  const double bound = static_cast<double>(o.result.lower_bound);
  return {clean_utf8(o.input),
          to_string(o.result.status),
          format_count(o.buffers),
          format_bytes(static_cast<std::uint64_t>(o.result.lower_bound)),
          format_bytes(static_cast<std::uint64_t>(o.result.peak)),
          bound > 0 ? fmt::format("{:.4f}", static_cast<double>(o.result.peak) / bound) : "-",
          report::format_seconds(o.result.seconds)};
}

class PlanCommand {
 public:
  explicit PlanCommand(const Arguments& arguments) : arguments_(arguments) {
    if (arguments.inputs.size() > 1 && !(arguments.output.empty() && arguments.svg.empty())) {
      throw UsageError("--output and --svg: there are several inputs; expected one");
    }
    for (const std::string& path : {arguments.output, arguments.svg}) {
      if (path.empty()) continue;
      check_writable(path);
      check_no_input(path, arguments.inputs);
    }
    if (!arguments.output.empty() && !arguments.svg.empty() && same_file(arguments.output, arguments.svg)) {
      throw UsageError(fmt::format("{}: --output and --svg would write the same file; expected two", arguments.svg));
    }
    if (!arguments.capacity.empty()) {
      capacity_ = static_cast<std::int64_t>(parse_bytes(arguments.capacity, "--capacity"));
    }
  }

  int run() {
    std::vector<Input> inputs;
    for (const std::string& path : arguments_.inputs) {
      inputs.push_back(read_input(path));
      const Input& input = inputs.back();
      if (const auto fault = check_problem(input.problem)) {
        throw UsageError(fmt::format("{}: {}", input.place(path, fault->buffer), fault->text));
      }
    }
    bool ok = true;
    std::vector<std::vector<std::string>> rows = {
        {"input", "status", "buffers", "lower bound", "peak", "peak/bound", "time"}, {}};
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const Outcome outcome = solve(inputs[i], arguments_.inputs[i], i, inputs.size());
      ok = ok && outcome.fits();
      if (arguments_.json) {
        fmt::print("{}\n", outcome_json(outcome));
        std::fflush(stdout);
      } else {
        rows.push_back(outcome_row(outcome));
      }
    }
    if (!arguments_.json) fmt::print("{}", format_table(rows, 2));
    return ok ? kOk : kFailed;
  }

 private:
  Outcome solve(const Input& input, const std::string& path, std::size_t index, std::size_t total) {
    const PlanProblem& problem = input.problem;
    Progress progress;
    PlanOptions options;
    options.capacity = capacity_;
    options.deadline = std::chrono::duration<double>(arguments_.timeout);
    options.threads = arguments_.threads;
    options.seed = arguments_.seed;
    options.progress = [&](const PlanProgress& p) {
      const double part = std::min(1.0, p.seconds / arguments_.timeout);
      progress.update((static_cast<double>(index) + part) / static_cast<double>(total),
                      fmt::format("{}: peak {}, bound {}", path, format_bytes(static_cast<std::uint64_t>(p.peak)),
                                  format_bytes(static_cast<std::uint64_t>(p.lower_bound))));
      return true;
    };
    Outcome outcome;
    outcome.input = path;
    outcome.buffers = problem.buffers.size();
    outcome.capacity = capacity_;
    outcome.result = cistern::plan(problem, options);
    progress.clear();
    if (const auto fault = validate_plan(problem, outcome.result.offsets)) {
      throw std::logic_error(
          fmt::format("{}: the plan is wrong here: {}", input.place(path, fault->buffer), fault->text));
    }
    // A plan that does not fit is drawn, which shows why, but not written: a file of offsets is one that can be used.
    if (!arguments_.svg.empty()) write_svg(problem, outcome);
    if (!arguments_.output.empty() && outcome.fits()) {
      std::ostringstream out;
      write_plan_csv(out, problem, outcome.result.offsets);
      write_file(arguments_.output, out.str());
    }
    return outcome;
  }

  void write_svg(const PlanProblem& problem, const Outcome& outcome) const {
    PlanSvgOptions options;
    options.title =
        fmt::format("{}: {} buffers, peak {}, bound {}", clean_utf8(outcome.input), format_count(outcome.buffers),
                    format_bytes(static_cast<std::uint64_t>(outcome.result.peak)),
                    format_bytes(static_cast<std::uint64_t>(outcome.result.lower_bound)));
    std::ostringstream out;
    write_plan_svg(out, problem, outcome.result.offsets, options);
    write_file(arguments_.svg, out.str());
  }

  const Arguments& arguments_;
  std::optional<std::int64_t> capacity_;
};

}  // namespace

void add_plan(CLI::App& app, int& status) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand("plan", "Plan offsets for buffers with lifetimes");
  command->add_option("--capacity", arguments->capacity, "Find a plan that fits (16GiB) instead of the smallest")
      ->check(some("bytes"))
      ->type_name("BYTES");
  command->add_option("--timeout", arguments->timeout, "Stop after this time with the best plan found")
      ->check(seconds(kLeastSeconds, kMostSeconds))
      ->type_name("SECONDS")
      ->capture_default_str();
  command->add_option("--threads", arguments->threads, "0: one for each processor")
      ->transform(whole(0, 1024))
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--seed", arguments->seed, "Of the random choices")
      ->transform(whole(0, UINT64_MAX))
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--output", arguments->output, "Write the buffers with their offsets")
      ->check(some("a file"))
      ->type_name("FILE.csv");
  command->add_option("--svg", arguments->svg, "Draw the plan")->check(some("a file"))->type_name("FILE.svg");
  command->add_flag("--json", arguments->json, "One JSON object a line");
  command->add_option("INPUT", arguments->inputs, "csv with id, lower, upper, size; or a trace")
      ->required()
      ->check(some("a file"))
      ->type_name("");
  command->callback([arguments, &status] { status = PlanCommand(*arguments).run(); });
}

}  // namespace cistern::tools
