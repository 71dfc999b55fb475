// Cistern's own trace format: csv with the columns event, id, size, stream, time_us. Reading (strict) and writing.
// Called by convert.cpp, recorder.cpp and tests. No state, no locking.
#pragma once

#include <string>

#include "cistern/trace.hpp"
#include "trace/sink.hpp"
#include "trace/source.hpp"

namespace cistern::trace {

inline constexpr std::string_view kCsvHeader = "event,id,size,stream,time_us";

// Reads the rest of the source. Throws TraceError with the line.
Trace read_csv(ByteSource& source);

// One line with its line end.
void append_csv_line(std::string& out, TraceEventKind kind, std::uint64_t id, std::uint64_t size, std::uint64_t stream,
                     std::uint64_t time_us);

// Throws TraceError of `path` for numbers of a trace that a csv file cannot hold. pre: check_trace().
void check_csv(const std::string& path, const Trace& trace);

void write_csv(ByteSink& sink, const Trace& trace);

}  // namespace cistern::trace
