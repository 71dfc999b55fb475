// read_trace() for callers that ask what the file was. No state, no locking.
#pragma once

#include <string>

#include "cistern/trace.hpp"

namespace cistern::trace {

// As read_trace(path, options); `format` is what the file's content says.
Trace read_trace(const std::string& path, const TraceReadOptions& options, TraceFormat& format);

}  // namespace cistern::trace
