// The policies `system` and `buffer-cache`. See whole_buffers.hpp.
#include "trace/whole_buffers.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <limits>
#include <mutex>

#include "cistern/error.hpp"
#include "core/buffer_cache.hpp"
#include "core/units.hpp"
#include "drivers/metal/metal_driver.hpp"
#include "drivers/model/model_driver.hpp"

namespace cistern::trace {
namespace {

constexpr std::size_t kPage = 16 * core::KiB;  // The page of the systems where this rule is in use.
constexpr std::uint64_t kModelBase = std::uint64_t{1} << 40;
const std::uint64_t kModelMemory = drivers::ModelConfig{}.total_memory;
constexpr std::uint64_t kCpuAlignment = 64, kModelAlignment = 512;

struct WholeHandle {
  void* buffer = nullptr;
  std::size_t capacity = 0;
};

[[noreturn]] void refuse(std::size_t bytes, std::uint64_t held, std::uint64_t limit) {
  throw out_of_memory(fmt::format("{} bytes were asked for; {} are held, the limit is {}", bytes, held, limit), bytes,
                      limit);
}

// What both policies have in common.
class WholeMemory {
 public:
  using Handle = WholeHandle;
  std::uint64_t address(const Handle& handle) const { return reinterpret_cast<std::uint64_t>(handle.buffer); }
  void touch(const Handle& handle, std::uint64_t bytes, std::uint16_t) const {
    if (real_) touch_pages(handle.buffer, bytes);
  }
  void leave(const Handle&, std::uint64_t, std::uint16_t) const {}
  void join(std::uint16_t) const {}
  void end_pass() const {}
  void advance(std::uint64_t) const {}

 protected:
  explicit WholeMemory(bool real) : real_(real) {}

 private:
  bool real_;
};

struct SystemState {
  explicit SystemState(const TargetOptions& options) : source(options.device, options.limit) {}
  std::uint64_t active() const { return source.held(); }
  std::vector<std::string> check() const { return {}; }
  WholeSource source;
};

class SystemMemory : public WholeMemory {
 public:
  explicit SystemMemory(SystemState& state) : WholeMemory(state.source.host_accessible()), source_(state.source) {}
  Handle allocate(std::uint64_t bytes, std::uint16_t) {
    if (bytes == 0) return {};
    void* buffer = source_.take(bytes);
    if (buffer == nullptr) refuse(bytes, source_.held(), source_.limit());
    return {buffer, bytes};
  }
  void free(Handle& handle) {
    if (handle.buffer != nullptr) source_.give(handle.buffer, handle.capacity);
  }
  void free_on(Handle& handle, std::uint16_t) { free(handle); }

 private:
  WholeSource& source_;
};

struct CacheState {
  explicit CacheState(const TargetOptions& options)
      : source(options.device, options.limit),
        cache(kPage, options.limit == 0 ? std::numeric_limits<std::size_t>::max() : options.limit,
              [this](void* buffer, std::size_t capacity) { source.give(buffer, capacity); }) {}
  std::uint64_t active() const { return source.held() - cache.bytes(); }
  std::vector<std::string> check() const { return cache.check_invariants(); }
  WholeSource source;
  core::BufferCache cache;
  std::mutex mutex;
};

class CacheMemory : public WholeMemory {
 public:
  explicit CacheMemory(CacheState& state) : WholeMemory(state.source.host_accessible()), state_(state) {}
  Handle allocate(std::uint64_t bytes, std::uint16_t) {
    if (bytes == 0) return {};
    if (bytes > core::kMaxRequest) refuse(bytes, state_.source.held(), state_.source.limit());
    const std::lock_guard lock(state_.mutex);
    const auto taken = state_.cache.take(bytes);
    if (taken.buffer != nullptr) return {taken.buffer, taken.capacity};
    const std::size_t capacity = state_.cache.rounded(bytes);
    void* buffer = state_.source.take(capacity);
    while (buffer == nullptr && state_.cache.bytes() > 0) {  // Oldest out, until there is room or nothing is cached.
      const std::size_t cached = state_.cache.bytes();
      state_.cache.trim(cached > capacity ? cached - capacity : 0);
      buffer = state_.source.take(capacity);
    }
    if (buffer == nullptr) refuse(bytes, state_.source.held(), state_.source.limit());
    return {buffer, capacity};
  }
  void free(Handle& handle) {
    if (handle.buffer == nullptr) return;
    const std::lock_guard lock(state_.mutex);
    state_.cache.put(handle.buffer, handle.capacity);
  }
  void free_on(Handle& handle, std::uint16_t) { free(handle); }

