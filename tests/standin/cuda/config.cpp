// The stand-in's settings from the environment (standin.hpp lists them). A value that is none is refused by name.
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <sstream>
#include <string_view>
#include <system_error>

#include "drivers/cuda/cuda_api.hpp"
#include "standin/cuda/state.hpp"

namespace cistern::standin {
namespace {

constexpr int kMostDevices = 64;                            // A mask has a bit for each.
constexpr std::size_t kMostMemory = std::size_t{1} << 46;   // Bytes; a half of a process's addresses.
constexpr int kLeastVersion = 1000, kMostVersion = 999999;  // 1000 x major + 10 x minor.
constexpr double kMostLag = 1e9;                            // Microseconds.
constexpr int kMostResult = 999;                            // CUDA_ERROR_UNKNOWN.
constexpr std::uint64_t kMostCalls = std::numeric_limits<std::uint64_t>::max();

std::string variable(const char* name) { return std::string("CISTERN_STANDIN_") + name; }

std::string_view setting(const char* name) {
  const char* const value = std::getenv(variable(name).c_str());
  return value != nullptr ? value : "";
}

[[noreturn]] void refuse(const char* name, const std::string& expected) {
  std::fflush(nullptr);
  std::fprintf(stderr, "cistern stand-in: %s=%s: expected %s\n", variable(name).c_str(),
               std::string(setting(name)).c_str(), expected.c_str());
  _exit(kBadSettingExit);
}

// False for text that is no number from `least` to `most`.
template <class Number>
bool parse(std::string_view text, Number least, Number most, Number& out) {
  Number value{};
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || !(value >= least && value <= most)) return false;
  out = value;
  return true;
}

template <class Number>
void read_number(const char* name, Number least, Number most, const char* expected, Number& out) {
  const std::string_view value = setting(name);
  if (!value.empty() && !parse(value, least, most, out)) refuse(name, expected);
}

void read_flag(const char* name, bool& out) {
  const std::string_view value = setting(name);
  if (value.empty()) return;
  if (value != "0" && value != "1") refuse(name, "0 or 1");
  out = value == "1";
}

std::set<std::string> words(const char* name, std::initializer_list<const char*> known) {
  std::string text(setting(name)), expected;
  std::replace(text.begin(), text.end(), ',', ' ');
  for (const char* const word : known) (expected += ' ') += word;
  std::set<std::string> out;
  std::istringstream in(text);
  for (std::string word; in >> word;) {
    if (std::count(known.begin(), known.end(), word) == 0) refuse(name, "some of:" + expected);
    out.insert(word);
  }
  return out;
}

bool can_fail(std::string_view name) {
#define CISTERN_STANDIN_NAME(member, known, ...) known,
  static constexpr std::string_view kDriver[] = {CISTERN_CUDA_ENTRY_POINTS(CISTERN_STANDIN_NAME)};
#undef CISTERN_STANDIN_NAME
  // What programs call, a launch, and any of them.
  static constexpr std::string_view kPrograms[] = {
      "cuGetProcAddress",    "cuGraphInstantiate",   "cuGraphLaunch",      "cuLaunchHostFunc", "cuStreamQuery",
      "cuStreamSynchronize", "cuStreamBeginCapture", "cuStreamEndCapture", "kernel",           "*"};
  // These say what an error means, and always do.
  if (name == "cuGetErrorName" || name == "cuGetErrorString") return false;
  return std::find(std::begin(kDriver), std::end(kDriver), name) != std::end(kDriver) ||
         std::find(std::begin(kPrograms), std::end(kPrograms), name) != std::end(kPrograms);
}

Config read_config() {
  Config c;
  read_number("DEVICES", 0, kMostDevices, "a count from 0 to 64", c.devices);
  read_number("MEMORY", kFrame, kMostMemory, "bytes of each device as a number, from 2097152 (2 MiB) on", c.memory);
  read_number("VERSION", kLeastVersion, kMostVersion, "1000 x major + 10 x minor, such as 13000", c.version);
  read_number("LAG_US", 0.0, kMostLag, "microseconds, 0 or more", c.lag_us);
  read_flag("MANUAL", c.manual);
  read_flag("JUNK", c.junk);
  c.without = words("WITHOUT", {"virtual_memory", "managed", "concurrent", "posix", "rdma", "pools", "peers"});
  c.refuse = words("REFUSE", {"virtual_memory", "posix", "rdma"});
  return c;
}

Faults read_faults() {
  Faults f;
  const std::string_view value = setting("FAIL");
  if (value.empty()) return f;
  std::vector<std::string> parts;
  std::istringstream in{std::string(value)};
  for (std::string part; std::getline(in, part, ':');) parts.push_back(part);
  const auto number = [&](std::size_t i, auto most, auto& out) {
    return i >= parts.size() || parse(parts[i], decltype(most){0}, most, out);
  };
  std::uint64_t nth = 0;
  f.left = 1;
  if (parts.size() < 2 || parts.size() > 4 || !number(1, kMostCalls, nth) || !number(2, kMostResult, f.result) ||
      !number(3, kMostCalls, f.left) || !can_fail(parts[0])) {
    refuse("FAIL", "NAME:NTH[:RESULT[:TIMES]], the name an entry point's (cuMemCreate), kernel or *");
  }
  f.name = parts[0];
  f.skip = nth == 0 ? 0 : nth - 1;
  if (nth == 0) f.left = 0;
  return f;
}

}  // namespace

void configure(State& s) {
  s.config = read_config();
  s.faults = read_faults();
  read_report();  // Now, not at exit, when nobody looks.
}

Report read_report() {
  const std::string_view value = setting("REPORT");
  if (value.empty() || value == "0") return Report::none;
  if (value != "1" && value != "strict") refuse("REPORT", "1 or strict");
  return value == "1" ? Report::print : Report::strict;
}

}  // namespace cistern::standin
