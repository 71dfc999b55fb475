// A trace as Chrome JSON ("traceEvents"), which ui.perfetto.dev and chrome://tracing open: curves of live bytes, and
// the allocations of each stream as slices. Called by convert.cpp and tests. No state, no locking.
#pragma once

#include "cistern/trace.hpp"
#include "trace/sink.hpp"

namespace cistern::trace {

void write_perfetto(ByteSink& sink, const Trace& trace);

}  // namespace cistern::trace
