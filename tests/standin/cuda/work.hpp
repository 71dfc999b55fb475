// The stand-in's streams: work that is submitted now and done later, in the order that streams and events give.
// Internal to the stand-in; under its mutex.
//
// Work of a stream is numbered from 1 (its sequence number). A Clock says, for each stream, up to which number its work
// comes before what is submitted next. Two uses of the same bytes, one of them a write, by streams that no clock orders
// are a race.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "drivers/cuda/cuda_api.hpp"
#include "standin/cuda/memory.hpp"

namespace cistern::standin {

struct Point {
  std::uint64_t stream = 0;
  std::uint64_t seq = 0;
};
using Clock = std::map<std::uint64_t, std::uint64_t>;

struct Access {
  DevicePtr at = 0;
  std::size_t bytes = 0;
  bool writes = false;
  bool pageable = false;  // May be host memory that the driver does not know.
  std::vector<Hit> hits;  // Found when the work is submitted.
};

struct Op;
struct Work {
  std::string name;
  std::vector<Access> accesses;
  std::function<void(State&, Op&)> body;  // Under the mutex.
  std::function<void()> host;             // Without it.
};

struct Op {
  std::uint64_t seq = 0;
  std::chrono::steady_clock::time_point ready;
  Clock needs;  // Must be done before.
  Work work;
  bool doomed = false;  // Its memory was taken away.
};

struct StreamState {
  std::uint64_t id = 0;
  int device = 0;
  bool blocking = true;  // Waits for the legacy stream, which waits for it.
  bool legacy = false;
  bool destroyed = false;  // Its work goes on; then it is forgotten.
  bool running = false;    // Its first op is a host function that runs now.
  double lag_us = 0;
  std::deque<Op> queue;
  std::uint64_t submitted = 0;
  std::uint64_t done = 0;
  std::uint64_t allowed = 0;  // Manual mode: work up to here may be done.
  Clock clock;                // Comes before what is submitted next.
  Clock waits;                // The next op must wait for these.
  std::uint64_t capture = 0;
  drivers::cuda::StreamObject* handle = nullptr;
};

struct Streams {
  std::map<std::uint64_t, StreamState> by_id;
  std::set<drivers::cuda::StreamObject*> handles;  // All that were ever made.
  std::vector<drivers::cuda::StreamObject*> free_handles;
  std::map<int, std::uint64_t> legacy;  // By device.
};

struct GraphObject {
  std::vector<Work> nodes;
};

struct Capture {
  std::uint64_t id = 0;
  std::uint64_t origin = 0;
  int mode = 0;
  int device = 0;
  std::uint64_t thread = 0;
  bool broken = false;
  std::map<std::uint64_t, std::uint64_t> work;    // Count of nodes of each stream.
  std::map<std::uint64_t, std::uint64_t> joined;  // Of these, how many another stream of the capture waited for.
  std::vector<Work> nodes;
};

struct ThreadState;

// The stream that a handle means for the calling thread; null and a violation for one that is not there.
StreamState* find_stream(State& s, int device, drivers::cuda::Stream handle);
StreamState& new_stream(State& s, int device, bool blocking);
bool is_done(const State& s, const Point& point);

// Submits work, or makes it a node of a graph. A rule that it breaks is a violation and dooms it.
drivers::cuda::Result submit(State& s, StreamState& stream, Work work);
// Does all work whose time has come; with a lock, which is given up meanwhile, host functions, too.
void advance(State& s, std::unique_lock<std::mutex>* lock);
// The caller waits until the point is done.
void wait_for(State& s, std::unique_lock<std::mutex>& lock, const Point& point);
void wait_for_device(State& s, std::unique_lock<std::mutex>& lock, int device);
// The point may be done, and all that it waits for, whatever the time.
void allow(State& s, const Point& point);
void merge(Clock& into, const Clock& from);

// Graph capture. `unsafe`: whether a call that is not safe may go on; breaks the captures that it meets otherwise.
drivers::cuda::Result unsafe(State& s, const ThreadState& thread, const char* call);
drivers::cuda::Result break_capture(State& s, std::uint64_t id, drivers::cuda::Result result, const char* call);
// For use of the stream outside of a capture: an error, and the capture broken, when it is in one or stands in the way.
drivers::cuda::Result not_capturing(State& s, StreamState& stream, const char* call);
// The legacy stream cannot be used while a stream that it waits for is captured.
std::uint64_t implicit_capture(const State& s, const StreamState& stream);

}  // namespace cistern::standin
