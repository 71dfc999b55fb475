// TraceRecorder: a program's own allocations, straight into a csv trace. One mutex guards all state; it is held while a
// full chunk (256 KiB) is written, and never while user code runs.
#include <fmt/format.h>

#include <chrono>
#include <exception>
#include <filesystem>
#include <mutex>
#include <string>
#include <system_error>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "cistern/trace.hpp"
#include "trace/builder.hpp"
#include "trace/csv.hpp"
#include "trace/sink.hpp"
#include "trace/text.hpp"

namespace cistern {

struct TraceRecorder::State {
  struct Block {
    std::uint64_t id, size, stream;
  };
  using SteadyClock = std::chrono::steady_clock;

  explicit State(const std::string& file) : path(file), sink(file, 6, trace::ByteSink::Mode::direct) {
    text = trace::kCsvHeader;
    text += '\n';
    sink.write(std::exchange(text, {}));
    sink.flush();
  }

  void add(TraceEventKind kind, const Block& block, std::uint64_t stream) {
    const auto now = std::chrono::duration_cast<std::chrono::microseconds>(SteadyClock::now() - start).count();
    trace::append_csv_line(text, kind, block.id, block.size, stream, static_cast<std::uint64_t>(now));
    ++events;
    if (text.size() >= trace::ByteSink::kChunk) sink.write(std::exchange(text, {}));
  }

  // What no reader would take is refused before it is written. pre: numbers up to kMaxSize.
  void check(std::uint64_t stream) {
    if (events == trace::kMaxEvents) refuse("one event more", fmt::format("at most {} events", trace::kMaxEvents));
    if (stream == last_stream) return;
    if (streams.insert(stream).second && streams.size() > trace::kMaxStreams) {
      refuse(fmt::format("stream number {}", trace::kMaxStreams + 1),
             fmt::format("at most {} streams", trace::kMaxStreams));
    }
    last_stream = stream;
  }

  [[noreturn]] void refuse(const std::string& found, const std::string& expected) const {
    throw TraceError(path, 0, found, expected);
  }

  void free(const Block& block, std::uint64_t stream) {
    check(stream);
    add(TraceEventKind::free, block, stream);
    live_bytes -= block.size;
  }

  void allocate(const Block& block) {
    if (block.size > trace::kMaxSize - live_bytes) {
      refuse(fmt::format("{} recorded live bytes and {} more", live_bytes, block.size),
             fmt::format("at most {} live bytes in all", trace::kMaxSize));
    }
    check(block.stream);
    add(TraceEventKind::allocate, block, block.stream);
    live_bytes += block.size;
  }

  void rethrow() const {
    if (failure) std::rethrow_exception(failure);
  }

  std::string path;
  mutable std::mutex mutex;
  trace::ByteSink sink;
  std::string text;
  std::unordered_map<std::uint64_t, Block> live;  // By key.
  SteadyClock::time_point start = SteadyClock::now();
  std::uint64_t next_id = 0;
  std::uint64_t events = 0;
  std::uint64_t live_bytes = 0;
  std::unordered_set<std::uint64_t> streams{0};
  std::uint64_t last_stream = 0;
  std::uint64_t missed = 0;
  bool closed = false;
  std::exception_ptr failure;
};

namespace {

// A name that says another format, or none, would be no trace to whoever reads it by its name. What is no file (a pipe,
// a device) is called as it is.
const std::string& checked_name(const std::string& path) {
  std::error_code error;
  const auto type = std::filesystem::status(path, error).type();
  using std::filesystem::file_type;
  const bool file = type == file_type::not_found || type == file_type::regular || type == file_type::none;
  const bool csv = path.ends_with(".csv") || path.ends_with(".csv.gz");
  if (file && !(csv && trace_format_of(path) == TraceFormat::csv)) {
    throw TraceError(path, 0, "a name that does not say csv", "a name that ends in .csv or .csv.gz");
  }
  return path;
}

}  // namespace

TraceRecorder::TraceRecorder(const std::string& path) : state_(std::make_unique<State>(checked_name(path))) {}

TraceRecorder::~TraceRecorder() {
  try {
    close();
  } catch (...) {
    // A destructor must not throw; close() is there for those who want to know.
  }
}

void TraceRecorder::allocated(std::uint64_t key, std::uint64_t size, std::uint64_t stream) noexcept {
  const std::lock_guard lock(state_->mutex);
  State& s = *state_;
  if (s.closed || s.failure) return;
  try {
    if (size > trace::kMaxSize || stream > trace::kMaxSize) {
      s.refuse("a recorded size or stream of 2^63 or more", "a number that a trace can hold");
    }
    const State::Block block{s.next_id, size, stream};
    const auto [it, fresh] = s.live.try_emplace(key, block);
    if (!fresh) {
      ++s.missed;
      s.free(it->second, it->second.stream);
      it->second = block;
    }
    ++s.next_id;
    s.allocate(block);
  } catch (...) {
    s.failure = std::current_exception();
  }
}

void TraceRecorder::freed(std::uint64_t key, std::optional<std::uint64_t> stream) noexcept {
  const std::lock_guard lock(state_->mutex);
  State& s = *state_;
  if (s.closed || s.failure) return;
  try {
    const auto it = s.live.find(key);
    if (it == s.live.end()) {
      ++s.missed;
      return;
    }
    if (stream.value_or(0) > trace::kMaxSize) {
      s.refuse("a recorded stream of 2^63 or more", "a number that a trace can hold");
    }
    s.free(it->second, stream.value_or(it->second.stream));
    s.live.erase(it);
  } catch (...) {
    s.failure = std::current_exception();
  }
}

void TraceRecorder::allocated(const void* pointer, std::uint64_t size, std::uint64_t stream) noexcept {
  allocated(static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(pointer)), size, stream);
}

void TraceRecorder::freed(const void* pointer, std::optional<std::uint64_t> stream) noexcept {
  freed(static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(pointer)), stream);
}

std::uint64_t TraceRecorder::events() const noexcept {
  const std::lock_guard lock(state_->mutex);
  return state_->events;
}

std::uint64_t TraceRecorder::missed() const noexcept {
  const std::lock_guard lock(state_->mutex);
  return state_->missed;
}

void TraceRecorder::flush() {
  const std::lock_guard lock(state_->mutex);
  State& s = *state_;
  s.rethrow();
  if (s.closed) return;
  s.sink.write(std::exchange(s.text, {}));
  s.sink.flush();
}

void TraceRecorder::close() {
  const std::lock_guard lock(state_->mutex);
  State& s = *state_;
  if (s.closed) return;
  s.closed = true;
  // What was recorded before a fault is a whole file, too.
  s.sink.write(std::exchange(s.text, {}));
  s.sink.commit();
  s.rethrow();
  if (s.events == 0) s.refuse("a recording without events", "at least one allocation");
}

}  // namespace cistern
