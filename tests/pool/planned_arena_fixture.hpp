// Loops for tests of PlannedArena.
#pragma once

#include <cstring>
#include <vector>

#include "cistern/planned_arena.hpp"
#include "pool/counting_allocator.hpp"
#include "pool/expect_rules.hpp"

namespace cistern::testing::planned {

using testing::expect_rules;

inline const Stream kStream{Device::cpu()};

inline ArenaOptions at_once() {
  ArenaOptions options;
  options.background = false;
  options.plan_time = std::chrono::duration<double>(0.02);
  return options;
}

inline TypedBuffer take(PlannedArena& arena, std::size_t bytes) { return arena.alloc(bytes, DType::u8, Shape{bytes}); }

// A chain: each buffer lives until the one after the next is asked for. Returns the addresses.
inline std::vector<const std::byte*> run_chain(PlannedArena& arena, const std::vector<std::size_t>& sizes) {
  std::vector<const std::byte*> out;
  TypedBuffer held[2];
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    held[i % 2] = TypedBuffer();
    held[i % 2] = take(arena, sizes[i]);
    out.push_back(held[i % 2].data());
  }
  held[0] = held[1] = TypedBuffer();
  arena.end_cycle();
  return out;
}

inline const std::vector<std::size_t> kDecode{1000, 200, 3000, 500, 100, 4000, 64, 900};
inline const std::vector<std::size_t> kPrefill{50000, 200, 90000, 500, 7000};

}  // namespace cistern::testing::planned
