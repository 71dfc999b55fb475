// The given traces through MLX's own CPU allocator and through Cistern's, side by side: nanoseconds per event of the
// first pass and of later ones, and the memory that each holds at its peak. Built with -DCISTERN_MLX_DIR=FOLDER, in
// which the wheels `mlx` and `mlx-cpu` were unpacked. Does not: write the memory, except where resident memory is
// measured.
//
// Each measurement runs in a child process, so that it starts from an allocator that nobody used: neither library can
// make a second CPU allocator that is its own. Later passes of the two alternate in one child. Single-threaded.
// --mlx-cache sets MLX's cache limit, which is 32 MiB by default on the CPU.
// Usage: cistern_mlx_replay [--passes N] [--mlx-cache MIB] [TRACE...]
#include <mlx/allocator.h>
#include <mlx/memory.h>
#include <mlx/version.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cistern/memory.hpp>
#include <cistern/trace.hpp>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "trace/replay_program.hpp"
#include "trace/replay_target.hpp"

namespace cistern::bench {
namespace {

namespace mlx = ::mlx::core;

constexpr double kMiB = 1 << 20;

struct Options {
  int passes = 11;
  long mlx_cache = -1;  // MiB; below 0: MLX's own default.
  std::vector<std::string> traces;
};

// MLX's allocator in the shape that the replay's loop drives.
class MlxMemory {
 public:
  using Handle = void*;
  Handle allocate(std::uint64_t bytes, std::uint16_t) { return allocator_.malloc(bytes).ptr(); }
  void free(Handle& handle) {
    if (handle != nullptr) allocator_.free(mlx::allocator::Buffer(handle));
  }
  void free_on(Handle& handle, std::uint16_t) { free(handle); }
  std::uint64_t address(Handle handle) const { return reinterpret_cast<std::uint64_t>(handle); }
  void touch(Handle handle, std::uint64_t bytes, std::uint16_t) {
    trace::touch_pages(mlx::allocator::Buffer(handle).raw_ptr(), bytes);
  }
  void leave(Handle, std::uint64_t, std::uint16_t) {}
  void join(std::uint16_t) {}
  void advance(std::uint64_t) {}

 private:
  mlx::allocator::Allocator& allocator_ = mlx::allocator::allocator();
};

// One of the two over a program.
class Side {
 public:
  virtual ~Side() = default;
  // The program's events, without the frees of what lives at the end.
  virtual void run(bool touch) = 0;
  virtual void drain() = 0;
  // Bytes held from the system at the peak, cache included, of a pass that is not timed.
  virtual std::uint64_t peak_held() = 0;
};

class CisternSide final : public Side {
 public:
  explicit CisternSide(const trace::Program& program)
      : program_(program),
        target_(trace::make_target({.policy = trace::Policy::cistern, .device = Device::cpu()}, program)) {}
  void run(bool touch) override {
    if (target_->run(0, program_, {.touch = touch}).failed != 0) throw std::runtime_error("cistern: a request failed");
  }
  void drain() override { target_->drain(0, program_); }
  std::uint64_t peak_held() override {
    target_->start_pass();
    run(false);
    const std::uint64_t peak = target_->figures().peak_reserved;
    drain();
    return peak;
  }

 private:
  const trace::Program& program_;
  std::unique_ptr<trace::Target> target_;
};

class MlxSide final : public Side {
 public:
  MlxSide(const trace::Program& program, long cache) : program_(program), handles_(program.slots) {
    if (cache >= 0) mlx::set_cache_limit(static_cast<std::size_t>(cache) << 20);
  }
  void run(bool touch) override {
    const trace::RunOutcome outcome =
        trace::run_ops(memory_, handles_.data(), program_, trace::RunMode{.touch = touch});
    if (outcome.failed != 0) throw std::runtime_error("mlx: " + outcome.first_failure);
  }
  void drain() override {
    for (const trace::Op& op : program_.tail) memory_.free(handles_[op.slot]);
  }
  std::uint64_t peak_held() override {
    std::uint64_t peak = 0;
    for (const trace::Op& op : program_.ops) {
      if (op.kind != trace::OpKind::allocate) {
        memory_.free(handles_[op.slot]);
        continue;
      }
      handles_[op.slot] = memory_.allocate(op.bytes, op.stream);
      peak = std::max<std::uint64_t>(peak, mlx::get_active_memory() + mlx::get_cache_memory());
    }
    drain();
    return peak;
  }

