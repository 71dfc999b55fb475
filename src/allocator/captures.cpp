// The table of capture pools and their routes.
#include "allocator/captures.hpp"

#include <algorithm>

namespace cistern::allocation {
namespace {

std::uint64_t next_pool_id() {
  static constinit std::atomic<std::uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

std::uint64_t Captures::route(void* native) const {
  std::vector<Route> routes;
  {
    const std::lock_guard lock(mutex_);
    routes = routes_;
  }
  for (const Route& route : routes) {
    if ((*route.filter)(native)) return route.pool;
  }
  return 0;
}

Captures::Pool& Captures::add() {
  pools_.push_back(std::make_unique<Pool>());
  pools_.back()->id = next_pool_id();
  return *pools_.back();
}

Captures::Pool* Captures::find(std::uint64_t id) {
  const auto found =
      std::find_if(pools_.begin(), pools_.end(), [&](const auto& pool) { return pool->id == id && !pool->released; });
  return found == pools_.end() ? nullptr : found->get();
}

void Captures::open(Pool& pool, CaptureFilter filter) {
  Route route{pool.id, std::make_shared<const CaptureFilter>(std::move(filter))};
  const std::lock_guard lock(mutex_);
  routes_.push_back(std::move(route));
  pool.open = true;
  open_.fetch_add(1, std::memory_order_relaxed);
}

std::shared_ptr<const CaptureFilter> Captures::close(Pool& pool) {
  const std::lock_guard lock(mutex_);
  const auto route = std::find_if(routes_.begin(), routes_.end(), [&](const Route& r) { return r.pool == pool.id; });
  std::shared_ptr<const CaptureFilter> filter = std::move(route->filter);
  routes_.erase(route);
  pool.open = false;
  open_.fetch_sub(1, std::memory_order_relaxed);
  return filter;
}

std::uint64_t Captures::pool_of(const StreamHeap& heap) const {
  for (const auto& pool : pools_) {
    for (const auto& [stream, owned] : pool->heaps) {
      if (owned == &heap) return pool->id;
    }
  }
  return 0;
}

}  // namespace cistern::allocation
