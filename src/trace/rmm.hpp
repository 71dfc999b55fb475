// Logs of RMM's logging resource adaptor: csv with the columns Thread, Time, Action, Pointer, Size, Stream.
// Called by convert.cpp and tests. No state, no locking.
#pragma once

#include <string_view>

#include "cistern/trace.hpp"
#include "trace/sink.hpp"
#include "trace/source.hpp"

namespace cistern::trace {

inline constexpr std::string_view kRmmHeader = "Thread,Time,Action,Pointer,Size,Stream";

// Reads the rest of the source. Throws TraceError with the line.
Trace read_rmm(ByteSource& source);

// `path` is for errors. Times start at midnight; a clock of one day cannot show a pause of twelve hours or more.
void write_rmm(ByteSink& sink, const Trace& trace, const std::string& path);

}  // namespace cistern::trace
