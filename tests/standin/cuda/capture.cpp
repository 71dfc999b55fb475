// Graph capture: its state, what breaks it, and the entry points for it.
#include "standin/cuda/entry.hpp"

namespace cistern::standin {

Result break_capture(State& s, std::uint64_t id, Result result, const char* call) {
  Capture& capture = s.captures.at(id);
  if (!capture.broken) violation(s, kSuccess, "%s ends the capture of a graph", call);
  capture.broken = true;
  return result;
}

Result unsafe(State& s, const ThreadState& thread, const char* call) {
  if (thread.capture_mode == kCaptureRelaxed) return kSuccess;
  Result result = kSuccess;
  for (const auto& [id, capture] : s.captures) {
    const bool own = capture.thread == thread.number && capture.mode != kCaptureRelaxed;
    const bool other =
        capture.thread != thread.number && capture.mode == kCaptureGlobal && thread.capture_mode == kCaptureGlobal;
    if (own || other) result = break_capture(s, id, kCaptureUnsupported, call);
  }
  return result;
}

std::uint64_t implicit_capture(const State& s, const StreamState& stream) {
  if (!stream.legacy) return 0;
  for (const auto& [id, other] : s.streams.by_id) {
    if (other.capture != 0 && other.blocking && other.device == stream.device) return other.capture;
  }
  return 0;
}

Result not_capturing(State& s, StreamState& stream, const char* call) {
  if (stream.capture != 0) return break_capture(s, stream.capture, kCaptureUnsupported, call);
  const std::uint64_t capture = implicit_capture(s, stream);
  return capture == 0 ? kSuccess : break_capture(s, capture, kCaptureImplicit, call);
}

namespace {

// Takes the streams out of the capture and forgets it.
void end_capture(State& s, std::uint64_t id) {
  for (auto& [stream_id, stream] : s.streams.by_id) {
    if (stream.capture == id) stream.capture = 0;
  }
  s.captures.erase(id);
}

GraphObject* find_graph(State& s, void* handle, const char* call) {
  auto* const graph = static_cast<GraphObject*>(handle);
  if (s.graphs.contains(graph)) return graph;
  violation(s, kSuccess, "%s: there is no graph %p", call, handle);
  return nullptr;
}

Result drop_graph(void* handle, const char* name) {
  Call call(name, Call::unsafe);
  if (call.result != kSuccess) return call.result;
  GraphObject* const graph = find_graph(call.s, handle, name);
  if (graph == nullptr) return kInvalidValue;
  call.s.graphs.erase(graph);
  delete graph;
  return kSuccess;
}

}  // namespace
}  // namespace cistern::standin

using namespace cistern::standin;

CISTERN_ENTRY cuThreadExchangeStreamCaptureMode(int* mode) {
  Call call("cuThreadExchangeStreamCaptureMode", Call::plain);
  if (call.result != kSuccess) return call.result;
  if (mode == nullptr || *mode < kCaptureGlobal || *mode > kCaptureRelaxed) return kInvalidValue;
  std::swap(*mode, this_thread().capture_mode);
  return kSuccess;
}

CISTERN_ENTRY cuStreamIsCapturing(Stream handle, int* status) {
  Call call("cuStreamIsCapturing", Call::context);
  if (call.result != kSuccess) return call.result;
  const StreamState* const stream = find_stream(call.s, call.device->index, handle);
  if (stream == nullptr) return kInvalidHandle;
  if (implicit_capture(call.s, *stream) != 0) return kCaptureImplicit;
  *status = kCaptureNone;
  if (stream->capture != 0) *status = call.s.captures.at(stream->capture).broken ? kCaptureBroken : kCaptureActive;
  return kSuccess;
}

CISTERN_ENTRY cuStreamBeginCapture_v2(Stream handle, int mode) {
  Call call("cuStreamBeginCapture", Call::context);
  if (call.result != kSuccess) return call.result;
  State& s = call.s;
  StreamState* const stream = find_stream(s, call.device->index, handle);
  if (stream == nullptr) return kInvalidHandle;
  if (stream->legacy) return kCaptureUnsupported;
  if (stream->capture != 0 || mode < kCaptureGlobal || mode > kCaptureRelaxed) return kInvalidValue;
  const std::uint64_t id = s.next_capture++;
  Capture& capture = s.captures[id];
  capture.id = id;
  capture.origin = stream->id;
  capture.mode = mode;
  capture.device = stream->device;
  capture.thread = this_thread().number;
  stream->capture = id;
  return kSuccess;
}

CISTERN_ENTRY cuStreamEndCapture(Stream handle, void** graph) {
  Call call("cuStreamEndCapture", Call::context);
  if (call.result != kSuccess) return call.result;
  State& s = call.s;
  const StreamState* const stream = find_stream(s, call.device->index, handle);
  if (stream == nullptr) return kInvalidHandle;
  *graph = nullptr;
  if (stream->capture == 0) return kInvalidValue;
  Capture& capture = s.captures.at(stream->capture);
  if (capture.origin != stream->id) return break_capture(s, capture.id, kCaptureUnmatched, "cuStreamEndCapture");
  if (capture.mode != kCaptureRelaxed && capture.thread != this_thread().number) {
    return break_capture(s, capture.id, kCaptureWrongThread, "cuStreamEndCapture");
  }
  Result result = capture.broken ? kCaptureInvalidated : kSuccess;
  for (const auto& [id, count] : capture.work) {
    if (result == kSuccess && id != capture.origin && capture.joined[id] < count) result = kCaptureUnjoined;
  }
  if (result == kSuccess) {
    auto* const made = new GraphObject{std::move(capture.nodes)};
    s.graphs.insert(made);
    *graph = made;
  }
  end_capture(s, capture.id);
  return result;
}

CISTERN_ENTRY cuGraphInstantiateWithFlags(void** executable, void* graph, unsigned long long) {
  Call call("cuGraphInstantiate", Call::context | Call::unsafe);
  if (call.result != kSuccess) return call.result;
  const GraphObject* const from = find_graph(call.s, graph, "cuGraphInstantiate");
  if (from == nullptr) return kInvalidValue;
  auto* const made = new GraphObject(*from);
  call.s.graphs.insert(made);
  *executable = made;
  return kSuccess;
}

CISTERN_ENTRY cuGraphLaunch(void* executable, Stream handle) {
  Call call("cuGraphLaunch", Call::context);
  if (call.result != kSuccess) return call.result;
  StreamState* const stream = find_stream(call.s, call.device->index, handle);
  const GraphObject* const graph = find_graph(call.s, executable, "cuGraphLaunch");
  if (stream == nullptr || graph == nullptr) return kInvalidHandle;
  for (const Work& node : graph->nodes) {
    if (const Result result = submit(call.s, *stream, node); result != kSuccess) return result;
  }
  return kSuccess;
}

CISTERN_ENTRY cuGraphExecDestroy(void* executable) { return drop_graph(executable, "cuGraphExecDestroy"); }
CISTERN_ENTRY cuGraphDestroy(void* graph) { return drop_graph(graph, "cuGraphDestroy"); }
