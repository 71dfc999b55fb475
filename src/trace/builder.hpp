// TraceBuilder: the one place where events become a Trace. Numbers allocations and streams densely, keeps the figures,
// and refuses what no trace may hold. Used by every reader and generator. One thread; no locking.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "cistern/trace.hpp"

namespace cistern::trace {

// What a trace can hold.
inline constexpr std::uint32_t kMaxEvents = std::uint32_t{1} << 31;
inline constexpr std::size_t kMaxStreams = std::size_t{UINT16_MAX} + 1;

// State of an id: unknown -> live (allocate) -> freed (free). Nothing leads back: an id is used once.
class TraceBuilder {
 public:
  // What a place is called in errors: "line 12", or "entry 11 of device_traces[0]".
  enum class Place : std::uint8_t { line, entry };
  // What happens to a time smaller than the one before: an error, or taken as the one before. The latter is for sources
  // that read the clock before they take their place in the order.
  enum class Clock : std::uint8_t { strict, clamp };

  TraceBuilder(std::string file, Clock clock, Place place = Place::line, std::string entries = {});

  // Where the next events come from; a cheap store.
  void at(std::uint64_t position) { position_ = position; }

  // Dense number of a stream. Throws TraceError past 65,536 streams.
  std::uint16_t stream(std::uint64_t native) {
    if (native == last_native_) return last_stream_;
    return find_stream(native);
  }

  // Adds an allocation; returns its dense id. Throws TraceError: time, size, live bytes, too many events.
  std::uint32_t allocate(std::uint64_t size, std::uint16_t stream, std::uint64_t time_us);
  // Adds a free. Throws TraceError: time, freed before.
  void free(std::uint32_t id, std::uint16_t stream, std::uint64_t time_us);

  std::uint32_t allocations() const { return static_cast<std::uint32_t>(born_.size()); }
  bool live(std::uint32_t id) const { return (born_[id] & kFreed) == 0; }
  std::uint64_t size_of(std::uint32_t id) const { return events_[born_[id] & ~kFreed].size; }
  std::uint16_t stream_of(std::uint32_t id) const { return events_[born_[id] & ~kFreed].stream; }
  std::uint64_t last_time() const { return last_time_; }
  bool empty() const { return events_.empty(); }

  // Throws TraceError naming the place.
  [[noreturn]] void fail(const std::string& found, const std::string& expected) const;

  // Hands the trace over; the builder is empty afterwards. Throws TraceError when there is no event.
  Trace finish(std::string name);

 private:
  static constexpr std::uint32_t kFreed = kMaxEvents;  // Event numbers share 32 bits with the flag.

  std::uint16_t find_stream(std::uint64_t native);
  void append(const TraceEvent& event);

  std::string file_;
  std::string entries_;
  Clock clock_;
  Place place_;
  std::uint64_t position_ = 0;

  std::vector<TraceEvent> events_;
  std::vector<std::uint32_t> born_;  // By id: number of the allocation's event, with kFreed once freed.
  std::vector<std::uint64_t> streams_{0};
  std::unordered_map<std::uint64_t, std::uint16_t> stream_numbers_{{0, 0}};
  std::uint64_t last_native_ = 0;
  std::uint16_t last_stream_ = 0;
  std::uint64_t last_time_ = 0;
  std::uint64_t live_bytes_ = 0;
  std::uint64_t peak_bytes_ = 0;
  std::uint32_t live_count_ = 0;
};

// File name without folders and without the endings that the formats use.
std::string trace_name(const std::string& path);

}  // namespace cistern::trace
