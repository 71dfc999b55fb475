// Target: one memory policy on one device, as the replay engine drives it; and the timed loop, which is made for each
// policy anew so that nothing but allocate and free is in it. Does not: measure (the engine does), check, know traces'
// files. Called by the replay engine. Locking: run() may be called on several threads at once, each with its own lane;
// everything else by one thread while no run() is going on.
#pragma once

#include <algorithm>
#include <barrier>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "trace/device_bytes.hpp"
#include "trace/replay.hpp"

namespace cistern::trace {

struct TargetFigures {
  std::uint64_t reserved = 0, peak_reserved = 0;   // Bytes; the peak is since start_pass().
  std::uint64_t active = 0;                        // Bytes in live blocks, roundings included.
  std::uint64_t driver_calls = 0, handle_ops = 0;  // Since the start.
  double handle_seconds = 0;
};

struct RunMode {
  bool touch = false;
  bool clocked = false;       // Tell the device the trace's time before each op.
  std::uint64_t base_us = 0;  // Added to the trace's times: passes follow each other.
  // Where all lanes wait for each other at the trace's peak; null for one lane. Else lanes may run one after another,
  // and their live bytes never add up.
  std::barrier<>* meeting = nullptr;
};

struct RunOutcome {
  std::uint64_t failed = 0;
  std::string first_failure;
};

class Target {
 public:
  virtual ~Target() = default;

  virtual RunOutcome run(unsigned lane, const Program& program, const RunMode& mode) = 0;
  // Frees what the trace left alive, and ends the pass.
  virtual void drain(unsigned lane, const Program& program) = 0;
  // The same for one that was stepped through, whose frees were.
  virtual void end_pass() = 0;

  // One op at a time, on lane 0. allocate() returns the address, 0 for an empty block, and throws what the policy
  // throws.
  virtual std::uint64_t allocate(const Op& op) = 0;
  virtual void free(const Op& op) = 0;
  virtual void advance(std::uint64_t time_us) = 0;
  virtual void touch(const Op& op) = 0;
  virtual void leave(const Op& op) = 0;  // Of any free.

  // What checks bytes on a device that the host cannot follow; null where the host can, or where there are none.
  virtual DeviceBytes* device_bytes() { return nullptr; }
  // The native stream behind a stream index.
  virtual void* native(std::uint16_t stream) const { return static_cast<void>(stream), nullptr; }

