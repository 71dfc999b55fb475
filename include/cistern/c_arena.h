/* C interface to the planned arena (cistern/planned_arena.hpp): memory of a loop that repeats itself. Plain C99; rules
 * of versions, errors and threads as in c.h. An arena is used by one thread at a time; its handles are those of the
 * pool, which any thread may share and drop, also after the arena's end. Since 1.2. */
#ifndef CISTERN_C_ARENA_H
#define CISTERN_C_ARENA_H

#include "cistern/c.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cistern_arena cistern_arena;

typedef struct cistern_arena_options {
  size_t struct_size;     /* Set by the caller. */
  uint32_t record_cycles; /* Cycles alike that are recorded before they are planned. */
  uint32_t replan_after;  /* Cycles with departures, one after the other, after which the loop is planned anew. */
  uint32_t max_shapes;    /* Shapes of cycle that are kept. */
  int32_t background;     /* Not 0: plan on a thread of its own; otherwise within cistern_arena_end_cycle(). */
  double plan_seconds;    /* Time for one plan. */
  uint32_t bucketing;     /* cistern_bucketing of the pool for requests outside the plan. */
} cistern_arena_options;

typedef struct cistern_arena_figures {
  size_t struct_size; /* Set by the caller. */
  uint64_t cycles;
  uint64_t from_slab, from_pool;    /* Buffers: served by a plan; by the pool. */
  uint64_t other_size, longer_life; /* Departures: another request than planned; planned bytes still in use. */
  uint64_t recorded, plans, failed_plans, switches;
  uint64_t shapes; /* Planned and in service. */
  uint64_t slab_bytes, pool_bytes;
  uint64_t held;                        /* Buffers known to have outlived their plan or cycle. */
  uint64_t last_peak, last_lower_bound; /* Bytes, of the plan put in service last. */
} cistern_arena_figures;

/* One request of a cycle that is known beforehand. Time is the number of requests made before. Never grows. */
typedef struct cistern_arena_life {
  size_t byte_len;
  size_t dead_at; /* First request that may have its bytes; the number of requests: lives to the end. */
} cistern_arena_life;

/* Writes the defaults, up to struct_size. */
cistern_status cistern_arena_default_options(cistern_arena_options* out);
/* `stream` is one of the allocator's device; null: its default stream. Null options: the defaults. */
cistern_status cistern_arena_create(cistern_allocator* allocator, const cistern_stream* stream,
                                    const cistern_arena_options* options, cistern_arena** out);
/* Handles stay valid. Null is allowed. */
void cistern_arena_destroy(cistern_arena* arena);

/* Content is undefined. The handle is dropped with cistern_tensor_drop(), or released. */
cistern_status cistern_arena_alloc(cistern_arena* arena, size_t byte_len, cistern_dtype dtype, const int64_t* shape,
                                   size_t rank, cistern_tensor** out);
/* Dropping with checks: CISTERN_INVALID_ARGUMENT for a view, a buffer of another arena, one that was released before
 * through another handle. The handle is ended, also on failure. */
cistern_status cistern_arena_release(cistern_arena* arena, cistern_tensor* tensor);
/* Ends a cycle; puts plans in service that are ready. Nothing happens when nothing was asked for since the last call.
 */
cistern_status cistern_arena_end_cycle(cistern_arena* arena);
/* Waits for the plan being made, if any, and puts it in service. Not in the middle of a cycle. */
cistern_status cistern_arena_finish_planning(cistern_arena* arena);
/* Plans a cycle that is known beforehand, now. Not in the middle of a cycle. */
cistern_status cistern_arena_learn(cistern_arena* arena, const cistern_arena_life* cycle, size_t count);
/* Forgets all plans and gives all memory back that no handle refers to. */
cistern_status cistern_arena_clear(cistern_arena* arena);

cistern_status cistern_arena_get_figures(const cistern_arena* arena, cistern_arena_figures* out);
cistern_status cistern_arena_get_options(const cistern_arena* arena, cistern_arena_options* out);
/* {0, 0} and 0 for null. */
cistern_device cistern_arena_device(const cistern_arena* arena);
uint64_t cistern_arena_stream_id(const cistern_arena* arena);
/* Looks for broken rules: CISTERN_INTERNAL_ERROR, one a line in cistern_last_error(). For tests: slow. */
cistern_status cistern_arena_check(const cistern_arena* arena);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* CISTERN_C_ARENA_H */
