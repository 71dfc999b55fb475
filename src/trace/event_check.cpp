// Checks of events; see event_check.hpp.
#include "trace/event_check.hpp"

#include <fmt/format.h>

#include "trace/builder.hpp"
#include "trace/text.hpp"

namespace cistern::trace {
namespace {

constexpr std::uint64_t kFreed = UINT64_MAX;
static_assert(kFreed > kMaxSize);

// The first stream is the default one; values may be anything, since not every format limits them.
void check_streams(const std::string& path, const Trace& trace) {
  if (trace.streams.empty()) throw TraceError(path, 0, "a trace without streams", "at least the default stream, 0");
  if (trace.streams.size() > kMaxStreams) {
    throw TraceError(path, 0, fmt::format("{} streams", trace.streams.size()),
                     fmt::format("at most {} streams", kMaxStreams));
  }
  if (trace.streams.front() != 0) {
    throw TraceError(path, 0, fmt::format("a first stream called {}", trace.streams.front()),
                     "0, the default stream, as the first");
  }
}

}  // namespace

std::string EventCheck::next(const TraceEvent& event) {
  if (events_ >= kMaxEvents) return fmt::format("one event more; expected at most {}", kMaxEvents);
  if (event.stream >= streams_) return fmt::format("stream {}; there are {}", event.stream, streams_);
  if (event.time_us < last_time_) {
    return fmt::format("the time {} us after {} us; expected one not smaller", event.time_us, last_time_);
  }
  std::string fault;
  // Read as a number: a caller may have put anything there.
  const auto kind = static_cast<std::uint8_t>(event.kind);
  if (kind == static_cast<std::uint8_t>(TraceEventKind::allocate)) {
    fault = allocate(event);
  } else if (kind == static_cast<std::uint8_t>(TraceEventKind::free)) {
    fault = free(event);
  } else {
    fault = fmt::format("kind {}; expected 0 (allocate) or 1 (free)", kind);
  }
  if (!fault.empty()) return fault;
  last_time_ = event.time_us;
  ++events_;
  return {};
}

std::string EventCheck::allocate(const TraceEvent& event) {
  if (event.id != sizes_.size()) {
    return fmt::format("id {}; expected {}, for allocations count up from 0", event.id, sizes_.size());
  }
  if (event.size > kMaxSize) return fmt::format("the size {}; expected 0 to {}", event.size, kMaxSize);
  if (event.size > kMaxSize - live_bytes_) {
    return fmt::format("{} live bytes and {} more; expected at most {} in all", live_bytes_, event.size, kMaxSize);
  }
  sizes_.push_back(event.size);
  live_bytes_ += event.size;
  return {};
}

std::string EventCheck::free(const TraceEvent& event) {
  if (event.id >= sizes_.size()) return fmt::format("a free of id {}, which no event allocated before", event.id);
  std::uint64_t& size = sizes_[event.id];
  if (size == kFreed) return fmt::format("a second free of id {}", event.id);
  if (free_size_ == FreeSize::checked && event.size != size) {
    return fmt::format("a free of id {} with size {}; expected {}, that of its allocation", event.id, event.size, size);
  }
  live_bytes_ -= size;
  size = kFreed;
  return {};
}

void check_trace(const std::string& path, const Trace& trace) {
  if (trace.events.empty()) throw TraceError(path, 0, "a trace without events", "at least one allocation");
  check_streams(path, trace);
  EventCheck check(trace.streams.size(), EventCheck::FreeSize::checked);
  for (std::size_t i = 0; i < trace.events.size(); ++i) {
    if (const std::string fault = check.next(trace.events[i]); !fault.empty()) {
      throw TraceError(path, 0, fmt::format("event {}: {}", i, fault), "events of a trace");
    }
  }
  if (trace.allocations != check.allocations()) {
    throw TraceError(path, 0, fmt::format("{} allocations by Trace::allocations", trace.allocations),
                     fmt::format("{}, as there are events that allocate", check.allocations()));
  }
  if (!trace.original_ids.empty() && trace.original_ids.size() != trace.allocations) {
    throw TraceError(path, 0, fmt::format("{} original ids", trace.original_ids.size()),
                     fmt::format("none, or one for each of {} allocations", trace.allocations));
  }
}

}  // namespace cistern::trace
