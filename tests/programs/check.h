/* What the C programs of this folder check with: CHECK(condition) and OK(call) print the place and the library's last
 * error, and go on; report() is the exit status. One thread. */
#ifndef CISTERN_TESTS_CHECK_H
#define CISTERN_TESTS_CHECK_H

#include <stdio.h>
#include <string.h>

#include "cistern/c.h"

static int failures;

static void check(int good, const char* text, int line) {
  if (good) return;
  ++failures;
  fprintf(stderr, "line %d: %s (last error: \"%s\")\n", line, text, cistern_last_error());
}

static int report(void) { return failures == 0 ? 0 : 1; }

#define CHECK(condition) check((condition) != 0, #condition, __LINE__)
#define OK(call) check((call) == CISTERN_OK, #call, __LINE__)
/* The call is refused, and the text says so with this word. */
#define REFUSED(call, word) \
  check((call) == CISTERN_INVALID_ARGUMENT && strstr(cistern_last_error(), word) != NULL, #call, __LINE__)

#endif
