// Figures, history and pools of the PyTorch adapter.
#include "adapters/torch/books.hpp"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <string>

#include "allocator/registry.hpp"
#include "cistern/error.hpp"

namespace cistern::torch_adapter {

Books& Books::get() {
  static Books* const books = [] {
    auto* const made = new Books;
    pthread_atfork([] { Books::get().hold(); }, [] { Books::get().let_go(); },
                   [] {
                     Books::get().let_go();
                     Books::get().pools.renew_lock();
                   });
    return made;
  }();
  return *books;
}

void Books::hold() {
  for (Figures& one : figures) one.mutex().lock();
  history.mutex().lock();
}

void Books::let_go() {
  history.mutex().unlock();
  for (Figures& one : figures) one.mutex().unlock();
}

void Pools::renew_lock() { new (&mutex_) std::mutex; }

Device checked_device(int device) {
  if (device < 0 || device >= kMaxDevices) {
    throw invalid_argument("cistern: " + allocation::unavailable(Device::cuda(device)));
  }
  return Device::cuda(device);
}

Device present_device(int device) {
  const Device known = checked_device(device);
  if (!Books::get().is_used(device) && !is_available(known))
    throw invalid_argument("cistern: " + allocation::unavailable(known));
  return known;
}

Figures& figures_of(int device) {
  checked_device(device);
  return Books::get().figures[static_cast<std::size_t>(device)];
}

// --- Figures --------------------------------------------------------------------------------------------------------

namespace {
// By the capacity, which is the same when the buffer is freed, whatever size the caller says then.
std::size_t pool_of(std::size_t capacity) { return capacity <= kSmallBytes ? 0 : 1; }
}  // namespace

void Figures::grow(cistern_torch_figure& figure, std::int64_t by) {
  figure.current += by;
  if (by <= 0) return;
  figure.allocated += by;
  figure.peak = std::max(figure.peak, figure.current);
}

void Figures::add(std::size_t requested, std::size_t capacity) {
  const std::size_t pool = pool_of(capacity);
  const std::lock_guard lock(mutex_);
  grow(f_.count[pool], 1);
  grow(f_.requested[pool], static_cast<std::int64_t>(requested));
  grow(f_.capacity[pool], static_cast<std::int64_t>(capacity));
  f_.peak_count = std::max(f_.peak_count, f_.count[0].current + f_.count[1].current);
  f_.peak_requested = std::max(f_.peak_requested, f_.requested[0].current + f_.requested[1].current);
  f_.peak_capacity = std::max(f_.peak_capacity, f_.capacity[0].current + f_.capacity[1].current);
}

void Figures::subtract(std::size_t requested, std::size_t capacity) {
  const std::size_t pool = pool_of(capacity);
  const std::lock_guard lock(mutex_);
  grow(f_.count[pool], -1);
  // A caller that frees with another size than it asked for is found out when nothing is left, at the latest.
  cistern_torch_figure& sum = f_.requested[pool];
  const std::int64_t all = sum.current;
  grow(sum, f_.count[pool].current == 0 ? -all : -std::min(static_cast<std::int64_t>(requested), all));
  grow(f_.capacity[pool], -static_cast<std::int64_t>(capacity));
}

void Figures::note_out_of_memory() {
  const std::lock_guard lock(mutex_);
  ++f_.out_of_memory;
}

void Figures::read(cistern_torch_figures& out) const {
  const std::lock_guard lock(mutex_);
  out = f_;
}

void Figures::reset_peaks() {
  const std::lock_guard lock(mutex_);
  for (auto* figures : {f_.count, f_.requested, f_.capacity}) {
    for (std::size_t pool = 0; pool < 2; ++pool) figures[pool].peak = figures[pool].current;
  }
  f_.peak_count = f_.count[0].current + f_.count[1].current;
  f_.peak_requested = f_.requested[0].current + f_.requested[1].current;
  f_.peak_capacity = f_.capacity[0].current + f_.capacity[1].current;
}

void Figures::reset_accumulated() {
  const std::lock_guard lock(mutex_);
  // What lives stays in the sum, so that `freed` starts at nothing.
  for (auto* figures : {f_.count, f_.requested, f_.capacity}) {
    for (std::size_t pool = 0; pool < 2; ++pool) figures[pool].allocated = figures[pool].current;
  }
  f_.out_of_memory = 0;
}

// --- History --------------------------------------------------------------------------------------------------------

void History::start(std::size_t capacity, bool clear) {
  const std::lock_guard lock(mutex_);
  // In order, the oldest first, so that the ring may grow behind the newest.
  std::rotate(ring_.begin(), ring_.begin() + static_cast<std::ptrdiff_t>(next_), ring_.end());
  next_ = 0;
  const std::size_t kept = clear ? 0 : std::min(capacity, ring_.size());
  ring_.erase(ring_.begin(), ring_.end() - static_cast<std::ptrdiff_t>(kept));
  if (capacity == 0) {
    requested_.clear();
    ring_.shrink_to_fit();
  }
  capacity_ = capacity;
  on_.store(capacity != 0, std::memory_order_relaxed);
}

void History::note(cistern_torch_action action, int device, std::uint64_t address, std::size_t bytes,
                   const void* stream) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const cistern_torch_event event{address,
                                  bytes,
                                  reinterpret_cast<std::uintptr_t>(stream),
                                  std::chrono::duration_cast<std::chrono::microseconds>(now).count(),
                                  action,
                                  device};
  const std::lock_guard lock(mutex_);
  if (capacity_ == 0) return;
  if (action == CISTERN_TORCH_FREE) requested_.erase(address);
  try {
    if (action == CISTERN_TORCH_ALLOC) requested_[address] = bytes;
    if (ring_.size() < capacity_) {
      ring_.push_back(event);
      return;
    }
  } catch (const std::bad_alloc&) {
    return;  // The event is missing then; the buffer must not be.
  }
  ring_[next_] = event;
  next_ = (next_ + 1) % capacity_;
}

