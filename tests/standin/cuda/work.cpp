// Streams and the work in them.
#include "standin/cuda/work.hpp"

#include <algorithm>
#include <cstdio>

#include "standin/cuda/state.hpp"

namespace cistern::standin {
namespace {

using Time = std::chrono::steady_clock;

constexpr auto kPatience = std::chrono::seconds(60);  // Then a wait is taken to be a deadlock.

StreamState* by_id(State& s, std::uint64_t id) {
  const auto found = s.streams.by_id.find(id);
  return found == s.streams.by_id.end() ? nullptr : &found->second;
}

bool may_run(const State& s, const StreamState& stream, Time::time_point now) {
  const Op& op = stream.queue.front();
  if (op.seq > stream.allowed && (s.config.manual || op.ready > now)) return false;
  return std::all_of(op.needs.begin(), op.needs.end(), [&](const auto& need) {
    return is_done(s, {need.first, need.second});
  });
}

// The worker does work when its time has come, also while the program is elsewhere.
void work_on() {
  State& s = state();
  std::unique_lock lock(s.mutex);
  for (;;) {
    advance(s, &lock);
    const auto now = Time::now();
    auto next = now + std::chrono::hours(1);
    for (const auto& [id, stream] : s.streams.by_id) {
      if (stream.queue.empty() || stream.running) continue;
      // What is late and may not run waits for another stream, and comes with that.
      if (may_run(s, stream, now)) next = now;
      if (!s.config.manual && stream.queue.front().ready > now) next = std::min(next, stream.queue.front().ready);
    }
    if (next > now) s.worker_wakes.wait_until(lock, next);
  }
}

void wake_worker(State& s) {
  if (!s.worker) {
    s.worker = true;
    std::thread(work_on).detach();
  }
  s.worker_wakes.notify_one();
}

// Does the first op of a stream.
void run_first(State& s, StreamState& stream, std::unique_lock<std::mutex>* lock) {
  Op& op = stream.queue.front();
  Result& error = s.devices[static_cast<std::size_t>(stream.device)]->error;
  if (error == kSuccess && op.doomed) error = kIllegalAddress;
  if (error == kSuccess && op.work.body) op.work.body(s, op);
  if (error == kSuccess && op.work.host) {
    stream.running = true;
    const auto function = std::move(op.work.host);
    lock->unlock();
    this_thread().in_host_function = true;
    function();
    this_thread().in_host_function = false;
    lock->lock();
    stream.running = false;
  }
  stream.done = op.seq;
  stream.queue.pop_front();
}

void find_memory(State& s, const StreamState& stream, Op& op) {
  std::string why;
  for (Access& access : op.work.accesses) {
    access.hits.clear();
    if (resolve(s, stream.device, access.at, access.bytes, access.pageable, access.hits, why)) continue;
    op.doomed = true;
    violation(s, kSuccess, "%s uses [%#llx, +%zu): %s: the kernel dies", op.work.name.c_str(), access.at, access.bytes,
              why.c_str());
  }
}

// Looks for work that may run at the same time on the same bytes.
void check_races(State& s, const StreamState& stream, Op& op) {
  const auto ordered = [&](const Use& use) {
    const auto known = stream.clock.find(use.stream);
    return use.stream == stream.id || (known != stream.clock.end() && known->second >= use.seq);
  };
  for (Access& access : op.work.accesses) {
    for (Hit& hit : access.hits) {
      std::vector<Use>& uses = hit.backing->uses;
      if (uses.size() >= hit.backing->prune_at) {
        std::erase_if(uses, [&](const Use& use) { return is_done(s, {use.stream, use.seq}); });
        hit.backing->prune_at = 16 + 2 * uses.size();
      }
      for (const Use& use : uses) {
        if (use.offset >= hit.offset + hit.bytes || hit.offset >= use.offset + use.bytes) continue;
        if ((!use.writes && !access.writes) || ordered(use) || is_done(s, {use.stream, use.seq})) continue;
        violation(s, kSuccess, "race: %s in stream %llu and work in stream %llu use [%#llx, +%zu) in no order",
                  op.work.name.c_str(), static_cast<unsigned long long>(stream.id),
                  static_cast<unsigned long long>(use.stream), access.at, access.bytes);
        break;
      }
    }
  }
  for (Access& access : op.work.accesses) {
    for (Hit& hit : access.hits) {
      hit.backing->uses.push_back({stream.id, op.seq, hit.offset, hit.bytes, access.writes});
    }
  }
}

// The legacy stream and those that are not "non-blocking" wait for each other; a wait that no work followed yet counts
// as work.
void join_legacy(State& s, StreamState& stream) {
  const auto join = [&](const StreamState& other) {
    merge(stream.clock, other.clock);
    for (const auto& [id, seq] : other.waits) {
      if (!is_done(s, {id, seq})) merge(stream.waits, {{id, seq}});
    }
    if (other.submitted == 0) return;
    merge(stream.clock, {{other.id, other.submitted}});
    if (!is_done(s, {other.id, other.submitted})) merge(stream.waits, {{other.id, other.submitted}});
  };
  if (!stream.legacy) {
    if (stream.blocking) join(s.streams.by_id.at(s.streams.legacy.at(stream.device)));
    return;
  }
  for (const auto& [id, other] : s.streams.by_id) {
    if (!other.legacy && other.blocking && other.device == stream.device) join(other);
  }
}

void wait_until_done(State& s, std::unique_lock<std::mutex>& lock, const Point& point) {
  const auto end = Time::now() + kPatience;
  if (s.config.manual) allow(s, point);
  while (!is_done(s, point)) {
    if (s.config.manual) advance(s, &lock);
    if (is_done(s, point)) return;
    if (Time::now() > end) {
      violation(s, kSuccess, "deadlock: work of stream %llu is waited for and cannot be done",
                static_cast<unsigned long long>(point.stream));
      return;
    }
    s.work_done.wait_for(lock, std::chrono::milliseconds(20));
  }
}

}  // namespace

void merge(Clock& into, const Clock& from) {
  for (const auto& [stream, seq] : from) {
    std::uint64_t& known = into[stream];
    known = std::max(known, seq);
  }
}

bool is_done(const State& s, const Point& point) {
  const auto stream = s.streams.by_id.find(point.stream);
  return stream == s.streams.by_id.end() || stream->second.done >= point.seq;
}

StreamState& new_stream(State& s, int device, bool blocking) {
  const std::uint64_t id = s.next_stream++;
  StreamState& stream = s.streams.by_id[id];
  stream.id = id;
  stream.device = device;
  stream.blocking = blocking;
  stream.lag_us = s.config.lag_us;
  return stream;
}

StreamState* find_stream(State& s, int device, Stream handle) {
  const auto number = reinterpret_cast<std::uintptr_t>(handle);
  if (number == 0 || number == kLegacyStream) return by_id(s, s.streams.legacy.at(device));
  if (number == kPerThreadStream) {
    std::uint64_t& mine = this_thread().default_streams[device];
    StreamState* stream = by_id(s, mine);
    if (stream == nullptr) {
      stream = &new_stream(s, device, true);
      mine = stream->id;
    }
    return stream;
  }
  StreamState* const stream = s.streams.handles.contains(handle) ? by_id(s, handle->id) : nullptr;
  if (stream == nullptr)
    violation(s, kSuccess, "stream %p is destroyed or was never there", static_cast<void*>(handle));
  return stream;
}

Result submit(State& s, StreamState& stream, Work work) {
  if (stream.capture != 0) {
    Capture& capture = s.captures.at(stream.capture);
    if (capture.broken) return kCaptureInvalidated;
    capture.nodes.push_back(std::move(work));
    ++capture.work[stream.id];
    return kSuccess;
  }
  if (const std::uint64_t capture = implicit_capture(s, stream); capture != 0) {
    return break_capture(s, capture, kCaptureImplicit, work.name.c_str());
  }
  join_legacy(s, stream);
  Op op;
  op.seq = ++stream.submitted;
  op.work = std::move(work);
  op.needs = std::move(stream.waits);
  stream.waits.clear();
  find_memory(s, stream, op);
  check_races(s, stream, op);
  op.ready = Time::now() + std::chrono::nanoseconds(static_cast<std::int64_t>(stream.lag_us * 1000));
  stream.queue.push_back(std::move(op));
  if (s.config.manual) return kSuccess;
  if (stream.lag_us <= 0) advance(s, nullptr);
  if (!stream.queue.empty()) wake_worker(s);
  return kSuccess;
}

void advance(State& s, std::unique_lock<std::mutex>* lock) {
  bool any = false;
  for (bool progress = true; progress;) {
    progress = false;
    const auto now = Time::now();
    for (auto& [id, stream] : s.streams.by_id) {
      if (stream.running || stream.queue.empty() || !may_run(s, stream, now)) continue;
      const bool host = static_cast<bool>(stream.queue.front().work.host);
      if (host && lock == nullptr) continue;
      run_first(s, stream, lock);
      progress = any = true;
      // While the mutex was given up, streams may have come and gone.
      if (host) break;
    }
  }
  std::erase_if(s.streams.by_id, [](const auto& entry) {
    return entry.second.destroyed && entry.second.queue.empty() && !entry.second.running;
  });
  if (any) s.work_done.notify_all();
}

void allow(State& s, const Point& point) {
  StreamState* const stream = by_id(s, point.stream);
  if (stream == nullptr || stream->allowed >= point.seq) return;
  stream->allowed = point.seq;
  for (const Op& op : stream->queue) {
    if (op.seq > point.seq) break;
    for (const auto& [other, seq] : op.needs) allow(s, {other, seq});
  }
}

void wait_for(State& s, std::unique_lock<std::mutex>& lock, const Point& point) {
  if (is_done(s, point)) return;
  ++s.host_waits;
  wait_until_done(s, lock, point);
}

void wait_for_device(State& s, std::unique_lock<std::mutex>& lock, int device) {
  std::vector<Point> points;
  for (const auto& [id, stream] : s.streams.by_id) {
    if (stream.device == device && !stream.queue.empty()) points.push_back({id, stream.submitted});
  }
  if (!points.empty()) ++s.host_waits;
  for (const Point& point : points) wait_until_done(s, lock, point);
}

}  // namespace cistern::standin
