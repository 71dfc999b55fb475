// RMM logs in and out; see rmm.hpp.
#include "trace/rmm.hpp"

#include <fmt/format.h>

#include <array>
#include <iterator>
#include <string>
#include <unordered_map>

#include "trace/builder.hpp"
#include "trace/placement.hpp"
#include "trace/text.hpp"

namespace cistern::trace {
namespace {

constexpr std::uint64_t kSecond = 1'000'000;  // Microseconds.
constexpr std::uint64_t kDay = 24 * 3600 * kSecond;
constexpr std::string_view kTimeForms = "HH:MM:SS.ffffff, HH:MM:SS:ffffff or seconds since 1970";

// "123456" of "12.123456": microseconds, whatever the number of digits (1 to 9).
bool parse_fraction(std::string_view digits, std::uint64_t& us) {
  if (digits.empty() || digits.size() > 9) return false;
  std::uint64_t v = 0;
  if (parse_u64(digits, v) != Parse::ok) return false;
  for (std::size_t i = digits.size(); i < 6; ++i) v *= 10;
  for (std::size_t i = digits.size(); i > 6; --i) v /= 10;
  us = v;
  return true;
}

// Microseconds since midnight of a wall clock time, or since 1970.
struct Time {
  bool of_day = false;
  std::uint64_t us = 0;
};

bool parse_time(std::string_view text, Time& out) {
  std::uint64_t us = 0;
  const auto two_digits = [&](std::size_t at, std::uint64_t below, std::uint64_t& v) {
    return text.substr(at, 2).size() == 2 && parse_u64(text.substr(at, 2), v) == Parse::ok && v < below;
  };
  if (text.find(':') == std::string_view::npos) {
    const std::size_t dot = text.find('.');
    std::uint64_t seconds = 0;
    if (parse_u64(text.substr(0, dot), seconds) != Parse::ok || seconds > kMaxSize / kSecond) return false;
    if (dot != std::string_view::npos && !parse_fraction(text.substr(dot + 1), us)) return false;
    out = {false, seconds * kSecond + us};
    return true;
  }
  std::uint64_t h = 0, m = 0, s = 0;
  // 60 is a leap second.
  if (text.size() < 8 || text[2] != ':' || text[5] != ':' || !two_digits(0, 24, h) || !two_digits(3, 60, m) ||
      !two_digits(6, 61, s)) {
    return false;
  }
  if (text.size() > 8 && ((text[8] != '.' && text[8] != ':') || !parse_fraction(text.substr(9), us))) return false;
  out = {true, ((h * 60 + m) * 60 + s) * kSecond + us};
  return true;
}

// From wall clock times to microseconds since the first line.
class Clock {
 public:
  std::uint64_t since_start(const Time& time) {
    if (!started_) {
      started_ = true;
      start_ = previous_ = time.us;
      return 0;
    }
    // Threads read the clock before they take the log's lock, so a line may be a little older than the one before it.
    // A jump back by more than half a day is midnight.
    if (time.of_day && time.us + kDay / 2 < previous_) days_ += kDay;
    if (time.of_day && time.us > previous_ + kDay / 2 && days_ != 0) {
      // A line of before midnight behind one of after it: not a new half day.
      return since(time.us + days_ - kDay);
    }
    previous_ = time.us;
    return since(time.us + days_);
  }

 private:
  std::uint64_t since(std::uint64_t us) const { return us > start_ ? us - start_ : 0; }

