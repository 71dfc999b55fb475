// Recorded traces on the device: how much memory and time, and whether every byte stays as the kernels wrote it.
#include <algorithm>
#include <exception>
#include <utility>

#include "round.hpp"

namespace cistern::gpu {
namespace {

using trace::Op;
using trace::OpKind;
using trace::Program;

constexpr std::uint64_t kVerifySteps = 1500;
constexpr std::uint64_t kLag = 12'000'000;  // Nanoseconds; at least 10 ms stay when the host is held up for 2.

// A fresh allocator, the trace's streams, and its live buffers.
struct Session {
  explicit Session(const Program& program_, std::uint64_t limit = 0) : program(program_) {
    allocator = fresh_allocator();
    if (limit != 0) allocator->set_memory_limit(limit);
    for (const std::uint64_t number : program.streams) {
      natives.push_back(number == 0 ? nullptr : Device::get().make_stream());
      streams.push_back(allocator->stream(natives.back()));
      lags.emplace_back(natives.back(), kLag);
    }
    live.resize(program.slots);
  }
  ~Session() {
    Device::get().synchronize();
    for (std::size_t i = 0; i < natives.size(); ++i) {
      if (natives[i] == nullptr) continue;
      allocator->stream_destroyed(streams[i]);
      Device::get().destroy_stream(natives[i]);
    }
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  void hold() {
    for (Lag& lag : lags) lag.hold();
  }
  void apply(const Op& op) {
    Buffer& buffer = live[op.slot];
    if (op.kind == OpKind::allocate) {
      buffer = allocator->malloc(op.bytes, streams[op.stream]);
    } else if (op.kind == OpKind::free) {
      allocator->free(std::exchange(buffer, Buffer{}));
    } else {
      allocator->free(std::exchange(buffer, Buffer{}), streams[op.stream]);
    }
  }
  void end_pass() {
    for (const Op& op : program.tail) apply(op);
  }

  const Program& program;
  std::unique_ptr<allocation::DeviceAllocator> allocator;
  std::vector<NativeStream> natives;
  std::vector<Stream> streams;
  std::vector<Lag> lags;
  std::vector<Buffer> live;
};

struct Pass {
  double driver_seconds = 0;  // In events that called the driver, everything in them counted.
  double seconds = 0;         // In all events.
  std::uint64_t failed = 0, calls = 0, waits = 0, moves = 0;
  double ratio = 0;
};

// One pass whose events are timed one by one, the GPU behind all the while.
Pass timed_pass(Session& s) {
  Pass out;
  s.allocator->reset_peaks();
  const Stats before = s.allocator->stats();
  const drivers::Driver& driver = s.allocator->driver();
  for (const Op& op : s.program.ops) {
    s.hold();
    const std::uint64_t calls = driver.calls(), start = now_ns();
    try {
      s.apply(op);
    } catch (const std::exception& error) {
      if (out.failed++ == 0) std::fprintf(stderr, "%s: %s\n", s.program.name.c_str(), error.what());
    }
    const double seconds = static_cast<double>(now_ns() - start) * 1e-9;
    out.seconds += seconds;
    if (driver.calls() != calls) out.driver_seconds += seconds;
  }
  s.end_pass();
  const Stats after = s.allocator->stats();
  out.calls = after.driver_calls - before.driver_calls;
  out.waits = after.host_waits - before.host_waits;
  out.moves = after.handles_created + after.handles_moved + after.handles_released - before.handles_created -
              before.handles_moved - before.handles_released;
  out.ratio = static_cast<double>(after.peak_reserved) / static_cast<double>(s.program.peak_live);
  return out;
}

}  // namespace

void behind(const std::vector<Program>& programs, unsigned passes) {
  for (const Program& program : programs) {
    {
      Session s(program);
      std::vector<Pass> all;
      for (unsigned i = 0; i < passes; ++i) all.push_back(timed_pass(s));
      double ratio = 0, waits = 0, failed = 0;
      for (const Pass& pass : all) {
        ratio = std::max(ratio, pass.ratio);
        waits += static_cast<double>(pass.waits);
        failed += static_cast<double>(pass.failed);
      }
      report("behind", program.name, "ratio", ratio);
      report("behind", program.name, "driver_ms", all.front().driver_seconds * 1e3);
      report("behind", program.name, "duration_ms", static_cast<double>(program.duration_us()) * 1e-3);
      report("behind", program.name, "host_waits", waits);
      report("behind", program.name, "failed", failed);
      report("behind", program.name, "handle_ops", static_cast<double>(all.front().moves));
      report("behind", program.name, "last_calls", static_cast<double>(all.back().calls));
      report("behind", program.name, "last_handle_ops", static_cast<double>(all.back().moves));
      report("behind", program.name, "second_ns", all[1].seconds * 1e9 / static_cast<double>(program.ops.size()));
    }
    Session s(program, program.peak_live / 20 * 21);
    const Pass first = timed_pass(s), second = timed_pass(s);
    report("limit", program.name, "failed", static_cast<double>(first.failed + second.failed));
    report("limit", program.name, "ratio", std::max(first.ratio, second.ratio));
    report("limit", program.name, "driver_ms", first.driver_seconds * 1e3);
    report("limit", program.name, "host_waits", static_cast<double>(first.waits + second.waits));
  }
}

void events(const std::vector<Program>& programs) {
  for (const Program& program : programs) {
    Session s(program);
    for (int pass = 1; pass <= 5; ++pass) {
      const std::uint64_t calls = s.allocator->stats().driver_calls, start = now_ns();
      for (const Op& op : program.ops) s.apply(op);
      const double ns = static_cast<double>(now_ns() - start) / static_cast<double>(program.ops.size());
      if (pass == 1) report("events", program.name, "first_ns", ns);
      if (pass == 2) report("events", program.name, "second_ns", ns);
      if (pass == 2)
        report("events", program.name, "second_calls", static_cast<double>(s.allocator->stats().driver_calls - calls));
      if (pass == 5) report("events", program.name, "fifth_ns", ns);
      s.end_pass();
    }
  }
}

void verify(const std::vector<Program>& programs) {
  Device& gpu = Device::get();
  double bytes = 0;
  for (const Program& program : programs) {
    Session s(program);
    std::vector<std::uint64_t> keys(program.slots);
    std::uint64_t key = 1;
    std::uint64_t steps = 0;
    const auto step = [&](const Op& op) {
      // Not by the clock: what is submitted here takes the GPU's time itself, and a queue is full after about 1000.
      if (steps++ % kVerifySteps == 0) {
        for (const NativeStream stream : s.natives) gpu.spin(stream, kLag);
      }
      const NativeStream stream = s.natives[op.stream];
      const Buffer buffer = s.live[op.slot];
      if (op.kind == OpKind::allocate) {
        s.apply(op);
        keys[op.slot] = key += 0x9E3779B1;
        gpu.fill(stream, reinterpret_cast<std::uintptr_t>(s.live[op.slot].ptr()), op.bytes, key);
        return;
      }
      if (op.kind == OpKind::free_on) {
        // The program made the stream wait for the others.
        for (const NativeStream other : s.natives) gpu.order(other, stream);
      }
      gpu.check(stream, reinterpret_cast<std::uintptr_t>(buffer.ptr()), op.bytes, keys[op.slot]);
      bytes += static_cast<double>(op.bytes);
      s.apply(op);
    };
    for (int pass = 0; pass < 2; ++pass) {
      for (const Op& op : program.ops) step(op);
      s.end_pass();
    }
    report("verify", program.name, "mismatches", static_cast<double>(gpu.mismatches()));
    double faults = 0;
    for (const std::string& message : s.allocator->check_invariants()) {
      std::fprintf(stderr, "%s: %s\n", program.name.c_str(), message.c_str());
      ++faults;
    }
    report("verify", program.name, "faults", faults);
  }
  report("verify", "all", "GiB", bytes / (1 << 30));
}

}  // namespace cistern::gpu
