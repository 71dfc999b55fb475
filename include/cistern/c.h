/* C interface to Cistern, for C and for other languages: devices, streams, buffers, allocators, capture pools, limits
 * and figures, the arena pool. Beside it: c_arena.h (planned arena), c_plan.h (static planner), c_trace.h (traces).
 * What of the C++ interface goes by which name here: docs/c-interface.md. Plain C99.
 *
 * Versioning: structs that may grow carry their size, set by the caller; functions are never changed or removed within
 * a major version. One version counts for all four headers; "since 1.2" is said once for a section. Errors: functions
 * return a status. On anything but CISTERN_OK nothing was changed and no result was written, and cistern_last_error()
 * has the text, per thread, until the thread's next failing call. No C++ exception leaves this interface; none may come
 * into it from a callback. A null pointer is CISTERN_INVALID_ARGUMENT where not said otherwise. Functions without a
 * status cannot fail. Texts are UTF-8 and end with 0. Functions that write one take room for `capacity` bytes, the 0
 * included, cut what does not fit, and return the length of the whole without the 0, as snprintf() does; capacity 0
 * with a null `text` asks. Units are bytes. All functions are thread-safe, except that one pool is used by one thread
 * at a time, and one handle (stream, tensor) is ended by one thread while no other uses it. */
#ifndef CISTERN_C_H
#define CISTERN_C_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CISTERN_C_VERSION_MAJOR 1
#define CISTERN_C_VERSION_MINOR 2

typedef enum cistern_status {
  CISTERN_OK = 0,
  CISTERN_INVALID_ARGUMENT = 1, /* Misuse: double free, foreign pointer, wrong device, bad size. */
  CISTERN_OUT_OF_MEMORY = 2,
  CISTERN_DRIVER_ERROR = 3, /* The system or the vendor's library failed otherwise. */
  CISTERN_INTERNAL_ERROR = 4,
  CISTERN_FILE_ERROR = 5 /* A trace that cannot be read or written; the text is "FILE:LINE: ...". Since 1.2. */
} cistern_status;

/* (major << 16) | minor of the library that is loaded. */
uint32_t cistern_c_version(void);
/* "0.1.0" */
const char* cistern_version_string(void);
/* Text of this thread's last failure; "" when there was none. Never null. */
const char* cistern_last_error(void);
/* Of this thread's last failure by CISTERN_OUT_OF_MEMORY: what was asked for, and the limit; 0 when there was none, or
 * when the host's own memory was out. Either result may be null. Since 1.2. */
void cistern_last_out_of_memory(uint64_t* requested, uint64_t* limit);

/* --- Devices */

typedef enum cistern_device_type {
  CISTERN_CPU = 0,
  CISTERN_CUDA = 1,
  CISTERN_METAL = 2,
  CISTERN_MODEL = 3
} cistern_device_type;

typedef struct cistern_device {
  int32_t type; /* cistern_device_type */
  int32_t index;
} cistern_device;

int cistern_device_available(cistern_device device);
cistern_status cistern_get_default_device(cistern_device* out);
cistern_status cistern_set_default_device(cistern_device device);
/* Reads "cpu", "cuda:1". */
cistern_status cistern_parse_device(const char* text, cistern_device* out);
/* Writes "cuda:1"; "" for a device type that there is not. Since 1.2. */
size_t cistern_device_text(cistern_device device, char* text, size_t capacity);

/* --- Streams */

typedef struct cistern_stream cistern_stream; /* Made by cistern_stream_open, ended by cistern_stream_close. */

/* `native` is a cudaStream_t or id<MTLCommandQueue>; null is the device's default stream. */
cistern_status cistern_stream_open(cistern_device device, void* native, cistern_stream** out);
/* Ends the handle, not the stream. Null is allowed. */
void cistern_stream_close(cistern_stream* stream);
/* Unique in the life of the process: streams with one id are one. 0 for null. */
uint64_t cistern_stream_id(const cistern_stream* stream);
/* The handle that it was opened with, and its device; null and {0, 0} for null. Since 1.2. */
void* cistern_stream_native(const cistern_stream* stream);
cistern_device cistern_stream_device(const cistern_stream* stream);
/* Says that the stream itself was destroyed by its owner. */
cistern_status cistern_stream_destroyed(const cistern_stream* stream);

