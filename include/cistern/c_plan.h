/* C interface to the static planner (cistern/plan.hpp): buffers with lifetimes in, offsets out. Plain C99; rules of
 * versions, errors and threads as in c.h. A problem never changes once made: any number of threads may use it. Sizes,
 * offsets and alignments are bytes; times are in any unit that only grows. Since 1.2. */
#ifndef CISTERN_C_PLAN_H
#define CISTERN_C_PLAN_H

#include "cistern/c.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Stands for: no offset, no hint, no capacity, no deadline. */
#define CISTERN_PLAN_NONE (-1)

typedef struct cistern_plan_problem cistern_plan_problem; /* Ended by cistern_plan_destroy(). */

/* During [lower, upper) of buffer number `buffer`, its bytes [window_lower, window_upper) are not used and may hold
 * other buffers. Never grows. */
typedef struct cistern_plan_gap {
  size_t buffer;
  int64_t lower, upper;
  int64_t window_lower, window_upper;
} cistern_plan_gap;

/* A problem as arrays of `count` elements, one a buffer, live during [lower, upper). Copied by cistern_plan_create().
 */
typedef struct cistern_plan_arrays {
  size_t struct_size; /* Set by the caller. */
  size_t count;
  const int64_t *lower, *upper;
  const int64_t* size;      /* At least 1. */
  const int64_t* alignment; /* Offsets are multiples of it. Null: 1 for all. */
  const int64_t* offset;    /* Offsets that buffers must have, or CISTERN_PLAN_NONE. Null: none. */
  const int64_t* hint;      /* Offsets to try first, >= 0, or CISTERN_PLAN_NONE; never binding. Null: none. */
  const char* const* ids;   /* Names for messages and files. Null: none. */
  const cistern_plan_gap* gaps;
  size_t gap_count;
} cistern_plan_arrays;

/* One event of an allocation trace. Never grows. */
typedef struct cistern_plan_event {
  uint64_t id; /* May be used again after it was freed. */
  int64_t size;
  int32_t allocate; /* 0: free. */
  int32_t unused;
} cistern_plan_event;

/* The first makes no check: cistern_plan_check() does, and cistern_plan_solve(). The readers refuse what they cannot
 * read with "FILE:LINE: what was expected", as CISTERN_INVALID_ARGUMENT; so do the writers below with what they cannot
 * write. docs/planner.md has the format. */
cistern_status cistern_plan_create(const cistern_plan_arrays* arrays, cistern_plan_problem** out);
cistern_status cistern_plan_read_csv(const char* path, cistern_plan_problem** out);
/* `name` stands for the file in messages. */
cistern_status cistern_plan_parse_csv(const char* text, size_t length, const char* name, cistern_plan_problem** out);
/* Time is the index of the event; what is live at the end lives to the end; sizes of 0 are left out. */
cistern_status cistern_plan_from_events(const cistern_plan_event* events, size_t count, cistern_plan_problem** out);
/* Null is allowed. */
void cistern_plan_destroy(cistern_plan_problem* problem);

/* Buffers of a problem. 0 for null. */
size_t cistern_plan_count(const cistern_plan_problem* problem);

typedef struct cistern_plan_buffer {
  size_t struct_size; /* Set by the caller. */
  int64_t lower, upper, size, alignment;
  int64_t offset, hint; /* Or CISTERN_PLAN_NONE. */
  const char* id;       /* Good as long as the problem; null when it has no names. */
  size_t gap_count;
} cistern_plan_buffer;
cistern_status cistern_plan_get_buffer(const cistern_plan_problem* problem, size_t index, cistern_plan_buffer* out);
cistern_status cistern_plan_get_gap(const cistern_plan_problem* problem, size_t index, size_t gap,
                                    cistern_plan_gap* out);

/* The first fault of a problem, or of a plan for it (`offsets`: `count` of them): CISTERN_INVALID_ARGUMENT, the text
 * names the buffer, and its number is written to `buffer`, which may be null. CISTERN_OK: there is none. */
cistern_status cistern_plan_check(const cistern_plan_problem* problem, size_t* buffer);
cistern_status cistern_plan_validate(const cistern_plan_problem* problem, const int64_t* offsets, size_t count,
                                     int64_t capacity, size_t* buffer);
/* A bound that needs no search. */
cistern_status cistern_plan_lower_bound(const cistern_plan_problem* problem, int64_t* out);

typedef enum cistern_plan_status {
  CISTERN_PLAN_OPTIMAL = 0,    /* Valid, and no plan has a lower peak. */
  CISTERN_PLAN_FEASIBLE = 1,   /* Valid, within the capacity if one was asked; a lower peak was not excluded. */
  CISTERN_PLAN_INFEASIBLE = 2, /* Proven: nothing fits in the capacity. The offsets are a valid plan that needs more. */
  CISTERN_PLAN_TIMEOUT = 3     /* Undecided. The offsets are a valid plan that needs more than the capacity. */
} cistern_plan_status;
/* "optimal", ...; "" for another number. */
const char* cistern_plan_status_name(uint32_t status);

typedef struct cistern_plan_progress {
  size_t struct_size; /* Of this struct, as the library knows it. */
  double seconds;
  int64_t peak, lower_bound; /* Of the best plan so far; no plan has a lower peak. */
  uint64_t nodes;
} cistern_plan_progress;
/* Called by the thread that called cistern_plan_solve(). 0 stops the search. */
typedef int (*cistern_plan_progress_callback)(const cistern_plan_progress* progress, void* context);

typedef struct cistern_plan_options {
  size_t struct_size;   /* Set by the caller. */
  int64_t capacity;     /* Stop at the first plan that fits; CISTERN_PLAN_NONE: find the least peak. Not 0. */
  double deadline;      /* Seconds; below 0: 10, or no limit with a node_budget. */
  uint64_t node_budget; /* Work to stop after; 0: no limit. The answer does not depend on time then. */
  uint32_t threads;     /* 0: one for each processor. */
  uint64_t seed;
  cistern_plan_progress_callback progress; /* May be null. */
  void* context;
} cistern_plan_options;

typedef struct cistern_plan_result {
  size_t struct_size; /* Set by the caller. */
  uint32_t status;    /* cistern_plan_status */
  int64_t peak, lower_bound;
  double seconds;
  uint64_t nodes;
} cistern_plan_result;

/* Writes the defaults, up to struct_size. */
cistern_status cistern_plan_default_options(cistern_plan_options* out);
/* Writes `count` offsets, which must be the problem's number of buffers; always a valid plan. Null options: the
 * defaults. `result` may be null. */
cistern_status cistern_plan_solve(const cistern_plan_problem* problem, const cistern_plan_options* options,
                                  int64_t* offsets, size_t count, cistern_plan_result* result);

/* The problem with an `offset` column, as cistern_plan_read_csv() reads it back. */
cistern_status cistern_plan_write_csv(const char* path, const cistern_plan_problem* problem, const int64_t* offsets,
                                      size_t count);
/* A drawing: time to the right, offset upwards. `width`, `height`: pixels, 0 for 1600 and 900; `title` may be null. */
cistern_status cistern_plan_write_svg(const char* path, const cistern_plan_problem* problem, const int64_t* offsets,
                                      size_t count, int32_t width, int32_t height, const char* title);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* CISTERN_C_PLAN_H */
