// `cistern replay`: traces through allocators; a table, JSON lines, or an HTML report.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>

#include "cistern/error.hpp"
#include "cistern/trace.hpp"
#include "cli.hpp"
#include "replay_output.hpp"
#include "report/report.hpp"
#include "report/text.hpp"
#include "terminal.hpp"
#include "trace/replay.hpp"
#include "values.hpp"
#include "write_file.hpp"

namespace cistern::tools {
namespace {

using trace::Policy;
using trace::Program;
using trace::ReplayOptions;
using trace::ReplayResult;

constexpr std::uint64_t kMostLag = 1'000'000'000'000;  // Microseconds: 11 days.

struct Arguments {
  std::vector<std::string> allocators;
  std::string device = "cpu";
  std::string limit;
  std::string report;
  std::vector<std::string> traces;
  std::uint64_t lag_us = 0;
  unsigned threads = 1;
  unsigned repeat = 1;
  bool touch = false;
  bool check = false;
  bool json = false;
};

std::vector<Policy> read_policies(const Arguments& arguments) {
  std::vector<Policy> out;
  for (const std::string& names : arguments.allocators) {
    for (std::size_t at = 0; at <= names.size();) {
      const std::size_t end = std::min(names.find(',', at), names.size());
      const std::string name = names.substr(at, end - at);
      const auto policy = trace::parse_policy(name);
      if (!policy) {
        throw UsageError(fmt::format(
            "--allocator: \"{}\" is unknown; expected cistern, pool, planned, buffer-cache or system", name));
      }
      if (std::find(out.begin(), out.end(), *policy) != out.end()) {
        throw UsageError(fmt::format("--allocator: \"{}\" is named twice; expected each once", name));
      }
      out.push_back(*policy);
      at = end + 1;
    }
  }
  return out.empty() ? std::vector<Policy>{Policy::cistern} : out;
}

// What somebody would type to get the same again.
std::string command_line(const Arguments& a) {
  std::string out = "cistern replay";
  for (std::size_t i = 0; i < a.allocators.size(); ++i) out += (i == 0 ? " --allocator " : ",") + a.allocators[i];
  out += " --device " + a.device;
  if (!a.limit.empty()) out += " --memory-limit " + a.limit;
  if (a.lag_us > 0) out += fmt::format(" --lag {}", a.lag_us);
  if (a.threads > 1) out += fmt::format(" --threads {}", a.threads);
  if (a.repeat > 1) out += fmt::format(" --repeat {}", a.repeat);
  if (a.touch) out += " --touch";
  if (a.check) out += " --check";
  return out;
}

class ReplayCommand {
 public:
  explicit ReplayCommand(const Arguments& arguments) : arguments_(arguments), policies_(read_policies(arguments)) {
    options_.device = read_device(arguments.device);
    options_.touch = arguments.touch;
    options_.check = arguments.check;
    if (!arguments.limit.empty()) options_.limit = parse_limit(arguments.limit, "--memory-limit");
    options_.lag_us = arguments.lag_us;
    options_.threads = arguments.threads;
    options_.repeat = arguments.repeat;
    if (options_.lag_us > 0 && options_.device.type != DeviceType::model) {
      throw UsageError("--lag: only the model device has a clock of its own; expected --device model");
    }
    for (const Policy policy : policies_) {
      if (const std::string why = trace::unavailable(policy, options_.device); !why.empty()) throw UsageError(why);
    }
    if (!arguments.report.empty()) {
      check_writable(arguments.report);
      check_no_input(arguments.report, arguments.traces);
    }
  }

  int run() {
    // All inputs are read before anything is printed: bad input prints no result.
    for (const std::string& path : arguments_.traces) {
      progress_.update(0, "reading " + path);
      programs_.push_back(trace::compile(read_trace(path), path));
    }
    name_apart();
    for (const std::string& path : arguments_.traces) load_recorded_of(path);
    bool ok = true;
    for (const Program& program : programs_) {
      for (const Policy policy : policies_) ok = one(program, policy) && ok;
    }
    progress_.clear();
    if (!arguments_.json) fmt::print("{}", format_results(results_, recorded_));
    if (!arguments_.report.empty()) write_report();
    return ok ? kOk : kFailed;
  }

 private:
  // Files of one name in two folders are called by their paths.
  void name_apart() {
    std::map<std::string, int> count;
    for (const Program& program : programs_) ++count[program.name];
    for (Program& program : programs_) {
      if (count[program.name] > 1) program.name = program.path;
    }
  }