/* --- Buffers */

/* A handle; copy it freely. All zero is the null buffer. */
typedef struct cistern_buffer {
  void* block;
  uint64_t serial;
} cistern_buffer;

/* Memory that host and device reach. */
cistern_status cistern_malloc(cistern_device device, size_t bytes, cistern_buffer* out);
/* Memory for work submitted to the stream from now on. */
cistern_status cistern_malloc_on(const cistern_stream* stream, size_t bytes, cistern_buffer* out);
/* Nothing happens for a null buffer. */
cistern_status cistern_free(cistern_buffer buffer);
/* In the order of `stream` instead of the allocating one. */
cistern_status cistern_free_on(cistern_buffer buffer, const cistern_stream* stream);
/* By address alone. A null address is allowed. */
cistern_status cistern_free_raw(cistern_device device, void* ptr);
/* The live buffer that starts at `ptr`; the null buffer when there is none. */
cistern_status cistern_find(cistern_device device, const void* ptr, cistern_buffer* out);
cistern_status cistern_record_use(cistern_buffer buffer, const cistern_stream* stream);
/* A view of other memory; the null buffer when the device cannot reach it as it is. */
cistern_status cistern_make_buffer(cistern_device device, void* ptr, size_t bytes, cistern_buffer* out);
cistern_status cistern_release(cistern_buffer view);

/* Pinned host memory for copies to and from the stream's device; a buffer costs its own size. cistern_free() ends it,
 * or the second function, in the order of `stream`; it serves again when all work submitted until then is done. */
cistern_status cistern_staging_malloc(const cistern_stream* stream, size_t bytes, cistern_buffer* out);
cistern_status cistern_staging_free_on(cistern_buffer buffer, const cistern_stream* stream);
/* As cistern_record_use(), for staging memory. Since 1.1. */
cistern_status cistern_staging_record_use(cistern_buffer buffer, const cistern_stream* stream);

int cistern_buffer_live(cistern_buffer buffer);
void* cistern_buffer_ptr(cistern_buffer buffer);
size_t cistern_buffer_offset(cistern_buffer buffer);
size_t cistern_buffer_size(cistern_buffer buffer);
cistern_device cistern_buffer_device(cistern_buffer buffer);
/* Pointer for the host; may move device-only memory first. */
cistern_status cistern_buffer_raw_ptr(cistern_buffer buffer, void** out);

/* --- Allocators by handle: the same calls for staging memory and for the C library's. Since 1.2. */

typedef struct cistern_allocator cistern_allocator; /* Lives as long as the process; nothing ends it. */

/* The device's allocator, which cistern_malloc() and the others above use. */
cistern_status cistern_get_allocator(cistern_device device, cistern_allocator** out);
/* Pinned host memory for copies to and from the device, as cistern_staging_malloc(). */
cistern_status cistern_get_staging_allocator(cistern_device device, cistern_allocator** out);
/* The CPU without a cache: each buffer is one aligned allocation of the C library, given back at once. */
cistern_status cistern_get_system_allocator(cistern_allocator** out);

/* {0, 0} for null. */
cistern_device cistern_allocator_device(const cistern_allocator* allocator);
cistern_status cistern_allocator_malloc(cistern_allocator* allocator, size_t bytes, cistern_buffer* out);
cistern_status cistern_allocator_malloc_on(cistern_allocator* allocator, size_t bytes, const cistern_stream* stream,
                                           cistern_buffer* out);
/* Nothing happens for a null buffer. CISTERN_INVALID_ARGUMENT for a buffer of another allocator. */
cistern_status cistern_allocator_free(cistern_allocator* allocator, cistern_buffer buffer);
cistern_status cistern_allocator_free_on(cistern_allocator* allocator, cistern_buffer buffer,
                                         const cistern_stream* stream);
/* By address alone. A null address is allowed. */
cistern_status cistern_allocator_free_raw(cistern_allocator* allocator, void* ptr);
/* The live buffer that starts at `ptr`; the null buffer when there is none. */
cistern_status cistern_allocator_find(const cistern_allocator* allocator, const void* ptr, cistern_buffer* out);
/* Usable capacity. CISTERN_INVALID_ARGUMENT for a freed handle, where cistern_buffer_size() says 0. */
cistern_status cistern_allocator_size(const cistern_allocator* allocator, cistern_buffer buffer, size_t* out);
cistern_status cistern_allocator_make_buffer(cistern_allocator* allocator, void* ptr, size_t bytes,
                                             cistern_buffer* out);
