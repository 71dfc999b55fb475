// Replay: runs a program (a compiled trace) through a memory policy on a device and says what it cost in time and
// memory. Each replay builds its own allocator, so figures start at zero and nothing is shared with the process's
// global ones. Does not: read files, print, draw. Called by the tools and benchmarks. A replay starts its own threads;
// two replays must not run at the same time (they would disturb each other's figures).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cistern/device.hpp"
#include "trace/replay_program.hpp"

namespace cistern::trace {

enum class Policy : std::uint8_t {
  cistern,       // The library's allocator.
  pool,          // The arena pool over it: power-of-two buckets.
  planned,       // The planned arena.
  buffer_cache,  // Whole buffers kept for reuse by the closest size.
  system,        // Plain allocation, nothing kept.
};
std::string_view to_string(Policy policy);
std::optional<Policy> parse_policy(std::string_view text);
// Why the policy cannot run on the device in this build; empty when it can.
std::string unavailable(Policy policy, Device device);

// A limit in bytes, or as a multiple of the peak live bytes: the trace's, times the threads, which reach it together.
struct MemoryLimit {
  std::uint64_t bytes = 0;
  double factor = 0;  // Used when not 0.
  std::uint64_t of(std::uint64_t peak_live) const;
};

struct ReplayOptions {
  Policy policy = Policy::cistern;
  Device device;
  bool touch = false;   // Write to every page of every block (CPU), or submit work on it (model; always with a lag).
  bool check = false;   // An additional replay that verifies everything; see CheckResult.
  bool curves = false;  // An additional replay that records curves.
  std::optional<MemoryLimit> limit;
  std::uint64_t lag_us = 0;  // The model device runs this much behind the trace's clock.
  unsigned threads = 1;      // Each replays the whole program, on one allocator; they meet at the program's peak.
  unsigned repeat = 1;       // Passes, on one allocator.
  // Called now and then, between passes and inside of untimed ones; the fraction done so far.
  std::function<void(double)> progress;
};

struct PassFigures {
  double seconds = 0;
  std::uint64_t driver_calls = 0;
  std::uint64_t handle_ops = 0;     // Creates, moves, releases and splits of physical memory.
  double handle_seconds = 0;        // By the model's prices; 0 on other devices.
  std::uint64_t peak_reserved = 0;  // In the pass.
  std::uint64_t failed = 0;         // Events that were not served.
};

struct CheckResult {
  std::uint64_t blocks = 0;  // Verified on free.
  std::uint64_t bytes_verified = 0;
  std::uint64_t faults = 0;
  std::vector<std::string> messages;  // The first few faults.
  // Growth of the process's resident memory at the peak of reserved memory, when it can be read: on the CPU, where
  // nothing was reserved before the first event (as by a planned arena).
  std::optional<std::uint64_t> resident;
  std::uint64_t resident_reserved = 0;  // What the allocator said it had reserved then.
};

struct ReplayResult {
  std::string trace, allocator, device;
  std::uint64_t events = 0;     // In a pass, all threads together.
  double seconds = 0;           // Mean of the passes.
  double ns_per_event = 0;      // The same for one event.
  std::uint64_t peak_live = 0;  // Bytes asked for, alive at once; with several threads, of all together.
  std::uint64_t peak_reserved = 0;
  double ratio = 0;
  std::uint64_t driver_calls = 0;  // Of all passes, as the rest.
  std::uint64_t handle_ops = 0;
  double handle_seconds = 0;
  std::uint64_t failed = 0;
  std::uint64_t limit = 0;      // Bytes; 0 without one.
  double duration_seconds = 0;  // Of the recording.
  std::vector<PassFigures> passes;
  std::optional<CheckResult> check;
  std::string first_failure;  // Text of the first error.
  std::shared_ptr<const Curves> curves;

  bool ok() const { return failed == 0 && (!check || check->faults == 0); }
  double first_ns_per_event() const;
  double later_ns_per_event() const;       // Mean of the passes after the first; 0 without any.
  std::uint64_t later_handle_ops() const;  // The most in one pass after the first.
};

// Throws cistern::invalid_argument when unavailable() says why, and what making the allocator throws.
ReplayResult replay(const Program& program, const ReplayOptions& options);

}  // namespace cistern::trace
