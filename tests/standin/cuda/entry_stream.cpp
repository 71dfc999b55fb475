// Entry points: streams, events, copies, and stream-ordered memory.
#include <algorithm>
#include <cstring>

#include "standin/cuda/entry.hpp"

using namespace cistern::standin;

namespace {

EventObject* find_event(State& s, EventHandle handle, const char* name) {
  if (s.events.contains(handle) && handle->live) return handle;
  violation(s, kSuccess, "%s: event %p is destroyed or was never there", name, static_cast<void*>(handle));
  return nullptr;
}

// Walks two lists of stretches of the same length together.
template <class Visit>
void walk(const std::vector<Hit>& to, const std::vector<Hit>& from, Visit visit) {
  std::size_t i = 0, j = 0, in_to = 0, in_from = 0;
  while (i < to.size() && j < from.size()) {
    const std::size_t a = to[i].offset + in_to;
    const std::size_t b = from[j].offset + in_from;
    const std::size_t run =
        std::min({to[i].bytes - in_to, from[j].bytes - in_from, to[i].backing->run_at(a), from[j].backing->run_at(b)});
    visit(to[i].backing->byte_at(a), from[j].backing->byte_at(b), run);
    if ((in_to += run) == to[i].bytes) ++i, in_to = 0;
    if ((in_from += run) == from[j].bytes) ++j, in_from = 0;
  }
}

// For a call about an event's completion.
Result completion(Call& call, const EventObject& event, const char* name) {
  if (event.capture != 0) {
    return call.s.captures.contains(event.capture) ? break_capture(call.s, event.capture, kCapturedEvent, name)
                                                   : kCapturedEvent;
  }
  return kSuccess;
}

}  // namespace

CISTERN_ENTRY cuStreamCreate(Stream* out, unsigned flags) {
  Call call("cuStreamCreate", Call::context | Call::unsafe);
  if (call.result != kSuccess) return call.result;
  State& s = call.s;
  StreamState& stream = new_stream(s, call.device->index, (flags & kStreamNonBlocking) == 0);
  // The handle of the stream that was destroyed last comes back first.
  if (s.streams.free_handles.empty()) {
    stream.handle = new StreamObject;
    s.streams.handles.insert(stream.handle);
  } else {
    stream.handle = s.streams.free_handles.back();
    s.streams.free_handles.pop_back();
  }
  stream.handle->id = stream.id;
  *out = stream.handle;
  return kSuccess;
}

CISTERN_ENTRY cuStreamDestroy_v2(Stream handle) {
  Call call("cuStreamDestroy", Call::context);
  if (call.result != kSuccess) return call.result;
  State& s = call.s;
  const auto number = reinterpret_cast<std::uintptr_t>(handle);
  StreamState* const stream = number <= kPerThreadStream ? nullptr : find_stream(s, call.device->index, handle);
  if (stream == nullptr) return kInvalidHandle;
  if (stream->capture != 0) break_capture(s, stream->capture, kCaptureUnsupported, "cuStreamDestroy");
  stream->handle = nullptr;
  stream->destroyed = true;
  handle->id = 0;
  s.streams.free_handles.push_back(handle);
  if (stream->queue.empty()) s.streams.by_id.erase(stream->id);
  return kSuccess;
}

CISTERN_ENTRY cuStreamSynchronize(Stream handle) {
  Call call("cuStreamSynchronize", Call::context | Call::unsafe);
  if (call.result != kSuccess) return call.result;
  StreamState* const stream = find_stream(call.s, call.device->index, handle);
  if (stream == nullptr) return kInvalidHandle;
  if (const Result r = not_capturing(call.s, *stream, "cuStreamSynchronize"); r != kSuccess) return r;
  wait_for(call.s, call.lock, {stream->id, stream->submitted});
  return call.device->error;
}

CISTERN_ENTRY cuStreamQuery(Stream handle) {
  Call call("cuStreamQuery", Call::context | Call::unsafe);
  if (call.result != kSuccess) return call.result;
  StreamState* const stream = find_stream(call.s, call.device->index, handle);
  if (stream == nullptr) return kInvalidHandle;
  if (const Result r = not_capturing(call.s, *stream, "cuStreamQuery"); r != kSuccess) return r;
  return is_done(call.s, {stream->id, stream->submitted}) ? kSuccess : kNotReady;
}

CISTERN_ENTRY cuStreamGetFlags(Stream handle, unsigned* flags) {
  Call call("cuStreamGetFlags", Call::context);
  if (call.result != kSuccess) return call.result;
  const StreamState* const stream = find_stream(call.s, call.device->index, handle);
  if (stream == nullptr) return kInvalidHandle;
  *flags = stream->legacy || stream->blocking ? 0 : kStreamNonBlocking;
  return kSuccess;
}

