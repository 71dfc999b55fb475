// How `cistern replay` shows results: the table for people, the JSON line for programs, the faults in words.
// Pure functions; any thread.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "report/recorded.hpp"
#include "trace/replay.hpp"

namespace cistern::tools {

// Trace by trace, a geometric mean for each allocator, and PyTorch's recorded figures where there are any.
std::string format_results(const std::vector<trace::ReplayResult>& results,
                           const std::map<std::string, report::Recorded>& recorded);

// One line, without the line end.
std::string result_json(const trace::ReplayResult& result);

// Lines for the standard error output: failures, faults, and how far resident memory was from reserved. Empty when all
// is well.
std::string describe_faults(const trace::ReplayResult& result);

}  // namespace cistern::tools
