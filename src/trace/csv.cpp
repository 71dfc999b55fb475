// Cistern's csv traces; see csv.hpp.
#include "trace/csv.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <unordered_map>
#include <utility>
#include <vector>

#include "trace/builder.hpp"
#include "trace/text.hpp"

namespace cistern::trace {
namespace {

// From the file's ids to dense ones. Files mostly count 0, 1, 2, ...; then no table is needed.
class IdMap {
 public:
  static constexpr std::uint32_t kNone = UINT32_MAX;

  std::uint32_t find(std::uint64_t original) const {
    if (identity_) return original < count_ ? static_cast<std::uint32_t>(original) : kNone;
    const auto it = table_.find(original);
    return it == table_.end() ? kNone : it->second;
  }

  // `original` is not in the map yet; `dense` is the number of ids so far.
  void add(std::uint64_t original, std::uint32_t dense) {
    if (identity_ && original != dense) {
      identity_ = false;
      originals_.reserve(count_ + 1);
      for (std::uint32_t i = 0; i < count_; ++i) {
        table_.emplace(i, i);
        originals_.push_back(i);
      }
    }
    ++count_;
    if (identity_) return;
    table_.emplace(original, dense);
    originals_.push_back(original);
  }

  std::vector<std::uint64_t> take_originals() { return std::move(originals_); }

