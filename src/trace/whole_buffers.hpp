// Replay policies that never split a buffer: `system` (every request goes to the system) and `buffer-cache` (whole
// buffers kept for reuse by the closest size). On the CPU the system is the C library's aligned allocation, on Metal a
// buffer of the device's own with a place in the residency set, on the model device arithmetic with the device's
// prices. Called by make_target(). Locking: WholeSource is thread-safe; see replay_target.hpp for the targets.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "drivers/driver.hpp"
#include "trace/replay_target.hpp"

namespace cistern::trace {

// Where whole buffers come from.
class WholeSource {
 public:
  // `limit`: bytes, 0 for none.
  WholeSource(Device device, std::uint64_t limit);

  // Null when the limit or the system refuses.
  void* take(std::size_t bytes) noexcept;
  void give(void* buffer, std::size_t bytes) noexcept;

  std::uint64_t held() const { return held_.load(std::memory_order_relaxed); }
  std::uint64_t peak() const { return peak_.load(std::memory_order_relaxed); }
  std::uint64_t limit() const { return limit_; }
  void reset_peak() { peak_.store(held(), std::memory_order_relaxed); }
  std::uint64_t driver_calls() const;
  std::uint64_t operations() const;
  double seconds() const;
  std::uint64_t alignment() const;
  bool host_accessible() const { return real_; }

 private:
  void* take_memory(std::size_t bytes) noexcept;

  bool real_;
  std::unique_ptr<drivers::Driver> driver_;  // Metal: whole buffers of the device. Under the mutex.
  std::mutex driver_mutex_;
  std::uint64_t limit_;
  std::atomic<std::uint64_t> held_{0}, peak_{0}, taken_{0}, given_{0}, next_address_{0};
};

// pre: the device is the CPU, a Metal device or the model; the policy is system or buffer_cache.
std::unique_ptr<Target> make_whole_target(const TargetOptions& options, const Program& program);

}  // namespace cistern::trace