 private:
  CacheState& state_;
};

template <class State, class Memory>
class WholeTarget final : public LaneTarget<Memory> {
 public:
  WholeTarget(const TargetOptions& options, const Program& program) : state_(options) {
    for (unsigned lane = 0; lane < options.lanes; ++lane)
      this->add_lane(std::make_unique<Memory>(state_), program.slots);
  }
  void start_pass() override { state_.source.reset_peak(); }
  TargetFigures figures() const override {
    const WholeSource& source = state_.source;
    return {source.held(),         source.peak(),       state_.active(),
            source.driver_calls(), source.operations(), source.seconds()};
  }
  std::uint64_t alignment() const override { return state_.source.alignment(); }
  bool host_accessible() const override { return state_.source.host_accessible(); }
  bool accounts_for_memory() const override { return false; }  // The C library keeps what it was given back.
  std::vector<std::string> check_invariants() const override { return state_.check(); }

 private:
  State state_;
};

}  // namespace

WholeSource::WholeSource(Device device, std::uint64_t limit)
    : real_(device.type != DeviceType::model),
      limit_(limit != 0 || real_ ? limit : kModelMemory),
      next_address_(kModelBase) {
  if (device.type != DeviceType::metal) return;
  drivers::MetalConfig config;
  config.memory = drivers::MetalMemory::whole_buffers;
  std::string why;
  driver_ = drivers::make_metal_driver(device.index, config, &why);
  if (driver_ == nullptr) throw invalid_argument(why);
  if (driver_->capabilities().residency) driver_->set_wired_limit(driver_->capabilities().recommended_working_set);
}

void* WholeSource::take_memory(std::size_t bytes) noexcept {
  if (driver_ == nullptr) return std::aligned_alloc(kCpuAlignment, bytes);
  const std::lock_guard lock(driver_mutex_);
  void* buffer = nullptr;
  if (driver_->allocate_host(drivers::HostKind::unified, bytes, buffer) != drivers::Status::ok) return nullptr;
  driver_->commit_residency();
  return buffer;
}

void* WholeSource::take(std::size_t bytes) noexcept {
  const std::uint64_t rounded = core::align_up(bytes, alignment());
  const std::uint64_t held = held_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  void* buffer = nullptr;
  if (limit_ == 0 || held <= limit_) {
    buffer = real_ ? take_memory(rounded)
                   : reinterpret_cast<void*>(next_address_.fetch_add(rounded, std::memory_order_relaxed));
  }
  if (buffer == nullptr) {
    held_.fetch_sub(bytes, std::memory_order_relaxed);
    return nullptr;
  }
  taken_.fetch_add(1, std::memory_order_relaxed);
  std::uint64_t peak = peak_.load(std::memory_order_relaxed);
  while (held > peak && !peak_.compare_exchange_weak(peak, held, std::memory_order_relaxed)) {
  }
  return buffer;
}

void WholeSource::give(void* buffer, std::size_t bytes) noexcept {
  if (driver_ != nullptr) {
    const std::lock_guard lock(driver_mutex_);
    driver_->free_host(drivers::HostKind::unified, buffer, bytes);
    driver_->commit_residency();
  } else if (real_) {
    std::free(buffer);
  }
  given_.fetch_add(1, std::memory_order_relaxed);
  held_.fetch_sub(bytes, std::memory_order_relaxed);
}

std::uint64_t WholeSource::driver_calls() const {
  if (driver_ != nullptr) return driver_->calls();
  const std::uint64_t taken = taken_.load(std::memory_order_relaxed), given = given_.load(std::memory_order_relaxed);
  return real_ ? taken + given : 3 * taken + 2 * given;  // Create, map, set access; unmap, release.
}

std::uint64_t WholeSource::operations() const {
  return taken_.load(std::memory_order_relaxed) + given_.load(std::memory_order_relaxed);
}

double WholeSource::seconds() const {
  if (real_) return 0;
  const drivers::ModelPrices prices;
  return 1e-6 * (static_cast<double>(taken_.load(std::memory_order_relaxed)) *
                     (prices.create + prices.map + prices.set_access) +
                 static_cast<double>(given_.load(std::memory_order_relaxed)) * (prices.unmap + prices.release));
}

std::uint64_t WholeSource::alignment() const { return real_ ? kCpuAlignment : kModelAlignment; }

std::unique_ptr<Target> make_whole_target(const TargetOptions& options, const Program& program) {
  if (options.policy == Policy::system)
    return std::make_unique<WholeTarget<SystemState, SystemMemory>>(options, program);
  return std::make_unique<WholeTarget<CacheState, CacheMemory>>(options, program);
}

}  // namespace cistern::trace
