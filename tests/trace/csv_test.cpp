// Cistern's csv traces: what is read, and every fault that must be refused.
#include "trace/csv.hpp"

#include <gtest/gtest.h>

#include "trace/support.hpp"

namespace cistern {
namespace {

using trace_test::expect_consistent;
using trace_test::expect_fault;
using trace_test::TempFolder;

const std::string kHeader = "event,id,size,stream,time_us\n";

TEST(CsvTrace, FieldsInQuotesAreNamed) {
  TempFolder folder;
  const std::string path = folder.write("q.csv", "event,id,size,stream,time_us\n\"a\",0,1,0,0\n");
  trace_test::expect_fault(path, 2, R"(the event "\"a\"")", "in no quotes");
}

TEST(CsvTrace, ReadsEventsAndFigures) {
  TempFolder folder;
  const Trace t = read_trace(folder.write("small.csv", kHeader + "a,0,100,0,5\na,1,50,7,6\nf,0,100,0,6\na,2,10,7,9\n"));
  expect_consistent(t);
  EXPECT_EQ(t.name, "small");
  ASSERT_EQ(t.events.size(), 4u);
  EXPECT_EQ(t.events[1], (TraceEvent{50, 6, 1, 1, TraceEventKind::allocate}));
  EXPECT_EQ(t.events[2], (TraceEvent{100, 6, 0, 0, TraceEventKind::free}));
  EXPECT_EQ(t.allocations, 3u);
  EXPECT_EQ(t.peak_live_bytes, 150u);
  EXPECT_EQ(t.live_at_end, 2u);
  EXPECT_EQ(t.live_at_end_bytes, 60u);
  EXPECT_EQ(t.duration_us, 4u);
  EXPECT_EQ(t.streams, (std::vector<std::uint64_t>{0, 7}));
  EXPECT_EQ(t.stream_name(1), "7");
  EXPECT_TRUE(t.original_ids.empty());
}

TEST(CsvTrace, OtherIdsAreMadeDenseAndKept) {
  TempFolder folder;
  const std::string text = kHeader + "a,0,1,0,0\na,17,2,0,0\nf,0,1,0,0\na,5,3,0,0\nf,17,2,0,0\nf,5,3,0,0\n";
  const Trace t = read_trace(folder.write("t.csv", text));
  expect_consistent(t);
  EXPECT_EQ(t.original_ids, (std::vector<std::uint64_t>{0, 17, 5}));
  write_trace(folder.file("again.csv"), t);
  EXPECT_EQ(trace_test::slurp(folder.file("again.csv")), text);
}

TEST(CsvTrace, WindowsLineEndsAndNoLastLineEnd) {
  TempFolder folder;
  const Trace t = read_trace(folder.write("t.csv", "event,id,size,stream,time_us\r\na,0,1,0,0\r\nf,0,1,0,3"));
  ASSERT_EQ(t.events.size(), 2u);
  EXPECT_EQ(t.events[1].time_us, 3u);
}

TEST(CsvTrace, LargestNumbers) {
  TempFolder folder;
  const std::string m = "9223372036854775807";
  const Trace t = read_trace(folder.write("t.csv", kHeader + "a," + m + "," + m + "," + m + "," + m + "\n"));
  EXPECT_EQ(t.events[0].size, (std::uint64_t{1} << 63) - 1);
  EXPECT_EQ(t.streams[1], (std::uint64_t{1} << 63) - 1);
  EXPECT_EQ(t.stream_name(1), "0x7fffffffffffffff");
}

struct Fault {
  const char* name;
  std::string rows;
  std::uint64_t line;
  const char* found;
  const char* expected;
};

class CsvFault : public testing::TestWithParam<Fault> {};

TEST_P(CsvFault, IsRefusedWithLineAndReason) {
  const Fault& fault = GetParam();
  TempFolder folder;
  expect_fault(folder.write("bad.csv", kHeader + fault.rows), fault.line, fault.found, fault.expected);
  const std::string packed = folder.write("bad.csv.gz", trace_test::gzip(kHeader + fault.rows));
  expect_fault(packed, fault.line, fault.found, fault.expected);
}

const Fault kFaults[] = {
    {"only_header", "", 0, "no event", "at least one"},
    {"free_first", "f,0,1,0,0\n", 2, "a free of id 0, which was not allocated", "an allocation on a line before"},
    {"double_free", "a,0,1,0,0\nf,0,1,0,0\nf,0,1,0,0\n", 4, "a second free of id 0", "one free"},
    {"duplicate_id", "a,0,1,0,0\na,0,1,0,0\n", 3, "a second allocation with id 0", "no line before has"},
    {"id_used_again", "a,3,1,0,0\nf,3,1,0,0\na,3,1,0,0\n", 4, "a second allocation with id 3", "no line before has"},
    {"free_of_other_size", "a,0,16,0,0\nf,0,17,0,0\n", 3, "with size 17", "16"},
    {"negative_size", "a,0,-5,0,0\n", 2, "a negative number as size: \"-5\"", "from 0 to 9223372036854775807"},
    {"size_2_63", "a,0,9223372036854775808,0,0\n", 2, "too large a number as size", "9223372036854775807"},
    {"size_2_64", "a,0,18446744073709551616,0,0\n", 2, "too large a number as size", "9223372036854775807"},
    {"size_endless", "a,0,99999999999999999999999999999999,0,0\n", 2, "too large", "9223372036854775807"},
    {"live_bytes_2_63", "a,0,9223372036854775807,0,0\na,1,1,0,0\n", 3, "live bytes", "9223372036854775807"},
    {"size_word", "a,0,big,0,0\n", 2, "no whole number as size: \"big\"", "a whole number"},
    {"size_float", "a,0,1.5,0,0\n", 2, "no whole number as size", "a whole number"},
    {"size_blank", "a,0, 1,0,0\n", 2, "no whole number as size", "a whole number"},
    {"size_hex", "a,0,0x10,0,0\n", 2, "no whole number as size", "a whole number"},
    {"size_plus", "a,0,+1,0,0\n", 2, "no whole number as size", "a whole number"},
    {"size_nothing", "a,0,,0,0\n", 2, "nothing as size", "a whole number"},
    {"id_word", "a,x,1,0,0\n", 2, "no whole number as id", "a whole number"},
    {"stream_negative", "a,0,1,-1,0\n", 2, "a negative number as stream", "a whole number"},
    {"time_word", "a,0,1,0,now\n", 2, "no whole number as time_us", "a whole number"},
    {"time_back", "a,0,1,0,9\na,1,1,0,8\n", 3, "the time 8 us after 9 us", "not smaller"},
    {"event_unknown", "r,0,1,0,0\n", 2, "the event \"r\"", "a (allocate) or f (free)"},
    {"event_long", "alloc,0,1,0,0\n", 2, "the event \"alloc\"", "a (allocate) or f (free)"},
    {"four_columns", "a,0,1,0\n", 2, "4 columns", "5 columns"},
    {"six_columns", "a,0,1,0,0,0\n", 2, "6 columns", "5 columns"},
    {"one_column", "garbage\n", 2, "1 column:", "5 columns"},
    {"empty_line", "a,0,1,0,0\n\nf,0,1,0,0\n", 3, "an empty line", "5 columns"},
    {"trailing_garbage", "a,0,1,0,0\nf,0,1,0,0\n\x01\x02 the end", 4, "1 column: \"\\x01\\x02 the end\"", "5 columns"},
    {"nul_bytes", std::string("a,0,1,0,0\n\0\0\0\0\n", 15), 3, "\\x00", "5 columns"},
    {"header_again", "a,0,1,0,0\nevent,id,size,stream,time_us\n", 3, "the event \"event\"", "a (allocate)"},
};

INSTANTIATE_TEST_SUITE_P(All, CsvFault, testing::ValuesIn(kFaults), [](const auto& p) { return p.param.name; });

TEST(CsvTrace, WrongHeader) {
  TempFolder folder;
  expect_fault(folder.write("a.csv", "event,id,size,time_us\na,0,1,0\n"), 1, "the first line \"event,id,size,time_us\"",
               "event,id,size,stream,time_us");
  expect_fault(folder.write("b.csv", "a,0,1,0,0\n"), 1, "the first line \"a,0,1,0,0\"", "event,id,size,stream,time_us");
}

TEST(CsvTrace, AnEndlessLine) {
  TempFolder folder;
  expect_fault(folder.write("t.csv", kHeader + std::string(1 << 20, '7')), 2, "a line of more than 65536 bytes",
               "text");
}

TEST(CsvTrace, LinesAcrossChunks) {
  TempFolder folder;
  std::string text = kHeader;
  constexpr int kCount = 60000;  // More than a megabyte: several chunks of the reader.
  for (int i = 0; i < kCount; ++i) {
    const std::string n = std::to_string(i);
    text += "a," + n + "," + n + ",0," + n + "\nf," + n + "," + n + ",0," + n + "\n";
  }
  for (const std::string& path : {folder.write("t.csv", text), folder.write("t.csv.gz", trace_test::gzip(text))}) {
    const Trace t = read_trace(path);
    expect_consistent(t);
    EXPECT_EQ(t.allocations, static_cast<std::uint32_t>(kCount));
    EXPECT_EQ(t.peak_live_bytes, kCount - 1u);
  }
}

TEST(CsvTrace, ManyStreams) {
  TempFolder folder;
  std::string text = kHeader;
  for (int i = 0; i <= 65536; ++i) text += "a," + std::to_string(i) + ",1," + std::to_string(i) + ",0\n";
  expect_fault(folder.write("t.csv", text), 65538, "stream number 65537", "at most 65536 streams");
}

TEST(CsvTrace, RecordedTracesAsTheirReadmeSays) {
  const std::string path = trace_test::recorded_trace("serving.csv.gz");
  if (path.empty()) GTEST_SKIP() << "no recorded traces";
  const Trace t = read_trace(path);
  expect_consistent(t);
  EXPECT_EQ(t.events.size(), 365110u);
  EXPECT_EQ(t.peak_live_bytes, 453851136u);
}

}  // namespace
}  // namespace cistern
