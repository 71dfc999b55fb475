/* The C interface from C: the arena pool, its handles, and the planned arena. */
#include <stdint.h>

#include "check.h"
#include "cistern/c_arena.h"

static const cistern_device cpu = {CISTERN_CPU, 0};
static const cistern_dtype f32 = {2, 32, 1};

static void data_types(void) {
  cistern_dtype read = {0, 0, 0};
  const cistern_dtype none = {77, 3, 1};
  OK(cistern_parse_dtype("bfloat16", &read));
  CHECK(strcmp(cistern_dtype_name(read), "bf16") == 0);
  CHECK(cistern_dtype_size(read) == 2);
  REFUSED(cistern_parse_dtype("f31", &read), "f31");
  CHECK(strcmp(cistern_dtype_name(none), "") == 0 && cistern_dtype_size(none) == 0);
}

/* A tensor's buffer ends with its keeper alone, by whatever way somebody tries. */
static void refused_ends(cistern_allocator* allocator, const cistern_tensor* tensor, const char* keeper) {
  const cistern_buffer buffer = cistern_tensor_buffer(tensor);
  REFUSED(cistern_free(buffer), keeper);
  REFUSED(cistern_allocator_free(allocator, buffer), keeper);
  REFUSED(cistern_allocator_free_raw(allocator, cistern_buffer_ptr(buffer)), keeper);
  CHECK(cistern_buffer_live(buffer));
}

static void pool_over(cistern_allocator* allocator) {
  const int64_t shape[] = {4, 8}, flat[] = {32}, wide[] = {5, 8};
  const cistern_tensor_request good[] = {{128, f32, 2, shape}, {128, f32, 1, flat}};
  const cistern_tensor_request bad[] = {{128, f32, 2, shape}, {100, f32, 1, flat}};
  cistern_pool_options options = {sizeof options, CISTERN_EXACT, 1};
  cistern_pool_options wrong = {sizeof wrong, 3, 0};
  cistern_pool_options unsized = {0, CISTERN_EXACT, 0}, cut = {8, CISTERN_EXACT, 0};
  cistern_pool_counts counts = {sizeof counts, 0, 0, 0, 0, 0, 0, 0, 0, 0};
  cistern_tensor *both[2] = {NULL, NULL}, *part = NULL, *other = NULL, *kept = NULL;
  cistern_buffer weights = {0};
  cistern_pool* pool = NULL;
  cistern_stream* stream = NULL;
  char text[64];
  size_t bytes = 0;
  void *whole_at = NULL, *part_at = NULL;
  REFUSED(cistern_pool_create_with(NULL, NULL, NULL, &pool), "allocator is null");
  REFUSED(cistern_pool_create_with(allocator, NULL, &wrong, &pool), "bucketing 3");
  REFUSED(cistern_pool_create(cistern_pool_device(NULL), NULL, (cistern_bucketing)77, &pool), "bucketing 77");
  REFUSED(cistern_pool_create_with(allocator, NULL, &unsized, &pool), "struct_size 0");
  REFUSED(cistern_pool_create_with(allocator, NULL, &cut, &pool), "struct_size 8: expected sizeof the struct, 16");
  OK(cistern_pool_create_with(allocator, NULL, &options, &pool));
  CHECK(cistern_pool_device(pool).type == CISTERN_CPU && cistern_pool_stream_id(NULL) == 0);
  OK(cistern_pool_bucket_bytes(pool, 100, &bytes));
  CHECK(bytes >= 100 && bytes <= 128); /* Exact, up to the alignment. */
  REFUSED(cistern_pool_alloc_batch(pool, bad, 2, both), "100");
  CHECK(both[0] == NULL);
  OK(cistern_pool_get_counts(pool, &counts));
  CHECK(counts.in_use_count == 0);
  OK(cistern_pool_alloc_batch(pool, NULL, 0, NULL));
  OK(cistern_pool_alloc_batch(pool, good, 2, both));
  CHECK(cistern_tensor_element_count(both[0]) == 32 && cistern_tensor_use_count(both[0]) == 1);
  CHECK(cistern_tensor_text(both[0], text, sizeof text) > 0 && strcmp(text, "f32[4, 8], 128 bytes") == 0);

  OK(cistern_tensor_slice(both[0], 64, 16, &part));
  CHECK(cistern_tensor_is_view(part) && !cistern_tensor_is_view(both[0]));
  CHECK(cistern_tensor_shares_memory(part, both[0]) && !cistern_tensor_shares_memory(part, both[1]));
  CHECK(cistern_tensor_use_count(both[0]) == 2);
  OK(cistern_tensor_data(both[0], &whole_at));
  OK(cistern_tensor_data(part, &part_at));
  CHECK((char*)part_at == (char*)whole_at + 64);
  REFUSED(cistern_tensor_slice(both[0], 64, 17, &other), "does not lie within");
  OK(cistern_tensor_view(both[0], 0, (cistern_dtype){1, 8, 1}, flat, 1, &other));
  CHECK(cistern_tensor_byte_len(other) == 32 && cistern_tensor_dtype(other).bits == 8);
  cistern_tensor_drop(other);
  REFUSED(cistern_tensor_reshape(both[0], wide, 2, &other), "reshape");
  OK(cistern_tensor_reshape(both[0], flat, 1, &other));
  CHECK(cistern_tensor_shape(other, NULL, 0) == 1);
  CHECK(cistern_tensor_shape(other, NULL, 8) == 1);
  cistern_tensor_drop(other);
  cistern_tensor_drop(part);
  OK(cistern_stream_open(cpu, (void*)(intptr_t)3, &stream));
  OK(cistern_tensor_record_use(both[1], stream));
  REFUSED(cistern_tensor_record_use(both[1], NULL), "stream is null");
  cistern_stream_close(stream);
  OK(cistern_pool_check(pool));
  refused_ends(allocator, both[0], "BufferPool's own");
  OK(cistern_pool_release(pool, both[0]));
  OK(cistern_pool_release(pool, both[1]));

  OK(cistern_allocator_malloc(allocator, 160, &weights));
  REFUSED(cistern_pool_register(pool, weights, 1, f32, (const int64_t[]){9999}, 1, &kept), "needs 39996");
  CHECK(cistern_buffer_live(weights)); /* A refusal takes nothing. */
  OK(cistern_pool_register(pool, weights, 1, f32, wide, 2, &kept));
  OK(cistern_pool_get_counts(pool, &counts));
  CHECK(counts.registered_count == 1 && counts.registered_bytes >= 160);
  refused_ends(allocator, kept, "registered with a BufferPool");
  REFUSED(cistern_pool_register(pool, weights, 1, f32, wide, 2, &other), "registered with a BufferPool");
  REFUSED(cistern_pool_register(pool, weights, 0, f32, wide, 2, &other), "registered with a BufferPool");
  cistern_tensor_drop(kept);
  OK(cistern_pool_trim(pool));
  OK(cistern_pool_get_counts(pool, &counts));
  CHECK(counts.free_count == 0);
  OK(cistern_pool_clear(pool));
  CHECK(!cistern_buffer_live(weights));
  cistern_pool_destroy(pool);
}

