// The trace's own small functions: errors and names; see cistern/trace.hpp.
#include "cistern/trace.hpp"

#include <fmt/format.h>

#include <utility>

namespace cistern {

struct TraceError::Parts {
  std::string file;
  std::uint64_t line;
  std::string found;
  std::string expected;
};

TraceError::TraceError(std::string file, std::uint64_t line, std::string found, std::string expected)
    : std::runtime_error(line == 0 ? fmt::format("{}: found {}, expected {}", file, found, expected)
                                   : fmt::format("{}:{}: found {}, expected {}", file, line, found, expected)),
      parts_(std::make_shared<const Parts>(Parts{std::move(file), line, std::move(found), std::move(expected)})) {}

const std::string& TraceError::file() const noexcept { return parts_->file; }
std::uint64_t TraceError::line() const noexcept { return parts_->line; }
const std::string& TraceError::found() const noexcept { return parts_->found; }
const std::string& TraceError::expected() const noexcept { return parts_->expected; }

std::string Trace::stream_name(std::size_t index) const {
  const std::uint64_t value = streams.at(index);
  // Handles are addresses; small numbers are numbers that somebody chose.
  return value < 65536 ? fmt::format("{}", value) : fmt::format("{:#x}", value);
}

}  // namespace cistern
