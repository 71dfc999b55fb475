// The replay engine: timed passes, the checking replay, the drawing replay. See replay.hpp.
#include "trace/replay.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <chrono>
#include <thread>

#include "cistern/error.hpp"
#include "trace/replay_check.hpp"
#include "trace/replay_target.hpp"

namespace cistern::trace {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kWholeBytes = std::uint64_t{8} << 30;  // Of large blocks that a check writes whole: seconds.
// ThreadSanitizer keeps several bytes for each one that is touched, AddressSanitizer what was freed.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kShadowed = true;
#elif defined(__has_feature)
constexpr bool kShadowed = __has_feature(thread_sanitizer) || __has_feature(address_sanitizer);
#else
constexpr bool kShadowed = false;
#endif
constexpr unsigned kCheckPasses = 2;  // Fresh memory, then used memory.
constexpr std::size_t kProgressOps = 256;

constexpr std::array<std::string_view, 5> kPolicyNames = {"cistern", "pool", "planned", "buffer-cache", "system"};

double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

TargetOptions target_options(const Program& program, const ReplayOptions& options, unsigned lanes) {
  TargetOptions out;
  out.policy = options.policy;
  out.device = options.device;
  out.limit = options.limit ? options.limit->of(program.peak_live * lanes) : 0;
  out.lag_us = options.lag_us;
  out.lanes = lanes;
  return out;
}

// Difference of two readings of counters that only grow.
PassFigures pass_figures(const TargetFigures& before, const TargetFigures& after, double seconds,
                         std::uint64_t failed) {
  PassFigures pass;
  pass.seconds = seconds;
  pass.driver_calls = after.driver_calls - before.driver_calls;
  pass.handle_ops = after.handle_ops - before.handle_ops;
  pass.handle_seconds = after.handle_seconds - before.handle_seconds;
  pass.peak_reserved = after.peak_reserved;
  pass.failed = failed;
  return pass;
}

// Runs every lane once; returns the seconds from the first start to the last end. Several lanes start together and are
// at the trace's peak together, so that the most bytes alive at once is the sum of theirs.
double run_lanes(Target& target, const Program& program, RunMode mode, std::vector<RunOutcome>& outcomes) {
  if (outcomes.size() == 1) {
    const auto start = Clock::now();
    outcomes[0] = target.run(0, program, mode);
    return since(start);
  }
  std::vector<Clock::time_point> starts(outcomes.size()), ends(outcomes.size());
  std::barrier<> ready(static_cast<std::ptrdiff_t>(outcomes.size()));
  mode.meeting = &ready;
  std::vector<std::thread> threads;
  for (unsigned lane = 0; lane < outcomes.size(); ++lane) {
    threads.emplace_back([&, lane] {
      ready.arrive_and_wait();
      starts[lane] = Clock::now();
      outcomes[lane] = target.run(lane, program, mode);
      ends[lane] = Clock::now();
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto span = *std::max_element(ends.begin(), ends.end()) - *std::min_element(starts.begin(), starts.end());
  return std::chrono::duration<double>(span).count();
}

// Bytes on a device that the host cannot follow: each block's edges, in the order of its stream.
class StampedBlocks {
 public:
  StampedBlocks(Target& target, std::uint32_t slots) : target_(target), bytes_(target.device_bytes()) {
    if (bytes_ != nullptr) blocks_.resize(slots);
  }
  void allocated(const Op& op, std::uint64_t address) {
    if (bytes_ == nullptr) return;
    value_ = static_cast<std::uint8_t>(value_ % 255 + 1);
    blocks_[op.slot] = {address, op.bytes, target_.native(op.stream), value_};
    if (address != 0) bytes_->write(address, op.bytes, value_, blocks_[op.slot].native);
  }
  void freeing(const Op& op) {
    if (bytes_ == nullptr || blocks_[op.slot].address == 0) return;
    const Stamped& block = blocks_[op.slot];
    bytes_->read(block.address, block.bytes, block.value, block.native);
  }
  std::uint64_t finish() { return bytes_ != nullptr ? bytes_->finish() : 0; }
  std::uint64_t verified() const { return bytes_ != nullptr ? bytes_->verified() : 0; }

 private:
  struct Stamped {
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;
    void* native = nullptr;
    std::uint8_t value = 0;
  };
  Target& target_;
  DeviceBytes* bytes_;
  std::vector<Stamped> blocks_;
  std::uint8_t value_ = 0;
};

class Engine {
 public:
  Engine(const Program& program, const ReplayOptions& options) : program_(program), options_(options) {
    steps_ = options.repeat + (options.check ? kCheckPasses : 0) + (options.curves ? 1 : 0);
  }

  ReplayResult run() {
    result_.trace = program_.name;
    result_.allocator = to_string(options_.policy);
    result_.device = cistern::to_string(options_.device);
    result_.events = program_.ops.size() * options_.threads;
    result_.peak_live = program_.peak_live * options_.threads;
    result_.limit = options_.limit ? options_.limit->of(result_.peak_live) : 0;
    result_.duration_seconds = static_cast<double>(program_.duration_us()) * 1e-6;
    timed();
    if (options_.check) checked();
    if (options_.curves) draw();
    return std::move(result_);
  }

 private:
  void progress(double within) {
    if (options_.progress) options_.progress((done_ + within) / steps_);
  }
  void step_done() {
    done_ += 1;
    progress(0);
  }

  // A device that runs behind is only worth something with work on it.
  bool uses_device() const { return options_.touch || options_.lag_us > 0; }

  void timed() {
    const auto target = make_target(target_options(program_, options_, options_.threads), program_);
    std::vector<RunOutcome> outcomes(options_.threads);
    RunMode mode;
    mode.touch = uses_device();
    mode.clocked = options_.lag_us > 0;
    CheckResult faults;
    for (unsigned pass = 0; pass < options_.repeat; ++pass) {
      target->start_pass();
      // What making the allocator cost (a planned slab, address space) belongs to the first pass.
      const TargetFigures before = pass == 0 ? TargetFigures{} : target->figures();
      const double seconds = run_lanes(*target, program_, mode, outcomes);
      for (unsigned lane = 0; lane < options_.threads; ++lane) target->drain(lane, program_);
      const TargetFigures after = target->figures();
      std::uint64_t failed = 0;
      for (const RunOutcome& outcome : outcomes) {
        failed += outcome.failed;
        if (result_.first_failure.empty()) result_.first_failure = outcome.first_failure;
      }
      result_.passes.push_back(pass_figures(before, after, seconds, failed));
      if (options_.check) note_invariants(*target, fmt::format("after pass {}", pass + 1), faults);
      mode.base_us += program_.duration_us() + 1;
      step_done();
    }
    if (options_.check) result_.check = std::move(faults);
    for (const PassFigures& pass : result_.passes) {
      result_.seconds += pass.seconds / options_.repeat;
      result_.peak_reserved = std::max(result_.peak_reserved, pass.peak_reserved);
      result_.driver_calls += pass.driver_calls;
      result_.handle_ops += pass.handle_ops;
      result_.handle_seconds += pass.handle_seconds;
      result_.failed += pass.failed;
    }
    if (result_.events > 0) result_.ns_per_event = result_.seconds * 1e9 / static_cast<double>(result_.events);
    if (result_.peak_live > 0) {
      result_.ratio = static_cast<double>(result_.peak_reserved) / static_cast<double>(result_.peak_live);
    }
  }

  static void note_invariants(const Target& target, const std::string& when, CheckResult& out) {
    for (const std::string& message : target.check_invariants()) {
      ++out.faults;
      if (out.messages.size() < 20) out.messages.push_back(when + ": " + message);
    }
  }

  // One pass, op by op, on a fresh allocator; calls hooks around each op. Failed allocations are counted once, in the
  // timed passes, unless they fail here alone.
  template <class Allocated, class Freeing, class After>
  std::uint64_t step_through(Target& target, std::uint64_t base_us, Allocated allocated, Freeing freeing, After after) {
    std::uint64_t failed = 0;
    std::vector<bool> alive(program_.slots);
    const auto one = [&](const Op& op, std::size_t index) {
      try {
        if (op.kind == OpKind::allocate) {
          const std::uint64_t address = target.allocate(op);
          alive[op.slot] = true;
          allocated(op, index, address);
        } else if (alive[op.slot]) {
          freeing(op, index);
          alive[op.slot] = false;
          target.free(op);
        }
      } catch (const std::exception& error) {
        ++failed;
        if (result_.first_failure.empty()) result_.first_failure = error.what();
      }
    };
    target.start_pass();
    for (std::size_t i = 0; i < program_.ops.size(); ++i) {
      if (options_.lag_us > 0) target.advance(base_us + program_.times_us[i]);
      one(program_.ops[i], i);
      after(i);
      if (i % kProgressOps == 0) progress(static_cast<double>(i) / static_cast<double>(program_.ops.size()));
    }
    for (const Op& op : program_.tail) one(op, program_.ops.size());
    target.end_pass();
    step_done();
    return failed;
  }

  void checked() {
    CheckResult& out = *result_.check;
    const auto target = make_target(target_options(program_, options_, 1), program_);
    BlockChecker checker(program_, target->alignment(), target->host_accessible(), kWholeBytes);
    std::vector<std::uint64_t> slot_ids(program_.slots);
    StampedBlocks stamped(*target, program_.slots);
    // What is reserved already (the slab of a planned arena) may be resident or not, and is resident in part later.
    const bool measured =
        target->host_accessible() && options_.device.type == DeviceType::cpu && target->figures().reserved == 0;
    const std::optional<std::uint64_t> base = measured ? resident_bytes() : std::nullopt;
    std::uint64_t highest = 0;
    for (unsigned pass = 0; pass < kCheckPasses; ++pass) {
      const std::uint64_t failed = step_through(
          *target, pass * (program_.duration_us() + 1),
          [&](const Op& op, std::size_t index, std::uint64_t address) {
            slot_ids[op.slot] = program_.ids[index];
            checker.allocated(op, program_.ids[index], address);
            if (uses_device() && !target->host_accessible()) target->touch(op);
            stamped.allocated(op, address);
          },
          [&](const Op& op, std::size_t) {
            checker.freeing(op, slot_ids[op.slot]);
            stamped.freeing(op);
            if (uses_device() && !target->host_accessible()) target->leave(op);
          },
          [&](std::size_t index) {
            if (!base || (program_.ops[index].kind != OpKind::allocate && index != program_.peak_op)) return;
            const std::uint64_t reserved = target->figures().reserved;
            if (reserved <= highest) return;
            highest = reserved;
            if (const auto now = resident_bytes()) {
              out.resident = *now > *base ? *now - *base : 0;
              out.resident_reserved = reserved;
            }
          });
      if (failed != result_.passes.front().failed) {
        checker.fault(fmt::format("{} events failed in checked pass {}, {} in the first timed one", failed, pass + 1,
                                  result_.passes.front().failed));
      }
      checker.finish();
      if (const std::uint64_t bad = stamped.finish(); bad != 0) {
        checker.fault(
            fmt::format("{} edges of blocks were not as the device wrote them in checked pass {}", bad, pass + 1));
      }
      note_invariants(*target, fmt::format("after checked pass {}", pass + 1), out);
    }
    CheckResult found;
    checker.report(found);
    out.blocks = found.blocks;
    out.bytes_verified = found.bytes_verified + stamped.verified();
    out.faults += found.faults;
    out.messages.insert(out.messages.end(), found.messages.begin(), found.messages.end());
    judge_resident(*target, program_.slots, out);
  }

  static void judge_resident(const Target& target, std::uint32_t slots, CheckResult& out) {
    if (kShadowed || !out.resident || !target.accounts_for_memory()) return;
    if (const auto fault = resident_fault(*out.resident, out.resident_reserved, slots)) {
      ++out.faults;
      out.messages.push_back(*fault);
    }
  }

  void draw() {
    const auto target = make_target(target_options(program_, options_, 1), program_);
    auto curves = std::make_shared<Curves>();
    curves->live.reserve(program_.ops.size());
    curves->reserved.reserve(program_.ops.size());
    curves->cached.reserve(program_.ops.size());
    curves->lives.reserve(program_.allocations);
    std::vector<std::uint32_t> life_of(program_.slots);
    const auto end = static_cast<std::uint32_t>(program_.ops.size());
    std::uint64_t live = 0;
    step_through(
        *target, 0,
        [&](const Op& op, std::size_t index, std::uint64_t address) {
          life_of[op.slot] = static_cast<std::uint32_t>(curves->lives.size());
          curves->lives.push_back(
              {address, op.bytes, program_.ids[index], static_cast<std::uint32_t>(index), end, op.stream});
          live += op.bytes;
        },
        [&](const Op& op, std::size_t index) {
          Life& life = curves->lives[life_of[op.slot]];
          life.died = static_cast<std::uint32_t>(std::min<std::size_t>(index, end));
          live -= life.bytes;
        },
        [&](std::size_t) {
          const TargetFigures figures = target->figures();
          curves->live.push_back(live);
          curves->reserved.push_back(figures.reserved);
          curves->cached.push_back(figures.reserved > figures.active ? figures.reserved - figures.active : 0);
        });
    result_.curves = std::move(curves);
  }

  const Program& program_;
  const ReplayOptions& options_;
  ReplayResult result_;
  double done_ = 0;
  double steps_ = 1;
};

}  // namespace

std::string_view to_string(Policy policy) { return kPolicyNames[static_cast<std::size_t>(policy)]; }

std::optional<Policy> parse_policy(std::string_view text) {
  const auto it = std::find(kPolicyNames.begin(), kPolicyNames.end(), text);
  if (it == kPolicyNames.end()) return std::nullopt;
  return static_cast<Policy>(it - kPolicyNames.begin());
}

std::uint64_t MemoryLimit::of(std::uint64_t peak_live) const {
  if (!(factor > 0)) return bytes;
  // Never 0, which is no limit, and never more than a device could have.
  constexpr std::uint64_t most = std::uint64_t{1} << 62;
  const double limit = factor * static_cast<double>(peak_live);
  return limit < static_cast<double>(most) ? std::max<std::uint64_t>(static_cast<std::uint64_t>(limit), 1) : most;
}

double ReplayResult::first_ns_per_event() const {
  return passes.empty() || events == 0 ? 0 : passes.front().seconds * 1e9 / static_cast<double>(events);
}

double ReplayResult::later_ns_per_event() const {
  if (passes.size() < 2 || events == 0) return 0;
  double sum = 0;
  for (std::size_t i = 1; i < passes.size(); ++i) sum += passes[i].seconds;
  return sum * 1e9 / static_cast<double>(events) / static_cast<double>(passes.size() - 1);
}

std::uint64_t ReplayResult::later_handle_ops() const {
  std::uint64_t most = 0;
  for (std::size_t i = 1; i < passes.size(); ++i) most = std::max(most, passes[i].handle_ops);
  return most;
}

ReplayResult replay(const Program& program, const ReplayOptions& options) {
  if (options.repeat == 0 || options.threads == 0)
    throw invalid_argument("a replay needs at least one pass and one thread");
  if (const std::string why = unavailable(options.policy, options.device); !why.empty()) throw invalid_argument(why);
  return Engine(program, options).run();
}

}  // namespace cistern::trace
