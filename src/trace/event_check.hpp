// EventCheck: whether events that a caller made are those of a trace (cistern/trace.hpp): ids in order, one free for
// each allocation, known streams, times that never fall, sums that a trace can hold. For traces that no reader made.
// Used by write_trace() and the C interface. One thread; no locking.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cistern/trace.hpp"

namespace cistern::trace {

class EventCheck {
 public:
  // Whether a free must carry the size of its allocation.
  enum class FreeSize : std::uint8_t { checked, ignored };

  EventCheck(std::size_t streams, FreeSize free_size) : streams_(streams), free_size_(free_size) {}

  // What is wrong with the next event, without its number; empty when nothing is, and then the event counts.
  std::string next(const TraceEvent& event);

  std::uint32_t allocations() const { return static_cast<std::uint32_t>(sizes_.size()); }

 private:
  std::string allocate(const TraceEvent& event);
  std::string free(const TraceEvent& event);

  std::size_t streams_;
  FreeSize free_size_;
  std::uint64_t events_ = 0;
  std::uint64_t last_time_ = 0;
  std::uint64_t live_bytes_ = 0;
  std::vector<std::uint64_t> sizes_;  // By id; kFreed once freed, which no size is.
};

// Throws TraceError of `path`, naming the event, for a trace that no reader could have made: what the writers rely on.
void check_trace(const std::string& path, const Trace& trace);

}  // namespace cistern::trace