cistern_status cistern_allocator_release(cistern_allocator* allocator, cistern_buffer view);
cistern_status cistern_allocator_record_use(cistern_allocator* allocator, cistern_buffer buffer,
                                            const cistern_stream* stream);

/* --- Capture pools: memory for graphs. Since 1.1. */

typedef struct cistern_capture_pool {
  cistern_device device;
  uint64_t id; /* 0 is no pool. */
} cistern_capture_pool;

/* Whether a stream (its native handle) takes part in the capture. Must not allocate. */
typedef int (*cistern_capture_filter)(void* native, void* context);

cistern_status cistern_make_capture_pool(cistern_device device, cistern_capture_pool* out);
/* Before the capture begins, with no work submitted to the stream in between: its allocations come from the pool. */
cistern_status cistern_begin_capture_pool(cistern_capture_pool pool, const cistern_stream* stream);
cistern_status cistern_begin_capture_pool_where(cistern_capture_pool pool, cistern_capture_filter filter,
                                                void* context);
/* After the capture has ended, also when it failed. Another thread that asked the filter a moment ago may still be in
   it: what `context` points to must last longer. */
cistern_status cistern_end_capture_pool(cistern_capture_pool pool);
/* No graph of the pool will run again: waits for the device and gives the pool's pages back. */
cistern_status cistern_release_capture_pool(cistern_capture_pool pool);
cistern_status cistern_get_capture_pool_bytes(cistern_capture_pool pool, uint64_t* out);

/* --- Map of the memory. Since 1.1. */

typedef struct cistern_memory_segment {
  size_t struct_size; /* Of this struct, as the library knows it. */
  uint64_t address, bytes;
  void* stream;          /* Of a capture pool: in whose order its free memory is. Else null: streams share it. */
  uint64_t capture_pool; /* Id; 0 for ordinary memory. */
} cistern_memory_segment;

/* Called for each range of each segment, in address order; the ranges tile the segment. Must not call Cistern. */
typedef void (*cistern_memory_visitor)(const cistern_memory_segment* segment, uint64_t address, uint64_t bytes,
                                       int live, void* context);
cistern_status cistern_visit_memory(cistern_device device, cistern_memory_visitor visitor, void* context);

/* --- Figures and limits */

typedef struct cistern_stats {
  size_t struct_size; /* Set by the caller to sizeof(cistern_stats); fields beyond it are not written. */
  uint64_t active, peak_active;
  uint64_t reserved, peak_reserved;
  uint64_t cached, views;
  uint64_t memory_limit, cache_limit, wired_limit, total_memory;
  uint64_t live_buffers;
  uint64_t handles, handles_created, handles_moved, handles_released;
  uint64_t handles_split; /* Always 0: kept for the layout. */
  uint64_t driver_calls, host_waits, late_double_frees;
  uint64_t objects; /* Since 1.1. */
} cistern_stats;

cistern_status cistern_get_stats(cistern_device device, cistern_stats* out);
/* The same of staging memory. */
cistern_status cistern_get_staging_stats(cistern_device device, cistern_stats* out);
cistern_status cistern_clear_staging_cache(cistern_device device);
cistern_status cistern_reset_peaks(cistern_device device);
/* `previous` may be null. */
cistern_status cistern_set_memory_limit(cistern_device device, size_t bytes, size_t* previous);
cistern_status cistern_set_cache_limit(cistern_device device, size_t bytes, size_t* previous);
cistern_status cistern_set_wired_limit(cistern_device device, size_t bytes, size_t* previous);
cistern_status cistern_clear_cache(cistern_device device);
/* A batch of work is about to be submitted: on Metal what is to be wired is made real, once per batch. Since 1.1. */
cistern_status cistern_before_submit(cistern_device device);