  virtual void start_pass() = 0;
  virtual TargetFigures figures() const = 0;
  virtual std::uint64_t alignment() const = 0;
  virtual bool host_accessible() const = 0;
  // Reserved memory is all that the process's resident memory should grow by.
  virtual bool accounts_for_memory() const = 0;
  virtual std::vector<std::string> check_invariants() const = 0;
};

struct TargetOptions {
  Policy policy = Policy::cistern;
  Device device;
  std::uint64_t limit = 0;  // Bytes; 0: the device's default.
  std::uint64_t lag_us = 0;
  unsigned lanes = 1;
};

// Throws cistern::invalid_argument where unavailable() says why.
std::unique_ptr<Target> make_target(const TargetOptions& options, const Program& program);

// Writes one byte in each page.
inline void touch_pages(void* at, std::uint64_t bytes) {
  constexpr std::uint64_t kPage = 4096;
  auto* p = static_cast<volatile unsigned char*>(at);
  for (std::uint64_t i = 0; i < bytes; i += kPage) p[i] = 1;
}

// A policy is a class Memory with
//   Handle                              default: no block
//   Handle allocate(bytes, stream)      throws on failure
//   void free(Handle&), free_on(Handle&, stream)   nothing for a default handle
//   address(Handle) const, advance(time_us), end_pass()
//   touch(Handle, bytes, stream)        after allocate, when touching was asked for
//   leave(Handle, bytes, stream)        before free, likewise: the last use
//   join(stream)                        before free_on, likewise: the program made the stream wait for the others
// and is driven by one thread at a time.
template <class Memory, bool kTouch, bool kClocked>
void run_ops(Memory& memory, typename Memory::Handle* handles, const Program& program, std::uint64_t base_us,
             const Op* op, const Op* end, RunOutcome& outcome) {
  const Op* const first = program.ops.data();
  while (op != end) {
    try {
      for (; op != end; ++op) {
        if constexpr (kClocked) memory.advance(base_us + program.times_us[static_cast<std::size_t>(op - first)]);
        auto& handle = handles[op->slot];
        if (op->kind == OpKind::allocate) {
          handle = memory.allocate(op->bytes, op->stream);
          if constexpr (kTouch) memory.touch(handle, op->bytes, op->stream);
        } else if (op->kind == OpKind::free) {
          if constexpr (kTouch) memory.leave(handle, op->bytes, op->stream);
          memory.free(handle);
        } else {
          if constexpr (kTouch) memory.join(op->stream);
          memory.free_on(handle, op->stream);
        }
      }
    } catch (const std::exception& error) {
      if (op->kind == OpKind::allocate) handles[op->slot] = typename Memory::Handle{};
      if (outcome.failed++ == 0) outcome.first_failure = error.what();
      ++op;
    }
  }
}

template <class Memory, bool kTouch, bool kClocked>
RunOutcome run_ops(Memory& memory, typename Memory::Handle* handles, const Program& program, const RunMode& mode) {
  RunOutcome outcome;
  const Op* const first = program.ops.data();
  const Op* const end = first + program.ops.size();
  const Op* const peak = mode.meeting != nullptr ? first + std::min(program.peak_op + 1, program.ops.size()) : first;
  run_ops<Memory, kTouch, kClocked>(memory, handles, program, mode.base_us, first, peak, outcome);
  if (mode.meeting != nullptr) mode.meeting->arrive_and_wait();
  run_ops<Memory, kTouch, kClocked>(memory, handles, program, mode.base_us, peak, end, outcome);
  return outcome;
}

template <class Memory>
RunOutcome run_ops(Memory& memory, typename Memory::Handle* handles, const Program& program, const RunMode& mode) {
  if (mode.clocked) {
    return mode.touch ? run_ops<Memory, true, true>(memory, handles, program, mode)
                      : run_ops<Memory, false, true>(memory, handles, program, mode);
  }
  return mode.touch ? run_ops<Memory, true, false>(memory, handles, program, mode)
                    : run_ops<Memory, false, false>(memory, handles, program, mode);
}

// The lanes of a target over Memory: what is the same for every policy.
template <class Memory>
class LaneTarget : public Target {
 public:
  using Handle = typename Memory::Handle;

  RunOutcome run(unsigned lane, const Program& program, const RunMode& mode) override {
    return run_ops(*lanes_[lane].memory, lanes_[lane].handles.data(), program, mode);
  }
  void drain(unsigned lane, const Program& program) override {
    for (const Op& op : program.tail) {
      Handle& handle = lanes_[lane].handles[op.slot];
      lanes_[lane].memory->free(handle);
      handle = Handle{};
    }
    lanes_[lane].memory->end_pass();
  }
  void end_pass() override { lanes_[0].memory->end_pass(); }
  std::uint64_t allocate(const Op& op) override {
    Lane& lane = lanes_[0];
    lane.handles[op.slot] = Handle{};
    lane.handles[op.slot] = lane.memory->allocate(op.bytes, op.stream);
    return lane.memory->address(lane.handles[op.slot]);
  }
  void free(const Op& op) override {
    Lane& lane = lanes_[0];
    Handle& handle = lane.handles[op.slot];
    if (op.kind == OpKind::free_on) {
      lane.memory->free_on(handle, op.stream);
    } else {
      lane.memory->free(handle);
    }
    handle = Handle{};
  }
  void advance(std::uint64_t time_us) override { lanes_[0].memory->advance(time_us); }
  void touch(const Op& op) override { lanes_[0].memory->touch(lanes_[0].handles[op.slot], op.bytes, op.stream); }
  void leave(const Op& op) override {
    Lane& lane = lanes_[0];
    if (op.kind == OpKind::free_on) {
      lane.memory->join(op.stream);
    } else {
      lane.memory->leave(lane.handles[op.slot], op.bytes, op.stream);
    }
  }

 protected:
  void add_lane(std::unique_ptr<Memory> memory, std::uint32_t slots) {
    lanes_.push_back({std::move(memory), std::vector<Handle>(slots)});
  }
  void clear_lanes() { lanes_.clear(); }
  const Memory& memory(std::size_t lane) const { return *lanes_[lane].memory; }
  std::size_t lanes() const { return lanes_.size(); }

 private:
  struct alignas(128) Lane {  // Away from the other lanes' cache lines.
    std::unique_ptr<Memory> memory;
    std::vector<Handle> handles;
  };
  std::vector<Lane> lanes_;
};

}  // namespace cistern::trace
