/* The C interface from C: allocators by handle, texts, tags, options, and what out of memory says. */
#include <stdint.h>
#include <stdlib.h>

#include "check.h"

static const cistern_device cpu = {CISTERN_CPU, 0};

static void texts(void) {
  char text[16];
  const cistern_device second = {CISTERN_MODEL, 1}, unknown = {9, 0};
  CHECK(cistern_c_version() == ((uint32_t)CISTERN_C_VERSION_MAJOR << 16 | CISTERN_C_VERSION_MINOR));
  CHECK(cistern_device_text(second, text, sizeof text) == 7 && strcmp(text, "model:1") == 0);
  CHECK(cistern_device_text(second, text, 4) == 7 && strcmp(text, "mod") == 0);
  CHECK(cistern_device_text(second, NULL, 0) == 7);
  CHECK(cistern_device_text(unknown, text, sizeof text) == 0 && strcmp(text, "") == 0);
}

static void allocator_of(cistern_allocator* allocator, cistern_stream* stream, int cached) {
  cistern_buffer buffer = {0}, found = {0}, nothing = {0};
  size_t size = 0;
  void* at = NULL;
  CHECK(cistern_allocator_device(allocator).type == CISTERN_CPU);
  OK(cistern_allocator_malloc(allocator, 100000, &buffer));
  OK(cistern_allocator_size(allocator, buffer, &size));
  CHECK(size >= 100000 && size == cistern_buffer_size(buffer));
  OK(cistern_buffer_raw_ptr(buffer, &at));
  CHECK((uintptr_t)at % 64 == 0);
  memset(at, 1, size);
  OK(cistern_allocator_find(allocator, at, &found));
  CHECK(found.block == buffer.block && found.serial == buffer.serial);
  OK(cistern_allocator_find(allocator, (char*)at + 64, &found));
  CHECK(found.block == NULL);
  OK(cistern_allocator_record_use(allocator, buffer, stream));
  OK(cistern_allocator_free_raw(allocator, at));
  REFUSED(cistern_allocator_free(allocator, buffer), "");
  REFUSED(cistern_allocator_size(allocator, buffer, &size), "");
  REFUSED(cistern_allocator_free_raw(allocator, &size), "");
  OK(cistern_allocator_free_raw(allocator, NULL));
  OK(cistern_allocator_free(allocator, nothing));
  OK(cistern_allocator_malloc_on(allocator, 10, stream, &buffer));
  OK(cistern_allocator_free_on(allocator, buffer, stream));
  if (cached) {
    static _Alignas(64) char own[4096];
    OK(cistern_allocator_make_buffer(allocator, own, sizeof own, &buffer));
    CHECK(cistern_buffer_ptr(buffer) == own);
    REFUSED(cistern_allocator_free(allocator, buffer), "view");
    OK(cistern_allocator_release(allocator, buffer));
  }
  REFUSED(cistern_allocator_malloc(allocator, 1, NULL), "out is null");
  REFUSED(cistern_allocator_malloc_on(allocator, 1, NULL, &buffer), "stream is null");
}

static void allocators(void) {
  cistern_allocator *device = NULL, *staging = NULL, *plain = NULL;
  cistern_stream* stream = NULL;
  cistern_buffer buffer = {0};
  const cistern_device none = {CISTERN_CPU, 7};
  OK(cistern_stream_open(cpu, (void*)(intptr_t)5, &stream));
  CHECK(cistern_stream_native(stream) == (void*)(intptr_t)5);
  CHECK(cistern_stream_device(stream).type == CISTERN_CPU);
  CHECK(cistern_stream_native(NULL) == NULL && cistern_stream_id(NULL) == 0);
  OK(cistern_get_allocator(cpu, &device));
  OK(cistern_get_staging_allocator(cpu, &staging));
  OK(cistern_get_system_allocator(&plain));
  CHECK(device != plain);
  REFUSED(cistern_get_allocator(none, &device), "cpu:7");
  REFUSED(cistern_get_system_allocator(NULL), "out is null");
  allocator_of(device, stream, 1);
  allocator_of(staging, stream, 1);
  allocator_of(plain, stream, 1);
  /* Each frees only its own. */
  OK(cistern_allocator_malloc(plain, 100, &buffer));
  REFUSED(cistern_allocator_free(device, buffer), "another allocator");
  OK(cistern_allocator_free(plain, buffer));
  REFUSED(cistern_allocator_malloc(NULL, 100, &buffer), "allocator is null");
  cistern_stream_close(stream);
}

typedef struct seen_tags {
  int count, ordered;
  uint64_t last, weights, peak;
} seen_tags;

static void see_tag(const char* name, uint64_t active, uint64_t peak, void* context) {
  seen_tags* seen = context;
  if (seen->count++ > 0 && active > seen->last) seen->ordered = 0;
  seen->last = active;
  if (strcmp(name, "c-program/weights") == 0) {
    seen->weights = active;
    seen->peak = peak;
  }
}

static void tags(void) {
  cistern_buffer weights = {0}, scratch = {0};
  seen_tags seen = {0, 1, 0, 0, 0};
  OK(cistern_push_tag("c-program/scratch"));
  OK(cistern_malloc(cpu, 4096, &scratch));
  OK(cistern_push_tag("c-program/weights"));
  OK(cistern_malloc(cpu, 1 << 20, &weights));
  OK(cistern_pop_tag());
  OK(cistern_pop_tag());
  OK(cistern_visit_tags(cpu, see_tag, &seen));
  CHECK(seen.count >= 2 && seen.ordered);
  CHECK(seen.weights == 1 << 20 && seen.peak == 1 << 20);
  REFUSED(cistern_visit_tags(cpu, NULL, NULL), "visitor is null");
  OK(cistern_free(weights));
  OK(cistern_free(scratch));
}

static void options_and_limits(void) {
  uint32_t options = 99;
  uint64_t requested = 1, limit = 1;
  size_t previous = 0;
  cistern_buffer buffer = {0};
  cistern_last_out_of_memory(&requested, &limit);
  CHECK(requested == 0 && limit == 0);
  OK(cistern_set_memory_options(cpu, CISTERN_ZERO_ON_REUSE, NULL));
  OK(cistern_get_memory_options(cpu, &options));
  CHECK(options == CISTERN_ZERO_ON_REUSE);
  OK(cistern_set_memory_options(cpu, 0, NULL));
  REFUSED(cistern_get_memory_options(cpu, NULL), "out is null");
  OK(cistern_set_memory_limit(cpu, 8 << 20, &previous));
  CHECK(cistern_malloc(cpu, 16 << 20, &buffer) == CISTERN_OUT_OF_MEMORY);
  CHECK(buffer.block == NULL);
  cistern_last_out_of_memory(&requested, &limit);
  CHECK(requested == 16 << 20 && limit == 8 << 20);
  cistern_last_out_of_memory(NULL, NULL);
  OK(cistern_set_memory_limit(cpu, previous, NULL));
}

int main(void) {
  texts();
  options_and_limits();
  allocators();
  tags();
  return report();
}
