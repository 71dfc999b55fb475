// Runs the suite on Google Benchmark and makes the table. Single-threaded.
#include "suite.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

namespace cistern::bench {
namespace {

// Collects the time of an item from every repetition; prints nothing.
class Collector : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& run : runs) {
      if (run.run_type != Run::RT_Iteration || run.error_occurred) continue;
      const auto items = run.counters.find("items_per_second");
      if (items == run.counters.end()) continue;
      samples[run.run_name.function_name].push_back(1e9 / items->second.value);
    }
  }
  std::map<std::string, std::vector<double>> samples;
};

double quantile(const std::vector<double>& sorted, double q) {
  const double at = q * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<std::size_t>(at);
  const std::size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (sorted[high] - sorted[low]) * (at - static_cast<double>(low));
}

bool wanted(const Variant& variant, const std::vector<std::string>& names) {
  return names.empty() || std::any_of(names.begin(), names.end(),
                                      [&](const std::string& name) { return variant.group.starts_with(name); });
}

}  // namespace

Suite make_suite(const Options& options) {
  Suite suite;
  add_pairs(suite);
  add_touch(suite);
  add_threads(suite);
  add_pool(suite);
  add_replay(suite, options.traces);
  return suite;
}

std::vector<Figure> run(const Suite& suite, const Options& options) {
  std::vector<Variant> chosen;
  std::copy_if(suite.variants().begin(), suite.variants().end(), std::back_inserter(chosen),
               [&](const Variant& v) { return wanted(v, options.names); });
  benchmark::ClearRegisteredBenchmarks();
  for (const Variant& v : chosen) {
    auto* b = benchmark::RegisterBenchmark((v.group + ":" + v.name).c_str(), v.body);
    if (v.manual_time) {
      b->UseManualTime();
    } else {
      b->UseRealTime();
    }
  }
  std::vector<std::string> arguments{"bench", "--benchmark_enable_random_interleaving=true",
                                     "--benchmark_repetitions=" + std::to_string(options.repetitions),
                                     "--benchmark_min_time=" + std::to_string(options.min_seconds)};
  std::vector<char*> pointers;
  for (std::string& a : arguments) pointers.push_back(a.data());
  int count = static_cast<int>(pointers.size());
  benchmark::Initialize(&count, pointers.data());
  Collector collector;
  benchmark::RunSpecifiedBenchmarks(&collector);
  std::vector<Figure> figures;
  std::string group;
  double first = 0;
  for (const Variant& v : chosen) {
    std::vector<double> samples = collector.samples[v.group + ":" + v.name];
    if (samples.empty()) continue;
    std::sort(samples.begin(), samples.end());
    Figure f{v.group, v.name, v.unit, quantile(samples, 0.5), quantile(samples, 0.25), quantile(samples, 0.75), 1};
    if (v.group != group) first = f.median_ns;
    group = v.group;
    f.ratio = f.median_ns / first;
    figures.push_back(std::move(f));
  }
  return figures;
}

void print(const std::vector<Figure>& figures, bool json) {
  if (json) {
    for (const Figure& f : figures) {
      fmt::print("{}\n", nlohmann::json{{"group", f.group},
                                        {"variant", f.name},
                                        {"unit", f.unit},
                                        {"median_ns", f.median_ns},
                                        {"quartile_1_ns", f.low_ns},
                                        {"quartile_3_ns", f.high_ns},
                                        {"ratio", f.ratio}}
                             .dump());
    }
    return;
  }
  fmt::print("{:<28} {:<18} {:>12} {:>23} {:>8}\n", "group", "variant", "median", "quartiles", "ratio");
  std::string group;
  for (const Figure& f : figures) {
    fmt::print("{:<28} {:<18} {:>9.1f} ns {:>10.1f} - {:>10.1f} {:>7.2f}x  a {}\n", f.group == group ? "" : f.group,
               f.name, f.median_ns, f.low_ns, f.high_ns, f.ratio, f.unit);
    group = f.group;
  }
}

}  // namespace cistern::bench
