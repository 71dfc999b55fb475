// Figures of other allocators that were recorded with the traces (`native.json` beside them): PyTorch's caching
// allocator on the GPU where the trace was made. Called by the tools. Plain values; no lock.
#pragma once

#include <map>
#include <string>

namespace cistern::report {

struct RecordedFigure {
  double ratio = 0;                    // Peak reserved / peak live.
  double ns_first = 0, ns_second = 0;  // An event, on the first and the second pass.
};

struct Recorded {
  RecordedFigure native;      // PyTorch's allocator.
  RecordedFigure expandable;  // With expandable_segments.
  RecordedFigure async;       // cudaMallocAsync.
};

// By the name of the trace. Empty when the folder of `trace_path` has no such file; `problem` says so when there is one
// that cannot be understood.
std::map<std::string, Recorded> load_recorded(const std::string& trace_path, std::string& problem);

}  // namespace cistern::report
