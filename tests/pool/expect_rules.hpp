// expect_rules: the invariants of a pool or an arena hold.
#pragma once

#include <gtest/gtest.h>

#include "cistern/buffer_pool.hpp"
#include "cistern/planned_arena.hpp"

namespace cistern::testing {

inline void expect_rules(const PlannedArena& arena) {
  for (const std::string& rule : arena.check_invariants()) ADD_FAILURE() << "broken: " << rule;
}

inline void expect_rules(const BufferPool& pool) {
  for (const std::string& rule : pool.check_invariants()) ADD_FAILURE() << "broken: " << rule;
  EXPECT_EQ(pool.total_count(), pool.free_count() + pool.in_use_count());
  EXPECT_EQ(pool.total_bytes(), pool.free_bytes() + pool.in_use_bytes());
}

}  // namespace cistern::testing
