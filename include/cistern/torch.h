/* What libcistern_torch exports for PyTorch and CuPy besides the C interface (c.h). Plain C99. All functions are
 * thread-safe. Units are bytes. The functions that PyTorch calls with C++ types (begin, end and release of a pool) are
 * not declared here: their addresses are handed over by name, see python/cistern/torch.py. */
#ifndef CISTERN_TORCH_H
#define CISTERN_TORCH_H

#include <stddef.h>
#include <stdint.h>

#include "cistern/c.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --- torch.cuda.memory.CUDAPluggableAllocator. `stream` is a cudaStream_t. On failure a C++ exception is thrown, never
 * a null pointer returned: that of the out-of-memory handler, else one derived from std::exception. */
void* cistern_torch_alloc(ptrdiff_t size, int device, void* stream);
/* Reports misuse on stderr, since PyTorch frees in destructors. Null is allowed. `size` is what was asked for: with
 * another one the figure `requested` is off until no buffer of the kind is left; more than the capacity is misuse.
 * `stream` is not looked at: the memory is in the order of the stream that it was allocated on. */
void cistern_torch_free(void* ptr, ptrdiff_t size, int device, void* stream);
void cistern_torch_init(int device_count);
/* torch.cuda.empty_cache() */
void cistern_torch_reset(void);
/* The memory limit becomes a part of the device's memory. Throws, as cistern_torch_alloc() does, for a fraction that is
 * not 0 to 1 and for a device that is not there. */
void cistern_torch_memory_fraction(double fraction, int device);
/* The start of the live buffer that `ptr` lies in, and its capacity; `ptr` itself and 0 when it lies in none. Slow for
 * an address that is not the start: looks at a map of all memory. Where the device's own pool has the memory
 * (CISTERN_CUDA_MEMORY=pool), only starts are found. `size` may be null. */
void* cistern_torch_base_allocation(void* ptr, size_t* size);
/* Work on `stream` uses the buffer that starts at `ptr`: its memory is not reused before that work is done. Nothing
 * happens for another address. Throws as cistern_torch_alloc() does for what is no stream of the device. */
void cistern_torch_record_stream(void* ptr, void* stream);
/* Says that a stream's owner is about to destroy it. To be called before the handle is gone, for every stream that
 * allocated, freed or was recorded. Nothing happens for one that did not, and for null. CISTERN_INVALID_ARGUMENT for a
 * device that is not there. Since 1.2. */
cistern_status cistern_torch_stream_destroyed(int device, void* stream);

/* Each begin of a pool has a number, unique in the life of the process. That of the calling thread's newest begin,
 * whether or not it was ended; 0 when there was none. Since 1.2. */
uint64_t cistern_torch_newest_begin(void);
/* Ends and gives up the pool that was opened by the begin of this number, if that was not ended: a capture that failed.
 * Other pools stay as they are. Returns 1 when there was something to give up, else 0. Since 1.2. */
int cistern_torch_abort_begin(uint64_t number);
/* The same for all pools that the calling thread opened on the device and never closed. Returns their number. */
int cistern_torch_abort_pools(int device);

/* Called when memory is out; throws what the framework expects. `text` is the whole message. Null ends it. */
typedef void (*cistern_torch_out_of_memory)(const char* text);
void cistern_torch_set_out_of_memory_handler(cistern_torch_out_of_memory handler);

/* The same as cistern_torch_alloc() for callers that know no exceptions: null on failure, and cistern_last_error() says
 * why. */
void* cistern_torch_try_alloc(ptrdiff_t size, int device, void* stream);

/* --- Figures. Index 0: blocks of at most 1 MiB (capacity); 1: larger ones. */
typedef struct cistern_torch_figure {
  int64_t current, peak, allocated; /* `allocated`: the sum of all that was added. */
} cistern_torch_figure;

typedef struct cistern_torch_figures {
  size_t struct_size; /* Set by the caller. */
  cistern_torch_figure count[2], requested[2], capacity[2];
  int64_t peak_count, peak_requested, peak_capacity; /* Of both together. */
  int64_t out_of_memory;                             /* Times. */
} cistern_torch_figures;

/* CISTERN_INVALID_ARGUMENT for a device that is not there. */
cistern_status cistern_torch_get_figures(int device, cistern_torch_figures* out);
cistern_status cistern_torch_reset_peaks(int device);
/* The sums of `allocated` and the count of failures start again. */
cistern_status cistern_torch_reset_accumulated(int device);

/* --- History: what was allocated and freed, the newest `capacity` events of all devices together. Another capacity
 * keeps the newest of those recorded before, unless `clear` is not 0. Capacity 0 ends the history and forgets it. */
cistern_status cistern_torch_record_history(size_t capacity, int clear);

/* --- Snapshot: a picture of the devices' memory that stays as it is until it is dropped. The arrays of a null snapshot
 * are null and of 0 elements; `count` may be null. */
typedef struct cistern_torch_snapshot cistern_torch_snapshot;

typedef struct cistern_torch_segment {
  uint64_t address, bytes, stream;
  uint64_t pool_first, pool_second; /* PyTorch's id of the pool; 0, 0 for ordinary memory. */
  uint64_t first_block, blocks;     /* In the array of blocks; they tile the segment. */
  int32_t device, unused;
} cistern_torch_segment;

typedef struct cistern_torch_block {
  uint64_t address, bytes;
  uint64_t requested; /* As asked for, where the history knows it; otherwise `bytes`. */
  int32_t live, unused;
} cistern_torch_block;

typedef enum cistern_torch_action {
  CISTERN_TORCH_ALLOC = 0,
  CISTERN_TORCH_FREE = 1,
  CISTERN_TORCH_OUT_OF_MEMORY = 2
} cistern_torch_action;

typedef struct cistern_torch_event {
  uint64_t address; /* Of an out-of-memory event: the device's free bytes. */
  uint64_t bytes, stream;
  int64_t time_us; /* Since 1970. */
  int32_t action, device;
} cistern_torch_event;

cistern_status cistern_torch_take_snapshot(cistern_torch_snapshot** out);
/* Null is allowed. */
void cistern_torch_drop_snapshot(cistern_torch_snapshot* snapshot);
const cistern_torch_segment* cistern_torch_segments(const cistern_torch_snapshot* snapshot, size_t* count);
const cistern_torch_block* cistern_torch_blocks(const cistern_torch_snapshot* snapshot, size_t* count);
const cistern_torch_event* cistern_torch_events(const cistern_torch_snapshot* snapshot, size_t* count);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* CISTERN_TORCH_H */
