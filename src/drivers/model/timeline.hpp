// Timeline: the streams and events of the model device. Each stream is a queue of work that runs behind the host.
//
//   host      submit  submit  record ...             the caller moves the clock
//   stream A  [ done ][ done ][ pending ][ pending ]
//   stream B  [ done ][ wait for A ][ pending ]
//
// Work is done when `lag` microseconds have passed since it was submitted (or, in manual mode, when the caller says so)
// and everything that it waits for is done. The queue also knows which work is ordered before which, whatever the clock
// says: that is how a missing wait is found even when the timing would have hidden it.
// Knows nothing of memory. Not thread-safe: the model driver locks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

namespace cistern::drivers {

// A piece of work: the `seq`th of its stream. Sequence numbers start at 1; 0 is before everything.
struct WorkPoint {
  std::uint32_t stream = 0;
  std::uint64_t seq = 0;
};

class Timeline {
 public:
  // With `manual` no work is done before complete() says so; otherwise it takes `lag_us` microseconds (0: at once).
  Timeline(double lag_us, bool manual) : lag_us_(lag_us), manual_(manual) {}

  // The stream of a native handle, made when it is new.
  std::uint32_t stream(void* native);
  // The id of that stream: unique in the process.
  std::uint64_t id(void* native) { return streams_[stream(native)].id; }
  // The handle may be used again and is another stream then; pending work goes on.
  void destroy_stream(void* native) { by_native_.erase(native); }
  void set_lag(std::uint32_t stream, double lag_us) { streams_[stream].lag_us = lag_us; }

  WorkPoint submit(std::uint32_t stream);
  std::uint64_t record(std::uint32_t stream);
  // These return false when there is no such event (never recorded, or released).
  bool wait(std::uint32_t stream, std::uint64_t event);
  bool release(std::uint64_t event) { return events_.erase(event) != 0; }
  bool known(std::uint64_t event) const { return events_.contains(event); }
  bool passed(std::uint64_t event) const;

  bool done(WorkPoint point) const { return streams_[point.stream].done >= point.seq; }
  // Whether work that is submitted to `stream` from now on starts after `point`.
  bool ordered(WorkPoint point, std::uint32_t stream) const;
  // Whether anything is pending.
  bool idle() const;

  double clock_us() const { return clock_us_; }
  // pre: time_us >= clock_us().
  void advance_to(double time_us);
  // Lets what was submitted to the stream so far be done, in manual mode.
  void complete(std::uint32_t stream);
  void complete_all();

  // The host waits: everything up to the point is done now. Returns the microseconds that the host would have waited.
  double force(std::uint64_t event);
  double force_all();

  std::size_t live_events() const { return events_.size(); }

 private:
  struct Op {
    double ready_us = 0;
    WorkPoint after;  // Waits for this; seq 0 when it waits for nothing.
  };
  struct Stream {
    std::uint64_t id = 0;
    double lag_us = 0;
    std::uint64_t submitted = 0;       // Sequence number of the last work.
    std::uint64_t done = 0;            // The same, of the last that is done.
    std::uint64_t allowed = 0;         // Manual mode: work up to here may be done.
    std::deque<Op> queue;              // Work done + 1 ... submitted.
    std::vector<std::uint64_t> after;  // By stream: the next work starts after this sequence number there.
  };
  struct EventState {
    WorkPoint point;
    std::vector<std::uint64_t> after;
  };

  std::uint64_t push(std::uint32_t stream, WorkPoint after);
  bool run(Stream& stream);
  void run_all();
  double force_point(WorkPoint point);

  double lag_us_;
  bool manual_;
  double clock_us_ = 0;
  std::uint64_t next_event_ = 1;
  std::vector<Stream> streams_;
  std::unordered_map<void*, std::uint32_t> by_native_;
  std::unordered_map<std::uint64_t, EventState> events_;
};

}  // namespace cistern::drivers
