/* The C interface from C: recording, reading, writing and making traces. */
#include "cistern/c_trace.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "check.h"

static void record(const char* path) {
  cistern_recorder* recorder = NULL;
  cistern_trace* trace = NULL;
  cistern_trace_figures figures = {sizeof figures, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
  cistern_trace_event events[8];
  char text[32];
  uint64_t number = 0;
  CHECK(cistern_recorder_start("/nowhere/at/all.csv", &recorder) == CISTERN_FILE_ERROR);
  CHECK(strstr(cistern_last_error(), "/nowhere/at/all.csv") != NULL && recorder == NULL);
  OK(cistern_recorder_start(path, &recorder));
  cistern_recorder_allocated(recorder, 0x1000, 4096, 0);
  cistern_recorder_allocated(recorder, 0x2000, 100, 0x70000000);
  cistern_recorder_freed(recorder, 0x1000);
  cistern_recorder_freed(recorder, 0x9999);
  OK(cistern_recorder_flush(recorder));
  cistern_recorder_freed_on(recorder, 0x2000, 0);
  cistern_recorder_allocated(recorder, 0x1000, 7, 0);
  CHECK(cistern_recorder_events(recorder) == 5 && cistern_recorder_missed(recorder) == 1);
  OK(cistern_recorder_stop(recorder));
  cistern_recorder_freed(recorder, 0x1000); /* Too late. */
  CHECK(cistern_recorder_events(recorder) == 5);
  OK(cistern_recorder_stop(recorder));
  cistern_recorder_destroy(recorder);
  cistern_recorder_destroy(NULL);
  cistern_recorder_allocated(NULL, 1, 1, 0);

  OK(cistern_trace_read(path, NULL, &trace));
  OK(cistern_trace_get_figures(trace, &figures));
  CHECK(figures.events == 5 && figures.allocations == 3 && figures.streams == 2);
  CHECK(figures.peak_live_bytes == 4196 && figures.live_at_end == 1 && figures.live_at_end_bytes == 7);
  CHECK(strcmp(cistern_trace_name(trace), "cistern_c_trace") == 0);
  CHECK(cistern_trace_get_events(trace, 3, events, 8) == 2);
  CHECK(events[0].free == 1 && events[0].id == 1 && events[0].size == 100 && events[0].stream == 0);
  CHECK(events[1].free == 0 && events[1].id == 2);
  CHECK(cistern_trace_get_events(trace, 5, events, 8) == 0);
  OK(cistern_trace_stream(trace, 1, &number));
  CHECK(number == 0x70000000);
  CHECK(cistern_trace_stream_text(trace, 1, text, sizeof text) > 0);
  REFUSED(cistern_trace_stream(trace, 2, &number), "stream 2");
  OK(cistern_trace_original_id(trace, 2, &number));
  CHECK(number == 2);
  REFUSED(cistern_trace_original_id(trace, 3, &number), "id 3");
  cistern_trace_destroy(trace);
}

static void make(const char* path) {
  const cistern_trace_event good[] = {{10, 0, 0, 0, 0, 0}, {20, 1, 1, 1, 0, 0}, {0, 2, 0, 1, 1, 0}};
  const cistern_trace_event twice[] = {{10, 0, 0, 0, 0, 0}, {10, 1, 0, 0, 1, 0}, {10, 2, 0, 0, 1, 0}};
  const cistern_trace_event early[] = {{10, 0, 0, 0, 1, 0}}, gap[] = {{10, 0, 5, 0, 0, 0}};
  const cistern_trace_event back[] = {{10, 5, 0, 0, 0, 0}, {10, 4, 1, 0, 0, 0}};
  const uint64_t streams[] = {0, 0xABC}, no_default[] = {3};
  cistern_trace_write_options options = {sizeof options, CISTERN_TRACE_RMM_LOG, 0};
  cistern_trace_event read[3];
  cistern_trace *trace = NULL, *again = NULL;
  cistern_trace_format format = CISTERN_TRACE_CSV;
  uint64_t number = 0;
  REFUSED(cistern_trace_create(twice, 3, NULL, 0, NULL, &trace), "second free");
  REFUSED(cistern_trace_create(early, 1, NULL, 0, NULL, &trace), "event 0");
  REFUSED(cistern_trace_create(gap, 1, NULL, 0, NULL, &trace), "expected 0");
  REFUSED(cistern_trace_create(back, 2, NULL, 0, NULL, &trace), "4 us");
  REFUSED(cistern_trace_create(NULL, 0, NULL, 0, NULL, &trace), "no event");
  REFUSED(cistern_trace_create(good, 3, streams, 1, NULL, &trace), "stream 1");
  REFUSED(cistern_trace_create(good, 3, no_default, 1, NULL, &trace), "first stream");
  OK(cistern_trace_create(good, 3, streams, 2, "mine", &trace));
  CHECK(strcmp(cistern_trace_name(trace), "mine") == 0);
  CHECK(cistern_trace_get_events(trace, 0, read, 3) == 3 && read[2].size == 10);
  OK(cistern_trace_write(path, trace, NULL));
  OK(cistern_trace_read(path, NULL, &again));
  CHECK(cistern_trace_get_events(again, 0, read, 3) == 3 && read[1].size == 20 && read[1].stream == 1);
  OK(cistern_trace_stream(again, 1, &number));
  CHECK(number == 0xABC);
  cistern_trace_destroy(again);
  OK(cistern_trace_write(path, trace, &options)); /* Whatever its name says. */
  again = NULL;
  OK(cistern_trace_read(path, NULL, &again));
  CHECK(cistern_trace_get_events(again, 0, read, 3) == 3);
  cistern_trace_destroy(again);
  options.format = 4;
  REFUSED(cistern_trace_write(path, trace, &options), "format 4");
  options.format = -1;
  options.gzip_level = 10;
  REFUSED(cistern_trace_write(path, trace, &options), "gzip_level 10");
  CHECK(cistern_trace_write("/nowhere/at/all.csv", trace, NULL) == CISTERN_FILE_ERROR);
  cistern_trace_destroy(trace);
  cistern_trace_destroy(NULL);
  OK(cistern_trace_format_of("a.pickle.gz", &format));
  CHECK(format == CISTERN_TRACE_TORCH_SNAPSHOT);
  CHECK(cistern_trace_format_of("a.txt", &format) == CISTERN_FILE_ERROR);
}

static void broken(const char* path) {
  cistern_trace* trace = NULL;
  FILE* file = fopen(path, "w");
  CHECK(file != NULL);
  if (file == NULL) return;
  fputs("what\n1,2,3\n", file);
  fclose(file);
  CHECK(cistern_trace_read(path, NULL, &trace) == CISTERN_FILE_ERROR);
  CHECK(strstr(cistern_last_error(), ":1: ") != NULL && trace == NULL);
  remove(path);
  CHECK(cistern_trace_read(path, NULL, &trace) == CISTERN_FILE_ERROR);
  REFUSED(cistern_trace_read(NULL, NULL, &trace), "path is null");
}

int main(void) {
  const char* folder = getenv("TMPDIR");
  char path[1024];
  snprintf(path, sizeof path, "%s/cistern_c_trace.csv", folder != NULL ? folder : "/tmp");
  record(path);
  make(path);
  broken(path);
  return report();
}