CISTERN_ENTRY cuStreamGetCtx(Stream handle, Context* context) {
  Call call("cuStreamGetCtx", Call::context);
  if (call.result != kSuccess) return call.result;
  const StreamState* const stream = find_stream(call.s, call.device->index, handle);
  if (stream == nullptr) return kInvalidHandle;
  if (stream->capture != 0) return break_capture(call.s, stream->capture, kCaptureUnsupported, "cuStreamGetCtx");
  *context = &call.s.devices[static_cast<std::size_t>(stream->device)]->context;
  return kSuccess;
}

// One of cuStreamGetId() and cuStreamGetCtx() ended a capture on a real device; here both do.
CISTERN_ENTRY cuStreamGetId(Stream handle, unsigned long long* id) {
  const bool special = reinterpret_cast<std::uintptr_t>(handle) <= kPerThreadStream;
  Call call("cuStreamGetId", special ? Call::context : Call::plain);
  if (call.result != kSuccess) return call.result;
  const StreamState* const stream = find_stream(call.s, special ? call.device->index : 0, handle);
  if (stream == nullptr) return kInvalidHandle;
  if (stream->capture != 0) return break_capture(call.s, stream->capture, kCaptureUnsupported, "cuStreamGetId");
  *id = stream->id;
  return kSuccess;
}

CISTERN_ENTRY cuLaunchHostFunc(Stream handle, void (*function)(void*), void* data) {
  Call call("cuLaunchHostFunc", Call::context);
  if (call.result != kSuccess) return call.result;
  StreamState* const stream = find_stream(call.s, call.device->index, handle);
  if (stream == nullptr) return kInvalidHandle;
  return submit(call.s, *stream, {"a host function", {}, nullptr, [=] { function(data); }});
}

CISTERN_ENTRY cuEventCreate(EventHandle* out, unsigned flags) {
  Call call("cuEventCreate", Call::context | Call::unsafe);
  if (call.result != kSuccess) return call.result;
  if (flags > 7) return kInvalidValue;
  State& s = call.s;
  EventObject* event = nullptr;
  if (s.free_events.empty()) {
    event = new EventObject;
    s.events.insert(event);
  } else {
    event = s.free_events.back();
    s.free_events.pop_back();
    *event = {};
  }
  event->live = true;
  event->device = call.device->index;
  *out = event;
  return kSuccess;
}

CISTERN_ENTRY cuEventDestroy_v2(EventHandle handle) {
  Call call("cuEventDestroy", Call::context);
  if (call.result != kSuccess) return call.result;
  EventObject* const event = find_event(call.s, handle, "cuEventDestroy");
  if (event == nullptr) return kInvalidHandle;
  event->live = false;
  call.s.free_events.push_back(event);
  return kSuccess;
}

CISTERN_ENTRY cuEventRecord(EventHandle handle, Stream stream_handle) {
  Call call("cuEventRecord", Call::context);
  if (call.result != kSuccess) return call.result;
  State& s = call.s;
  EventObject* const event = find_event(s, handle, "cuEventRecord");
  StreamState* const stream = find_stream(s, call.device->index, stream_handle);
  if (event == nullptr || stream == nullptr) return kInvalidHandle;
  if (event->device != stream->device) {
    return violation(s, kInvalidHandle, "cuEventRecord: the event and the stream are of different contexts");
  }
  const std::uint64_t capture = stream->capture;
  if (capture != 0) {
    event->capture = capture;
    event->captured_work = s.captures.at(capture).work[stream->id];
    event->point.stream = stream->id;
    return s.captures.at(capture).broken ? kCaptureInvalidated : kSuccess;
  }
  const Result result = submit(s, *stream, {"an event", {}, nullptr, nullptr});
  if (result != kSuccess) return result;
  event->capture = 0;
  event->point = {stream->id, stream->submitted};
  event->clock = stream->clock;
  merge(event->clock, {{stream->id, stream->submitted}});
  return kSuccess;
}

