// What a test can tell the stand-in; standin.hpp says what each function does.
#include <algorithm>
#include <cstring>

#include "standin/cuda/entry.hpp"

#define CISTERN_CONTROL extern "C" __attribute__((visibility("default")))

using namespace cistern::standin;

namespace {

using Guard = std::lock_guard<std::mutex>;

unsigned char pattern(std::uint64_t seed, std::uint64_t i) {
  return static_cast<unsigned char>((seed + i) * 0x9E3779B97F4A7C15ULL >> 56);
}

// Calls visit(byte, its number) for every byte of an access.
template <class Visit>
void each_byte(const Access& access, Visit visit) {
  std::uint64_t i = 0;
  for (const Hit& hit : access.hits) {
    for (std::size_t done = 0; done < hit.bytes;) {
      std::byte* const run = hit.backing->byte_at(hit.offset + done);
      const std::size_t bytes = std::min(hit.bytes - done, hit.backing->run_at(hit.offset + done));
      for (std::size_t k = 0; k < bytes; ++k) visit(run[k], i++);
      done += bytes;
    }
  }
}

Result launch(Stream handle, Work work) {
  Call call("kernel", Call::context);
  if (call.result != kSuccess) return call.result;
  StreamState* const stream = find_stream(call.s, call.device->index, handle);
  return stream == nullptr ? kInvalidHandle : submit(call.s, *stream, std::move(work));
}

std::size_t copy_text(const std::string& text, char* out, std::size_t bytes) {
  if (bytes != 0) {
    const std::size_t length = std::min(bytes - 1, text.size());
    std::memcpy(out, text.data(), length);
    out[length] = '\0';
  }
  return text.size();
}

// A stream's handle means the same on every device but for the special ones; those are the first device's.
StreamState* stream_of(State& s, Stream handle) {
  const auto& contexts = this_thread().contexts;
  return find_stream(s, contexts.empty() ? 0 : contexts.back()->device, handle);
}

}  // namespace

CISTERN_CONTROL void cistern_standin_reset() {
  State& s = state();
  std::unique_lock lock(s.mutex);
  const auto running = [&] {
    return std::any_of(s.streams.by_id.begin(), s.streams.by_id.end(), [](const auto& e) { return e.second.running; });
  };
  while (running()) s.work_done.wait_for(lock, std::chrono::milliseconds(1));
  for (const auto& [at, region] : s.regions.all()) {
    if (region.kind == Kind::managed || region.kind == Kind::pinned) release_host(at, region.bytes);
  }
  for (StreamObject* const handle : s.streams.handles) delete handle;
  for (EventObject* const event : s.events) delete event;
  for (GraphObject* const graph : s.graphs) delete graph;
  s.streams = {};
  s.events.clear();
  s.free_events.clear();
  s.graphs.clear();
  s.captures.clear();
  s.regions = {};
  s.pieces.clear();
  s.addresses = {};
  s.devices.clear();
  s.calls.clear();
  s.all_calls = s.host_waits = s.mismatches = s.violation_count = 0;
  s.violations.clear();
  s.ended = false;
  configure(s);
  this_thread().contexts.clear();
  this_thread().default_streams.clear();
  this_thread().capture_mode = kCaptureGlobal;
  if (!s.initialised) return;
  s.initialised = false;
  start(s);
}

CISTERN_CONTROL void cistern_standin_end() {
  State& s = state();
  const Guard guard(s.mutex);
  s.ended = true;
}

CISTERN_CONTROL void cistern_standin_set_lag_us(double us) {
  State& s = state();
  const Guard guard(s.mutex);
  s.config.lag_us = us;
  for (auto& [id, stream] : s.streams.by_id) stream.lag_us = us;
}

CISTERN_CONTROL void cistern_standin_set_stream_lag_us(Stream handle, double us) {
  State& s = state();
  const Guard guard(s.mutex);
  if (StreamState* const stream = stream_of(s, handle)) stream->lag_us = us;
}

CISTERN_CONTROL void cistern_standin_set_manual(int manual) {
  State& s = state();
  const Guard guard(s.mutex);
  s.config.manual = manual != 0;
  s.worker_wakes.notify_one();
}

CISTERN_CONTROL void cistern_standin_complete(Stream handle) {
  State& s = state();
  std::unique_lock lock(s.mutex);
  StreamState* const stream = stream_of(s, handle);
  if (stream == nullptr) return;
  allow(s, {stream->id, stream->submitted});
  advance(s, &lock);
}

