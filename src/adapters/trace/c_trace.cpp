// The C interface: recording, reading, writing and making traces. Part of the library cistern_trace. Thin calls of the
// C++ interface; a trace is read by any number of threads, a recorder used by any.
#include "cistern/c_trace.h"

#include <memory>
#include <optional>

#include "adapters/c_api.hpp"
#include "cistern/trace.hpp"
#include "trace/builder.hpp"
#include "trace/event_check.hpp"

struct cistern_recorder {
  cistern::TraceRecorder value;
};
struct cistern_trace {
  cistern::Trace value;
};

// NOLINTBEGIN(google-build-using-namespace): functions of C stand in no namespace.
using namespace cistern;
using namespace cistern::c;
// NOLINTEND(google-build-using-namespace)

namespace {

// guarded(), which knows nothing of files.
template <class F>
cistern_status guarded_file(F&& f) noexcept {
  bool bad_file = false;
  const cistern_status status = guarded([&] {
    try {
      f();
    } catch (const TraceError& error) {
      set_last_error(error.what());
      bad_file = true;
    }
  });
  return bad_file ? CISTERN_FILE_ERROR : status;
}

template <class Make>
void give_trace(cistern_trace** out, Make&& make) {
  auto trace = std::make_unique<cistern_trace>();
  trace->value = make();
  *out = trace.release();
}

TraceReadOptions options_from_c(const cistern_trace_read_options* options) {
  const cistern_trace_read_options given =
      read_versioned(options, {.struct_size = 0, .device = -1, .older_blocks = 0, .max_bytes = 0, .max_memory = 0});
  TraceReadOptions wanted;
  if (given.device >= 0) wanted.device = static_cast<std::uint32_t>(given.device);
  wanted.older_blocks = given.older_blocks != 0;
  if (given.max_bytes != 0) wanted.max_bytes = given.max_bytes;
  if (given.max_memory != 0) wanted.max_memory = given.max_memory;
  return wanted;
}

TraceWriteOptions options_from_c(const cistern_trace_write_options* options) {
  const cistern_trace_write_options given = read_versioned(options, {.struct_size = 0, .format = -1, .gzip_level = 0});
  TraceWriteOptions wanted;
  if (given.format > CISTERN_TRACE_PERFETTO_JSON) {
    throw invalid_argument("cistern_trace_write: format " + std::to_string(given.format) +
                           ": expected a cistern_trace_format (0 to 3), or less than 0");
  }
  if (given.gzip_level < 0 || given.gzip_level > 9) {
    throw invalid_argument("cistern_trace_write: gzip_level " + std::to_string(given.gzip_level) +
                           ": expected 1 to 9, or 0 for 6");
  }
  if (given.format >= 0) wanted.format = static_cast<TraceFormat>(given.format);
  if (given.gzip_level != 0) wanted.gzip_level = given.gzip_level;
  return wanted;
}

Trace trace_from_c(std::span<const cistern_trace_event> events, std::span<const std::uint64_t> streams,
                   const char* name) {
  if (!streams.empty() && streams.front() != 0) {
    throw invalid_argument("cistern_trace_create: the first stream is called " + std::to_string(streams.front()) +
                           "; expected 0, the default stream");
  }
  // What the events call streams, in their numbers; the builder numbers them anew, in the order of their use.
  trace::EventCheck check(streams.empty() ? trace::kMaxStreams : streams.size(), trace::EventCheck::FreeSize::ignored);
  trace::TraceBuilder builder(name, trace::TraceBuilder::Clock::strict);
  for (std::size_t i = 0; i < events.size(); ++i) {
    const cistern_trace_event& event = events[i];
    const auto kind = event.free != 0 ? TraceEventKind::free : TraceEventKind::allocate;
    if (const std::string fault = check.next({event.size, event.time_us, event.id, event.stream, kind});
        !fault.empty()) {
      throw invalid_argument("cistern_trace_create: event " + std::to_string(i) + ": " + fault);
    }
    const std::uint16_t stream = builder.stream(streams.empty() ? event.stream : streams[event.stream]);
    if (event.free != 0) {
      builder.free(event.id, stream, event.time_us);
    } else {
      builder.allocate(event.size, stream, event.time_us);
    }
  }
  return builder.finish(name);
}

}  // namespace