  bool started_ = false;
  std::uint64_t start_ = 0;
  std::uint64_t previous_ = 0;
  std::uint64_t days_ = 0;
};

// Addresses and streams: "0x7f..", "0", "(nil)".
Parse parse_handle(std::string_view text, bool bare_is_hex, std::uint64_t& out) {
  if (text == "(nil)" || text == "nullptr") {
    out = 0;
    return Parse::ok;
  }
  const bool prefixed = text.size() > 1 && text[0] == '0' && (text[1] == 'x' || text[1] == 'X');
  return prefixed || bare_is_hex ? parse_hex(text, out) : parse_u64(text, out);
}

enum class Action { allocate, free, failure };

struct Row {
  Time time;
  Action action = Action::allocate;
  std::uint64_t pointer = 0, size = 0, stream = 0;
};

Row parse_row(std::string_view line, const TraceBuilder& builder) {
  std::array<std::string_view, 6> fields;
  std::size_t count = 0;
  for (std::size_t at = 0;; ++count) {
    const std::size_t comma = line.find(',', at);
    if (count < fields.size()) fields[count] = line.substr(at, comma == std::string_view::npos ? comma : comma - at);
    if (comma == std::string_view::npos) break;
    at = comma + 1;
  }
  ++count;
  if (count != fields.size()) {
    builder.fail(line.empty() ? std::string("an empty line") : fmt::format("{} columns: {}", count, quoted(line)),
                 fmt::format("6 columns: {}", kRmmHeader));
  }
  Row row;
  std::uint64_t thread = 0;
  const auto number = [&](std::string_view column, std::string_view text, Parse result) {
    if (result == Parse::ok) return;
    builder.fail(fmt::format("{} as {}: {}", describe(result), column, quoted(text)), "a number");
  };
  number("Thread", fields[0], parse_handle(fields[0], false, thread));
  if (!parse_time(fields[1], row.time)) {
    builder.fail(fmt::format("the time {}", quoted(fields[1])), std::string(kTimeForms));
  }
  if (fields[2] == "allocate") {
    row.action = Action::allocate;
  } else if (fields[2] == "free" || fields[2] == "deallocate") {
    row.action = Action::free;
  } else if (fields[2] == "allocate failure") {
    row.action = Action::failure;
  } else {
    builder.fail(fmt::format("the action {}", quoted(fields[2])), "allocate, free, deallocate or allocate failure");
  }
  number("Pointer", fields[3], parse_handle(fields[3], true, row.pointer));
  number("Size", fields[4], parse_u64(fields[4], row.size));
  if (row.size > kMaxSize) {
    builder.fail(fmt::format("the size {}", row.size), fmt::format("a size from 0 to {}", kMaxSize));
  }
  number("Stream", fields[5], parse_handle(fields[5], false, row.stream));
  return row;
}

}  // namespace

Trace read_rmm(ByteSource& source) {
  LineReader lines(source);
  TraceBuilder builder(source.path(), TraceBuilder::Clock::clamp);
  std::unordered_map<std::uint64_t, std::uint32_t> live;  // By address.
  Clock clock;
  bool of_day = false;
  bool first = true;
  std::uint64_t failures = 0;
  std::string_view line;
  if (lines.next(line) && line != kRmmHeader) {
    throw TraceError(source.path(), 1, fmt::format("the first line {}", quoted(line)),
                     fmt::format("the columns {}", kRmmHeader));
  }
  while (lines.next(line)) {
    builder.at(lines.number());
    const Row row = parse_row(line, builder);
    if (!first && row.time.of_day != of_day) {
      builder.fail("a time of another form than on the lines before", "one form of time in a file");
    }
    first = false;
    of_day = row.time.of_day;
    const std::uint64_t time = clock.since_start(row.time);
    if (row.action == Action::failure) {
      ++failures;
      continue;
    }
    // Requests for nothing may share the null address, and cost nothing.
    if (row.pointer == 0 && row.size == 0) continue;
    const auto it = live.find(row.pointer);
    if (row.action == Action::allocate) {
      if (it != live.end()) {
        builder.fail(fmt::format("an allocation at {:#x}, which is in use", row.pointer), "an address that is free");
      }
      live.emplace(row.pointer, builder.allocate(row.size, builder.stream(row.stream), time));
    } else {
      if (it == live.end()) {
        builder.fail(fmt::format("a free of {:#x}, which is not allocated", row.pointer),
                     "an address that a line before allocated");
      }
      if (row.size != builder.size_of(it->second)) {
        builder.fail(fmt::format("a free of {:#x} with size {}", row.pointer, row.size),
                     fmt::format("the size of its allocation, {}", builder.size_of(it->second)));
      }
      builder.free(it->second, builder.stream(row.stream), time);
      live.erase(it);
    }
  }
  Trace trace = builder.finish(trace_name(source.path()));
  trace.failed_allocations = failures;
  return trace;
}

void write_rmm(ByteSink& sink, const Trace& trace, const std::string& path) {
  const Placement placement = place(trace, path);
  fmt::memory_buffer out;
  out.append(kRmmHeader);
  out.push_back('\n');
  for (const TraceEvent& e : trace.events) {
    const std::uint64_t us = e.time_us % kDay;
    const std::uint64_t seconds = us / kSecond;
    fmt::format_to(std::back_inserter(out), "1,{:02}:{:02}:{:02}.{:06},{},{:#x},{},", seconds / 3600, seconds / 60 % 60,
                   seconds % 60, us % kSecond, e.kind == TraceEventKind::allocate ? "allocate" : "free",
                   placement.addresses[e.id], e.size);
    const std::uint64_t stream = trace.streams[e.stream];
    // As the adaptor prints a pointer: the null stream is a bare 0.
    fmt::format_to(std::back_inserter(out), "{}{:x}\n", stream == 0 ? "" : "0x", stream);
    if (out.size() >= ByteSink::kChunk) {
      sink.write({out.data(), out.size()});
      out.clear();
    }
  }
  sink.write({out.data(), out.size()});
}

}  // namespace cistern::trace