CISTERN_ENTRY cuStreamWaitEvent(Stream stream_handle, EventHandle handle, unsigned) {
  Call call("cuStreamWaitEvent", Call::context);
  if (call.result != kSuccess) return call.result;
  State& s = call.s;
  EventObject* const event = find_event(s, handle, "cuStreamWaitEvent");
  StreamState* const stream = find_stream(s, call.device->index, stream_handle);
  if (event == nullptr || stream == nullptr) return kInvalidHandle;
  if (event->capture != 0) {
    const auto capture = s.captures.find(event->capture);
    if (capture == s.captures.end()) return kCaptureIsolation;
    if (stream->capture == 0 && !stream->legacy) stream->capture = event->capture;  // It joins the capture.
    if (stream->capture != event->capture) return break_capture(s, event->capture, kCaptureMerge, "cuStreamWaitEvent");
    std::uint64_t& joined = capture->second.joined[event->point.stream];
    joined = std::max(joined, event->captured_work);
    capture->second.work[stream->id] += 0;
    return kSuccess;
  }
  if (stream->capture != 0) return break_capture(s, stream->capture, kCaptureIsolation, "cuStreamWaitEvent");
  if (const std::uint64_t id = implicit_capture(s, *stream); id != 0) {
    return break_capture(s, id, kCaptureImplicit, "cuStreamWaitEvent");
  }
  if (event->point.stream == 0) return kSuccess;
  merge(stream->clock, event->clock);
  if (!is_done(s, event->point)) merge(stream->waits, {{event->point.stream, event->point.seq}});
  return kSuccess;
}

CISTERN_ENTRY cuEventQuery(EventHandle handle) {
  Call call("cuEventQuery", Call::context | Call::unsafe);
  if (call.result != kSuccess) return call.result;
  const EventObject* const event = find_event(call.s, handle, "cuEventQuery");
  if (event == nullptr) return kInvalidHandle;
  if (const Result result = completion(call, *event, "cuEventQuery"); result != kSuccess) return result;
  return is_done(call.s, event->point) ? kSuccess : kNotReady;
}

CISTERN_ENTRY cuEventSynchronize(EventHandle handle) {
  Call call("cuEventSynchronize", Call::context | Call::unsafe);
  if (call.result != kSuccess) return call.result;
  const EventObject* const event = find_event(call.s, handle, "cuEventSynchronize");
  if (event == nullptr) return kInvalidHandle;
  if (const Result result = completion(call, *event, "cuEventSynchronize"); result != kSuccess) return result;
  wait_for(call.s, call.lock, event->point);
  return call.device->error;
}

CISTERN_ENTRY cuMemcpyAsync(DevicePtr to, DevicePtr from, std::size_t bytes, Stream handle) {
  Call call("cuMemcpyAsync", Call::context);
  if (call.result != kSuccess) return call.result;
  State& s = call.s;
  StreamState* const stream = find_stream(s, call.device->index, handle);
  if (stream == nullptr) return kInvalidHandle;
  if (bytes == 0) return kSuccess;
  Work work{"a copy", {{to, bytes, true, true, {}}, {from, bytes, false, true, {}}}, nullptr, nullptr};
  work.body = [](State&, Op& op) {
    walk(op.work.accesses[0].hits, op.work.accesses[1].hits,
         [](std::byte* a, const std::byte* b, std::size_t run) { std::memmove(a, b, run); });
  };
  const bool captured = stream->capture != 0;
  const Result result = submit(s, *stream, std::move(work));
  // Memory that the driver does not know may change or go when the call returns.
  const auto unknown = [&](DevicePtr at) { return s.regions.around(at) == s.regions.all().end(); };
  if (result == kSuccess && !captured && (unknown(to) || unknown(from))) {
    wait_for(s, call.lock, {stream->id, stream->submitted});
  }
  return result;
}

CISTERN_ENTRY cuMemsetD8Async(DevicePtr at, unsigned char value, std::size_t bytes, Stream handle) {
  Call call("cuMemsetD8Async", Call::context);
  if (call.result != kSuccess) return call.result;
  StreamState* const stream = find_stream(call.s, call.device->index, handle);
  if (stream == nullptr) return kInvalidHandle;
  if (bytes == 0) return kSuccess;
  Work work{"a fill", {{at, bytes, true, false, {}}}, nullptr, nullptr};
  work.body = [value](State&, Op& op) {
    const auto& hits = op.work.accesses[0].hits;
    walk(hits, hits, [value](std::byte* a, const std::byte*, std::size_t run) { std::memset(a, value, run); });
  };
  return submit(call.s, *stream, std::move(work));
}

CISTERN_ENTRY cuDeviceGetDefaultMemPool(Pool* out, DeviceNumber device) {
  Call call("cuDeviceGetDefaultMemPool", Call::plain);
  if (call.result != kSuccess) return call.result;
  if (device < 0 || device >= static_cast<int>(call.s.devices.size())) return kInvalidDevice;
  if (call.s.config.without.contains("pools")) return kNotSupported;
  *out = &call.s.devices[static_cast<std::size_t>(device)]->pool_handle;
  return kSuccess;
}