extern "C" {

cistern_status cistern_recorder_start(const char* path, cistern_recorder** out) {
  return guarded_file([&] {
    require(path, "cistern_recorder_start", "path");
    require(out, "cistern_recorder_start", "out");
    *out = new cistern_recorder{TraceRecorder(path)};
  });
}

void cistern_recorder_allocated(cistern_recorder* recorder, uint64_t key, uint64_t bytes, uint64_t stream) {
  if (recorder != nullptr) recorder->value.allocated(key, bytes, stream);
}
void cistern_recorder_freed(cistern_recorder* recorder, uint64_t key) {
  if (recorder != nullptr) recorder->value.freed(key);
}
void cistern_recorder_freed_on(cistern_recorder* recorder, uint64_t key, uint64_t stream) {
  if (recorder != nullptr) recorder->value.freed(key, stream);
}
uint64_t cistern_recorder_events(const cistern_recorder* recorder) {
  return recorder != nullptr ? recorder->value.events() : 0;
}
uint64_t cistern_recorder_missed(const cistern_recorder* recorder) {
  return recorder != nullptr ? recorder->value.missed() : 0;
}

cistern_status cistern_recorder_flush(cistern_recorder* recorder) {
  return guarded_file([&] {
    require(recorder, "cistern_recorder_flush", "recorder");
    recorder->value.flush();
  });
}

cistern_status cistern_recorder_stop(cistern_recorder* recorder) {
  return guarded_file([&] {
    require(recorder, "cistern_recorder_stop", "recorder");
    recorder->value.close();
  });
}

void cistern_recorder_destroy(cistern_recorder* recorder) { delete recorder; }

cistern_status cistern_trace_read(const char* path, const cistern_trace_read_options* options, cistern_trace** out) {
  return guarded_file([&] {
    require(path, "cistern_trace_read", "path");
    require(out, "cistern_trace_read", "out");
    give_trace(out, [&] { return read_trace(path, options_from_c(options)); });
  });
}

cistern_status cistern_trace_create(const cistern_trace_event* events, size_t count, const uint64_t* streams,
                                    size_t stream_count, const char* name, cistern_trace** out) {
  return guarded_file([&] {
    require(out, "cistern_trace_create", "out");
    if (count > 0) require(events, "cistern_trace_create", "events");
    const std::span<const uint64_t> called(streams, streams != nullptr ? stream_count : 0);
    give_trace(out, [&] {
      try {
        return trace_from_c({events, count}, called, name != nullptr ? name : "trace");
      } catch (const TraceError& error) {  // There is no file.
        throw invalid_argument(std::string("cistern_trace_create: ") + error.what());
      }
    });
  });
}

cistern_status cistern_trace_write(const char* path, const cistern_trace* trace,
                                   const cistern_trace_write_options* options) {
  return guarded_file([&] {
    require(path, "cistern_trace_write", "path");
    require(trace, "cistern_trace_write", "trace");
    write_trace(path, trace->value, options_from_c(options));
  });
}

cistern_status cistern_trace_format_of(const char* path, cistern_trace_format* out) {
  return guarded_file([&] {
    require(path, "cistern_trace_format_of", "path");
    require(out, "cistern_trace_format_of", "out");
    *out = static_cast<cistern_trace_format>(trace_format_of(path));
  });
}

void cistern_trace_destroy(cistern_trace* trace) { delete trace; }

cistern_status cistern_trace_get_figures(const cistern_trace* trace, cistern_trace_figures* out) {
  return guarded([&] {
    require(trace, "cistern_trace_get_figures", "trace");
    require(out, "cistern_trace_get_figures", "out");
    const Trace& t = trace->value;
    copy_versioned({.struct_size = 0,
                    .events = t.events.size(),
                    .allocations = t.allocations,
                    .streams = t.streams.size(),
                    .peak_live_bytes = t.peak_live_bytes,
                    .live_at_end = t.live_at_end,
                    .live_at_end_bytes = t.live_at_end_bytes,
                    .duration_us = t.duration_us,
                    .failed_allocations = t.failed_allocations,
                    .older_blocks = t.older_blocks,
                    .left_out_bytes = t.left_out_bytes},
                   out);
  });
}

const char* cistern_trace_name(const cistern_trace* trace) { return trace != nullptr ? trace->value.name.c_str() : ""; }

size_t cistern_trace_get_events(const cistern_trace* trace, size_t first, cistern_trace_event* events, size_t count) {
  if (trace == nullptr || events == nullptr || first >= trace->value.events.size()) return 0;
  const std::size_t copied = std::min(count, trace->value.events.size() - first);
  for (std::size_t i = 0; i < copied; ++i) {
    const TraceEvent& event = trace->value.events[first + i];
    events[i] = {event.size,
                 event.time_us,
                 event.id,
                 event.stream,
                 static_cast<uint8_t>(event.kind == TraceEventKind::free ? 1 : 0),
                 0};
  }
  return copied;
}

cistern_status cistern_trace_stream(const cistern_trace* trace, size_t stream, uint64_t* out) {
  return guarded([&] {
    require(trace, "cistern_trace_stream", "trace");
    require(out, "cistern_trace_stream", "out");
    if (stream >= trace->value.streams.size()) {
      throw invalid_argument("cistern_trace_stream: stream " + std::to_string(stream) + "; the trace has " +
                             std::to_string(trace->value.streams.size()));
    }
    *out = trace->value.streams[stream];
  });
}

size_t cistern_trace_stream_text(const cistern_trace* trace, size_t stream, char* text, size_t capacity) {
  std::string name;
  guarded([&] {
    if (trace != nullptr && stream < trace->value.streams.size()) name = trace->value.stream_name(stream);
  });
  return write_text(name, text, capacity);
}

cistern_status cistern_trace_original_id(const cistern_trace* trace, uint32_t id, uint64_t* out) {
  return guarded([&] {
    require(trace, "cistern_trace_original_id", "trace");
    require(out, "cistern_trace_original_id", "out");
    if (id >= trace->value.allocations) {
      throw invalid_argument("cistern_trace_original_id: id " + std::to_string(id) + "; the trace has " +
                             std::to_string(trace->value.allocations) + " allocations");
    }
    *out = trace->value.original_ids.empty() ? id : trace->value.original_ids[id];
  });
}

}  // extern "C"
