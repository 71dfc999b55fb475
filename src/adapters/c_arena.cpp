// The C interface: the planned arena. Thin calls of the C++ interface; one thread at a time for each arena.
#include "cistern/c_arena.h"

#include <cmath>
#include <memory>

#include "adapters/c_api.hpp"
#include "cistern/planned_arena.hpp"

struct cistern_arena {
  cistern::PlannedArena value;
};

// NOLINTBEGIN(google-build-using-namespace): functions of C stand in no namespace.
using namespace cistern;
using namespace cistern::c;
// NOLINTEND(google-build-using-namespace)

namespace {

cistern_arena_options to_c(const ArenaOptions& options) {
  return {.struct_size = 0,
          .record_cycles = options.record_cycles,
          .replan_after = options.replan_after,
          .max_shapes = options.max_shapes,
          .background = options.background ? 1 : 0,
          .plan_seconds = options.plan_time.count(),
          .bucketing = static_cast<uint32_t>(options.bucketing)};
}

ArenaOptions options_from_c(const cistern_arena_options* options) {
  const cistern_arena_options given = read_versioned(options, to_c(ArenaOptions{}));
  if (!std::isfinite(given.plan_seconds)) {
    throw invalid_argument("cistern_arena_create: plan_seconds is not a finite number");
  }
  return {.record_cycles = given.record_cycles,
          .replan_after = given.replan_after,
          .max_shapes = given.max_shapes,
          .background = given.background != 0,
          .plan_time = std::chrono::duration<double>(given.plan_seconds),
          .bucketing = bucketing_from_c(given.bucketing, "cistern_arena_create")};
}

}  // namespace

extern "C" {

cistern_status cistern_arena_default_options(cistern_arena_options* out) {
  return guarded([&] {
    require(out, "cistern_arena_default_options", "out");
    copy_versioned(to_c(ArenaOptions{}), out);
  });
}

cistern_status cistern_arena_create(cistern_allocator* allocator, const cistern_stream* stream,
                                    const cistern_arena_options* options, cistern_arena** out) {
  return guarded([&] {
    require(allocator, "cistern_arena_create", "allocator");
    require(out, "cistern_arena_create", "out");
    Allocator& memory = from_c(allocator);
    *out = new cistern_arena{PlannedArena(memory, stream_or_default(stream, memory.device()), options_from_c(options))};
  });
}

void cistern_arena_destroy(cistern_arena* arena) { delete arena; }

cistern_status cistern_arena_alloc(cistern_arena* arena, size_t byte_len, cistern_dtype dtype, const int64_t* shape,
                                   size_t rank, cistern_tensor** out) {
  return guarded([&] {
    require(arena, "cistern_arena_alloc", "arena");
    require(out, "cistern_arena_alloc", "out");
    const Shape extents = shape_from_c(shape, rank, "cistern_arena_alloc");
    give_handle(out, [&] { return arena->value.alloc(byte_len, from_c(dtype), extents); });
  });
}

cistern_status cistern_arena_release(cistern_arena* arena, cistern_tensor* tensor) {
  const std::unique_ptr<cistern_tensor> owned(tensor);
  return guarded([&] {
    require(arena, "cistern_arena_release", "arena");
    require(tensor, "cistern_arena_release", "tensor");
    arena->value.release(tensor->value);
  });
}

cistern_status cistern_arena_end_cycle(cistern_arena* arena) {
  return guarded([&] {
    require(arena, "cistern_arena_end_cycle", "arena");
    arena->value.end_cycle();
  });
}

cistern_status cistern_arena_finish_planning(cistern_arena* arena) {
  return guarded([&] {
    require(arena, "cistern_arena_finish_planning", "arena");
    arena->value.finish_planning();
  });
}

cistern_status cistern_arena_learn(cistern_arena* arena, const cistern_arena_life* cycle, size_t count) {
  return guarded([&] {
    require(arena, "cistern_arena_learn", "arena");
    if (count > 0) require(cycle, "cistern_arena_learn", "cycle");
    std::vector<ArenaLife> lives;
    for (const cistern_arena_life& life : std::span(cycle, count)) lives.push_back({life.byte_len, life.dead_at});
    arena->value.learn(lives);
  });
}

cistern_status cistern_arena_clear(cistern_arena* arena) {
  return guarded([&] {
    require(arena, "cistern_arena_clear", "arena");
    arena->value.clear();
  });
}

cistern_status cistern_arena_get_figures(const cistern_arena* arena, cistern_arena_figures* out) {
  return guarded([&] {
    require(arena, "cistern_arena_get_figures", "arena");
    require(out, "cistern_arena_get_figures", "out");
    const ArenaFigures f = arena->value.figures();
    copy_versioned({.struct_size = 0,
                    .cycles = f.cycles,
                    .from_slab = f.from_slab,
                    .from_pool = f.from_pool,
                    .other_size = f.other_size,
                    .longer_life = f.longer_life,
                    .recorded = f.recorded,
                    .plans = f.plans,
                    .failed_plans = f.failed_plans,
                    .switches = f.switches,
                    .shapes = f.shapes,
                    .slab_bytes = f.slab_bytes,
                    .pool_bytes = f.pool_bytes,
                    .held = f.held,
                    .last_peak = f.last_peak,
                    .last_lower_bound = f.last_lower_bound},
                   out);
  });
}

cistern_status cistern_arena_get_options(const cistern_arena* arena, cistern_arena_options* out) {
  return guarded([&] {
    require(arena, "cistern_arena_get_options", "arena");
    require(out, "cistern_arena_get_options", "out");
    copy_versioned(to_c(arena->value.options()), out);
  });
}

cistern_device cistern_arena_device(const cistern_arena* arena) {
  return arena != nullptr ? cistern::c::to_c(arena->value.device()) : cistern_device{};
}
uint64_t cistern_arena_stream_id(const cistern_arena* arena) {
  return arena != nullptr ? arena->value.stream().id() : 0;
}

cistern_status cistern_arena_check(const cistern_arena* arena) {
  return guarded([&] {
    require(arena, "cistern_arena_check", "arena");
    throw_faults(arena->value.check_invariants());
  });
}

}  // extern "C"