 private:
  const trace::Program& program_;
  MlxMemory memory_;
  std::vector<MlxMemory::Handle> handles_;
};

std::unique_ptr<Side> make_side(bool own, const trace::Program& program, const Options& options) {
  if (own) return std::make_unique<CisternSide>(program);
  return std::make_unique<MlxSide>(program, options.mlx_cache);
}

double nanoseconds(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count();
}

// The numbers that `work` returns in a child process.
std::vector<double> in_child(std::size_t count, const std::function<std::vector<double>()>& work) {
  std::array<int, 2> ends{};
  if (pipe(ends.data()) != 0) throw std::runtime_error("pipe failed");
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("fork failed");
  if (child == 0) {
    int status = 1;
    try {
      const std::vector<double> numbers = work();
      const std::size_t bytes = numbers.size() * sizeof(double);
      status = write(ends[1], numbers.data(), bytes) == static_cast<ssize_t>(bytes) ? 0 : 1;
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
    }
    _exit(status);
  }
  close(ends[1]);
  std::vector<double> numbers(count);
  const std::size_t bytes = count * sizeof(double);
  std::size_t got = 0;
  while (got < bytes) {
    const ssize_t more = read(ends[0], reinterpret_cast<char*>(numbers.data()) + got, bytes - got);
    if (more <= 0) break;
    got += static_cast<std::size_t>(more);
  }
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (got != bytes || status != 0) throw std::runtime_error("a measurement failed");
  return numbers;
}

// Of /proc/self/status or /proc/meminfo. Bytes; 0 where the system does not say.
double proc_bytes(const char* file, const std::string& key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with(key + ":")) return std::strtod(line.c_str() + key.size() + 1, nullptr) * 1024;
  }
  return 0;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

struct Row {
  double first[2] = {}, later[2] = {};  // Nanoseconds per event; [0] is Cistern.
  double first_ratio = 0, later_ratio = 0;
  double held[2] = {}, resident[2] = {};  // Bytes; resident 0: not measured.
};

constexpr bool kOwn[] = {true, false};

// First passes of all traces come before anything else: what the system has to do after gigabytes were touched and
// given back makes page faults several times slower for a while.
void measure_first(const trace::Program& program, const Options& options, Row& row) {
  const int passes = options.passes;
  const auto events = static_cast<double>(program.ops.size());
  std::vector<double> first[2], ratios;
  for (int i = 0; i < passes; ++i) {
    for (int s = 0; s < 2; ++s) {
      // What a program does once (a thread's cache, the library's own start) is done with one buffer before.
      first[s].push_back(in_child(1, [&] {
        const auto side = make_side(kOwn[s], program, options);
        if (kOwn[s]) cistern::free(cistern::malloc(64));
        return std::vector{nanoseconds([&] { side->run(false); }) / events};
      })[0]);
    }
    ratios.push_back(first[1].back() / first[0].back());
  }
  for (int s = 0; s < 2; ++s) row.first[s] = median(first[s]);
  row.first_ratio = median(ratios);
}

void measure(const trace::Program& program, const Options& options, Row& row) {
  const int passes = options.passes;
  const auto all_events = static_cast<double>(program.ops.size() + program.tail.size());
  const std::vector<double> later = in_child(static_cast<std::size_t>(2 * passes), [&] {
    const std::unique_ptr<Side> sides[] = {make_side(true, program, options), make_side(false, program, options)};
    const auto pass = [&](int s) {
      return nanoseconds([&] {
               sides[s]->run(false);
               sides[s]->drain();
             }) /
             all_events;
    };
    std::vector<double> times;
    for (int i = -1; i < passes; ++i) {
      for (int s = 0; s < 2; ++s) {
        const double time = pass(s);
        if (i >= 0) times.push_back(time);
      }
    }
    return times;
  });
  std::vector<double> sides[2], ratios;
  for (std::size_t i = 0; i < later.size(); ++i) sides[i % 2].push_back(later[i]);
  for (std::size_t i = 0; i < sides[0].size(); ++i) ratios.push_back(sides[1][i] / sides[0][i]);
  for (int s = 0; s < 2; ++s) row.later[s] = median(sides[s]);
  row.later_ratio = median(ratios);

  for (int s = 0; s < 2; ++s) {
    row.held[s] = in_child(1, [&] {
      const auto side = make_side(kOwn[s], program, options);
      return std::vector{static_cast<double>(side->peak_held())};
    })[0];
  }
  const double room = proc_bytes("/proc/meminfo", "MemAvailable") - 1024 * kMiB;
  if (std::max(row.held[0], row.held[1]) > room) return;
  for (int s = 0; s < 2; ++s) {
    row.resident[s] = in_child(1, [&] {
      const auto side = make_side(kOwn[s], program, options);
      const double before = proc_bytes("/proc/self/status", "VmRSS");
      side->run(true);
      return std::vector{proc_bytes("/proc/self/status", "VmHWM") - before};
    })[0];
  }
}

std::string megabytes(double bytes) {
  char text[32];
  std::snprintf(text, sizeof text, bytes == 0 ? "-" : "%.0f", bytes / kMiB);
  return text;
}

int replay(const Options& options) {
  std::size_t cache = static_cast<std::size_t>(options.mlx_cache) << 20;
  if (options.mlx_cache < 0) {
    cache = mlx::set_cache_limit(0);
    mlx::set_cache_limit(cache);
  }
  std::printf(
      "MLX %d.%d.%d (cache limit %.0f MiB) beside Cistern, CPU, one thread; medians of %d passes. ns/event; MiB.\n\n",
      MLX_VERSION_MAJOR, MLX_VERSION_MINOR, MLX_VERSION_PATCH, static_cast<double>(cache) / kMiB, options.passes);
  std::printf("%-16s %8s  %7s %7s %6s  %7s %7s %6s  %6s  %7s %7s  %7s %7s\n", "", "", "first", "first", "", "later",
              "later", "", "peak", "held", "held", "touched", "touched");
  std::printf("%-16s %8s  %7s %7s %6s  %7s %7s %6s  %6s  %7s %7s  %7s %7s\n", "trace", "events", "cistern", "mlx",
              "ratio", "cistern", "mlx", "ratio", "live", "cistern", "mlx", "cistern", "mlx");
  double logs[2] = {};
  std::vector<trace::Program> programs;
  for (const std::string& path : options.traces) programs.push_back(trace::compile(read_trace(path), path));
  std::vector<Row> rows(programs.size());
  for (std::size_t i = 0; i < rows.size(); ++i) measure_first(programs[i], options, rows[i]);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const trace::Program& program = programs[i];
    Row& row = rows[i];
    measure(program, options, row);
    std::printf("%-16s %8zu  %7.1f %7.1f %5.2fx  %7.1f %7.1f %5.2fx  %6s  %7s %7s  %7s %7s\n", program.name.c_str(),
                program.ops.size(), row.first[0], row.first[1], row.first_ratio, row.later[0], row.later[1],
                row.later_ratio, megabytes(static_cast<double>(program.peak_live)).c_str(),
                megabytes(row.held[0]).c_str(), megabytes(row.held[1]).c_str(), megabytes(row.resident[0]).c_str(),
                megabytes(row.resident[1]).c_str());
    std::fflush(stdout);
    logs[0] += std::log(row.first_ratio);
    logs[1] += std::log(row.later_ratio);
  }
  const auto count = static_cast<double>(options.traces.size());
  std::printf("%-16s %8s  %7s %7s %5.2fx  %7s %7s %5.2fx\n", "geomean", "", "", "", std::exp(logs[0] / count), "", "",
              std::exp(logs[1] / count));
  return 0;
}

int run(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--passes") == 0 && i + 1 < argc) {
      options.passes = std::atoi(argv[++i]);
    } else if (std::strcmp(argv[i], "--mlx-cache") == 0 && i + 1 < argc) {
      options.mlx_cache = std::atol(argv[++i]);
    } else if (argv[i][0] == '-') {
      options.passes = 0;
    } else {
      options.traces.emplace_back(argv[i]);
    }
  }
  if (options.passes < 1 || options.passes > 1000) {
    std::fprintf(stderr, "Usage: cistern_mlx_replay [--passes 1..1000] [--mlx-cache MIB] [TRACE...]\n");
    return 2;
  }
  if (options.traces.empty()) {
    for (const auto& entry : std::filesystem::directory_iterator(CISTERN_SOURCE_DIR "/data/traces")) {
      if (entry.path().string().ends_with(".csv.gz")) options.traces.push_back(entry.path().string());
    }
    std::sort(options.traces.begin(), options.traces.end());
  }
  return replay(options);
}

}  // namespace
}  // namespace cistern::bench

int main(int argc, char** argv) {
  try {
    return cistern::bench::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
