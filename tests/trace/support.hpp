// Helpers of the trace layer's tests: files in a folder of their own, expected errors, python3 when there is one.
#pragma once

#include <gtest/gtest.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "cistern/trace.hpp"

namespace cistern::trace_test {

namespace fs = std::filesystem;

// A folder for one test, removed with all in it.
class TempFolder {
 public:
  TempFolder() {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    std::string name = "cistern-trace-" + std::string(info->test_suite_name()) + "-" + info->name() + "-" +
                       std::to_string(std::hash<const void*>{}(this)) + "-" + std::to_string(std::rand());
    for (char& c : name) {
      if (c == '/') c = '_';
    }
    path_ = fs::temp_directory_path() / name;
    fs::create_directories(path_);
  }
  ~TempFolder() {
    std::error_code ec;
    fs::remove_all(path_, ec);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  std::string file(const std::string& name) const { return (path_ / name).string(); }
  // Always a new file: some file systems write the old one out when it is cut to nothing and written again.
  std::string write(const std::string& name, std::string_view bytes) const {
    std::error_code ec;
    fs::remove(file(name), ec);
    std::ofstream(file(name), std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return file(name);
  }
  bool empty() const { return fs::is_empty(path_); }

 private:
  fs::path path_;
};

inline std::string slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline std::string gzip(std::string_view bytes) {
  z_stream z{};
  EXPECT_EQ(deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&z, static_cast<uLong>(bytes.size())) + 32, '\0');
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  z.avail_in = static_cast<uInt>(bytes.size());
  z.next_out = reinterpret_cast<Bytef*>(out.data());
  z.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&z, Z_FINISH), Z_STREAM_END);
  out.resize(z.total_out);
  deflateEnd(&z);
  return out;
}

// Reading must fail with a TraceError of this file, on this line, whose text has both parts.
inline void expect_fault(const std::string& path, std::uint64_t line, std::string_view found, std::string_view expected,
                         const TraceReadOptions& options = {}) {
  try {
    const Trace trace = read_trace(path, options);
    ADD_FAILURE() << path << " was read: " << trace.events.size() << " events";
  } catch (const TraceError& e) {
    EXPECT_EQ(e.file(), path);
    EXPECT_EQ(e.line(), line) << e.what();
    EXPECT_NE(e.found().find(found), std::string::npos) << e.what();
    EXPECT_NE(e.expected().find(expected), std::string::npos) << e.what();
    EXPECT_EQ(std::string_view(e.what()).find(path), 0u) << e.what();
  }
}

// Figures recomputed the slow way.
inline void expect_consistent(const Trace& trace) {
  std::vector<int> state(trace.allocations);  // 0 unknown, 1 live, 2 freed.
  std::vector<std::uint64_t> sizes(trace.allocations);
  std::uint64_t live = 0, peak = 0, next = 0, last = 0;
  std::uint32_t count = 0;
  for (const TraceEvent& e : trace.events) {
    ASSERT_LT(e.id, trace.allocations);
    ASSERT_LT(e.stream, trace.streams.size());
    ASSERT_GE(e.time_us, last);
    last = e.time_us;
    if (e.kind == TraceEventKind::allocate) {
      ASSERT_EQ(e.id, next++);
      ASSERT_EQ(state[e.id], 0);
      state[e.id] = 1;
      sizes[e.id] = e.size;
      live += e.size;
      ++count;
    } else {
      ASSERT_EQ(state[e.id], 1);
      ASSERT_EQ(sizes[e.id], e.size);
      state[e.id] = 2;
      live -= e.size;
      --count;
    }
    peak = std::max(peak, live);
  }
  EXPECT_EQ(next, trace.allocations);
  EXPECT_EQ(peak, trace.peak_live_bytes);
  EXPECT_EQ(live, trace.live_at_end_bytes);
  EXPECT_EQ(count, trace.live_at_end);
  EXPECT_EQ(trace.duration_us, trace.events.back().time_us - trace.events.front().time_us);
  EXPECT_EQ(trace.streams.front(), 0u);
  EXPECT_TRUE(trace.original_ids.empty() || trace.original_ids.size() == trace.allocations);
}

inline bool have_python() {
  static const bool have = std::system("python3 -c 'import pickle, pickletools' >/dev/null 2>&1") == 0;
  return have;
}

// Runs a script; it must succeed.
inline void run_python(const TempFolder& folder, std::string_view script, const std::string& arguments) {
  const std::string path = folder.write("script.py", script);
  EXPECT_EQ(std::system(("python3 '" + path + "' " + arguments).c_str()), 0);
}

// Path of a recorded trace, from the folder CISTERN_TRACES or data/traces of the source tree; empty when it is not
// there.
inline std::string recorded_trace(const std::string& name) {
  const char* folder = std::getenv("CISTERN_TRACES");
  const fs::path base =
      folder != nullptr && *folder != '\0' ? fs::path(folder) : fs::path(__FILE__).parent_path() / "../../data/traces";
  return fs::exists(base / name) ? (base / name).string() : std::string{};
}

}  // namespace cistern::trace_test
