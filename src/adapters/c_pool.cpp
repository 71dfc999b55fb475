// The C interface: the arena pool and its handles. Thin calls of the C++ interface.
#include <memory>
#include <span>

#include "adapters/c_api.hpp"

// NOLINTBEGIN(google-build-using-namespace): functions of C stand in no namespace.
using namespace cistern;
using namespace cistern::c;
// NOLINTEND(google-build-using-namespace)

namespace {

DType dtype_from_c(cistern_dtype dtype) {
  const auto found = from_dlpack({dtype.code, dtype.bits, dtype.lanes});
  if (!found) {
    throw invalid_argument("data type (code " + std::to_string(dtype.code) + ", bits " + std::to_string(dtype.bits) +
                           ", lanes " + std::to_string(dtype.lanes) +
                           "): expected one of the types of cistern/dtype.hpp");
  }
  return *found;
}

}  // namespace

extern "C" {

cistern_status cistern_pool_create(cistern_device device, const cistern_stream* stream, cistern_bucketing bucketing,
                                   cistern_pool** out) {
  return guarded([&] {
    require(out, "cistern_pool_create", "out");
    if (bucketing < CISTERN_POWER_OF_TWO || bucketing > CISTERN_EXACT) {
      throw invalid_argument("cistern_pool_create: bucketing " + std::to_string(bucketing) +
                             ": expected a cistern_bucketing (0 to 2)");
    }
    const Device on = from_c(device);
    if (stream != nullptr && stream->value.device() != on) {
      throw invalid_argument("cistern_pool_create: the stream is one of " + to_string(stream->value.device()) +
                             ", not of " + to_string(on));
    }
    const PoolOptions options{.bucketing = static_cast<Bucketing>(bucketing)};
    *out = stream == nullptr ? new cistern_pool{BufferPool(on, options)}
                             : new cistern_pool{BufferPool(stream->value, options)};
  });
}

void cistern_pool_destroy(cistern_pool* pool) { delete pool; }

cistern_status cistern_pool_alloc(cistern_pool* pool, size_t byte_len, cistern_dtype dtype, const int64_t* shape,
                                  size_t rank, cistern_tensor** out) {
  return guarded([&] {
    require(pool, "cistern_pool_alloc", "pool");
    require(out, "cistern_pool_alloc", "out");
    if (rank > 0) require(shape, "cistern_pool_alloc", "shape");
    const Shape extents(std::span<const int64_t>(shape, rank));
    auto handle = std::make_unique<cistern_tensor>();
    handle->value = pool->value.alloc(byte_len, dtype_from_c(dtype), extents);
    *out = handle.release();
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
                    .total_bytes = p.total_bytes()},
                   out);
  });
}

void cistern_tensor_drop(cistern_tensor* tensor) { delete tensor; }

cistern_status cistern_tensor_share(const cistern_tensor* tensor, cistern_tensor** out) {
  return guarded([&] {
    require(tensor, "cistern_tensor_share", "tensor");
    require(out, "cistern_tensor_share", "out");
    *out = new cistern_tensor{tensor->value};
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
  const DLPackType type = info(tensor != nullptr ? tensor->value.dtype() : DType::u8).dlpack;
  return {type.code, type.bits, type.lanes};
}

size_t cistern_tensor_shape(const cistern_tensor* tensor, int64_t* extents, size_t capacity) {
  if (tensor == nullptr) return 0;
  const Shape shape = tensor->value.shape();
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

}  // extern "C"
