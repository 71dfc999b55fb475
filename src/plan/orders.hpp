// Orders of boxes: what the heuristics place first and the exact search tries first. No single order wins everywhere,
// so the portfolio uses several. Internal to src/plan. Pure functions, no locking.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/strip.hpp"

namespace cistern::planner {

enum class Order : std::uint8_t {
  total_area_width,  // fullest section it lives in, then area, then length of life
  area,
  width_squared_size,
  earliest_start,  // then the longest
  latest_end,      // then the longest
  size,
  width,
  hint,  // by hinted offset; boxes without a hint last
};

inline constexpr Order kOrders[] = {Order::total_area_width,
                                    Order::area,
                                    Order::width_squared_size,
                                    Order::earliest_start,
                                    Order::latest_end,
                                    Order::size,
                                    Order::width};

// Boxes in the given order. Ties go to the larger size, then to the lower index.
std::vector<std::int32_t> order_of(const Strip& strip, Order order);

// order[rank] = box turned into ranks[box] = rank.
std::vector<std::int32_t> ranks_of(const std::vector<std::int32_t>& order);

// A small, fast generator of reproducible random numbers (splitmix64).
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() noexcept {
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  // Below n, n > 0. The bias of the remainder does not matter here.
  std::uint64_t below(std::uint64_t n) noexcept { return next() % n; }
  double real() noexcept { return static_cast<double>(next() >> 11) * 0x1.0p-53; }

 private:
  std::uint64_t state_;
};

// `order` with every key blurred: position p moves by up to about `blur` x the number of boxes.
std::vector<std::int32_t> blurred(const std::vector<std::int32_t>& order, double blur, Random& random);

}  // namespace cistern::planner
