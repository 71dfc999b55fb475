// `cistern bench`: the benchmark suite, where this program was built with it (Google Benchmark).
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "cli.hpp"
#include "values.hpp"

#ifdef CISTERN_HAS_BENCHMARKS
#include "foreign.hpp"
#include "suite.hpp"
#endif

namespace cistern::tools {
namespace {

struct Arguments {
  std::vector<std::string> names, traces;
  std::string device = "cpu";
  unsigned repetitions = 9;
  double min_seconds = 0.1;
  bool list = false;
  bool json = false;
};

#ifdef CISTERN_HAS_BENCHMARKS

std::vector<std::string> groups_of(const bench::Suite& suite) {
  std::vector<std::string> out;
  for (const bench::Variant& variant : suite.variants()) {
    if (std::find(out.begin(), out.end(), variant.group) == out.end()) out.push_back(variant.group);
  }
  return out;
}

int run_suite(const Arguments& arguments) {
  if (read_device(arguments.device).type != DeviceType::cpu) {
    throw UsageError(fmt::format("--device: the suite does not measure \"{}\"; expected cpu", arguments.device));
  }
  bench::Options options;
  options.names = arguments.names;
  options.traces = arguments.traces;
  options.repetitions = arguments.repetitions;
  options.min_seconds = arguments.min_seconds;
  options.json = arguments.json;
  bench::restart_with_room_for_libraries();
  const bench::Suite suite = bench::make_suite(options);
  const std::vector<std::string> groups = groups_of(suite);
  for (const std::string& name : arguments.names) {
    if (std::none_of(groups.begin(), groups.end(), [&](const std::string& g) { return g.starts_with(name); })) {
      throw UsageError(fmt::format("no benchmark's name starts with \"{}\"; cistern bench --list shows them", name));
    }
  }
  if (arguments.list) {
    for (const std::string& group : groups) {
      std::string variants;
      for (const bench::Variant& variant : suite.variants()) {
        if (variant.group == group) variants += (variants.empty() ? "" : ", ") + variant.name;
      }
      fmt::print("{:<28} {}\n", group, variants);
    }
    return kOk;
  }
  bench::print(bench::run(suite, options), arguments.json);
  return kOk;
}

#else

int run_suite(const Arguments&) {
  throw UsageError("this program was built without the benchmarks; configure with -DCISTERN_BENCH=ON");
}

#endif

}  // namespace

void add_bench(CLI::App& app, int& status) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand("bench", "Measure against other allocators");
  command->add_option("--device", arguments->device, "Where to measure")->type_name("DEVICE")->capture_default_str();
  command->add_flag("--list", arguments->list, "Show the benchmarks and what each compares");
  command->add_flag("--json", arguments->json, "One JSON object a line");
  command->add_option("--repetitions", arguments->repetitions, "Of each variant; the median counts")
      ->transform(whole(1, 1000))
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--min-time", arguments->min_seconds, "Of each repetition")
      ->check(seconds(0.001, 3600))
      ->type_name("SECONDS")
      ->capture_default_str();
  command->add_option("--trace", arguments->traces, "Replay this file instead of the traces of the source tree")
      ->allow_extra_args(false)
      ->check(some("a file"))
      ->type_name("FILE");
  command->add_option("NAME", arguments->names, "Only those whose name starts with one of these")
      ->check(some("a name"))
      ->type_name("");
  command->callback([arguments, &status] { status = run_suite(*arguments); });
}

}  // namespace cistern::tools
