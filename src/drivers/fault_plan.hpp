// FaultPlan: makes the Nth driver call fail on purpose, and counts calls by kind. Used by the model driver, by
// stand-ins and by the FaultyDriver of the tests. Does not know what a call does. Not thread-safe: its owner locks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "drivers/driver.hpp"

namespace cistern::drivers {

// The members of Driver that can fail, and `any` for all of them together.
enum class Call : std::uint8_t {
  reserve,
  unreserve,
  create,
  destroy,
  map,
  unmap,
  create_segment,
  destroy_segment,
  create_object,
  allocate_host,
  free_host,
  wrap,
  record,
  wait,
  synchronize,
  synchronize_device,
  copy,
  fill,
  set_wired_limit,
  enable_peer,
  export_piece,
  import_piece,
  allocate_ordered,
  free_ordered,
  pool_figures,
  trim_pool,
  memory_info,
  any,
};
inline constexpr std::size_t kCallKinds = static_cast<std::size_t>(Call::any) + 1;

constexpr const char* name(Call call) {
  constexpr std::array<const char*, kCallKinds> names{
      "reserve",       "unreserve",     "create",           "destroy",
      "map",           "unmap",         "create_segment",   "destroy_segment",
      "create_object", "allocate_host", "free_host",        "wrap",
      "record",        "wait",          "synchronize",      "synchronize_device",
      "copy",          "fill",          "set_wired_limit",  "enable_peer",
      "export_piece",  "import_piece",  "allocate_ordered", "free_ordered",
      "pool_figures",  "trim_pool",     "memory_info",      "any"};
  return names[static_cast<std::size_t>(call)];
}

class FaultPlan {
 public:
  // From now on the `nth` call of this kind (1 is the next one), and the `times - 1` after it, return `status`.
  // One plan at a time: a new one replaces the old. nth 0 ends it.
  void fail(Call call, std::uint64_t nth, Status status = Status::out_of_memory, std::uint64_t times = 1) {
    call_ = call;
    status_ = status;
    skip_ = nth == 0 ? 0 : nth - 1;
    left_ = nth == 0 ? 0 : times;
  }
  void clear() { left_ = 0; }

  // Counts one call; what it shall return instead of doing its work, or ok.
  Status next(Call call) {
    ++counts_[static_cast<std::size_t>(call)];
    ++counts_[static_cast<std::size_t>(Call::any)];
    if (left_ == 0 || (call_ != Call::any && call_ != call)) return Status::ok;
    if (skip_ > 0) {
      --skip_;
      return Status::ok;
    }
    --left_;
    ++injected_;
    return status_;
  }

  // Calls of this kind since the start, the failing ones included.
  std::uint64_t count(Call call) const { return counts_[static_cast<std::size_t>(call)]; }
  // Calls that failed by plan.
  std::uint64_t injected() const { return injected_; }

 private:
  std::array<std::uint64_t, kCallKinds> counts_{};
  std::uint64_t skip_ = 0;
  std::uint64_t left_ = 0;
  std::uint64_t injected_ = 0;
  Call call_ = Call::any;
  Status status_ = Status::out_of_memory;
};

}  // namespace cistern::drivers
