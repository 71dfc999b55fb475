/* The C interface from C: the static planner. */
#include "cistern/c_plan.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "check.h"

static const int64_t lower[] = {0, 0, 2, 1}, upper[] = {2, 4, 4, 3}, size[] = {64, 32, 64, 16};
static const char* const ids[] = {"a", "b", "c", "d"};

static int stop_after(const cistern_plan_progress* progress, void* context) {
  int* calls = context;
  CHECK(progress->struct_size == sizeof *progress && progress->peak >= progress->lower_bound);
  return ++*calls < 1;
}

static cistern_plan_arrays arrays(void) {
  cistern_plan_arrays a = {sizeof a, 4, lower, upper, size, NULL, NULL, NULL, NULL, NULL, 0};
  return a;
}

static void solve(void) {
  cistern_plan_arrays given = arrays();
  cistern_plan_options options = {sizeof options, 0, 0, 0, 0, 0, NULL, NULL};
  cistern_plan_result result = {sizeof result, 9, 0, 0, 0, 0};
  cistern_plan_problem* problem = NULL;
  int64_t offsets[4] = {-1, -1, -1, -1}, bound = 0;
  size_t buffer = 99;
  int calls = 0;
  given.ids = ids;
  OK(cistern_plan_create(&given, &problem));
  CHECK(cistern_plan_count(problem) == 4 && cistern_plan_count(NULL) == 0);
  OK(cistern_plan_check(problem, &buffer));
  OK(cistern_plan_lower_bound(problem, &bound));
  CHECK(bound == 112);
  OK(cistern_plan_solve(problem, NULL, offsets, 4, &result));
  CHECK(result.status == CISTERN_PLAN_OPTIMAL && result.peak == result.lower_bound && result.peak >= bound);
  CHECK(strcmp(cistern_plan_status_name(result.status), "optimal") == 0);
  CHECK(strcmp(cistern_plan_status_name(77), "") == 0);
  OK(cistern_plan_validate(problem, offsets, 4, result.peak, &buffer));
  CHECK(buffer == 99);
  REFUSED(cistern_plan_validate(problem, offsets, 4, result.peak - 1, &buffer), "buffer '");
  CHECK(buffer < 4);
  REFUSED(cistern_plan_validate(problem, offsets, 3, CISTERN_PLAN_NONE, NULL), "3 offsets");
  REFUSED(cistern_plan_solve(problem, NULL, offsets, 5, NULL), "5 offsets");
  REFUSED(cistern_plan_solve(problem, NULL, NULL, 4, NULL), "offsets is null");

  OK(cistern_plan_default_options(&options));
  CHECK(options.capacity == CISTERN_PLAN_NONE && options.deadline < 0 && options.threads == 1);
  options.capacity = 100;
  OK(cistern_plan_solve(problem, &options, offsets, 4, &result));
  CHECK(result.status == CISTERN_PLAN_INFEASIBLE);
  options.capacity = 112;
  options.progress = stop_after;
  options.context = &calls;
  OK(cistern_plan_solve(problem, &options, offsets, 4, NULL));
  CHECK(calls > 0);
  options.capacity = -5;
  REFUSED(cistern_plan_solve(problem, &options, offsets, 4, NULL), "capacity");
  result.struct_size = 0;
  REFUSED(cistern_plan_solve(problem, NULL, offsets, 4, &result), "struct_size");
  /* Shorter than it has ever been. */
  result.struct_size = sizeof result - 1;
  result.peak = 42;
  REFUSED(cistern_plan_solve(problem, NULL, offsets, 4, &result), "expected sizeof the struct, 48");
  CHECK(result.peak == 42);
  memset(&options, 0, sizeof options);
  REFUSED(cistern_plan_solve(problem, &options, offsets, 4, NULL), "struct_size 0");
  options.struct_size = 8;
  REFUSED(cistern_plan_solve(problem, &options, offsets, 4, NULL), "struct_size 8");
  REFUSED(cistern_plan_default_options(&options), "struct_size 8");
  options.struct_size = sizeof options;
  REFUSED(cistern_plan_solve(problem, &options, offsets, 4, NULL), "capacity 0");
  cistern_plan_destroy(problem);
  cistern_plan_destroy(NULL);
}

