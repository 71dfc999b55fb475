// From events to a Trace; see builder.hpp.
#include "trace/builder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "trace/text.hpp"

namespace cistern::trace {

TraceBuilder::TraceBuilder(std::string file, Clock clock, Place place, std::string entries)
    : file_(std::move(file)), entries_(std::move(entries)), clock_(clock), place_(place) {}

void TraceBuilder::fail(const std::string& found, const std::string& expected) const {
  if (place_ == Place::line) throw TraceError(file_, position_, found, expected);
  throw TraceError(file_, 0, fmt::format("{} in entry {} of {}", found, position_, entries_), expected);
}

std::uint16_t TraceBuilder::find_stream(std::uint64_t native) {
  const auto [it, fresh] = stream_numbers_.try_emplace(native, static_cast<std::uint16_t>(streams_.size()));
  if (fresh) {
    if (streams_.size() == kMaxStreams) {
      fail(fmt::format("stream number {}", kMaxStreams + 1), fmt::format("at most {} streams", kMaxStreams));
    }
    streams_.push_back(native);
  }
  last_native_ = native;
  last_stream_ = it->second;
  return it->second;
}

void TraceBuilder::append(const TraceEvent& event) {
  if (events_.size() >= kMaxEvents) fail("one event more", fmt::format("at most {} events", kMaxEvents));
  TraceEvent e = event;
  if (e.time_us < last_time_) {
    if (clock_ == Clock::strict) {
      fail(fmt::format("the time {} us after {} us", e.time_us, last_time_), "a time not smaller than the one before");
    }
    e.time_us = last_time_;
  }
  last_time_ = e.time_us;
  events_.push_back(e);
}

std::uint32_t TraceBuilder::allocate(std::uint64_t size, std::uint16_t stream, std::uint64_t time_us) {
  if (size > kMaxSize) fail(fmt::format("the size {}", size), fmt::format("a size from 0 to {}", kMaxSize));
  if (size > kMaxSize - live_bytes_) {
    fail(fmt::format("{} live bytes and {} more", live_bytes_, size),
         fmt::format("at most {} live bytes in all", kMaxSize));
  }
  const auto id = static_cast<std::uint32_t>(born_.size());
  append({size, time_us, id, stream, TraceEventKind::allocate});
  born_.push_back(static_cast<std::uint32_t>(events_.size() - 1));
  live_bytes_ += size;
  peak_bytes_ = std::max(peak_bytes_, live_bytes_);
  ++live_count_;
  return id;
}

void TraceBuilder::free(std::uint32_t id, std::uint16_t stream, std::uint64_t time_us) {
  if (!live(id)) fail("a second free of the same allocation", "one free for each allocation");
  const std::uint64_t size = size_of(id);
  append({size, time_us, id, stream, TraceEventKind::free});
  born_[id] |= kFreed;
  live_bytes_ -= size;
  --live_count_;
}

Trace TraceBuilder::finish(std::string name) {
  if (events_.empty()) throw TraceError(file_, 0, "no event", "at least one allocation");
  Trace trace;
  trace.name = std::move(name);
  trace.duration_us = events_.back().time_us - events_.front().time_us;
  trace.events = std::move(events_);
  trace.streams = std::move(streams_);
  trace.allocations = static_cast<std::uint32_t>(born_.size());
  trace.peak_live_bytes = peak_bytes_;
  trace.live_at_end_bytes = live_bytes_;
  trace.live_at_end = live_count_;
  *this = TraceBuilder(std::move(file_), clock_, place_, std::move(entries_));
  return trace;
}

std::string trace_name(const std::string& path) {
  const std::size_t slash = path.find_last_of("/\\");
  std::string name = slash == std::string::npos ? path : path.substr(slash + 1);
  for (const std::string_view ending : {".gz", ".csv", ".rmm", ".log", ".pickle", ".pkl"}) {
    if (name.size() > ending.size() && name.ends_with(ending)) name.resize(name.size() - ending.size());
  }
  return name;
}

}  // namespace cistern::trace