typedef enum cistern_memory_option {
  CISTERN_ZERO_ON_ALLOC = 1,
  CISTERN_ZERO_ON_REUSE = 2,
  CISTERN_POISON_ON_FREE = 4
} cistern_memory_option;
/* `options` is a sum of cistern_memory_option values; `previous` may be null. */
cistern_status cistern_set_memory_options(cistern_device device, uint32_t options, uint32_t* previous);
/* Since 1.2. */
cistern_status cistern_get_memory_options(cistern_device device, uint32_t* out);

/* Called before an allocation fails, without a lock held. Return non-zero when memory was freed. */
typedef int (*cistern_out_of_memory_callback)(cistern_device device, size_t bytes, void* context);
cistern_status cistern_add_out_of_memory_callback(cistern_out_of_memory_callback callback, void* context, uint64_t* id);
cistern_status cistern_remove_out_of_memory_callback(uint64_t id);

/* Buffers that this thread allocates count under the innermost tag. Push and pop in pairs. */
cistern_status cistern_push_tag(const char* name);
cistern_status cistern_pop_tag(void);
/* Active and peak bytes of a tag; CISTERN_INVALID_ARGUMENT for a name that was never used. Either result may be null.
 */
cistern_status cistern_get_tag(cistern_device device, const char* name, uint64_t* active, uint64_t* peak);
/* Called for each tag that buffers of the device were counted under, most active bytes first. `name` is good during the
 * call. Since 1.2. */
typedef void (*cistern_tag_visitor)(const char* name, uint64_t active, uint64_t peak, void* context);
cistern_status cistern_visit_tags(cistern_device device, cistern_tag_visitor visitor, void* context);

/* --- Arena pool */

typedef struct cistern_pool cistern_pool;
typedef struct cistern_tensor cistern_tensor; /* One handle to a pool's buffer. */

typedef enum cistern_bucketing {
  CISTERN_POWER_OF_TWO = 0,
  CISTERN_EIGHT_STEPS = 1,
  CISTERN_EXACT = 2
} cistern_bucketing;

/* DLPack's data type: code, bits, lanes. */
typedef struct cistern_dtype {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
} cistern_dtype;

/* Reads "bf16" or "bfloat16". Since 1.2, as the next two. */
cistern_status cistern_parse_dtype(const char* text, cistern_dtype* out);
/* "bf16"; "" for a type that Cistern does not have. Never null. */
const char* cistern_dtype_name(cistern_dtype dtype);
/* Bytes of one element; 0 for a type that Cistern does not have. */
size_t cistern_dtype_size(cistern_dtype dtype);

/* `stream` is one of the device; null: its default stream. */
cistern_status cistern_pool_create(cistern_device device, const cistern_stream* stream, cistern_bucketing bucketing,
                                   cistern_pool** out);

typedef struct cistern_pool_options {
  size_t struct_size;    /* Set by the caller. */
  uint32_t bucketing;    /* cistern_bucketing */
  int32_t zero_on_reuse; /* Not 0: recycled buffers read zero as well (CPU only). */
} cistern_pool_options;
/* The same over any allocator; `stream` is one of its device, null: its default stream. Null options: all 0.
 * Since 1.2. */
cistern_status cistern_pool_create_with(cistern_allocator* allocator, const cistern_stream* stream,
                                        const cistern_pool_options* options, cistern_pool** out);
/* Handles stay valid. Null is allowed. */
void cistern_pool_destroy(cistern_pool* pool);
cistern_status cistern_pool_alloc(cistern_pool* pool, size_t byte_len, cistern_dtype dtype, const int64_t* shape,
                                  size_t rank, cistern_tensor** out);

typedef struct cistern_tensor_request { /* Never grows. Since 1.2. */
  size_t byte_len;
  cistern_dtype dtype;
  uint32_t rank; /* At most 8. */
  const int64_t* shape;
} cistern_tensor_request;
/* All or nothing: `out` has room for `count` handles. Since 1.2. */
cistern_status cistern_pool_alloc_batch(cistern_pool* pool, const cistern_tensor_request* requests, size_t count,
                                        cistern_tensor** out);
/* A handle for memory that the pool does not recycle, which it keeps until clear or its end. `take_ownership` not 0:
 * the pool frees the buffer after that; otherwise its owner does, and until then is refused to. Since 1.2. */