static void cycle(cistern_arena* arena, const size_t* lengths, size_t count) {
  size_t i;
  for (i = 0; i < count; ++i) {
    const int64_t shape[] = {(int64_t)lengths[i]};
    cistern_tensor* tensor = NULL;
    void* at = NULL;
    OK(cistern_arena_alloc(arena, lengths[i], (cistern_dtype){1, 8, 1}, shape, 1, &tensor));
    OK(cistern_tensor_data(tensor, &at));
    memset(at, (int)i, lengths[i]);
    cistern_tensor_drop(tensor);
  }
  OK(cistern_arena_end_cycle(arena));
}

static void planned_arena(cistern_allocator* allocator) {
  const size_t lengths[] = {4096, 100, 65536, 4096};
  const cistern_arena_life lives[] = {{4096, 1}, {100, 2}, {65536, 3}, {4096, 4}};
  const cistern_arena_life backwards[] = {{4096, 0}};
  const int64_t shape[] = {4};
  cistern_arena_options options = {sizeof options, 0, 0, 0, 0, 0, 0};
  cistern_arena_figures figures = {sizeof figures, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
  cistern_arena* arena = NULL;
  cistern_tensor *tensor = NULL, *view = NULL;
  OK(cistern_arena_default_options(&options));
  CHECK(options.record_cycles == 2 && options.background == 1 && options.plan_seconds == 0.25);
  options.background = 0;
  options.record_cycles = 0;
  REFUSED(cistern_arena_create(allocator, NULL, &options, &arena), "record_cycles");
  options.record_cycles = 2;
  REFUSED(cistern_arena_create(NULL, NULL, &options, &arena), "allocator is null");
  OK(cistern_arena_create(allocator, NULL, &options, &arena));
  CHECK(cistern_arena_device(arena).type == CISTERN_CPU);
  CHECK(cistern_arena_stream_id(NULL) == 0);
  OK(cistern_arena_get_options(arena, &options));
  CHECK(options.background == 0);
  cycle(arena, lengths, 4);
  cycle(arena, lengths, 4);
  OK(cistern_arena_finish_planning(arena));
  cycle(arena, lengths, 4);
  OK(cistern_arena_get_figures(arena, &figures));
  CHECK(figures.cycles == 3 && figures.plans == 1 && figures.from_slab == 4 && figures.from_pool == 8);
  CHECK(figures.last_peak >= figures.last_lower_bound && figures.last_lower_bound >= 65536);
  OK(cistern_arena_check(arena));
  OK(cistern_arena_clear(arena));

  /* A cycle that is known beforehand; the first pass has its plan. */
  OK(cistern_arena_learn(arena, lives, 4));
  REFUSED(cistern_arena_learn(arena, backwards, 1), "");
  OK(cistern_arena_get_figures(arena, &figures));
  {
    const uint64_t before = figures.from_slab;
    cycle(arena, lengths, 4);
    OK(cistern_arena_get_figures(arena, &figures));
    CHECK(figures.from_slab == before + 4);
  }
  OK(cistern_arena_alloc(arena, 16, f32, shape, 1, &tensor));
  REFUSED(cistern_arena_finish_planning(arena), "cycle");
  REFUSED(cistern_arena_alloc(arena, 17, f32, shape, 1, &view), "17");
  OK(cistern_tensor_slice(tensor, 0, 1, &view));
  REFUSED(cistern_arena_release(arena, view), "view");
  OK(cistern_arena_release(arena, tensor));
  cistern_arena_destroy(arena);
  cistern_arena_destroy(NULL);
}

int main(void) {
  cistern_allocator *device = NULL, *plain = NULL;
  OK(cistern_get_allocator(cpu, &device));
  OK(cistern_get_system_allocator(&plain));
  data_types();
  pool_over(device);
  pool_over(plain);
  planned_arena(device);
  planned_arena(plain);
  return report();
}