std::vector<cistern_torch_event> History::events() const {
  const std::lock_guard lock(mutex_);
  std::vector<cistern_torch_event> in_order(ring_.begin() + static_cast<std::ptrdiff_t>(next_), ring_.end());
  in_order.insert(in_order.end(), ring_.begin(), ring_.begin() + static_cast<std::ptrdiff_t>(next_));
  return in_order;
}

std::size_t History::requested(std::uint64_t address) const {
  const std::lock_guard lock(mutex_);
  const auto found = requested_.find(address);
  return found == requested_.end() ? 0 : found->second;
}

// --- Pools ----------------------------------------------------------------------------------------------------------

namespace {
thread_local std::uint64_t newest = 0;  // Number of the thread's newest begin.
}  // namespace

std::uint64_t Pools::newest_begin() { return newest; }

void Pools::begin(int device, PoolId id, PoolFilter filter) {
  const std::lock_guard lock(mutex_);
  Pool& pool = pools_[key(device, id)];
  if (!pool.pool) {
    try {
      pool.pool = make_capture_pool(checked_device(device));
    } catch (...) {
      pools_.erase(key(device, id));
      throw;
    }
  }
  if (pool.open && pool.opener != std::this_thread::get_id()) {
    throw invalid_argument("cistern: another thread allocates to memory pool (" + std::to_string(id.first) + ", " +
                           std::to_string(id.second) + ") of cuda:" + std::to_string(device));
  }
  // Left open by a capture that failed.
  if (pool.open) {
    end_capture_pool(pool.pool);
    pool.open = false;
    --pool.uses;
  }
  begin_capture_pool(pool.pool, std::move(filter));
  pool.open = true;
  pool.opener = std::this_thread::get_id();
  pool.begin = newest = ++begins_;
  ++pool.uses;
}

void Pools::end(int device, PoolId id) {
  const std::lock_guard lock(mutex_);
  const auto found = pools_.find(key(device, id));
  if (found == pools_.end() || !found->second.open) return;
  end_capture_pool(found->second.pool);
  found->second.open = false;
}

CapturePool Pools::drop(std::map<Key, Pool>::iterator found) {
  Pool& pool = found->second;
  if (--pool.uses > 0) return {};
  if (pool.open) end_capture_pool(pool.pool);
  const CapturePool gone = pool.pool;
  pools_.erase(found);
  return gone;
}

void Pools::release(int device, PoolId id) {
  CapturePool gone;
  {
    const std::lock_guard lock(mutex_);
    const auto found = pools_.find(key(device, id));
    if (found != pools_.end()) gone = drop(found);
  }
  if (gone) release_capture_pool(gone);
}

template <typename Which>
int Pools::abort_where(Which which) {
  std::vector<CapturePool> gone;
  int aborted = 0;
  {
    const std::lock_guard lock(mutex_);
    for (auto pool = pools_.begin(); pool != pools_.end();) {
      const auto current = pool++;
      Pool& open = current->second;
      if (!open.open || !which(std::get<0>(current->first), open)) continue;
      end_capture_pool(open.pool);
      open.open = false;
      ++aborted;
      if (const CapturePool dropped = drop(current)) gone.push_back(dropped);
    }
  }
  for (const CapturePool& pool : gone) release_capture_pool(pool);
  return aborted;
}

int Pools::abort(int device) {
  return abort_where(
      [=](int of, const Pool& pool) { return of == device && pool.opener == std::this_thread::get_id(); });
}

int Pools::abort_begin(std::uint64_t number) {
  return abort_where([=](int, const Pool& pool) { return pool.begin == number; });
}

PoolId Pools::id_of(std::uint64_t capture_pool) const {
  const std::lock_guard lock(mutex_);
  for (const auto& [key, pool] : pools_) {
    if (pool.pool.id == capture_pool) return {std::get<1>(key), std::get<2>(key)};
  }
  return {0, 0};
}

}  // namespace cistern::torch_adapter
