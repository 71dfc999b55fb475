// What the commands print with: a progress line on a terminal, aligned tables, sizes as people write them.
// Used by the commands, on one thread. No lock.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "trace/replay.hpp"

namespace cistern::tools {

// One line on the standard error output, rewritten in place; only when that is a terminal, and only for work that has
// taken longer than a second.
class Progress {
 public:
  Progress();
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // `fraction` is of the whole work; `what` is being done.
  void update(double fraction, std::string_view what);
  // Removes the line.
  void clear();

 private:
  using Clock = std::chrono::steady_clock;
  bool terminal_;
  bool shown_ = false;
  Clock::time_point start_;
  Clock::time_point last_;
};

// Columns padded to their widest cell; all but the `left` first ones are right-aligned. A row of no cells is a rule.
std::string format_table(const std::vector<std::vector<std::string>>& rows, std::size_t left);

// "1048576", "64KiB", "1.5GiB". Throws UsageError naming the option.
std::uint64_t parse_bytes(std::string_view text, std::string_view option);
// The same, or "1.05x".
trace::MemoryLimit parse_limit(std::string_view text, std::string_view option);

}  // namespace cistern::tools
