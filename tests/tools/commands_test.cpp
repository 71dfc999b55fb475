// The other commands: info, convert, plan, bench; and the program as a whole.
#include <zlib.h>

#include "run_cli.hpp"

namespace cistern::tools_test {
namespace {

using Command = Cli;
using Texts = std::vector<std::string>;

TEST_F(Command, HelpAndVersion) {
  EXPECT_EQ(run({"--version"}).status, 0);
  EXPECT_NE(run({"--version"}).out.find("cistern "), std::string::npos);
  for (const char* name : {"replay", "plan", "bench", "convert", "info"}) {
    const Ran ran = run({name, "--help"});
    EXPECT_EQ(ran.status, 0) << name;
    EXPECT_NE(ran.out.find(name), std::string::npos);
  }
  expect_refused({}, "subcommand");
  expect_refused({"fly"}, "\"fly\" is not a subcommand");
  expect_refused({"info", "--fly"}, "--fly");
}

TEST_F(Command, Info) {
  const Ran ran = run({"info", "--json"});
  ASSERT_EQ(ran.status, 0) << ran.err;
  const auto info = nlohmann::json::parse(ran.out);
  EXPECT_TRUE(info["version"].is_string());
  ASSERT_GE(info["devices"].size(), 2U);
  EXPECT_EQ(info["devices"][0]["device"], "cpu");
  EXPECT_GT(info["devices"][0]["total_memory"], 0);
  EXPECT_GE(info["devices"][0]["alignment"], 64);
  EXPECT_EQ(info["devices"][0]["memory_from"], "mapped pieces");
  EXPECT_NE(run({"info"}).out.find("granularity"), std::string::npos);
}

TEST_F(Command, ConvertThereAndBack) {
  write("t.csv", kTrace);
  for (const char* name : {"u.rmm", "u.csv.gz", "u.log.gz", "u.pickle"}) {
    ASSERT_EQ(run({"convert", "t.csv", name}).status, 0) << name;
    const auto rows = lines(run({"replay", "--json", "--device", "model", name}).out);
    ASSERT_EQ(rows.size(), 1U) << name;
    EXPECT_EQ(rows[0]["events"], 5) << name;
    EXPECT_EQ(rows[0]["peak_live"], 4048576) << name;
  }
  ASSERT_EQ(run({"convert", "t.csv", "u.json"}).status, 0);
  EXPECT_TRUE(nlohmann::json::parse(read_file(folder_ / "u.json")).is_structured());
}

TEST_F(Command, ConvertRefuses) {
  write("t.csv", kTrace);
  write("bad.csv", "event,id,size,stream,time_us\nf,1,1,0,0\n");
  expect_refused({"convert", "t.csv"}, "OUTPUT");
  expect_refused({"convert", "t.csv", "u.xyz"}, "u.xyz");
  expect_refused({"convert", "bad.csv", "u.csv"}, "bad.csv:2");
  expect_refused({"convert", "missing.csv", "u.csv"}, "missing.csv");
  expect_refused({"convert", "t.csv", "no/u.csv"}, "no/u.csv");
  EXPECT_FALSE(fs::exists(folder_ / "u.csv"));
}

TEST_F(Command, PlanOfAProblem) {
  write("p.csv", "id,lower,upper,size\na,0,10,100\nb,5,15,50\nc,10,20,100\n");
  const Ran ran = run({"plan", "--json", "--output", "o.csv", "--svg", "o.svg", "p.csv"});
  ASSERT_EQ(ran.status, 0) << ran.err;
  const auto row = nlohmann::json::parse(ran.out);
  EXPECT_EQ(row["input"], "p.csv");
  EXPECT_EQ(row["buffers"], 3);
  EXPECT_EQ(row["lower_bound"], 150);
  EXPECT_EQ(row["peak"], 150);
  EXPECT_EQ(row["optimal"], true);
  EXPECT_EQ(row["feasible"], true);
  EXPECT_TRUE(row["seconds"].is_number());
  EXPECT_NE(read_file(folder_ / "o.csv").find("offset"), std::string::npos);
  EXPECT_NE(read_file(folder_ / "o.svg").find("<svg"), std::string::npos);
}

TEST_F(Command, PlanOfATrace) {
  write("t.csv", kTrace);
  const Ran ran = run({"plan", "--json", "t.csv"});
  ASSERT_EQ(ran.status, 0) << ran.err;
  EXPECT_EQ(nlohmann::json::parse(ran.out)["buffers"], 3);
  EXPECT_EQ(nlohmann::json::parse(ran.out)["peak"], 4048576);
}

void write_gzip(const fs::path& path, const std::string& text) {
  const gzFile out = gzopen(path.c_str(), "wb");
  ASSERT_NE(out, nullptr);
  EXPECT_EQ(gzwrite(out, text.data(), static_cast<unsigned>(text.size())), static_cast<int>(text.size()));
  EXPECT_EQ(gzclose(out), Z_OK);
}

// What a file is decides its content, not its name.
TEST_F(Command, PlanOfCompressedFiles) {
  const std::string problem = "id,lower,upper,size\na,0,10,100\nb,5,15,50\n";
  write_gzip(folder_ / "problem.csv.gz", problem);
  write_gzip(folder_ / "trace.csv.gz", std::string(kTrace));
  write_gzip(folder_ / "problem.csv", problem);
  for (const char* name : {"problem.csv.gz", "problem.csv"}) {
    const Ran ran = run({"plan", "--json", name});
    ASSERT_EQ(ran.status, 0) << name << ran.err;
    EXPECT_EQ(nlohmann::json::parse(ran.out)["buffers"], 2) << name;
    EXPECT_EQ(nlohmann::json::parse(ran.out)["peak"], 150) << name;
  }
  const Ran ran = run({"plan", "--json", "trace.csv.gz"});
  ASSERT_EQ(ran.status, 0) << ran.err;
  EXPECT_EQ(nlohmann::json::parse(ran.out)["buffers"], 3);
  write_gzip(folder_ / "negative.csv.gz", "id,lower,upper,size\na,10,0,100\n");
  expect_refused({"plan", "negative.csv.gz"}, "negative.csv.gz");
  write_gzip(folder_ / "bad.csv.gz", "id,lower,upper,size\na,0,x,100\n");
  expect_refused({"plan", "bad.csv.gz"}, "bad.csv.gz:2");
  const std::string whole = read_file(folder_ / "problem.csv.gz");
  write("cut.csv.gz", std::string_view(whole).substr(0, whole.size() - 6));
  expect_refused({"plan", "cut.csv.gz"}, "cut.csv.gz");
}

TEST_F(Command, PlanOfAHeaderAloneIsEmptyAndOptimal) {
  write("p.csv", "id,lower,upper,size\n");
  const Ran ran = run({"plan", "--json", "--output", "o.csv", "p.csv"});
  ASSERT_EQ(ran.status, 0) << ran.err;
  EXPECT_EQ(nlohmann::json::parse(ran.out)["buffers"], 0);
  EXPECT_EQ(nlohmann::json::parse(ran.out)["status"], "optimal");
  EXPECT_EQ(nlohmann::json::parse(ran.out)["peak"], 0);
  EXPECT_EQ(read_file(folder_ / "o.csv"), "id,lower,upper,size,offset\n");
  write("empty.csv", "");
  expect_refused({"plan", "empty.csv"}, "empty.csv:1: expected a header");
}

TEST_F(Command, PlanThatDoesNotFitGivesStatusOneAndNoFile) {
  write("p.csv", "id,lower,upper,size\na,0,10,100\nb,5,15,50\n");
  const Ran ran = run({"plan", "--json", "--capacity", "149", "--output", "o.csv", "p.csv"});
  EXPECT_EQ(ran.status, 1) << ran.err;
  const auto row = nlohmann::json::parse(ran.out);
  EXPECT_EQ(row["feasible"], false);
  EXPECT_EQ(row["status"], "infeasible");
  EXPECT_FALSE(fs::exists(folder_ / "o.csv"));
}

TEST_F(Command, PlanRefuses) {
  write("p.csv", "id,lower,upper,size\na,0,10,100\n");
  write("negative.csv", "id,lower,upper,size\na,10,0,100\n");
  write("columns.csv", "id,lower\na,10\n");
  write("twice.csv", "id,lower,upper,size\na,0,10,100\na,0,10,100\n");
  expect_refused({"plan"}, "INPUT");
  expect_refused({"plan", "negative.csv"}, "negative.csv");
  expect_refused({"plan", "columns.csv"}, "columns.csv");
  expect_refused({"plan", "--json", "p.csv", "twice.csv"}, "twice.csv");
  expect_refused({"plan", "missing.csv"}, "missing.csv");
  expect_refused({"plan", "."}, ".: found a directory, expected a file");
  expect_refused({"plan", "--output", "o.csv", "p.csv", "p.csv"}, "--output");
  expect_refused({"plan", "--timeout", "0", "p.csv"}, "--timeout");
  expect_refused({"plan", "--capacity", "0", "p.csv"}, "--capacity");
}

TEST_F(Command, PlanOfATraceNamesTheEventThatIsTooLarge) {
  const std::string head = "event,id,size,stream,time_us\na,7,1,0,0\n";
  write("big.csv", head + "a,9,9223372036854775800,0,0\n");
  expect_refused({"plan", "big.csv"}, "big.csv:3: buffer 1: size 9223372036854775800 is above 2^62");
  write("big.rmm", "Thread,Time,Action,Pointer,Size,Stream\n1,00:00:00.000000,allocate,0x10,9223372036854775800,0\n");
  expect_refused({"plan", "big.rmm"}, "big.rmm: event 0: buffer 0: size");
}

TEST_F(Command, AnOutputNamedGzIsGzip) {
  write("p.csv", "id,lower,upper,size\na,0,10,100\nb,5,15,50\n");
  const Ran ran = run({"plan", "--output", "o.csv.gz", "--svg", "o.svg.gz", "p.csv"});
  ASSERT_EQ(ran.status, 0) << ran.err;
  EXPECT_EQ(read_file(folder_ / "o.csv.gz").substr(0, 2), "\x1f\x8b");
  EXPECT_EQ(read_file(folder_ / "o.svg.gz").substr(0, 2), "\x1f\x8b");
  const Ran again = run({"plan", "--json", "o.csv.gz"});
  ASSERT_EQ(again.status, 0) << again.err;
  EXPECT_EQ(nlohmann::json::parse(again.out)["peak"], 150);
}

// The file that a link names is written; the link stays one.
TEST_F(Command, OutputsGoThroughSymbolicLinks) {
  write("t.csv", kTrace);
  write("p.csv", "id,lower,upper,size\na,0,10,100\n");
  fs::create_directory(folder_ / "real");
  const struct {
    const char* target;
    Texts arguments;
  } cases[] = {{"u.csv", {"convert", "--format", "csv", "t.csv", "link"}},
               {"o.csv", {"plan", "--output", "link", "p.csv"}},
               {"r.html", {"replay", "--device", "model", "--report", "link", "t.csv"}}};
  for (const auto& c : cases) {
    for (const bool there : {false, true}) {
      const fs::path target = folder_ / "real" / c.target;
      fs::remove(folder_ / "link");
      fs::create_symlink(fs::path("real") / c.target, folder_ / "link");
      if (there) std::ofstream(target) << "old";
      const Ran ran = run(c.arguments);
      EXPECT_EQ(ran.status, 0) << ran.err;
      EXPECT_TRUE(fs::is_symlink(folder_ / "link")) << c.target << there;
      EXPECT_GT(read_file(target).size(), 3U) << c.target << there;
      fs::remove(target);
    }
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_ / "real"), {}), 0) << "nothing left over";
  fs::remove(folder_ / "link");
  fs::create_symlink("t.csv", folder_ / "link");
  expect_refused({"convert", "--format", "csv", "t.csv", "link"}, "is an input");
  fs::remove(folder_ / "link");
  fs::create_symlink("nowhere", folder_ / "link");
  expect_refused({"plan", "--output", "link", "--svg", "nowhere", "p.csv"}, "would write the same file");
}

