// Queues of work that runs behind the host. Contract and locking are in timeline.hpp.
#include "drivers/model/timeline.hpp"

#include <algorithm>
#include <atomic>

namespace cistern::drivers {
namespace {

std::uint64_t next_stream_id() {
  static std::atomic<std::uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

std::uint32_t Timeline::stream(void* native) {
  const auto [found, fresh] = by_native_.try_emplace(native, static_cast<std::uint32_t>(streams_.size()));
  if (fresh) {
    Stream& stream = streams_.emplace_back();
    stream.id = next_stream_id();
    stream.lag_us = lag_us_;
  }
  return found->second;
}

WorkPoint Timeline::submit(std::uint32_t stream) { return {stream, push(stream, {})}; }

std::uint64_t Timeline::record(std::uint32_t stream) {
  // An event is work of its own: it passes a lag after its record, however old the work before it is.
  const std::uint64_t seq = push(stream, {});
  const std::uint64_t event = next_event_++;
  events_.emplace(event, EventState{{stream, seq}, streams_[stream].after});
  return event;
}

bool Timeline::wait(std::uint32_t stream, std::uint64_t event) {
  const auto found = events_.find(event);
  if (found == events_.end()) return false;
  const EventState& state = found->second;
  std::vector<std::uint64_t>& after = streams_[stream].after;
  after.resize(std::max({after.size(), state.after.size(), std::size_t{state.point.stream} + 1}));
  for (std::size_t i = 0; i < state.after.size(); ++i) after[i] = std::max(after[i], state.after[i]);
  after[state.point.stream] = std::max(after[state.point.stream], state.point.seq);
  push(stream, state.point);
  return true;
}

bool Timeline::passed(std::uint64_t event) const {
  const auto found = events_.find(event);
  return found == events_.end() || done(found->second.point);
}

bool Timeline::ordered(WorkPoint point, std::uint32_t stream) const {
  if (point.stream == stream || done(point)) return true;
  const std::vector<std::uint64_t>& after = streams_[stream].after;
  return point.stream < after.size() && after[point.stream] >= point.seq;
}

bool Timeline::idle() const {
  return std::all_of(streams_.begin(), streams_.end(), [](const Stream& s) { return s.queue.empty(); });
}

void Timeline::advance_to(double time_us) {
  clock_us_ = std::max(clock_us_, time_us);
  if (!manual_) run_all();
}

void Timeline::complete(std::uint32_t stream) {
  streams_[stream].allowed = streams_[stream].submitted;
  run_all();
}

void Timeline::complete_all() {
  for (Stream& stream : streams_) stream.allowed = stream.submitted;
  run_all();
}

double Timeline::force(std::uint64_t event) {
  const auto found = events_.find(event);
  return found == events_.end() ? 0 : force_point(found->second.point);
}

double Timeline::force_all() {
  double waited = 0;
  for (std::uint32_t i = 0; i < streams_.size(); ++i)
    waited = std::max(waited, force_point({i, streams_[i].submitted}));
  return waited;
}

std::uint64_t Timeline::push(std::uint32_t stream, WorkPoint after) {
  Stream& s = streams_[stream];
  s.queue.push_back({clock_us_ + s.lag_us, after});
  ++s.submitted;
  run(s);
  return s.submitted;
}

// Does what can be done of one stream; whether anything was. Nobody waits for work submitted this moment, so push()
// need not look at other streams.
bool Timeline::run(Stream& stream) {
  bool progress = false;
  while (!stream.queue.empty()) {
    const Op& op = stream.queue.front();
    if (manual_ ? stream.done >= stream.allowed : op.ready_us > clock_us_) break;
    if (op.after.seq != 0 && !done(op.after)) break;
    stream.queue.pop_front();
    ++stream.done;
    progress = true;
  }
  return progress;
}

void Timeline::run_all() {
  for (bool progress = true; progress;) {
    progress = false;
    for (Stream& stream : streams_) progress |= run(stream);
  }
}

double Timeline::force_point(WorkPoint point) {
  double ready_us = clock_us_;
  // A stack of its own: chains of waits between two streams can be very long.
  std::vector<WorkPoint> todo{point};
  while (!todo.empty()) {
    const WorkPoint next = todo.back();
    Stream& stream = streams_[next.stream];
    if (stream.done >= next.seq) {
      todo.pop_back();
      continue;
    }
    const Op op = stream.queue.front();
    if (op.after.seq != 0 && !done(op.after)) {
      todo.push_back(op.after);
      continue;
    }
    if (!manual_) ready_us = std::max(ready_us, op.ready_us);
    stream.queue.pop_front();
    ++stream.done;
    stream.allowed = std::max(stream.allowed, stream.done);
  }
  run_all();
  return ready_us - clock_us_;
}

}  // namespace cistern::drivers
