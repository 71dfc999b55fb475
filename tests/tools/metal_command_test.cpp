// `cistern info` and `cistern replay --device metal` over the stand-in, which ends the program with status 86 when a
// rule of Apple's was broken or something is left alive. All given traces, the memory bar, and MLX's policy beside it.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>

#include "run_cli.hpp"

namespace cistern::tools_test {
namespace {

// Peak reserved over peak live: bars of the geometric mean over all traces, and of any one of them.
constexpr double kMeanBar = 1.15, kWorstBar = 1.30;

#if defined(__APPLE__)
constexpr const char* kSuffix = ".dylib";
#else
constexpr const char* kSuffix = ".so";
#endif

class MetalCommand : public Cli {
 protected:
  void SetUp() override {
    Cli::SetUp();
    const char* const set = std::getenv("CISTERN_METAL_LIBRARY");
    if (set != nullptr && *set != '\0' && std::string(set).find("standin") == std::string::npos)
      GTEST_SKIP() << "needs the stand-in";
    set_variable("CISTERN_METAL_LIBRARY", std::string(CISTERN_STANDIN_DIR) + "/libcistern_standin_metal" + kSuffix);
    set_variable("CISTERN_METAL_STANDIN_REPORT", "strict");
  }
  void TearDown() override {
    for (const auto& [name, old] : before_) {
      if (old.first) {
        setenv(name.c_str(), old.second.c_str(), 1);
      } else {
        unsetenv(name.c_str());
      }
    }
    Cli::TearDown();
  }
  void set_variable(const std::string& name, const std::string& value) {
    const char* const old = std::getenv(name.c_str());
    before_.try_emplace(name, old != nullptr, old != nullptr ? old : "");
    setenv(name.c_str(), value.c_str(), 1);
  }
  nlohmann::json device_info() const {
    const Ran ran = run({"info", "--json"});
    EXPECT_EQ(ran.status, 0) << ran.err;
    const auto all = nlohmann::json::parse(ran.out);
    for (const auto& device : all["devices"]) {
      if (device["device"] == "metal:0") return device;
    }
    ADD_FAILURE() << ran.out;
    return {};
  }
  static std::vector<std::string> traces() {
    const char* const folder = std::getenv("CISTERN_TRACES");
    std::vector<std::string> out;
    for (const auto& entry : fs::directory_iterator(folder != nullptr ? folder : CISTERN_SOURCE_DIR "/data/traces")) {
      const std::string name = entry.path().string();
      if (name.ends_with(".csv.gz") || name.ends_with(".csv")) out.push_back(name);
    }
    std::sort(out.begin(), out.end());
    return out;
  }