TEST_F(Command, OptionsOfSnapshotsAreRefusedForOtherTraces) {
  write("t.csv", kTrace);
  ASSERT_EQ(run({"convert", "t.csv", "t.rmm"}).status, 0);
  ASSERT_EQ(run({"convert", "t.csv", "t.pickle"}).status, 0);
  for (const char* const name : {"t.csv", "t.rmm"}) {
    expect_refused({"convert", "--snapshot-device", "3", name, "u.csv"}, "--snapshot-device: ");
    expect_refused({"convert", "--older", name, "u.csv"}, "--older: " + std::string(name) + " is no snapshot");
  }
  EXPECT_FALSE(fs::exists(folder_ / "u.csv"));
  EXPECT_EQ(run({"convert", "--snapshot-device", "0", "--older", "t.pickle", "u.csv"}).status, 0);
}

TEST_F(Command, AnOutputDoesNotReplaceAnInput) {
  const std::string problem = "id,lower,upper,size\na,0,10,100\n";
  const std::string trace = "event,id,size,stream,time_us\na,0,512,0,0\nf,0,512,0,5\n";
  write("p.csv", problem);
  write("t.csv", trace);
  expect_refused({"plan", "--output", "./p.csv", "p.csv"}, "is an input");
  expect_refused({"plan", "--svg", "p.csv", "p.csv"}, "is an input");
  expect_refused({"plan", "--output", "x", "--svg", "x", "p.csv"}, "x: --output and --svg would write the same file");
  expect_refused({"plan", "--output", "x", "--svg", "./x", "p.csv"}, "would write the same file");
  expect_refused({"replay", "--report", "t.csv", "t.csv"}, "is an input");
  EXPECT_EQ(read_file(folder_ / "p.csv"), problem);
  EXPECT_EQ(read_file(folder_ / "t.csv"), trace);
}

