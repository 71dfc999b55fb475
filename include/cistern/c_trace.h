/* C interface to traces (cistern/trace.hpp): recording what a program allocates, reading, writing and making traces.
 * Part of the library cistern_trace, not of cistern. Plain C99; rules of versions, errors and threads as in c.h: faults
 * of files are CISTERN_FILE_ERROR with the text "FILE:LINE: found ..., expected ...". A trace never changes once made;
 * a recorder may be used by any number of threads, and is ended by one while no other uses it. Since 1.2. */
#ifndef CISTERN_C_TRACE_H
#define CISTERN_C_TRACE_H

#include "cistern/c.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --- Recording: an event at a time into a csv file (docs/trace-format.md). */

typedef struct cistern_recorder cistern_recorder;

/* Creates the file, "run.csv" or "run.csv.gz", and starts; another ending is CISTERN_FILE_ERROR. */
cistern_status cistern_recorder_start(const char* path, cistern_recorder** out);
/* `key` names the allocation until it is freed: an address, or any number that is not in use. `stream`: any number that
 * tells streams apart, 0 for the default. Never fails: the first fault is kept for flush and stop. A key in use is
 * taken as freed unseen, a free of an unknown key left out; both are counted as missed. Nothing happens for a null
 * recorder. */
void cistern_recorder_allocated(cistern_recorder* recorder, uint64_t key, uint64_t bytes, uint64_t stream);
/* On the stream of the allocation, and on another. */
void cistern_recorder_freed(cistern_recorder* recorder, uint64_t key);
void cistern_recorder_freed_on(cistern_recorder* recorder, uint64_t key, uint64_t stream);
/* Events written so far; what was missed. 0 for null. */
uint64_t cistern_recorder_events(const cistern_recorder* recorder);
uint64_t cistern_recorder_missed(const cistern_recorder* recorder);
/* Hands what was recorded so far to the operating system. */
cistern_status cistern_recorder_flush(cistern_recorder* recorder);
/* Writes what is left and closes the file; later events are ignored. CISTERN_FILE_ERROR if any write failed, an event
 * was refused (TraceRecorder::close() says which are) or there was none: such a file is no trace. */
cistern_status cistern_recorder_stop(cistern_recorder* recorder);
/* Stops, if that was not done, and ends the handle. Null is allowed. */
void cistern_recorder_destroy(cistern_recorder* recorder);

/* --- Traces */

typedef struct cistern_trace cistern_trace; /* Ended by cistern_trace_destroy(). */

typedef struct cistern_trace_event { /* Never grows. */
  uint64_t size;                     /* A free carries the size of its allocation. */
  uint64_t time_us;                  /* Never smaller than that of the event before. */
  uint32_t id;                       /* 0, 1, 2, ... in the order of the allocations. */
  uint16_t stream;                   /* Number of the stream in the trace; 0 is the default stream. */
  uint8_t free;                      /* 0: an allocation; 1: a free. */
  uint8_t unused;
} cistern_trace_event;

typedef enum cistern_trace_format {
  CISTERN_TRACE_CSV = 0,            /* .csv, .csv.gz */
  CISTERN_TRACE_RMM_LOG = 1,        /* .rmm, .log, .rmm.csv, also with .gz */
  CISTERN_TRACE_TORCH_SNAPSHOT = 2, /* .pickle, .pkl, also with .gz */
  CISTERN_TRACE_PERFETTO_JSON = 3   /* .json, .json.gz; output only */
} cistern_trace_format;

typedef struct cistern_trace_read_options {
  size_t struct_size;   /* Set by the caller. */
  int32_t device;       /* Of a PyTorch snapshot; below 0: the only one that has events. */
  int32_t older_blocks; /* Not 0: of a snapshot, also the blocks that outlived its window. */
  uint64_t max_bytes;   /* After decompression, of a file read as a whole; 0: 4 GiB. */
  uint64_t max_memory;  /* Of the host, for the objects of a pickle; 0: 8 GiB. */
} cistern_trace_read_options;

typedef struct cistern_trace_write_options {
  size_t struct_size; /* Set by the caller. */
  int32_t format;     /* cistern_trace_format; below 0: by the file's name. */
  int32_t gzip_level; /* 1 to 9; 0: 6. Used when the file's name ends with ".gz". */
} cistern_trace_write_options;

/* Any known format, gzip-compressed or not. Null options: as they read a file by default. */
cistern_status cistern_trace_read(const char* path, const cistern_trace_read_options* options, cistern_trace** out);
/* Makes a trace of events, which are checked: ids count 0, 1, 2, ..., each is freed at most once and after its
 * allocation, times do not fall. The size of a free is not looked at. `streams`: what each stream is called, the first
 * being 0; null: their numbers. `name` may be null. */
cistern_status cistern_trace_create(const cistern_trace_event* events, size_t count, const uint64_t* streams,
                                    size_t stream_count, const char* name, cistern_trace** out);
/* The file appears whole or not at all. Null options: by the file's name. */
cistern_status cistern_trace_write(const char* path, const cistern_trace* trace,
                                   const cistern_trace_write_options* options);
/* The format that a file's name says; CISTERN_FILE_ERROR when it says none. */
cistern_status cistern_trace_format_of(const char* path, cistern_trace_format* out);
/* Null is allowed. */
void cistern_trace_destroy(cistern_trace* trace);

typedef struct cistern_trace_figures {
  size_t struct_size; /* Set by the caller. */
  uint64_t events, allocations, streams;
  uint64_t peak_live_bytes;                /* Largest sum of the sizes alive at one time. */
  uint64_t live_at_end, live_at_end_bytes; /* Never freed: how many, how much. */
  uint64_t duration_us;
  uint64_t failed_allocations;           /* That the source tells of; they are not events. */
  uint64_t older_blocks, left_out_bytes; /* Of a snapshot: older than its window; all through it, left out. */
} cistern_trace_figures;
cistern_status cistern_trace_get_figures(const cistern_trace* trace, cistern_trace_figures* out);
/* File name without folders and endings. Good as long as the trace; "" for null. */
const char* cistern_trace_name(const cistern_trace* trace);
/* Copies up to `count` events from number `first` on and returns how many. */
size_t cistern_trace_get_events(const cistern_trace* trace, size_t first, cistern_trace_event* events, size_t count);
/* What the source called a stream, as a number and as text ("0", "0x7f..."); what it called an allocation. */
cistern_status cistern_trace_stream(const cistern_trace* trace, size_t stream, uint64_t* out);
size_t cistern_trace_stream_text(const cistern_trace* trace, size_t stream, char* text, size_t capacity);
cistern_status cistern_trace_original_id(const cistern_trace* trace, uint32_t id, uint64_t* out);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* CISTERN_C_TRACE_H */
