// Real traces on the CPU: a pass on a fresh allocator, and later passes, against the reference cache, memory untouched.
#include <algorithm>
#include <chrono>
#include <cistern/trace.hpp>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "reference/reference_cache.hpp"
#include "suite.hpp"
#include "trace/replay_program.hpp"
#include "trace/replay_target.hpp"

namespace cistern::bench {
namespace {

// The reference cache over the C library, in the shape that the replay's loop drives.
class ReferenceMemory {
 public:
  using Handle = reference::Block*;
  Handle allocate(std::uint64_t bytes, std::uint16_t) { return cache_.malloc(bytes); }
  void free(Handle& handle) {
    if (handle != nullptr) cache_.free(handle);
  }
  void free_on(Handle& handle, std::uint16_t) { free(handle); }
  std::uint64_t address(Handle handle) const { return reinterpret_cast<std::uint64_t>(handle->data); }
  void touch(Handle, std::uint64_t, std::uint16_t) {}
  void leave(Handle, std::uint64_t, std::uint16_t) {}
  void join(std::uint16_t) {}
  void advance(std::uint64_t) {}

 private:
  reference::ReferenceBufferCache cache_{4096, std::size_t{16} << 30, [](std::size_t n) { return std::malloc(n); },
                                         [](void* p, std::size_t) { std::free(p); }};
};

// The two things that a benchmark does with a policy, whatever it is.
struct Runner {
  std::function<void()> pass;
  std::function<void()> drain;
};

Runner cistern_runner(const trace::Program& program) {
  std::shared_ptr<trace::Target> target =
      trace::make_target({.policy = trace::Policy::cistern, .device = Device::cpu()}, program);
  return {[target, &program] {
            if (target->run(0, program, {}).failed != 0) std::abort();
          },
          [target, &program] { target->drain(0, program); }};
}

Runner reference_runner(const trace::Program& program) {
  struct State {
    ReferenceMemory memory;
    std::vector<ReferenceMemory::Handle> handles;
  };
  auto state = std::make_shared<State>();
  state->handles.resize(program.slots);
  return {[state, &program] { trace::run_ops(state->memory, state->handles.data(), program, trace::RunMode{}); },
          [state, &program] {
            for (const trace::Op& op : program.tail) state->memory.free(state->handles[op.slot]);
          }};
}

void first_pass(benchmark::State& state, const trace::Program& program, Runner (*make)(const trace::Program&)) {
  for (auto _ : state) {
    const Runner runner = make(program);
    const auto start = std::chrono::steady_clock::now();
    runner.pass();
    state.SetIterationTime(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    runner.drain();
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(program.ops.size()));
}

void later_pass(benchmark::State& state, const trace::Program& program, Runner (*make)(const trace::Program&)) {
  const Runner runner = make(program);
  runner.pass();
  runner.drain();
  for (auto _ : state) {
    runner.pass();
    runner.drain();
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(program.ops.size() + program.tail.size()));
}

}  // namespace

void add_replay(Suite& suite, const std::vector<std::string>& files) {
  std::vector<std::string> traces = files;
  const std::filesystem::path folder = std::filesystem::path(CISTERN_SOURCE_DIR) / "data" / "traces";
  if (traces.empty() && std::filesystem::is_directory(folder)) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (entry.path().string().ends_with(".csv.gz")) traces.push_back(entry.path().string());
    }
    std::sort(traces.begin(), traces.end());
  }
  for (const std::string& path : traces) {
    auto program = std::make_shared<trace::Program>(trace::compile(read_trace(path), path));
    for (const bool first : {true, false}) {
      const std::string group = (first ? "replay-first/" : "replay-later/") + program->name;
      for (const bool own : {true, false}) {
        const auto make = own ? &cistern_runner : &reference_runner;
        const auto body = first ? &first_pass : &later_pass;
        suite.add({group, own ? "cistern" : "reference-cache", "event",
                   [program, make, body](benchmark::State& s) { body(s, *program, make); }, first});
      }
    }
  }
}

}  // namespace cistern::bench
