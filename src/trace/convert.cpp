// read_trace() and write_trace(): which format a file has, and who reads or writes it. No state, no locking.
#include "trace/convert.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "cistern/trace.hpp"
#include "trace/csv.hpp"
#include "trace/event_check.hpp"
#include "trace/memory_viz.hpp"
#include "trace/perfetto.hpp"
#include "trace/rmm.hpp"
#include "trace/sink.hpp"
#include "trace/snapshot.hpp"
#include "trace/source.hpp"
#include "trace/text.hpp"

namespace cistern {
namespace {

constexpr std::string_view kInputs =
    "a csv trace (event,id,size,stream,time_us), an RMM log (Thread,Time,Action,Pointer,Size,Stream) or a PyTorch "
    "snapshot (pickle), each may be gzip-compressed";
constexpr std::string_view kOutputs =
    "a name that ends in .csv, .rmm, .rmm.csv, .log, .pickle, .pkl or .json, or in one of these and .gz";
constexpr char kPickleStart = '\x80';  // PROTO; every pickle of protocol 2 and later begins with it.

bool is_text(std::string_view bytes) {
  return std::none_of(bytes.begin(), bytes.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return (byte < 0x20 && c != '\n' && c != '\r' && c != '\t') || byte == 0x7f;
  });
}

// Longer endings first.
constexpr std::array<std::pair<std::string_view, TraceFormat>, 7> kEndings{{
    {".rmm.csv", TraceFormat::rmm_log},
    {".csv", TraceFormat::csv},
    {".rmm", TraceFormat::rmm_log},
    {".log", TraceFormat::rmm_log},
    {".pickle", TraceFormat::torch_snapshot},
    {".pkl", TraceFormat::torch_snapshot},
    {".json", TraceFormat::perfetto_json},
}};

}  // namespace

namespace trace {

Trace read_trace(const std::string& path, const TraceReadOptions& options, TraceFormat& format) {
  ByteSource source(path);
  const std::string_view start = source.peek(256);
  if (start.empty()) throw TraceError(path, 0, "gzip data with nothing in it", std::string(kInputs));
  format = TraceFormat::torch_snapshot;
  if (start.front() == kPickleStart) return read_snapshot(source, options);
  // The first column decides: a header with other columns behind it gets the error of its reader.
  format = TraceFormat::rmm_log;
  if (start.starts_with("Thread,")) return read_rmm(source);
  format = TraceFormat::csv;
  if (start.starts_with("event,")) return read_csv(source);
  const std::string_view line = start.substr(0, start.find_first_of("\r\n"));
  if (!is_text(start)) {
    throw TraceError(path, 0, fmt::format("binary data: {}", quoted(start.substr(0, 16))), std::string(kInputs));
  }
  throw TraceError(path, 1, fmt::format("the first line {}", quoted(line)), std::string(kInputs));
}

}  // namespace trace

Trace read_trace(const std::string& path, const TraceReadOptions& options) {
  TraceFormat format{};
  return trace::read_trace(path, options, format);
}

TraceFormat trace_format_of(const std::string& path) {
  std::string_view name = path;
  if (name.ends_with(".gz")) name.remove_suffix(3);
  for (const auto& [ending, format] : kEndings) {
    if (name.ends_with(ending)) return format;
  }
  throw TraceError(path, 0, "a name that says no format", std::string(kOutputs));
}

void write_trace(const std::string& path, const Trace& trace, const TraceWriteOptions& options) {
  const TraceFormat format = options.format.has_value() ? *options.format : trace_format_of(path);
  if (options.gzip_level < 1 || options.gzip_level > 9) {
    throw TraceError(path, 0, fmt::format("gzip_level {}", options.gzip_level), "a level from 1 to 9");
  }
  if (format > TraceFormat::perfetto_json) {
    throw TraceError(path, 0, fmt::format("format {}", static_cast<unsigned>(format)), "a TraceFormat");
  }
  trace::check_trace(path, trace);
  if (format == TraceFormat::csv) trace::check_csv(path, trace);
  trace::ByteSink sink(path, options.gzip_level);
  switch (format) {
    case TraceFormat::csv:
      trace::write_csv(sink, trace);
      break;
    case TraceFormat::rmm_log:
      trace::write_rmm(sink, trace, path);
      break;
    case TraceFormat::torch_snapshot:
      trace::write_memory_viz(sink, trace, path);
      break;
    case TraceFormat::perfetto_json:
      trace::write_perfetto(sink, trace);
      break;
  }
  sink.commit();
}

}  // namespace cistern
