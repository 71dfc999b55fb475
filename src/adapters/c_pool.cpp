// The C interface: the arena pool and its handles. Thin calls of the C++ interface.
#include <memory>
#include <span>

#include "adapters/c_api.hpp"

namespace cistern::c {

DType from_c(cistern_dtype dtype) {
  const auto found = from_dlpack({dtype.code, dtype.bits, dtype.lanes});
  if (!found) {
    throw invalid_argument("data type (code " + std::to_string(dtype.code) + ", bits " + std::to_string(dtype.bits) +
                           ", lanes " + std::to_string(dtype.lanes) +
                           "): expected one of the types of cistern/dtype.hpp");
  }
  return *found;
}

Shape shape_from_c(const int64_t* extents, std::size_t rank, const char* call) {
  if (rank > 0) require(extents, call, "shape");
  return Shape(std::span<const int64_t>(extents, rank));
}

Bucketing bucketing_from_c(std::uint32_t bucketing, const char* call) {
  if (bucketing > CISTERN_EXACT) {
    throw invalid_argument(std::string(call) + ": bucketing " + std::to_string(static_cast<std::int32_t>(bucketing)) +
                           ": expected a cistern_bucketing (0 to 2)");
  }
  return static_cast<Bucketing>(bucketing);
}

}  // namespace cistern::c

// NOLINTBEGIN(google-build-using-namespace): functions of C stand in no namespace.
using namespace cistern;
using namespace cistern::c;
// NOLINTEND(google-build-using-namespace)

