// The C interface: capture pools and the map of the memory. Thin calls of the C++ interface.
#include "adapters/c_api.hpp"
#include "cistern/capture.hpp"

// NOLINTBEGIN(google-build-using-namespace): functions of C stand in no namespace.
using namespace cistern;
using namespace cistern::c;
// NOLINTEND(google-build-using-namespace)

namespace {

CapturePool from_c(cistern_capture_pool pool) { return {cistern::c::from_c(pool.device), pool.id}; }

}  // namespace

extern "C" {

cistern_status cistern_make_capture_pool(cistern_device device, cistern_capture_pool* out) {
  return guarded([&] {
    require(out, "cistern_make_capture_pool", "out");
    const CapturePool pool = make_capture_pool(cistern::c::from_c(device));
    *out = {device, pool.id};
  });
}

cistern_status cistern_begin_capture_pool(cistern_capture_pool pool, const cistern_stream* stream) {
  return guarded([&] {
    require(stream, "cistern_begin_capture_pool", "stream");
    begin_capture_pool(from_c(pool), stream->value);
  });
}

cistern_status cistern_begin_capture_pool_where(cistern_capture_pool pool, cistern_capture_filter filter,
                                                void* context) {
  return guarded([&] {
    if (filter == nullptr) throw invalid_argument("cistern_begin_capture_pool_where: filter is null");
    begin_capture_pool(from_c(pool), [=](void* native) { return filter(native, context) != 0; });
  });
}

cistern_status cistern_end_capture_pool(cistern_capture_pool pool) {
  return guarded([&] { end_capture_pool(from_c(pool)); });
}

cistern_status cistern_release_capture_pool(cistern_capture_pool pool) {
  return guarded([&] { release_capture_pool(from_c(pool)); });
}

cistern_status cistern_get_capture_pool_bytes(cistern_capture_pool pool, uint64_t* out) {
  return guarded([&] {
    require(out, "cistern_get_capture_pool_bytes", "out");
    *out = capture_pool_bytes(from_c(pool));
  });
}

cistern_status cistern_visit_memory(cistern_device device, cistern_memory_visitor visitor, void* context) {
  return guarded([&] {
    if (visitor == nullptr) throw invalid_argument("cistern_visit_memory: visitor is null");
    for (const MemorySegment& segment : memory_map(cistern::c::from_c(device))) {
      const cistern_memory_segment shown{sizeof(cistern_memory_segment), segment.address, segment.bytes, segment.stream,
                                         segment.capture_pool};
      for (const MemoryRange& range : segment.ranges) {
        visitor(&shown, range.address, range.bytes, range.live ? 1 : 0, context);
      }
    }
  });
}

}  // extern "C"
