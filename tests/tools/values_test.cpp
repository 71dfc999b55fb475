// What options may be given, for every command and every option that takes a value: what is not one is refused by name
// before anything runs.
#include <sys/stat.h>

#include <cctype>
#include <set>

#include "run_cli.hpp"

namespace cistern::tools_test {
namespace {

using Texts = std::vector<std::string>;

const Texts kNoWhole = {"",
                        "-1",
                        "+1",
                        "1.5",
                        "1e3",
                        "0x10",
                        " 1",
                        "1 ",
                        "1,000",
                        "one",
                        "nan",
                        "inf",
                        "18446744073709551616",
                        "99999999999999999999999"};
const Texts kNoSeconds = {"",   "0", "-1",    "+1",  "1e3", "0x10", " 1",
                          "1s", ".", "1.2.3", "nan", "inf", "-inf", "99999999999999999999999"};
const Texts kNoSize = {"",
                       "0",
                       "-1",
                       "+1",
                       "1.5",
                       "1e3",
                       "0x10",
                       " 1",
                       "1XB",
                       ".GiB",
                       "nan",
                       "inf",
                       "99999999999GiB",
                       "9223372036854775808",
                       "99999999999999999999999"};
const Texts kNoLimit = {"",
                        "0",
                        "-1",
                        "1e3",
                        "x",
                        "0x",
                        "-1x",
                        "+1x",
                        "1e3x",
                        "0x1x",
                        "infx",
                        "nanx",
                        "1 x",
                        "1.05xx",
                        "1000000x",
                        "1.5",
                        "9223372036854775808"};
const Texts kNoDevice = {"", "gpu", "cuda:-1", "cuda:x", "cpu:0x1", "cpu "};
const Texts kNoAllocator = {"", ",", "cistern,", ",cistern", "cistern,,pool", "mimalloc", "Cistern", " pool"};
const Texts kNoFile = {""};
const Texts kNoFormat = {"", "CSV", "xml", "csv,rmm"};

struct Option {
  const char* command;
  Texts rest;  // What makes the command complete.
  const char* name;
  Texts refused;
};

Texts with(Texts texts, std::initializer_list<const char*> more) {
  texts.insert(texts.end(), more.begin(), more.end());
  return texts;
}

std::vector<Option> options() {
  const Texts trace = {"t.csv"}, problem = {"p.csv"}, files = {"t.csv", "out.csv"};
  const Texts model = {"--device", "model", "t.csv"};
  return {
      {"replay", model, "--allocator", kNoAllocator},
      {"replay", trace, "--device", kNoDevice},
      {"replay", model, "--memory-limit", kNoLimit},
      {"replay", model, "--lag", with(kNoWhole, {"1000000000001"})},
      {"replay", model, "--threads", with(kNoWhole, {"0", "1025"})},
      {"replay", model, "--repeat", with(kNoWhole, {"0", "1000001"})},
      {"replay", model, "--report", kNoFile},
      {"plan", problem, "--capacity", kNoSize},
      {"plan", problem, "--timeout", kNoSeconds},
      {"plan", problem, "--threads", with(kNoWhole, {"1025"})},
      {"plan", problem, "--seed", kNoWhole},
      {"plan", problem, "--output", kNoFile},
      {"plan", problem, "--svg", kNoFile},
      {"convert", files, "--format", kNoFormat},
      {"convert", files, "--snapshot-device", with(kNoWhole, {"4294967296"})},
      {"bench", {"--list"}, "--device", with(kNoDevice, {"model"})},
      {"bench", {"--list"}, "--repetitions", with(kNoWhole, {"0", "1001"})},
      {"bench", {"--list"}, "--min-time", with(kNoSeconds, {"0.0001", "3601"})},
      {"bench", {"--list"}, "--trace", kNoFile},
  };
}

class OptionValues : public Cli {
 protected:
  void SetUp() override {
    Cli::SetUp();
    write("t.csv", kTrace);
    write("p.csv", "id,lower,upper,size\na,0,10,100\n");
  }
};

TEST_F(OptionValues, WhatIsNoneIsRefusedByName) {
  const bool benchmarks = run({"bench", "--list"}).status == 0;
  for (const Option& option : options()) {
    if (option.command == std::string("bench") && !benchmarks) continue;
    for (const std::string& value : option.refused) {
      // The last of two devices would be one too many.
      Texts arguments = {option.command, option.name + ("=" + value)};
      if (value.empty()) arguments = {option.command, option.name, value};
      arguments.insert(arguments.end(), option.rest.begin(), option.rest.end());
      SCOPED_TRACE(std::string(option.command) + " " + option.name + " \"" + value + "\"");
      const Ran ran = run(arguments);
      EXPECT_EQ(ran.status, 2) << ran.out;
      EXPECT_EQ(ran.out, "");
      EXPECT_EQ(ran.err.rfind("cistern: ", 0), 0U) << ran.err;
      EXPECT_NE(ran.err.find(option.name), std::string::npos) << ran.err;
      if (!value.empty() && value.find(',') == std::string::npos) {
        EXPECT_NE(ran.err.find(value), std::string::npos) << ran.err;
      }
      EXPECT_NE(ran.err.find("expected"), std::string::npos) << ran.err;
      EXPECT_FALSE(fs::exists(folder_ / "out.csv"));
    }
  }
}

// An option that is new must be looked at, too.
TEST_F(OptionValues, TheTableNamesEveryOptionWithAValue) {
  for (const char* const command : {"replay", "plan", "convert", "bench", "info"}) {
    std::set<std::string> known, shown;
    for (const Option& option : options()) {
      if (option.command == std::string(command)) known.insert(option.name);
    }
    std::istringstream help(run({command, "--help"}).out);
    for (std::string line; std::getline(help, line);) {
      std::istringstream words(line);
      std::string name, type;
      words >> name >> type;
      // A type is written large ("N", "FILE.csv", "BYTES|FACTORx"), the text of a flag begins with a word.
      const bool takes =
          name.rfind("--", 0) == 0 && (type.size() == 1 || (type.size() > 1 && std::islower(type[1]) == 0));
      if (takes) shown.insert(name);
    }
    EXPECT_EQ(known, shown) << command;
  }
}

TEST_F(OptionValues, WhatIsOneIsTaken) {
  for (const Texts& arguments : std::vector<Texts>{
           {"replay", "--device", "model", "--lag", "010", "--threads", "02", "--repeat", "1", "t.csv"},
           {"replay", "--device", "model", "--allocator", "cistern,pool", "--allocator", "system", "t.csv"},
           {"replay", "--device", "model", "--memory-limit", "0.5GiB", "t.csv"},
           {"replay", "--device", "model", "--memory-limit", "2.5X", "t.csv"},
           {"replay", "--device", "model", "--memory-limit", "9223372036854775807", "t.csv"},
           {"replay", "--device", "model", "--memory-limit", "999999x", "t.csv"},
           {"plan", "--seed", "18446744073709551615", "--threads", "0", "--timeout", "0.5", "p.csv"},
           {"plan", "--capacity", "1KB", "p.csv"}}) {
    const Ran ran = run(arguments);
    EXPECT_EQ(ran.status, 0) << ran.err;
  }
  // "010" is ten, not eight; bytes are exact.
  const auto rows = lines(
      run({"replay", "--json", "--device", "model", "--threads", "010", "--memory-limit", "9007199254740993", "t.csv"})
          .out);
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_EQ(rows[0]["events"], 50);
  EXPECT_EQ(rows[0]["memory_limit"], 9007199254740993);
  // A factor that comes to nothing is a limit all the same.
  EXPECT_EQ(run({"replay", "--device", "model", "--memory-limit", "0.00000001x", "t.csv"}).status, 1);
}

TEST_F(OptionValues, ASizeOutOfRangeIsToldTheRange) {
  const std::string sizes = "expected 1 to 9223372036854775807 bytes";
  for (const std::string size : {"0", "99999999TiB", "99999999999999999999999", "0.00001KiB", "99999999.5TiB"}) {
    const std::string text = "\"" + size + "\" is out of range; " + sizes;
    expect_refused({"plan", "--capacity", size, "p.csv"}, text);
    expect_refused({"replay", "--device", "model", "--memory-limit", size, "t.csv"}, text);
  }
  for (const std::string factor : {"1000000x", "0x"}) {
    expect_refused({"replay", "--device", "model", "--memory-limit", factor, "t.csv"},
                   "\"" + factor + "\" is out of range; expected more than 0x and less than 1000000x");
  }
}

TEST_F(OptionValues, AnAllocatorIsNamedOnce) {
  expect_refused({"replay", "--allocator", "cistern,cistern", "t.csv"}, "--allocator: \"cistern\" is named twice");
  expect_refused({"replay", "--allocator", "pool", "--allocator", "system,pool", "t.csv"}, "\"pool\" is named twice");
}

TEST_F(OptionValues, EmptyNamesOfFiles) {
  expect_refused({"replay", "t.csv", ""}, "TRACE: the value is empty");
  expect_refused({"plan", ""}, "INPUT: the value is empty");
  expect_refused({"convert", "", "u.csv"}, "INPUT: the value is empty");
  expect_refused({"convert", "t.csv", ""}, "OUTPUT: the value is empty");
}

// Every output is opened before the work begins.
TEST_F(OptionValues, OutputsThatCannotBeWritten) {
  fs::create_directory(folder_ / "folder");
  fs::create_directory(folder_ / "closed");
  write("file", "x");
  const std::string long_name(300, 'n');
  for (const std::string& name :
       {std::string("folder"), std::string("none/x.csv"), std::string("file/x.csv"), long_name}) {
    expect_refused({"replay", "--device", "model", "--report", name, "t.csv"}, name);
    expect_refused({"plan", "--output", name, "p.csv"}, name);
    expect_refused({"plan", "--svg", name, "p.csv"}, name);
    expect_refused({"convert", "--format", "csv", "no-such.csv", name}, name);
  }
  expect_refused({"convert", "t.csv", "./t.csv"}, "is an input");
  EXPECT_EQ(read_file(folder_ / "t.csv"), kTrace);
  // A socket is there, and no file can be written to it.
  ASSERT_EQ(mknod((folder_ / "socket").c_str(), S_IFSOCK | 0600, 0), 0);
  expect_refused({"replay", "--device", "model", "--report", "socket", "t.csv"}, "socket");
  expect_refused({"plan", "--svg", "socket", "p.csv"}, "socket");
}

// What fails only when it is written is a failure of the run, which has its results.
TEST_F(OptionValues, ADiskThatFillsUp) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  const Ran ran = run({"replay", "--device", "model", "--report", "/dev/full", "t.csv"});
  EXPECT_EQ(ran.status, 1);
  EXPECT_NE(ran.out, "");
  EXPECT_NE(ran.err.find("/dev/full: could not be written: No space left"), std::string::npos) << ran.err;
  EXPECT_EQ(run({"plan", "--output", "/dev/full", "p.csv"}).status, 1);
  const Ran converted = run({"convert", "--format", "csv", "t.csv", "/dev/full"});
  EXPECT_EQ(converted.status, 1);
  EXPECT_NE(converted.err.find("cistern: /dev/full"), std::string::npos) << converted.err;
}

}  // namespace
}  // namespace cistern::tools_test