  void load_recorded_of(const std::string& path) {
    const std::string folder = std::filesystem::path(path).parent_path().string();
    if (!folders_.insert({folder, true}).second) return;
    std::string problem;
    auto found = report::load_recorded(path, problem);
    if (!problem.empty())
      fmt::print(stderr, "cistern: {}; PyTorch's figures are left out\n", report::clean_utf8(problem));
    recorded_.merge(found);
  }

  bool one(const Program& program, Policy policy) {
    const bool draws = !arguments_.report.empty() && policy == policies_.front();
    ReplayOptions options = options_;
    options.policy = policy;
    options.curves = draws;
    const double total = static_cast<double>(programs_.size() * policies_.size());
    const std::string what = fmt::format("{} ({})", program.name, trace::to_string(policy));
    options.progress = [&](double fraction) { progress_.update((done_ + fraction) / total, what); };
    options.progress(0);
    ReplayResult result = trace::replay(program, options);
    done_ += 1;
    if (draws) {
      pictures_.push_back(report::make_picture(program, *result.curves));
      result.curves.reset();
    }
    if (arguments_.json) {
      progress_.clear();
      fmt::print("{}\n", result_json(result));
      std::fflush(stdout);
    }
    if (const std::string text = describe_faults(result); !text.empty()) {
      progress_.clear();
      fmt::print(stderr, "{}", text);
    }
    const bool ok = result.ok();
    results_.push_back(std::move(result));
    return ok;
  }

  void write_report() {
    report::Document document;
    document.title = programs_.size() == 1 ? "Cistern: " + report::clean_utf8(programs_.front().name)
                                           : fmt::format("Cistern: {} traces", programs_.size());
    document.subtitle =
        fmt::format("Replayed on {}{} with Cistern {}.", arguments_.device,
                    arguments_.limit.empty() ? "" : ", memory limited to " + arguments_.limit, CISTERN_VERSION);
    document.command = command_line(arguments_);
    document.results = results_;
    for (const Program& program : programs_) {
      const auto it = recorded_.find(program.name);
      if (it != recorded_.end()) document.recorded.insert(*it);
    }
    document.pictures = std::move(pictures_);
    write_file(arguments_.report, report::render(document));
    fmt::print(stderr, "Report: {}\n", report::clean_utf8(arguments_.report));
  }

  const Arguments& arguments_;
  std::vector<Policy> policies_;
  ReplayOptions options_;
  Progress progress_;
  std::vector<Program> programs_;
  std::vector<ReplayResult> results_;
  std::vector<report::Picture> pictures_;
  std::map<std::string, report::Recorded> recorded_;
  std::map<std::string, bool> folders_;
  double done_ = 0;
};

}  // namespace

void add_replay(CLI::App& app, int& status) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand("replay", "Run recorded traces through an allocator");
  command
      ->add_option("--allocator", arguments->allocators,
                   "cistern, pool, planned, buffer-cache or system; or several, with commas")
      ->allow_extra_args(false)
      ->type_name("NAME");
  command->add_option("--device", arguments->device, "cpu, cuda[:i], metal[:i] or model")
      ->type_name("DEVICE")
      ->capture_default_str();
  command->add_flag("--touch", arguments->touch, "Write to every page of every block");
  command
      ->add_option("--memory-limit", arguments->limit,
                   "Bytes (64GiB), or times the peak live bytes of all threads (1.05x)")
      ->check(some("bytes, or a number and x"))
      ->type_name("BYTES|FACTORx");
  command->add_option("--lag", arguments->lag_us, "Microseconds that the model device runs behind the host")
      ->transform(whole(0, kMostLag))
      ->type_name("US");
  command->add_option("--threads", arguments->threads, "Threads; each replays the whole trace on the same allocator")
      ->transform(whole(1, 1024))
      ->type_name("N");
  command->add_option("--repeat", arguments->repeat, "Passes over the trace on the same allocator")
      ->transform(whole(1, 1000000))
      ->type_name("N");
  command->add_flag("--check", arguments->check,
                    "Replay again, verifying every block, the allocator's invariants and resident memory");
  command->add_flag("--json", arguments->json, "One JSON object a line");
  command->add_option("--report", arguments->report, "Write an HTML page with charts")
      ->check(some("a file"))
      ->type_name("FILE.html");
  command->add_option("TRACE", arguments->traces, "csv, csv.gz, RMM log or PyTorch snapshot")
      ->required()
      ->check(some("a file"))
      ->type_name("");
  command->callback([arguments, &status] { status = ReplayCommand(*arguments).run(); });
}

}  // namespace cistern::tools
