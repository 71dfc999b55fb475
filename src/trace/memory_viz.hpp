// A trace as a PyTorch memory snapshot (pickle protocol 2) that PyTorch's memory_viz page opens.
// Called by convert.cpp and tests. No state, no locking.
#pragma once

#include <string>

#include "cistern/trace.hpp"
#include "trace/sink.hpp"

namespace cistern::trace {

// The addresses are made up (see placement.hpp). One segment for each stream that allocates, mapped at time 0; its
// blocks tile it. `path` is for errors.
void write_memory_viz(ByteSink& sink, const Trace& trace, const std::string& path);

}  // namespace cistern::trace