TEST_F(Command, WrongUsageIsRefusedInTheProgramsName) {
  expect_refused({}, "A subcommand is required\nRun \"cistern --help\"");
  expect_refused({"abacus"}, "\"abacus\" is not a subcommand");
  expect_refused({"replay"}, "TRACE is required\nRun \"cistern replay --help\"");
  expect_refused({"replay", "--repeat", "-3", "t.csv"},
                 "--repeat: found \"-3\"; expected a whole number from 1 to 1000000");
  expect_refused({"plan", "--no-such-option", "p.csv"}, "--no-such-option");
  expect_refused({"convert", "one"}, "OUTPUT");
}

TEST_F(Command, BenchListsOrSaysWhyNot) {
  const Ran ran = run({"bench", "--list"});
  if (ran.status == 2) {
    EXPECT_NE(ran.err.find("CISTERN_BENCH"), std::string::npos);
    return;
  }
  EXPECT_EQ(ran.status, 0);
  EXPECT_FALSE(ran.out.empty());
  expect_refused({"bench", "no-such-benchmark"}, "no-such-benchmark");
  expect_refused({"bench", "--min-time", "nan", "pool"}, "--min-time");
}

TEST_F(Command, AFullDiskIsNoSuccess) {
  if (!fs::exists("/dev/full")) GTEST_SKIP();
  write("t.csv", kTrace);
  const std::string command =
      "cd '" + folder_.string() + "' && '" CISTERN_CLI "' replay --json --device model t.csv >/dev/full 2>.err";
  const int status = std::system(command.c_str());
  EXPECT_NE(WEXITSTATUS(status), 0);
  for (const char* const asked : {"--help", "--version", "replay --help"}) {
    const std::string help = std::string("'") + CISTERN_CLI + "' " + asked + " >/dev/full 2>/dev/null";
    EXPECT_EQ(WEXITSTATUS(std::system(help.c_str())), 1) << asked;
  }
}

}  // namespace
}  // namespace cistern::tools_test