static void demands(void) {
  const int64_t alignment[] = {1, 48, 1, 1}, offset[] = {-1, -1, 96, -1}, hint[] = {-1, 0, -1, -1};
  const cistern_plan_gap gaps[] = {{1, 1, 3, 0, 16}}, stray[] = {{4, 1, 3, 0, 16}};
  cistern_plan_arrays given = arrays();
  cistern_plan_buffer shown = {sizeof shown, 0, 0, 0, 0, 0, 0, NULL, 0};
  cistern_plan_gap gap = {0, 0, 0, 0, 0};
  cistern_plan_problem* problem = NULL;
  int64_t offsets[4];
  given.alignment = alignment;
  given.offset = offset;
  given.hint = hint;
  given.gaps = stray;
  given.gap_count = 1;
  REFUSED(cistern_plan_create(&given, &problem), "buffer 4");
  given.gaps = gaps;
  OK(cistern_plan_create(&given, &problem));
  OK(cistern_plan_get_buffer(problem, 1, &shown));
  CHECK(shown.alignment == 48 && shown.offset == CISTERN_PLAN_NONE && shown.hint == 0 && shown.gap_count == 1);
  CHECK(shown.id == NULL);
  OK(cistern_plan_get_gap(problem, 1, 0, &gap));
  CHECK(gap.buffer == 1 && gap.upper == 3 && gap.window_upper == 16);
  REFUSED(cistern_plan_get_gap(problem, 1, 1, &gap), "gap 1");
  REFUSED(cistern_plan_get_buffer(problem, 4, &shown), "buffer 4");
  OK(cistern_plan_solve(problem, NULL, offsets, 4, NULL));
  CHECK(offsets[1] % 48 == 0 && offsets[2] == 96);
  OK(cistern_plan_validate(problem, offsets, 4, CISTERN_PLAN_NONE, NULL));
  cistern_plan_destroy(problem);
}

static void faults(void) {
  const int64_t ends[] = {2, 0, 4, 3};
  cistern_plan_arrays given = arrays();
  cistern_plan_problem* problem = NULL;
  size_t buffer = 99;
  REFUSED(cistern_plan_create(NULL, &problem), "arrays is null");
  given.size = NULL;
  REFUSED(cistern_plan_create(&given, &problem), "size is null");
  given = arrays();
  given.upper = ends;
  OK(cistern_plan_create(&given, &problem));
  REFUSED(cistern_plan_check(problem, &buffer), "buffer 1");
  CHECK(buffer == 1);
  cistern_plan_destroy(problem);
}

static void files(const char* folder) {
  const char csv[] = "id,lower,upper,size\nx,0,2,8\ny,1,3,8\n";
  const cistern_plan_event events[] = {{7, 100, 1, 0}, {8, 50, 1, 0}, {7, 0, 0, 0}};
  const int64_t offsets[] = {0, 8};
  cistern_plan_problem *problem = NULL, *again = NULL;
  cistern_plan_buffer shown = {sizeof shown, 0, 0, 0, 0, 0, 0, NULL, 0};
  char path[1024], drawing[1024];
  snprintf(path, sizeof path, "%s/cistern_c_plan.csv", folder);
  snprintf(drawing, sizeof drawing, "%s/cistern_c_plan.svg", folder);
  REFUSED(cistern_plan_parse_csv("id,lower\n", 9, "mine", &problem), "mine:1");
  OK(cistern_plan_parse_csv(csv, sizeof csv - 1, NULL, &problem));
  REFUSED(cistern_plan_write_csv(path, problem, offsets, 1), "1 offsets");
  OK(cistern_plan_write_csv(path, problem, offsets, 2));
  OK(cistern_plan_read_csv(path, &again));
  OK(cistern_plan_get_buffer(again, 1, &shown));
  CHECK(strcmp(shown.id, "y") == 0 && shown.offset == 8);
  OK(cistern_plan_write_svg(drawing, problem, offsets, 2, 0, 0, "two buffers"));
  remove(path);
  CHECK(remove(drawing) == 0);
  REFUSED(cistern_plan_read_csv(path, &again), "cistern_c_plan.csv");
  cistern_plan_destroy(problem);
  cistern_plan_destroy(again);
  OK(cistern_plan_from_events(events, 3, &problem));
  OK(cistern_plan_get_buffer(problem, 1, &shown));
  CHECK(cistern_plan_count(problem) == 2 && shown.size == 50 && shown.upper == 3);
  cistern_plan_destroy(problem);
  REFUSED(cistern_plan_from_events(events + 2, 1, &problem), "");
  REFUSED(cistern_plan_from_events(events, SIZE_MAX, &problem), "no memory holds");
  REFUSED(cistern_plan_from_events(events, SIZE_MAX / 200, &problem), "no memory holds");
}

int main(void) {
  const char* folder = getenv("TMPDIR");
  solve();
  demands();
  faults();
  files(folder != NULL ? folder : "/tmp");
  return report();
}
