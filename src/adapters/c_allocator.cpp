// The C interface: allocators by handle. Thin calls of the C++ interface; any thread.
#include "adapters/c_api.hpp"

// NOLINTBEGIN(google-build-using-namespace): functions of C stand in no namespace.
using namespace cistern;
using namespace cistern::c;
// NOLINTEND(google-build-using-namespace)

extern "C" {

cistern_status cistern_get_allocator(cistern_device device, cistern_allocator** out) {
  return guarded([&] {
    require(out, "cistern_get_allocator", "out");
    *out = to_c(allocator(from_c(device)));
  });
}

cistern_status cistern_get_staging_allocator(cistern_device device, cistern_allocator** out) {
  return guarded([&] {
    require(out, "cistern_get_staging_allocator", "out");
    *out = to_c(staging_allocator(from_c(device)));
  });
}

cistern_status cistern_get_system_allocator(cistern_allocator** out) {
  return guarded([&] {
    require(out, "cistern_get_system_allocator", "out");
    *out = to_c(system_allocator());
  });
}

cistern_device cistern_allocator_device(const cistern_allocator* allocator) {
  return allocator != nullptr ? to_c(from_c(allocator).device()) : cistern_device{};
}

cistern_status cistern_allocator_malloc(cistern_allocator* allocator, size_t bytes, cistern_buffer* out) {
  return guarded([&] {
    require(allocator, "cistern_allocator_malloc", "allocator");
    require(out, "cistern_allocator_malloc", "out");
    *out = to_c(from_c(allocator).malloc(bytes));
  });
}

cistern_status cistern_allocator_malloc_on(cistern_allocator* allocator, size_t bytes, const cistern_stream* stream,
                                           cistern_buffer* out) {
  return guarded([&] {
    require(allocator, "cistern_allocator_malloc_on", "allocator");
    require(stream, "cistern_allocator_malloc_on", "stream");
    require(out, "cistern_allocator_malloc_on", "out");
    *out = to_c(from_c(allocator).malloc(bytes, stream->value));
  });
}

cistern_status cistern_allocator_free(cistern_allocator* allocator, cistern_buffer buffer) {
  return guarded([&] {
    require(allocator, "cistern_allocator_free", "allocator");
    from_c(allocator).free(from_c(buffer));
  });
}

cistern_status cistern_allocator_free_on(cistern_allocator* allocator, cistern_buffer buffer,
                                         const cistern_stream* stream) {
  return guarded([&] {
    require(allocator, "cistern_allocator_free_on", "allocator");
    require(stream, "cistern_allocator_free_on", "stream");
    from_c(allocator).free(from_c(buffer), stream->value);
  });
}

cistern_status cistern_allocator_free_raw(cistern_allocator* allocator, void* ptr) {
  return guarded([&] {
    require(allocator, "cistern_allocator_free_raw", "allocator");
    if (ptr != nullptr) from_c(allocator).free_raw(ptr);
  });
}

cistern_status cistern_allocator_find(const cistern_allocator* allocator, const void* ptr, cistern_buffer* out) {
  return guarded([&] {
    require(allocator, "cistern_allocator_find", "allocator");
    require(out, "cistern_allocator_find", "out");
    *out = to_c(from_c(allocator).find(ptr));
  });
}

cistern_status cistern_allocator_size(const cistern_allocator* allocator, cistern_buffer buffer, size_t* out) {
  return guarded([&] {
    require(allocator, "cistern_allocator_size", "allocator");
    require(out, "cistern_allocator_size", "out");
    *out = from_c(allocator).size(from_c(buffer));
  });
}

cistern_status cistern_allocator_make_buffer(cistern_allocator* allocator, void* ptr, size_t bytes,
                                             cistern_buffer* out) {
  return guarded([&] {
    require(allocator, "cistern_allocator_make_buffer", "allocator");
    require(out, "cistern_allocator_make_buffer", "out");
    *out = to_c(from_c(allocator).make_buffer(ptr, bytes));
  });
}

cistern_status cistern_allocator_release(cistern_allocator* allocator, cistern_buffer view) {
  return guarded([&] {
    require(allocator, "cistern_allocator_release", "allocator");
    from_c(allocator).release(from_c(view));
  });
}

cistern_status cistern_allocator_record_use(cistern_allocator* allocator, cistern_buffer buffer,
                                            const cistern_stream* stream) {
  return guarded([&] {
    require(allocator, "cistern_allocator_record_use", "allocator");
    require(stream, "cistern_allocator_record_use", "stream");
    from_c(allocator).record_use(from_c(buffer), stream->value);
  });
}

}  // extern "C"
