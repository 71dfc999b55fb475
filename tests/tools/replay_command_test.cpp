// `cistern replay` as people and scripts see it: status, JSON, tables, messages, the report.
#include "run_cli.hpp"

namespace cistern::tools_test {
namespace {

using ReplayCommand = Cli;

TEST_F(ReplayCommand, JsonHasTheFields) {
  write("t.csv", kTrace);
  const Ran ran = run({"replay", "--json", "--device", "model", "--repeat", "3", "t.csv"});
  ASSERT_EQ(ran.status, 0) << ran.err;
  EXPECT_EQ(ran.err, "");
  const auto rows = lines(ran.out);
  ASSERT_EQ(rows.size(), 1U);
  const auto& row = rows[0];
  EXPECT_EQ(row["trace"], "t");
  EXPECT_EQ(row["allocator"], "cistern");
  EXPECT_EQ(row["device"], "model:0");
  EXPECT_EQ(row["events"], 5);
  EXPECT_EQ(row["peak_live"], 4048576);
  EXPECT_EQ(row["failed"], 0);
  EXPECT_EQ(row["passes"].size(), 3U);
  for (const char* field :
       {"seconds", "ns_per_event", "peak_reserved", "ratio", "driver_calls", "handle_ops", "handle_seconds"}) {
    EXPECT_TRUE(row[field].is_number()) << field;
  }
  EXPECT_GE(row["peak_reserved"].get<double>(), 4048576);
  EXPECT_GT(row["handle_ops"], 0);
  EXPECT_GT(row["handle_seconds"], 0.0);
}

TEST_F(ReplayCommand, SeveralTracesAndAllocators) {
  write("t.csv", kTrace);
  write("u.csv", kTrace);
  const Ran ran =
      run({"replay", "--json", "--check", "--allocator", "cistern,pool,buffer-cache,system", "t.csv", "u.csv"});
  ASSERT_EQ(ran.status, 0) << ran.err;
  const auto rows = lines(ran.out);
  ASSERT_EQ(rows.size(), 8U);
  EXPECT_EQ(rows[1]["allocator"], "pool");
  EXPECT_EQ(rows[7]["trace"], "u");
  for (const auto& row : rows) {
    EXPECT_EQ(row["check"]["faults"], 0);
    EXPECT_EQ(row["check"]["blocks"], 6);
  }
}

TEST_F(ReplayCommand, TheTableNamesTracesAndTheMean) {
  write("t.csv", kTrace);
  write("u.csv", kTrace);
  write("native.json", R"({"t": {"native": {"ratio": 1.5, "ns_first": 100, "ns_second": 50}}})");
  const Ran ran = run({"replay", "--device", "model", "t.csv", "u.csv"});
  EXPECT_EQ(ran.status, 0);
  for (const char* word : {"trace", "t ", "u ", "geomean", "PyTorch", "1.500"}) {
    EXPECT_NE(ran.out.find(word), std::string::npos) << word << "\n" << ran.out;
  }
}

TEST_F(ReplayCommand, EventsNotServedGiveStatusOne) {
  write("t.csv", kTrace);
  const Ran ran = run({"replay", "--json", "--device", "model", "--memory-limit", "2MiB", "t.csv"});
  EXPECT_EQ(ran.status, 1);
  EXPECT_EQ(lines(ran.out)[0]["failed"], 1);
  EXPECT_NE(ran.err.find("1 events were not served"), std::string::npos) << ran.err;
}

TEST_F(ReplayCommand, LimitsAreBytesOrFactors) {
  write("t.csv", kTrace);
  const Ran ran = run({"replay", "--json", "--device", "model", "--memory-limit", "2.5x", "t.csv"});
  EXPECT_EQ(ran.status, 0) << ran.err;
  EXPECT_EQ(lines(ran.out)[0]["memory_limit"], 10121440);
  expect_refused({"replay", "--memory-limit", "x", "t.csv"}, "--memory-limit");
  expect_refused({"replay", "--memory-limit", "foo", "t.csv"},
                 "--memory-limit: \"foo\" is not a size; expected bytes, or a number with KiB, MiB, GiB or TiB, or a "
                 "multiple of the peak, as in 1.05x");
  expect_refused({"replay", "--memory-limit", "-5", "t.csv"}, "--memory-limit");
  expect_refused({"replay", "--memory-limit", "5parsec", "t.csv"}, "parsec");
  expect_refused({"replay", "--memory-limit", "1e30", "t.csv"}, "--memory-limit");
  expect_refused({"replay", "--memory-limit", "nan", "t.csv"}, "--memory-limit");
}

TEST_F(ReplayCommand, BadOptionsAreRefused) {
  write("t.csv", kTrace);
  expect_refused({"replay"}, "TRACE");
  expect_refused({"replay", "--allocator", "magic", "t.csv"}, "magic");
  expect_refused({"replay", "--device", "abacus", "t.csv"}, "abacus");
  expect_refused({"replay", "--device", "cuda:63", "t.csv"}, "cuda:63");
  expect_refused({"replay", "--lag", "5", "t.csv"}, "model");
  expect_refused({"replay", "--repeat", "0", "t.csv"}, "--repeat");
  expect_refused({"replay", "--threads", "-1", "t.csv"}, "--threads");
  expect_refused({"replay", "--report", "no/such/folder/r.html", "t.csv"}, "no/such/folder/r.html");
  expect_refused({"replay", "--report", ".", "t.csv"}, "folder");
}

TEST_F(ReplayCommand, BadTracesNameFileLineAndExpectation) {
  const std::string head = "event,id,size,stream,time_us\n";
  const struct {
    const char* name;
    std::string content;
    const char* where;
  } cases[] = {
      {"free_first.csv", head + "f,0,1,0,0\n", "free_first.csv:2"},
      {"twice.csv", head + "a,0,1,0,0\na,0,1,0,1\n", "twice.csv:3"},
      {"negative.csv", head + "a,0,-1,0,0\n", "negative.csv:2"},
      {"huge.csv", head + "a,0,9223372036854775808,0,0\n", "huge.csv:2"},
      {"columns.csv", "event,id\na,0\n", "columns.csv:1"},
      {"binary.csv", std::string("\x00\x01\x02\x03", 4), "binary.csv"},
      {"empty.csv", "", "empty.csv"},
      {"cut.csv.gz", std::string("\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\x4b", 11), "cut.csv.gz"},
  };
  write("good.csv", kTrace);
  for (const auto& c : cases) {
    write(c.name, c.content);
    expect_refused({"replay", "--json", c.name}, c.where);
    expect_refused({"replay", "--json", "good.csv", c.name}, "expected");
  }
  expect_refused({"replay", "missing.csv"}, "missing.csv");
  expect_refused({"replay", "."}, "expected");
}

// Of a slab that is there before the first event nothing can be said; of what grows with the events it can.
TEST_F(ReplayCommand, ResidentMemoryIsComparedWhereItGrows) {
  write("t.csv", kTrace);
  const auto rows = lines(run({"replay", "--json", "--check", "--allocator", "planned,cistern", "t.csv"}).out);
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_FALSE(rows[0]["check"].contains("resident")) << rows[0];
  EXPECT_TRUE(rows[1]["check"].contains("resident")) << rows[1];
  EXPECT_EQ(run({"replay", "--check", "--allocator", "planned", "t.csv"}).err, "");
}

TEST_F(ReplayCommand, WritesAReport) {
  const std::string name = "<b>&'\".csv";
  write(name, kTrace);
  const Ran ran = run({"replay", "--device", "model", "--report", "r.html", name});
  ASSERT_EQ(ran.status, 0) << ran.err;
  const std::string page = read_file(folder_ / "r.html");
  EXPECT_NE(page.find("&lt;b&gt;&amp;"), std::string::npos);
  EXPECT_EQ(page.find("<b>&"), std::string::npos);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 4);  // Trace, report, .out, .err: nothing left over.
}

TEST_F(ReplayCommand, TracesOfOneNameAreToldApart) {
  fs::create_directories(folder_ / "a");
  fs::create_directories(folder_ / "b");
  write("a/t.csv", kTrace);
  write("b/t.csv", kTrace);
  const auto rows = lines(run({"replay", "--json", "--device", "model", "a/t.csv", "b/t.csv"}).out);
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[0]["trace"], "a/t.csv");
  EXPECT_EQ(rows[1]["trace"], "b/t.csv");
}

TEST_F(ReplayCommand, ThreadsAndTouching) {
  write("t.csv", kTrace);
  const auto rows = lines(run({"replay", "--json", "--threads", "2", "--touch", "--repeat", "2", "t.csv"}).out);
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_EQ(rows[0]["events"], 10);
  EXPECT_EQ(rows[0]["failed"], 0);
}

}  // namespace
}  // namespace cistern::tools_test
