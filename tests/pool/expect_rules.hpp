// expect_rules: the pool's invariants hold.
#pragma once

#include <gtest/gtest.h>

#include "cistern/buffer_pool.hpp"

namespace cistern::testing {

inline void expect_rules(const BufferPool& pool) {
  for (const std::string& rule : pool.check_invariants()) ADD_FAILURE() << "broken: " << rule;
  EXPECT_EQ(pool.total_count(), pool.free_count() + pool.in_use_count());
  EXPECT_EQ(pool.total_bytes(), pool.free_bytes() + pool.in_use_bytes());
}

}  // namespace cistern::testing