 private:
  bool identity_ = true;
  std::uint32_t count_ = 0;
  std::unordered_map<std::uint64_t, std::uint32_t> table_;
  std::vector<std::uint64_t> originals_;
};

struct Row {
  char event = 0;
  std::uint64_t id = 0, size = 0, stream = 0, time_us = 0;
};

// The digits at `at`; false when there is none, or more than 64 bits surely hold.
inline bool take_number(const char*& at, const char* end, std::uint64_t& out) {
  std::uint64_t v = 0;
  const char* const start = at;
  while (at != end) {
    const unsigned digit = static_cast<unsigned char>(*at) - unsigned{'0'};
    if (digit > 9) break;
    v = v * 10 + digit;
    ++at;
  }
  out = v;
  return at != start && at - start <= 19;
}

// The common case in one pass over the line; false sends the line to parse_slowly(), which says what is wrong.
inline bool parse_quickly(std::string_view line, Row& row) {
  const char* at = line.data();
  const char* const end = at + line.size();
  if (line.size() < 9 || at[1] != ',') return false;
  row.event = *at;
  if (row.event != 'a' && row.event != 'f') return false;
  at += 2;
  if (!take_number(at, end, row.id) || at == end || *at++ != ',') return false;
  if (!take_number(at, end, row.size) || at == end || *at++ != ',') return false;
  if (!take_number(at, end, row.stream) || at == end || *at++ != ',') return false;
  return take_number(at, end, row.time_us) && at == end && (row.id | row.size | row.stream | row.time_us) <= kMaxSize;
}

constexpr std::array<std::string_view, 5> kColumns{"event", "id", "size", "stream", "time_us"};

// Field by field; says what is wrong with the first bad one.
Row parse_slowly(std::string_view line, const TraceBuilder& builder) {
  std::array<std::string_view, 5> fields;
  std::size_t count = 0;
  for (std::size_t at = 0;; ++count) {
    const std::size_t comma = line.find(',', at);
    if (count < fields.size()) fields[count] = line.substr(at, comma == std::string_view::npos ? comma : comma - at);
    if (comma == std::string_view::npos) break;
    at = comma + 1;
  }
  ++count;
  if (line.empty()) builder.fail("an empty line", fmt::format("5 columns: {}", kCsvHeader));
  if (count != fields.size()) {
    builder.fail(fmt::format("{} column{}: {}", count, count == 1 ? "" : "s", quoted(line)),
                 fmt::format("5 columns: {}", kCsvHeader));
  }
  Row row;
  if (fields[0] != "a" && fields[0] != "f") {
    builder.fail(fmt::format("the event {}", quoted(fields[0])),
                 fmt::format("the event a (allocate) or f (free){}",
                             fields[0].starts_with('"') ? "; fields of a trace stand in no quotes" : ""));
  }
  row.event = fields[0].front();
  std::uint64_t* const targets[] = {&row.id, &row.size, &row.stream, &row.time_us};
  for (std::size_t i = 1; i < fields.size(); ++i) {
    Parse result = parse_u64(fields[i], *targets[i - 1]);
    if (result == Parse::ok && *targets[i - 1] > kMaxSize) result = Parse::too_big;
    if (result != Parse::ok) {
      builder.fail(fmt::format("{} as {}: {}", describe(result), kColumns[i], quoted(fields[i])),
                   fmt::format("a whole number from 0 to {}", kMaxSize));
    }
  }
  return row;
}

void check_header(std::string_view line, const LineReader& lines) {
  if (line == kCsvHeader) return;
  throw TraceError(lines.path(), lines.number(), fmt::format("the first line {}", quoted(line)),
                   fmt::format("the columns {}", kCsvHeader));
}

}  // namespace

Trace read_csv(ByteSource& source) {
  LineReader lines(source);
  TraceBuilder builder(source.path(), TraceBuilder::Clock::strict);
  IdMap ids;
  std::string_view line;
  if (lines.next(line)) check_header(line, lines);
  while (lines.next(line)) {
    builder.at(lines.number());
    Row row;
    if (!parse_quickly(line, row)) row = parse_slowly(line, builder);
    const std::uint16_t stream = builder.stream(row.stream);
    const std::uint32_t known = ids.find(row.id);
    if (row.event == 'a') {
      if (known != IdMap::kNone) {
        builder.fail(fmt::format("a second allocation with id {}", row.id), "an id that no line before has");
      }
      ids.add(row.id, builder.allocate(row.size, stream, row.time_us));
    } else {
      if (known == IdMap::kNone) {
        builder.fail(fmt::format("a free of id {}, which was not allocated", row.id), "an allocation on a line before");
      }
      if (!builder.live(known)) {
        builder.fail(fmt::format("a second free of id {}", row.id), "one free for each allocation");
      }
      if (row.size != builder.size_of(known)) {
        builder.fail(fmt::format("a free of id {} with size {}", row.id, row.size),
                     fmt::format("the size of its allocation, {}", builder.size_of(known)));
      }
      builder.free(known, stream, row.time_us);
    }
  }
  Trace trace = builder.finish(trace_name(source.path()));
  trace.original_ids = ids.take_originals();
  return trace;
}

void append_csv_line(std::string& out, TraceEventKind kind, std::uint64_t id, std::uint64_t size, std::uint64_t stream,
                     std::uint64_t time_us) {
  char text[96];  // 4 numbers of at most 20 digits, 4 commas, the event and the line end.
  char* at = text;
  *at++ = kind == TraceEventKind::allocate ? 'a' : 'f';
  for (const std::uint64_t value : {id, size, stream, time_us}) {
    *at++ = ',';
    const fmt::format_int digits(value);
    for (std::size_t i = 0; i < digits.size(); ++i) *at++ = digits.data()[i];
  }
  *at++ = '\n';
  out.append(text, static_cast<std::size_t>(at - text));
}

void check_csv(const std::string& path, const Trace& trace) {
  const std::string expected = fmt::format("a number from 0 to {}", kMaxSize);
  for (const std::uint64_t stream : trace.streams) {
    if (stream > kMaxSize) throw TraceError(path, 0, fmt::format("a stream called {}", stream), expected);
  }
  if (const std::uint64_t last = trace.events.back().time_us; last > kMaxSize) {
    throw TraceError(path, 0, fmt::format("the time {} us", last), expected);
  }
  std::vector<std::uint64_t> ids = trace.original_ids;
  std::sort(ids.begin(), ids.end());
  if (!ids.empty() && ids.back() > kMaxSize) {
    throw TraceError(path, 0, fmt::format("the original id {}", ids.back()), expected);
  }
  if (const auto twice = std::adjacent_find(ids.begin(), ids.end()); twice != ids.end()) {
    throw TraceError(path, 0, fmt::format("the original id {} twice", *twice), "an id of its own for each allocation");
  }
}

void write_csv(ByteSink& sink, const Trace& trace) {
  std::string out(kCsvHeader);
  out += '\n';
  for (const TraceEvent& e : trace.events) {
    const std::uint64_t id = trace.original_ids.empty() ? e.id : trace.original_ids[e.id];
    append_csv_line(out, e.kind, id, e.size, trace.streams[e.stream], e.time_us);
    if (out.size() >= ByteSink::kChunk) sink.write(std::exchange(out, {}));
  }
  sink.write(out);
}

}  // namespace cistern::trace
