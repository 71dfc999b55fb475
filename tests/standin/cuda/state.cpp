// Start, faults, what was seen; and the report at exit.
#include "standin/cuda/state.hpp"

#include <unistd.h>

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>

namespace cistern::standin {
namespace {

constexpr std::size_t kKeptViolations = 1000;

// From here on the driver has ended, as the vendor's has when its own exit handler ran.
void at_exit() {
  State& s = state();
  std::vector<std::string> lines;
  {
    const std::lock_guard lock(s.mutex);
    s.ended = true;
    if (getpid() != s.owner_process) return;
    lines = s.violations;
    for (const std::string& leak : leaks(s)) lines.push_back("not given back: " + leak);
  }
  const Report report = read_report();
  if (report == Report::none || lines.empty()) return;
  for (const std::string& line : lines) std::fprintf(stderr, "cistern stand-in: %s\n", line.c_str());
  std::fflush(nullptr);
  if (report == Report::strict) _exit(kStrictExit);
}

}  // namespace

State& state() {
  static State* const instance = [] {
    auto* const made = new State;
    configure(*made);
    return made;
  }();
  return *instance;
}

// Kept after the thread's end: hooks that run late at its exit may still call.
ThreadState& this_thread() {
  static std::mutex* const mutex = new std::mutex;
  static auto* const all = new std::vector<ThreadState*>;
  // Static storage: LeakSanitizer stumbles over what a late library gives to a thread that never ends.
  __attribute__((tls_model("initial-exec"))) thread_local ThreadState* mine = nullptr;
  if (mine == nullptr) {
    mine = new ThreadState;
    const std::lock_guard lock(*mutex);
    all->push_back(mine);
    mine->number = all->size();
  }
  return *mine;
}

void start(State& s) {
  if (s.initialised) return;
  if (s.owner_process == 0) std::atexit(at_exit);
  s.owner_process = getpid();
  for (int i = 0; i < s.config.devices; ++i) {
    auto device = std::make_unique<Device>();
    device->index = i;
    device->context.device = i;
    device->pool_handle.device = i;
    if (!device->memory.start(s.config.memory)) {
      std::fprintf(stderr, "cistern stand-in: the host cannot map %zu bytes\n", s.config.memory);
      std::abort();
    }
    s.devices.push_back(std::move(device));
    StreamState& legacy = new_stream(s, i, true);
    legacy.legacy = true;
    s.streams.legacy[i] = legacy.id;
  }
  s.initialised = true;
}

Result violation(State& s, Result result, const char* format, ...) {
  char text[256];
  std::va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  ++s.violation_count;
  if (s.violations.size() < kKeptViolations) s.violations.emplace_back(text);
  return result;
}

std::vector<std::string> leaks(const State& s) {
  std::vector<std::string> out;
  char text[160];
  const auto add = [&](const char* what, unsigned long long which, std::size_t bytes) {
    std::snprintf(text, sizeof text, "%s %#llx, %zu bytes", what, which, bytes);
    out.emplace_back(text);
  };
  for (const auto& [handle, piece] : s.pieces) add("piece", handle, piece->bytes);
  for (const auto& [at, region] : s.regions.all()) {
    constexpr const char* names[] = {"mapping",        "device memory", "pool chunk",
                                     "managed memory", "pinned memory", "registered memory"};
    if (region.kind != Kind::pool) add(names[static_cast<std::size_t>(region.kind)], at, region.bytes);
  }
  for (const auto& device : s.devices) {
    for (const auto& [at, block] : device->pool.blocks) {
      if (block.live) add("stream-ordered memory", at, block.bytes);
    }
    if (device->context.retained != 0) add("primary context of device", static_cast<unsigned>(device->index), 0);
  }
  for (const auto& [at, bytes] : s.addresses.all()) {
    // Whole allocations have their range as well as their region.
    const auto region = s.regions.all().find(at);
    if (region == s.regions.all().end() || region->second.kind == Kind::mapped) add("reserved range", at, bytes);
  }
  std::size_t events = 0;
  for (const EventObject* event : s.events) events += event->live ? 1 : 0;
  if (events != 0) add("events, count", events, 0);
  return out;
}

Call::Call(const char* name, unsigned flags) : s(state()), lock(s.mutex) {
  ++s.calls[name];
  ++s.all_calls;
  const ThreadState& thread = this_thread();
  if (s.ended) {
    result = kDeinitialized;
    return;
  }
  if ((flags & before_init) == 0 && !s.initialised) {
    result = violation(s, kNotInitialized, "%s: before cuInit", name);
    return;
  }
  if (s.owner_process != 0 && s.owner_process != getpid()) {
    result = violation(s, kNotInitialized, "%s: in a forked child", name);
    return;
  }
  if (thread.in_host_function) {
    result = violation(s, kNotPermitted, "%s: in a host function", name);
    return;
  }
  Faults& faults = s.faults;
  if (faults.left != 0 && (faults.name == name || (faults.name == "*" && (flags & never_fails) == 0))) {
    if (faults.skip != 0) {
      --faults.skip;
    } else {
      --faults.left;
      ++faults.injected;
      result = faults.result;
      return;
    }
  }
  if ((flags & context) != 0) {
    if (thread.contexts.empty()) {
      result = violation(s, kInvalidContext, "%s: no current context", name);
      return;
    }
    device = s.devices[static_cast<std::size_t>(thread.contexts.back()->device)].get();
    if (thread.contexts.back()->retained == 0) {
      result = violation(s, kContextIsDestroyed, "%s: the current context was released", name);
      return;
    }
    if (device->error != kSuccess) {
      result = device->error;
      return;
    }
  }
  if ((flags & unsafe) != 0) result = standin::unsafe(s, thread, name);
}

}  // namespace cistern::standin