cistern_status cistern_pool_register(cistern_pool* pool, cistern_buffer buffer, int take_ownership, cistern_dtype dtype,
                                     const int64_t* shape, size_t rank, cistern_tensor** out);
/* Gives the buffer back; the handle is ended, also on failure. */
cistern_status cistern_pool_release(cistern_pool* pool, cistern_tensor* tensor);
/* `fail_on_escape` non-zero: CISTERN_INVALID_ARGUMENT when handles are still held, nothing changed. */
cistern_status cistern_pool_reset(cistern_pool* pool, int fail_on_escape);
/* Gives all free buffers back to the allocator. Since 1.2. */
cistern_status cistern_pool_trim(cistern_pool* pool);
/* The same, and forgets all others: the pool is as new. */
cistern_status cistern_pool_clear(cistern_pool* pool);
/* Bytes of the bucket that serves a request. Since 1.2. */
cistern_status cistern_pool_bucket_bytes(const cistern_pool* pool, size_t byte_len, size_t* out);
/* The pool's device and the id of its stream; {0, 0} and 0 for null. Since 1.2. */
cistern_device cistern_pool_device(const cistern_pool* pool);
uint64_t cistern_pool_stream_id(const cistern_pool* pool);
/* Looks for broken rules: CISTERN_INTERNAL_ERROR, one a line in cistern_last_error(). For tests: slow. Since 1.2. */
cistern_status cistern_pool_check(const cistern_pool* pool);

typedef struct cistern_pool_counts {
  size_t struct_size; /* Set by the caller. */
  uint64_t free_count, free_bytes, in_use_count, in_use_bytes, escaped_count, total_count, total_bytes;
  uint64_t registered_count, registered_bytes; /* Counted apart from the others. Since 1.2. */
} cistern_pool_counts;
cistern_status cistern_pool_get_counts(cistern_pool* pool, cistern_pool_counts* out);

/* Drops the handle. Null is allowed. */
void cistern_tensor_drop(cistern_tensor* tensor);
cistern_status cistern_tensor_share(const cistern_tensor* tensor, cistern_tensor** out);
cistern_buffer cistern_tensor_buffer(const cistern_tensor* tensor);
size_t cistern_tensor_byte_offset(const cistern_tensor* tensor);
size_t cistern_tensor_byte_len(const cistern_tensor* tensor);
cistern_dtype cistern_tensor_dtype(const cistern_tensor* tensor);
/* Writes up to `capacity` extents and returns the rank. */
size_t cistern_tensor_shape(const cistern_tensor* tensor, int64_t* extents, size_t capacity);
cistern_status cistern_tensor_data(const cistern_tensor* tensor, void** out);

/* Since 1.2. Of null: 0. */
size_t cistern_tensor_element_count(const cistern_tensor* tensor);
/* Whether the handle is a part (or another reading) of a buffer; such handles cannot be released to the pool. */
int cistern_tensor_is_view(const cistern_tensor* tensor);
/* Handles of the same memory, this one included. Other threads may change it at once. */
size_t cistern_tensor_use_count(const cistern_tensor* tensor);
int cistern_tensor_shares_memory(const cistern_tensor* a, const cistern_tensor* b);
/* Writes "f32[40, 128], 20480 bytes". */
size_t cistern_tensor_text(const cistern_tensor* tensor, char* text, size_t capacity);
/* Views keep the memory alive. CISTERN_INVALID_ARGUMENT when they do not lie within the handle's bytes.
 * slice: `elements` of the same type from `byte_offset` on; reshape: the same bytes in another shape. */
cistern_status cistern_tensor_slice(const cistern_tensor* tensor, size_t byte_offset, size_t elements,
                                    cistern_tensor** out);
cistern_status cistern_tensor_view(const cistern_tensor* tensor, size_t byte_offset, cistern_dtype dtype,
                                   const int64_t* shape, size_t rank, cistern_tensor** out);
cistern_status cistern_tensor_reshape(const cistern_tensor* tensor, const int64_t* shape, size_t rank,
                                      cistern_tensor** out);
/* Says that work on `stream` uses the memory: it goes back to the allocator instead of being recycled. */
cistern_status cistern_tensor_record_use(const cistern_tensor* tensor, const cistern_stream* stream);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* CISTERN_C_H */