extern "C" {

cistern_status cistern_pool_create(cistern_device device, const cistern_stream* stream, cistern_bucketing bucketing,
                                   cistern_pool** out) {
  return guarded([&] {
    require(out, "cistern_pool_create", "out");
    // Copied as bytes: a load of an enumerator that there is not is undefined.
    static_assert(sizeof(bucketing) == sizeof(std::uint32_t));
    std::uint32_t wanted = 0;
    __builtin_memcpy(&wanted, &bucketing, sizeof(wanted));
    const Bucketing rounding = bucketing_from_c(wanted, "cistern_pool_create");
    const Device on = from_c(device);
    if (stream != nullptr && stream->value.device() != on) {
      throw invalid_argument("cistern_pool_create: the stream is one of " + to_string(stream->value.device()) +
                             ", not of " + to_string(on));
    }
    const PoolOptions options{.bucketing = rounding};
    *out = stream == nullptr ? new cistern_pool{BufferPool(on, options)}
                             : new cistern_pool{BufferPool(stream->value, options)};
  });
}

cistern_status cistern_pool_create_with(cistern_allocator* allocator, const cistern_stream* stream,
                                        const cistern_pool_options* options, cistern_pool** out) {
  return guarded([&] {
    require(allocator, "cistern_pool_create_with", "allocator");
    require(out, "cistern_pool_create_with", "out");
    const cistern_pool_options given = read_versioned(options, {});
    const PoolOptions wanted{.bucketing = bucketing_from_c(given.bucketing, "cistern_pool_create_with"),
                             .zero_on_reuse = given.zero_on_reuse != 0};
    Allocator& memory = from_c(allocator);
    *out = new cistern_pool{BufferPool(memory, stream_or_default(stream, memory.device()), wanted)};
  });
}

void cistern_pool_destroy(cistern_pool* pool) { delete pool; }

cistern_status cistern_pool_alloc(cistern_pool* pool, size_t byte_len, cistern_dtype dtype, const int64_t* shape,
                                  size_t rank, cistern_tensor** out) {
  return guarded([&] {
    require(pool, "cistern_pool_alloc", "pool");
    require(out, "cistern_pool_alloc", "out");
    const Shape extents = shape_from_c(shape, rank, "cistern_pool_alloc");
    give_handle(out, [&] { return pool->value.alloc(byte_len, from_c(dtype), extents); });
  });
}

cistern_status cistern_pool_alloc_batch(cistern_pool* pool, const cistern_tensor_request* requests, size_t count,
                                        cistern_tensor** out) {
  return guarded([&] {
    require(pool, "cistern_pool_alloc_batch", "pool");
    if (count == 0) return;
    require(requests, "cistern_pool_alloc_batch", "requests");
    require(out, "cistern_pool_alloc_batch", "out");
    std::vector<BufferRequest> wanted;
    std::vector<std::unique_ptr<cistern_tensor>> handles;
    for (const cistern_tensor_request& request : std::span(requests, count)) {
      wanted.push_back({request.byte_len, from_c(request.dtype),
                        shape_from_c(request.shape, request.rank, "cistern_pool_alloc_batch")});
      handles.push_back(std::make_unique<cistern_tensor>());
    }
    std::vector<TypedBuffer> buffers = pool->value.alloc_batch(wanted);
    for (size_t i = 0; i < count; ++i) {
      handles[i]->value = std::move(buffers[i]);
      out[i] = handles[i].release();
    }
  });
}

cistern_status cistern_pool_register(cistern_pool* pool, cistern_buffer buffer, int take_ownership, cistern_dtype dtype,
                                     const int64_t* shape, size_t rank, cistern_tensor** out) {
  return guarded([&] {
    require(pool, "cistern_pool_register", "pool");
    require(out, "cistern_pool_register", "out");
    const Shape extents = shape_from_c(shape, rank, "cistern_pool_register");
    give_handle(out, [&] {
      if (take_ownership == 0) return pool->value.register_existing(from_c(buffer), from_c(dtype), extents);
      UniqueBuffer owned(from_c(buffer));
      try {
        return pool->value.register_existing(std::move(owned), from_c(dtype), extents);
      } catch (...) {
        owned.release();  // It stays the caller's.
        throw;
      }
    });
  });
}

cistern_status cistern_pool_release(cistern_pool* pool, cistern_tensor* tensor) {
  const std::unique_ptr<cistern_tensor> owned(tensor);
  return guarded([&] {
    require(pool, "cistern_pool_release", "pool");
    require(tensor, "cistern_pool_release", "tensor");
    pool->value.release(tensor->value);
  });
}

cistern_status cistern_pool_reset(cistern_pool* pool, int fail_on_escape) {
  return guarded([&] {
    require(pool, "cistern_pool_reset", "pool");
    pool->value.reset(fail_on_escape != 0 ? Escape::error : Escape::keep);
  });
}

cistern_status cistern_pool_trim(cistern_pool* pool) {
  return guarded([&] {
    require(pool, "cistern_pool_trim", "pool");
    pool->value.trim();
  });
}

cistern_status cistern_pool_clear(cistern_pool* pool) {
  return guarded([&] {
    require(pool, "cistern_pool_clear", "pool");
    pool->value.clear();
  });
}

cistern_status cistern_pool_get_counts(cistern_pool* pool, cistern_pool_counts* out) {
  return guarded([&] {
    require(pool, "cistern_pool_get_counts", "pool");
    require(out, "cistern_pool_get_counts", "out");
    const BufferPool& p = pool->value;
    copy_versioned({.struct_size = 0,
                    .free_count = p.free_count(),
                    .free_bytes = p.free_bytes(),
                    .in_use_count = p.in_use_count(),
                    .in_use_bytes = p.in_use_bytes(),
                    .escaped_count = p.escaped_count(),
                    .total_count = p.total_count(),
                    .total_bytes = p.total_bytes(),
                    .registered_count = p.registered_count(),
                    .registered_bytes = p.registered_bytes()},
                   out);
  });
}

cistern_status cistern_pool_bucket_bytes(const cistern_pool* pool, size_t byte_len, size_t* out) {
  return guarded([&] {
    require(pool, "cistern_pool_bucket_bytes", "pool");
    require(out, "cistern_pool_bucket_bytes", "out");
    *out = pool->value.bucket_bytes(byte_len);
  });
}

cistern_device cistern_pool_device(const cistern_pool* pool) {
  return pool != nullptr ? to_c(pool->value.device()) : cistern_device{};
}
uint64_t cistern_pool_stream_id(const cistern_pool* pool) { return pool != nullptr ? pool->value.stream().id() : 0; }

cistern_status cistern_pool_check(const cistern_pool* pool) {
  return guarded([&] {
    require(pool, "cistern_pool_check", "pool");
    throw_faults(pool->value.check_invariants());
  });
}

cistern_status cistern_parse_dtype(const char* text, cistern_dtype* out) {
  return guarded([&] {
    require(text, "cistern_parse_dtype", "text");
    require(out, "cistern_parse_dtype", "out");
    *out = to_c(parse_dtype(text));
  });
}

const char* cistern_dtype_name(cistern_dtype dtype) {
  const auto found = from_dlpack({dtype.code, dtype.bits, dtype.lanes});
  return found ? name_of(*found).data() : "";  // The names are literals.
}

size_t cistern_dtype_size(cistern_dtype dtype) {
  const auto found = from_dlpack({dtype.code, dtype.bits, dtype.lanes});
  return found ? size_of(*found) : 0;
}

void cistern_tensor_drop(cistern_tensor* tensor) { delete tensor; }

cistern_status cistern_tensor_share(const cistern_tensor* tensor, cistern_tensor** out) {
  return guarded([&] {
    require(tensor, "cistern_tensor_share", "tensor");
    require(out, "cistern_tensor_share", "out");
    give_handle(out, [&] { return tensor->value; });
  });
}

cistern_buffer cistern_tensor_buffer(const cistern_tensor* tensor) {
  return tensor != nullptr ? to_c(tensor->value.buffer()) : cistern_buffer{};
}
size_t cistern_tensor_byte_offset(const cistern_tensor* tensor) {
  return tensor != nullptr ? tensor->value.byte_offset() : 0;
}
size_t cistern_tensor_byte_len(const cistern_tensor* tensor) {
  return tensor != nullptr ? tensor->value.byte_len() : 0;
}

cistern_dtype cistern_tensor_dtype(const cistern_tensor* tensor) {
  return to_c(tensor != nullptr ? tensor->value.dtype() : DType::u8);
}

size_t cistern_tensor_shape(const cistern_tensor* tensor, int64_t* extents, size_t capacity) {
  if (tensor == nullptr) return 0;
  const Shape shape = tensor->value.shape();
  if (extents == nullptr) return shape.rank();
  for (size_t i = 0; i < shape.rank() && i < capacity; ++i) extents[i] = static_cast<int64_t>(shape[i]);
  return shape.rank();
}

cistern_status cistern_tensor_data(const cistern_tensor* tensor, void** out) {
  return guarded([&] {
    require(tensor, "cistern_tensor_data", "tensor");
    require(out, "cistern_tensor_data", "out");
    *out = tensor->value.data();
  });
}

size_t cistern_tensor_element_count(const cistern_tensor* tensor) {
  return tensor != nullptr ? tensor->value.element_count() : 0;
}
int cistern_tensor_is_view(const cistern_tensor* tensor) {
  return tensor != nullptr && tensor->value.is_view() ? 1 : 0;
}
size_t cistern_tensor_use_count(const cistern_tensor* tensor) {
  return tensor != nullptr ? tensor->value.use_count() : 0;
}
int cistern_tensor_shares_memory(const cistern_tensor* a, const cistern_tensor* b) {
  return a != nullptr && b != nullptr && a->value.shares_memory(b->value) ? 1 : 0;
}

size_t cistern_tensor_text(const cistern_tensor* tensor, char* text, size_t capacity) {
  std::string said;
  guarded([&] {
    if (tensor != nullptr) said = to_string(tensor->value);
  });
  return write_text(said, text, capacity);
}

cistern_status cistern_tensor_slice(const cistern_tensor* tensor, size_t byte_offset, size_t elements,
                                    cistern_tensor** out) {
  return guarded([&] {
    require(tensor, "cistern_tensor_slice", "tensor");
    require(out, "cistern_tensor_slice", "out");
    give_handle(out, [&] { return tensor->value.slice_view(byte_offset, elements); });
  });
}

cistern_status cistern_tensor_view(const cistern_tensor* tensor, size_t byte_offset, cistern_dtype dtype,
                                   const int64_t* shape, size_t rank, cistern_tensor** out) {
  return guarded([&] {
    require(tensor, "cistern_tensor_view", "tensor");
    require(out, "cistern_tensor_view", "out");
    const Shape extents = shape_from_c(shape, rank, "cistern_tensor_view");
    give_handle(out, [&] { return tensor->value.view(byte_offset, from_c(dtype), extents); });
  });
}

cistern_status cistern_tensor_reshape(const cistern_tensor* tensor, const int64_t* shape, size_t rank,
                                      cistern_tensor** out) {
  return guarded([&] {
    require(tensor, "cistern_tensor_reshape", "tensor");
    require(out, "cistern_tensor_reshape", "out");
    const Shape extents = shape_from_c(shape, rank, "cistern_tensor_reshape");
    give_handle(out, [&] { return tensor->value.reshape(extents); });
  });
}

cistern_status cistern_tensor_record_use(const cistern_tensor* tensor, const cistern_stream* stream) {
  return guarded([&] {
    require(tensor, "cistern_tensor_record_use", "tensor");
    require(stream, "cistern_tensor_record_use", "stream");
    tensor->value.record_use(stream->value);
  });
}

}  // extern "C"
