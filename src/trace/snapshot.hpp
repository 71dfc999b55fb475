// PyTorch memory snapshots: from the decoded pickle to a Trace. Called by convert.cpp and tests. No state, no locking.
#pragma once

#include <string>

#include "cistern/trace.hpp"
#include "trace/source.hpp"

namespace cistern::trace {

// Reads the rest of the source as a pickle. An event of the trace is what the program did: `alloc`, and
// `free_requested` (the host freed; `free_completed` is when the allocator could use the block again). Blocks older
// than the recorded window whose free is in it come first, in the order of their addresses; those without an event only
// if the options say so. Throws TraceError.
Trace read_snapshot(ByteSource& source, const TraceReadOptions& options);

}  // namespace cistern::trace
