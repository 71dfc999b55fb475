// Tables, JSON lines and messages of `cistern replay`. See replay_output.hpp.
#include "replay_output.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "report/text.hpp"
#include "terminal.hpp"

namespace cistern::tools {
namespace {

using report::clean_utf8;
using report::format_bytes;
using report::format_count;
using report::geomean;
using report::Recorded;
using report::RecordedFigure;
using trace::ReplayResult;

constexpr double kResidentNear = 0.03;  // Closer than this, resident and reserved memory are called the same.

std::string ratio(double value) { return value > 0 ? fmt::format("{:.3f}", value) : "-"; }
std::string nanoseconds(double value) { return value > 0 ? fmt::format("{:.{}f}", value, value < 99.95 ? 1 : 0) : "-"; }

struct RecordedName {
  const char* label;
  RecordedFigure Recorded::*figure;
};
constexpr RecordedName kRecorded[] = {{"PyTorch", &Recorded::native},
                                      {"PyTorch expandable", &Recorded::expandable},
                                      {"cudaMallocAsync", &Recorded::async}};

using Rows = std::vector<std::vector<std::string>>;

std::vector<std::string> allocators_of(const std::vector<ReplayResult>& results) {
  std::vector<std::string> out;
  for (const ReplayResult& r : results) {
    if (std::find(out.begin(), out.end(), r.allocator) == out.end()) out.push_back(r.allocator);
  }
  return out;
}

std::string results_table(const std::vector<ReplayResult>& results) {
  Rows rows = {{"trace", "allocator", "events", "peak live", "reserved", "ratio", "ns/event", "later", "handle ops",
                "later", "failed"},
               {}};
  bool several = false;
  for (std::size_t i = 0; i < results.size(); ++i) {
    const ReplayResult& r = results[i];
    const bool same = i > 0 && results[i - 1].trace == r.trace;
    several = several || (i > 0 && !same);
    const bool repeated = r.passes.size() > 1;
    rows.push_back({same ? "" : clean_utf8(r.trace), r.allocator, format_count(r.events), format_bytes(r.peak_live),
                    format_bytes(r.peak_reserved), ratio(r.ratio), nanoseconds(r.first_ns_per_event()),
                    nanoseconds(r.later_ns_per_event()),
                    format_count(r.passes.empty() ? 0 : r.passes.front().handle_ops),
                    repeated ? format_count(r.later_handle_ops()) : "-", format_count(r.failed)});
  }
  if (several) {
    rows.emplace_back();
    const std::vector<std::string> allocators = allocators_of(results);
    for (std::size_t i = 0; i < allocators.size(); ++i) {
      std::vector<double> ratios, first, later;
      std::uint64_t failed = 0;
      for (const ReplayResult& r : results) {
        if (r.allocator != allocators[i]) continue;
        if (r.ratio > 0) ratios.push_back(r.ratio);
        if (r.first_ns_per_event() > 0) first.push_back(r.first_ns_per_event());
        if (r.later_ns_per_event() > 0) later.push_back(r.later_ns_per_event());
        failed += r.failed;
      }
      rows.push_back({i == 0 ? "geomean" : "", allocators[i], "", "", "", ratio(geomean(ratios)),
                      nanoseconds(geomean(first)), nanoseconds(geomean(later)), "", "", format_count(failed)});
    }
  }
  return format_table(rows, 2);
}

// Reserved over live, beside what was recorded; empty when nothing was.
std::string recorded_table(const std::vector<ReplayResult>& results, const std::map<std::string, Recorded>& recorded) {
  const std::vector<std::string> allocators = allocators_of(results);
  Rows rows = {{"reserved / live"}, {}};
  for (const std::string& allocator : allocators) rows[0].push_back(allocator);
  for (const RecordedName& name : kRecorded) rows[0].emplace_back(name.label);
  std::vector<std::vector<double>> columns(rows[0].size());
  std::set<std::string> done;
  for (const ReplayResult& first : results) {
    const auto it = recorded.find(first.trace);
    if (it == recorded.end() || !done.insert(first.trace).second) continue;
    std::vector<std::string> row = {clean_utf8(first.trace)};
    const auto add = [&](double value) {
      if (value > 0) columns[row.size()].push_back(value);
      row.push_back(ratio(value));
    };
    for (const std::string& allocator : allocators) {
      const auto found = std::find_if(results.begin(), results.end(), [&](const ReplayResult& r) {
        return r.trace == first.trace && r.allocator == allocator;
      });
      add(found == results.end() ? 0 : found->ratio);
    }
    for (const RecordedName& name : kRecorded) add((it->second.*name.figure).ratio);
    rows.push_back(std::move(row));
  }
  if (done.empty()) return {};
  if (done.size() > 1) {
    rows.emplace_back();
    std::vector<std::string> row = {"geomean"};
    for (std::size_t i = 1; i < columns.size(); ++i) row.push_back(ratio(geomean(columns[i])));
    rows.push_back(std::move(row));
  }
  return format_table(rows, 1) +
         "PyTorch's and cudaMallocAsync's figures were recorded on the GPU where the traces were made.\n";
}

}  // namespace

std::string format_results(const std::vector<ReplayResult>& results, const std::map<std::string, Recorded>& recorded) {
  std::string out = results_table(results);
  if (const std::string beside = recorded_table(results, recorded); !beside.empty()) out += '\n' + beside;
  return out;
}

std::string result_json(const ReplayResult& r) {
  using nlohmann::ordered_json;
  ordered_json out;
  out["trace"] = clean_utf8(r.trace);
  out["allocator"] = r.allocator;
  out["device"] = r.device;
  out["events"] = r.events;
  out["seconds"] = r.seconds;
  out["ns_per_event"] = r.ns_per_event;
  out["peak_live"] = r.peak_live;
  out["peak_reserved"] = r.peak_reserved;
  out["ratio"] = r.ratio;
  out["driver_calls"] = r.driver_calls;
  out["handle_ops"] = r.handle_ops;
  out["handle_seconds"] = r.handle_seconds;
  out["failed"] = r.failed;
  out["duration_seconds"] = r.duration_seconds;
  if (r.limit > 0) out["memory_limit"] = r.limit;
  if (!r.first_failure.empty()) out["first_failure"] = clean_utf8(r.first_failure);
  ordered_json passes = ordered_json::array();
  for (const trace::PassFigures& pass : r.passes) {
    ordered_json entry;
    entry["seconds"] = pass.seconds;
    entry["ns_per_event"] = r.events > 0 ? pass.seconds * 1e9 / static_cast<double>(r.events) : 0;
    entry["peak_reserved"] = pass.peak_reserved;
    entry["ratio"] = r.peak_live > 0 ? static_cast<double>(pass.peak_reserved) / static_cast<double>(r.peak_live) : 0;
    entry["driver_calls"] = pass.driver_calls;
    entry["handle_ops"] = pass.handle_ops;
    entry["handle_seconds"] = pass.handle_seconds;
    entry["failed"] = pass.failed;
    passes.push_back(std::move(entry));
  }
  out["passes"] = std::move(passes);
  if (r.check) {
    ordered_json check;
    check["blocks"] = r.check->blocks;
    check["bytes_verified"] = r.check->bytes_verified;
    check["faults"] = r.check->faults;
    ordered_json messages = ordered_json::array();
    for (const std::string& message : r.check->messages) messages.push_back(clean_utf8(message));
    check["messages"] = std::move(messages);
    if (r.check->resident) {
      check["resident"] = *r.check->resident;
      check["resident_reserved"] = r.check->resident_reserved;
    }
    out["check"] = std::move(check);
  }
  return out.dump();
}

std::string describe_faults(const ReplayResult& r) {
  std::string out;
  const std::string who = fmt::format("{} ({})", clean_utf8(r.trace), r.allocator);
  if (r.failed > 0) {
    out += fmt::format("{}: {} events were not served; the first: {}\n", who, format_count(r.failed),
                       clean_utf8(r.first_failure));
  }
  if (!r.check) return out;
  if (r.check->faults > 0) {
    out += fmt::format("{}: {} faults\n", who, format_count(r.check->faults));
    for (const std::string& message : r.check->messages) out += fmt::format("  {}\n", clean_utf8(message));
  }
  if (r.check->resident && r.check->resident_reserved > 0) {
    const double reserved = static_cast<double>(r.check->resident_reserved);
    const double difference = static_cast<double>(*r.check->resident) / reserved - 1;
    if (std::abs(difference) > kResidentNear) {
      out += fmt::format("{}: resident memory grew by {}, {:.1f} % {} than the {} reserved then\n", who,
                         format_bytes(*r.check->resident), std::abs(difference) * 100, difference > 0 ? "more" : "less",
                         format_bytes(r.check->resident_reserved));
    }
  }
  return out;
}

}  // namespace cistern::tools