 private:
  std::map<std::string, std::pair<bool, std::string>> before_;
};

TEST_F(MetalCommand, SettingsThatNobodyKnowsAreRefusedByName) {
  for (const char* name : {"CISTERN_METAL_STORAGE", "CISTERN_METAL_MEMORY", "CISTERN_METAL_TRACKED",
                           "CISTERN_METAL_OBJECTS", "CISTERN_METAL_MAX_OBJECTS"}) {
    const std::string set = std::string(name) + "=privat";
    set_variable(name, "privat");
    const Ran info = run({"info"});
    EXPECT_EQ(info.status, 0) << "the other devices are shown";
    EXPECT_NE(info.out.find("metal:0 cannot be used: " + set), std::string::npos) << info.out;
    EXPECT_EQ(nlohmann::json::parse(run({"info", "--json"}).out)["unusable"].size(), 1U);
    const Ran replay = run({"replay", "--device", "metal", traces().front()});
    EXPECT_EQ(replay.status, 2);
    EXPECT_NE(replay.err.find(set), std::string::npos) << replay.err;
    EXPECT_EQ(replay.err.find("cistern: cistern"), std::string::npos) << replay.err;
    set_variable(name, "");
  }
}

TEST_F(MetalCommand, AMissingLibraryIsNamed) {
  set_variable("CISTERN_METAL_LIBRARY", "/nowhere/Metal");
  EXPECT_NE(run({"info"}).out.find("Metal: /nowhere/Metal"), std::string::npos);
  const Ran replay = run({"replay", "--device", "metal", traces().front()});
  EXPECT_EQ(replay.status, 2);
  EXPECT_NE(replay.err.find("device metal:0 is not available: Metal: /nowhere/Metal"), std::string::npos) << replay.err;
}

TEST_F(MetalCommand, InfoTellsWhatTheDeviceIs) {
  auto device = device_info();
  EXPECT_EQ(device["name"], "Apple M0 (stand-in)");
  EXPECT_EQ(device["page_size"], 16384);
  EXPECT_EQ(device["max_objects"], 499000);
  for (const char* yes : {"unified_memory", "host_accessible", "block_objects", "residency", "asynchronous"})
    EXPECT_EQ(device[yes], true) << yes;
  for (const char* no : {"virtual_memory", "whole_buffers", "sparse_buffers"}) EXPECT_EQ(device[no], false) << no;
  EXPECT_EQ(device["memory_limit"].get<std::uint64_t>(), (std::uint64_t{64} << 30) / 100 * 95);

  set_variable("CISTERN_METAL_STANDIN_WITH", "sparse");
  set_variable("CISTERN_METAL_STANDIN_WITHOUT", "unified shared_heaps residency");
  set_variable("CISTERN_METAL_STANDIN_PAGE", "4096");
  device = device_info();
  EXPECT_EQ(device["page_size"], 4096);
  EXPECT_EQ(device["sparse_buffers"], true);
  for (const char* no : {"unified_memory", "host_accessible", "residency"}) EXPECT_EQ(device[no], false) << no;

  set_variable("CISTERN_METAL_STANDIN_NAME", "Apple Paravirtual device");
  set_variable("CISTERN_METAL_STANDIN_WITHOUT", "heaps");
  EXPECT_EQ(device_info()["whole_buffers"], true);
  const Ran table = run({"info"});
  EXPECT_EQ(table.status, 0) << table.err;
  EXPECT_NE(table.out.find("Apple Paravirtual device"), std::string::npos) << table.out;
}

TEST_F(MetalCommand, WithoutALibraryItSaysSo) {
  set_variable("CISTERN_METAL_LIBRARY", "/nowhere/libmetal.so");
  write("t.csv", kTrace);
  const Ran info = run({"info", "--json"});
  EXPECT_EQ(info.status, 0) << info.err;
  EXPECT_EQ(info.out.find("metal"), std::string::npos);
  expect_refused({"replay", "--device", "metal", "t.csv"}, "metal");
}

// A fault in the middle of a replay is told by the exit status, whatever the replay itself says.
TEST_F(MetalCommand, ANilIsSurvivedByAReplay) {
  write("t.csv", kTrace);
  set_variable("CISTERN_METAL_STANDIN_FAIL", "newHeapWithDescriptor.:3:1");
  const Ran ran = run({"replay", "--json", "--check", "--device", "metal", "t.csv"});
  EXPECT_EQ(ran.status, 0) << ran.err;
  EXPECT_EQ(lines(ran.out)[0]["failed"], 0);
}

// Prints the table in docs/metal.md. "offsets" is CISTERN_METAL_OBJECTS=0, which makes no object over a block.
TEST_F(MetalCommand, EveryTraceKeepsToTheBars) {
  const std::vector<std::string> all = traces();
  ASSERT_FALSE(all.empty());
  // Rows of a replay by trace; the geometric mean of the ratios keeps to the bar where one is given.
  const auto replay = [&](const std::string& allocator, double mean_bar, double& mean) {
    std::vector<std::string> arguments = {"replay",      "--json",  "--device", "metal",
                                          "--allocator", allocator, "--repeat", "3"};
    arguments.insert(arguments.end(), all.begin(), all.end());
    const Ran ran = run(arguments);
    EXPECT_EQ(ran.status, 0) << ran.err;
    std::map<std::string, nlohmann::json> rows;
    double sum = 0;
    for (const auto& row : lines(ran.out)) {
      EXPECT_EQ(row["failed"], 0) << row;
      rows[row["trace"]] = row;
      sum += std::log(row["ratio"].get<double>());
    }
    EXPECT_EQ(rows.size(), all.size());
    mean = std::exp(sum / static_cast<double>(rows.size()));
    EXPECT_LE(mean, mean_bar) << allocator;
    return rows;
  };
  double ours_mean = 0, offsets_mean = 0, whole_mean = 0;
  const auto ours = replay("cistern", kMeanBar, ours_mean), whole = replay("buffer-cache", HUGE_VAL, whole_mean);
  set_variable("CISTERN_METAL_OBJECTS", "0");
  const auto offsets = replay("cistern", kMeanBar, offsets_mean);
  const auto calls = [](const nlohmann::json& row) {
    std::string out;
    for (const auto& pass : row["passes"]) {
      char text[32];
      std::snprintf(text, sizeof text, "%6llu", pass["driver_calls"].get<unsigned long long>());
      out += text;
    }
    return out;
  };
  std::printf("%-15s  %-23s  %s\n", "", "peak reserved / live", "driver calls of pass 1, 2, 3");
  std::printf("%-15s  %7s %7s %7s  %18s  %18s  %18s\n", "trace", "cistern", "offsets", "MLX's", "cistern", "offsets",
              "MLX's rule");
  for (const auto& [name, row] : ours) {
    const double ratio = row["ratio"], whole_ratio = whole.at(name)["ratio"];
    if (std::getenv("CISTERN_TRACES") == nullptr) {  // What was seen of the traces in data/.
      EXPECT_LE(ratio, kWorstBar) << name;
      EXPECT_LE(ratio, whole_ratio * 1.01) << name;
      EXPECT_LE(row["passes"][0]["driver_calls"], whole.at(name)["passes"][0]["driver_calls"]) << name;
    }
    std::printf("%-15s  %7.3f %7.3f %7.3f  %s  %s  %s\n", name.c_str(), ratio, offsets.at(name)["ratio"].get<double>(),
                whole_ratio, calls(row).c_str(), calls(offsets.at(name)).c_str(), calls(whole.at(name)).c_str());
  }
  std::printf("%-15s  %7.3f %7.3f %7.3f\n", "geomean", ours_mean, offsets_mean, whole_mean);
}

// No two live blocks overlap and every byte stays: a trace that asks for little at a time, since every byte is written.
TEST_F(MetalCommand, TheContentOfAReplayIsChecked) {
  write("t.csv", kTrace);
  std::vector<std::string> arguments = {"replay", "--json", "--check", "--device", "metal", "t.csv"};
  for (const std::string& trace : traces()) {
    if (trace.find("qwen_decode") != std::string::npos) arguments.push_back(trace);
  }
  for (const char* const memory : {"heaps", "whole"}) {
    set_variable("CISTERN_METAL_MEMORY", memory);
    const Ran ran = run(arguments);
    ASSERT_EQ(ran.status, 0) << memory << ": " << ran.err;
    for (const auto& row : lines(ran.out)) {
      EXPECT_EQ(row["failed"], 0) << row;
      EXPECT_EQ(row["check"]["faults"], 0) << row;
      EXPECT_GT(row["check"]["blocks"], 0) << row;
    }
  }
}

TEST_F(MetalCommand, EveryWayReplays) {
  write("t.csv", kTrace);
  const std::map<std::string, std::string> ways[] = {
      {{"CISTERN_METAL_STORAGE", "private"}},
      {{"CISTERN_METAL_OBJECTS", "0"}},
      {{"CISTERN_METAL_TRACKED", "1"}},
      {{"CISTERN_METAL_MEMORY", "whole"}},
      {{"CISTERN_METAL_MAX_OBJECTS", "50"}},
      {{"CISTERN_METAL_STANDIN_LAG_US", "20000"}},
      {{"CISTERN_METAL_STANDIN_PAGE", "4096"}, {"CISTERN_METAL_STANDIN_LARGE_ALIGN", "65536"}},
  };
  for (const auto& way : ways) {
    for (const auto& [name, value] : way) set_variable(name, value);
    const Ran ran = run({"replay", "--json", "--check", "--device", "metal", "--allocator", "cistern,pool,planned",
                         "--repeat", "3", "t.csv"});
    EXPECT_EQ(ran.status, 0) << way.begin()->first << ": " << ran.err;
    for (const auto& row : lines(ran.out)) EXPECT_EQ(row["failed"], 0) << row;
    for (const auto& [name, value] : way) set_variable(name, "");
  }
}

}  // namespace
}  // namespace cistern::tools_test