CISTERN_CONTROL void cistern_standin_complete_all() {
  State& s = state();
  std::unique_lock lock(s.mutex);
  for (auto& [id, stream] : s.streams.by_id) stream.allowed = stream.submitted;
  advance(s, &lock);
}

CISTERN_CONTROL std::size_t cistern_standin_pending() {
  State& s = state();
  const Guard guard(s.mutex);
  std::size_t count = 0;
  for (const auto& [id, stream] : s.streams.by_id) count += stream.queue.size();
  return count;
}

CISTERN_CONTROL Result cistern_standin_launch_fill(Stream stream, DevicePtr at, std::size_t bytes, std::uint64_t seed) {
  Work work{"a writing kernel", {{at, bytes, true, false, {}}}, nullptr, nullptr};
  work.body = [seed](State&, Op& op) {
    each_byte(op.work.accesses[0], [seed](std::byte& b, std::uint64_t i) { b = std::byte{pattern(seed, i)}; });
  };
  return launch(stream, std::move(work));
}

CISTERN_CONTROL Result cistern_standin_launch_check(Stream stream, DevicePtr at, std::size_t bytes,
                                                    std::uint64_t seed) {
  Work work{"a checking kernel", {{at, bytes, false, false, {}}}, nullptr, nullptr};
  work.body = [seed](State& s, Op& op) {
    each_byte(op.work.accesses[0],
              [&](std::byte b, std::uint64_t i) { s.mismatches += b == std::byte{pattern(seed, i)} ? 0 : 1; });
  };
  return launch(stream, std::move(work));
}

CISTERN_CONTROL Result cistern_standin_launch_touch(Stream stream, DevicePtr at, std::size_t bytes, int writes) {
  return launch(stream, {"a kernel", {{at, bytes, writes != 0, false, {}}}, nullptr, nullptr});
}

CISTERN_CONTROL std::uint64_t cistern_standin_mismatches() {
  State& s = state();
  const Guard guard(s.mutex);
  return s.mismatches;
}

CISTERN_CONTROL std::size_t cistern_standin_violation_count() {
  State& s = state();
  const Guard guard(s.mutex);
  return s.violation_count;
}

CISTERN_CONTROL std::size_t cistern_standin_violation(std::size_t i, char* out, std::size_t bytes) {
  State& s = state();
  const Guard guard(s.mutex);
  return copy_text(i < s.violations.size() ? s.violations[i] : std::string(), out, bytes);
}

CISTERN_CONTROL void cistern_standin_clear_violations() {
  State& s = state();
  const Guard guard(s.mutex);
  s.violations.clear();
  s.violation_count = 0;
}

CISTERN_CONTROL std::size_t cistern_standin_leak_count() {
  State& s = state();
  const Guard guard(s.mutex);
  return leaks(s).size();
}

CISTERN_CONTROL std::size_t cistern_standin_leak(std::size_t i, char* out, std::size_t bytes) {
  State& s = state();
  const Guard guard(s.mutex);
  const std::vector<std::string> all = leaks(s);
  return copy_text(i < all.size() ? all[i] : std::string(), out, bytes);
}

CISTERN_CONTROL void cistern_standin_fail(const char* name, std::uint64_t nth, Result result, std::uint64_t times) {
  State& s = state();
  const Guard guard(s.mutex);
  s.faults.name = name;
  s.faults.skip = nth == 0 ? 0 : nth - 1;
  s.faults.left = nth == 0 ? 0 : times;
  s.faults.result = result;
}

CISTERN_CONTROL std::uint64_t cistern_standin_injected() {
  State& s = state();
  const Guard guard(s.mutex);
  return s.faults.injected;
}

CISTERN_CONTROL std::uint64_t cistern_standin_calls(const char* name) {
  State& s = state();
  const Guard guard(s.mutex);
  if (std::strcmp(name, "*") == 0) return s.all_calls;
  const auto found = s.calls.find(name);
  return found == s.calls.end() ? 0 : found->second;
}

CISTERN_CONTROL std::uint64_t cistern_standin_host_waits() {
  State& s = state();
  const Guard guard(s.mutex);
  return s.host_waits;
}

CISTERN_CONTROL std::size_t cistern_standin_physical_bytes(int device) {
  State& s = state();
  const Guard guard(s.mutex);
  const auto index = static_cast<std::size_t>(device);
  return device < 0 || index >= s.devices.size() ? 0 : s.devices[index]->memory.used();
}

CISTERN_CONTROL void cistern_standin_set_memory(int device, std::size_t bytes) {
  State& s = state();
  const Guard guard(s.mutex);
  s.devices.at(static_cast<std::size_t>(device))->memory.set_total(bytes);
}