CISTERN_ENTRY cuMemPoolSetAttribute(Pool pool, int which, void* value) {
  Call call("cuMemPoolSetAttribute", Call::plain);
  if (call.result != kSuccess) return call.result;
  PoolState& p = call.s.devices[static_cast<std::size_t>(pool->device)]->pool;
  std::uint64_t number = 0;
  std::memcpy(&number, value, sizeof number);
  if (which == kReleaseThreshold) {
    p.threshold = number;
  } else if (number != 0 || (which != kReservedHigh && which != kUsedHigh)) {
    return kInvalidValue;
  } else {
    (which == kReservedHigh ? p.reserved_high : p.used_high) = 0;
  }
  return kSuccess;
}

CISTERN_ENTRY cuMemPoolGetAttribute(Pool pool, int which, void* value) {
  Call call("cuMemPoolGetAttribute", Call::plain);
  if (call.result != kSuccess) return call.result;
  const PoolState& p = call.s.devices[static_cast<std::size_t>(pool->device)]->pool;
  const std::uint64_t values[] = {p.threshold, p.reserved, p.reserved_high, p.used, p.used_high};
  if (which < kReleaseThreshold || which > kUsedHigh) return kInvalidValue;
  std::memcpy(value, &values[which - kReleaseThreshold], sizeof values[0]);
  return kSuccess;
}

CISTERN_ENTRY cuMemPoolTrimTo(Pool pool, std::size_t keep) {
  Call call("cuMemPoolTrimTo", Call::unsafe);
  if (call.result == kSuccess) pool_trim(call.s, *call.s.devices[static_cast<std::size_t>(pool->device)], keep);
  return call.result;
}

CISTERN_ENTRY cuMemPoolSetAccess(Pool pool, const AccessDescription* descriptions, std::size_t count) {
  Call call("cuMemPoolSetAccess", Call::unsafe);
  if (call.result != kSuccess) return call.result;
  PoolState& p = call.s.devices[static_cast<std::size_t>(pool->device)]->pool;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t bit = std::uint64_t{1} << descriptions[i].location.id;
    p.peers = descriptions[i].flags == kAccessNone ? p.peers & ~bit : p.peers | bit;
  }
  for (const auto& [at, bytes] : p.chunks) {
    call.s.regions.all().at(at).access = p.peers | std::uint64_t{1} << pool->device;
  }
  return kSuccess;
}

CISTERN_ENTRY cuMemAllocAsync(DevicePtr* out, std::size_t bytes, Stream handle) {
  Call call("cuMemAllocAsync", Call::context);
  if (call.result != kSuccess) return call.result;
  State& s = call.s;
  StreamState* const stream = find_stream(s, call.device->index, handle);
  if (stream == nullptr) return kInvalidHandle;
  if (bytes == 0) return kInvalidValue;
  // Nodes of graphs that allocate are not made here.
  if (stream->capture != 0) return break_capture(s, stream->capture, kNotSupported, "cuMemAllocAsync");
  Device& device = *s.devices[static_cast<std::size_t>(stream->device)];
  if (bytes > device.memory.total()) return kOutOfMemory;
  DevicePtr at = pool_allocate(s, device, bytes);
  if (at == 0) {
    // What is freed on some stream comes back when that is there.
    wait_for_device(s, call.lock, device.index);
    pool_trim(s, device, 0);
    at = pool_allocate(s, device, bytes);
  }
  if (at == 0) return kOutOfMemory;
  *out = at;
  return kSuccess;
}

CISTERN_ENTRY cuMemFreeAsync(DevicePtr at, Stream handle) {
  Call call("cuMemFreeAsync", Call::context);
  if (call.result != kSuccess) return call.result;
  State& s = call.s;
  StreamState* const stream = find_stream(s, call.device->index, handle);
  if (stream == nullptr) return kInvalidHandle;
  const auto region = s.regions.around(at);
  if (region == s.regions.all().end() || region->second.kind != Kind::pool) {
    return violation(s, kInvalidValue, "cuMemFreeAsync: %#llx is not of a pool", at);
  }
  Device* const owner = s.devices[static_cast<std::size_t>(region->second.backing->device)].get();
  const auto block = owner->pool.blocks.find(at);
  if (block == owner->pool.blocks.end() || !block->second.live) {
    return violation(s, kInvalidValue, "cuMemFreeAsync: there is no memory at %#llx, or it is freed", at);
  }
  if (stream->capture != 0) return break_capture(s, stream->capture, kCaptureUnsupported, "cuMemFreeAsync");
  Work work{"a free", {{at, block->second.bytes, true, false, {}}}, nullptr, nullptr};
  work.body = [owner, at](State& now, Op&) { pool_return(now, *owner, at); };
  const Result result = submit(s, *stream, std::move(work));
  // It is back already when the stream is not behind the host.
  const auto after = owner->pool.blocks.find(at);
  if (result == kSuccess && after != owner->pool.blocks.end() && after->second.live) {
    after->second.live = false;
    after->second.pending = true;
  }
  return result;
}
