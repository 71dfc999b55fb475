// Chrome JSON out; see perfetto.hpp.
#include "trace/perfetto.hpp"

#include <fmt/format.h>

#include <bit>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace cistern::trace {
namespace {

// Slices are grouped by name, so the names are few: powers of two. The exact size is an argument of the slice.
std::string size_class(std::uint64_t size) {
  if (size == 0) return "0 B";
  static constexpr std::string_view kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  const unsigned log = static_cast<unsigned>(std::bit_width(size)) - 1;
  return fmt::format("{} {} and more", std::uint64_t{1} << (log % 10), kUnits[log / 10]);
}

// Streams are shown as processes: each gets a group of tracks of its own. Process 1 holds the sum.
constexpr std::uint32_t process_of(std::size_t stream) { return static_cast<std::uint32_t>(stream) + 2; }

}  // namespace

void write_perfetto(ByteSink& sink, const Trace& trace) {
  // Names come from files and streams; nlohmann quotes them (and replaces bytes that are no UTF-8).
  const auto json_text = [](const std::string& s) {
    return nlohmann::json(s).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  };
  fmt::memory_buffer out;
  const auto to = [&] { return std::back_inserter(out); };
  fmt::format_to(to(), R"({{"displayTimeUnit":"ms","otherData":{{"name":{}}},"traceEvents":[)", json_text(trace.name));
  fmt::format_to(to(), R"({{"ph":"M","name":"process_name","pid":1,"args":{{"name":"all streams"}}}})");
  std::vector<bool> used(trace.streams.size());
  for (const TraceEvent& e : trace.events) used[e.stream] = true;
  for (std::size_t i = 0; i < trace.streams.size(); ++i) {
    if (!used[i]) continue;
    fmt::format_to(to(),
                   ",\n"
                   R"({{"ph":"M","name":"process_name","pid":{},"args":{{"name":{}}}}})",
                   process_of(i), json_text("stream " + trace.stream_name(i)));
  }

  std::vector<std::uint64_t> live(trace.streams.size());
  std::vector<std::uint16_t> home(trace.allocations);
  std::uint64_t all = 0;
  for (const TraceEvent& e : trace.events) {
    const bool begin = e.kind == TraceEventKind::allocate;
    if (begin) home[e.id] = e.stream;
    const std::uint16_t stream = home[e.id];
    if (begin) {
      all += e.size;
      live[stream] += e.size;
    } else {
      all -= e.size;
      live[stream] -= e.size;
    }
    fmt::format_to(to(),
                   ",\n"
                   R"({{"ph":"{}","cat":"allocation","name":"{}","id":{},"pid":{},"tid":1,"ts":{})",
                   begin ? 'b' : 'e', size_class(e.size), e.id, process_of(stream), e.time_us);
    if (begin) fmt::format_to(to(), R"(,"args":{{"bytes":{},"id":{}}})", e.size, e.id);
    fmt::format_to(to(),
                   "}},\n"
                   R"({{"ph":"C","name":"live bytes","pid":1,"ts":{},"args":{{"bytes":{}}}}})",
                   e.time_us, all);
    fmt::format_to(to(),
                   ",\n"
                   R"({{"ph":"C","name":"live bytes","pid":{},"ts":{},"args":{{"bytes":{}}}}})",
                   process_of(stream), e.time_us, live[stream]);
    if (out.size() >= ByteSink::kChunk) {
      sink.write({out.data(), out.size()});
      out.clear();
    }
  }
  fmt::format_to(to(), "]}}\n");
  sink.write({out.data(), out.size()});
}

}  // namespace cistern::trace
