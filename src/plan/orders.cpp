// Orders of boxes. See orders.hpp.
#include "plan/orders.hpp"

#include <algorithm>
#include <array>
#include <numeric>

namespace cistern::planner {
namespace {

// Maximum of section totals over the span of each box, by a sparse table: O(sections log sections + boxes).
std::vector<Bytes> fullest_sections(const Strip& strip) {
  std::vector<std::vector<Bytes>> levels{section_totals(strip)};
  for (std::size_t reach = 1; 2 * reach <= levels[0].size(); reach *= 2) {
    const std::vector<Bytes>& below = levels.back();
    std::vector<Bytes> level(below.size() - reach);
    for (std::size_t i = 0; i < level.size(); ++i) level[i] = std::max(below[i], below[i + reach]);
    levels.push_back(std::move(level));
  }
  std::vector<Bytes> result;
  for (std::size_t i = 0; i < strip.size.size(); ++i) {
    const auto from = static_cast<std::size_t>(strip.first[i]);
    const auto to = static_cast<std::size_t>(strip.last[i]);
    std::size_t k = 0;
    while ((std::size_t{2} << k) <= to - from) ++k;
    result.push_back(std::max(levels[k][from], levels[k][to - (std::size_t{1} << k)]));
  }
  return result;
}

}  // namespace

std::vector<std::int32_t> order_of(const Strip& strip, Order order) {
  const std::size_t n = strip.size.size();
  // Real keys: products of sizes and lengths may not fit in 64 bits, and ties that rounding makes do no harm.
  std::vector<std::array<double, 3>> keys(n);
  std::vector<Bytes> totals;
  if (order == Order::total_area_width) totals = fullest_sections(strip);
  for (std::size_t i = 0; i < n; ++i) {
    const auto size = static_cast<double>(strip.size[i]);
    const auto width = static_cast<double>(strip.width[i]);
    switch (order) {
      case Order::total_area_width:
        keys[i] = {-static_cast<double>(totals[i]), -size * width, -width};
        break;
      case Order::area:
        keys[i] = {-size * width, -size, 0};
        break;
      case Order::width_squared_size:
        keys[i] = {-size * width * width, -size, 0};
        break;
      case Order::earliest_start:
        keys[i] = {static_cast<double>(strip.first[i]), -width, -size};
        break;
      case Order::latest_end:
        keys[i] = {-static_cast<double>(strip.last[i]), -width, -size};
        break;
      case Order::size:
        keys[i] = {-size, -width, 0};
        break;
      case Order::width:
        keys[i] = {-width, -size, 0};
        break;
      case Order::hint:
        keys[i] = {strip.hint[i] == kNoBytes ? 1.0e30 : static_cast<double>(strip.hint[i]), -size * width, 0};
        break;
    }
  }
  std::vector<std::int32_t> result(n);
  std::iota(result.begin(), result.end(), 0);
  std::sort(result.begin(), result.end(), [&](std::int32_t x, std::int32_t y) {
    const auto& kx = keys[static_cast<std::size_t>(x)];
    const auto& ky = keys[static_cast<std::size_t>(y)];
    return kx != ky ? kx < ky : x < y;
  });
  return result;
}

std::vector<std::int32_t> ranks_of(const std::vector<std::int32_t>& order) {
  std::vector<std::int32_t> ranks(order.size());
  for (std::size_t r = 0; r < order.size(); ++r) {
    ranks[static_cast<std::size_t>(order[r])] = static_cast<std::int32_t>(r);
  }
  return ranks;
}

std::vector<std::int32_t> blurred(const std::vector<std::int32_t>& order, double blur, Random& random) {
  std::vector<std::pair<double, std::int32_t>> keys;
  keys.reserve(order.size());
  const double reach = blur * static_cast<double>(order.size());
  for (std::size_t r = 0; r < order.size(); ++r) {
    keys.emplace_back(static_cast<double>(r) + reach * random.real(), order[r]);
  }
  std::sort(keys.begin(), keys.end());
  std::vector<std::int32_t> result;
  result.reserve(order.size());
  for (const auto& [key, box] : keys) result.push_back(box);
  return result;
}

}  // namespace cistern::planner
