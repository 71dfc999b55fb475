// Files as bytes: what can be wrong with a file before its format matters, and writing that leaves no half files.
#include "trace/source.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include "trace/sink.hpp"
#include "trace/support.hpp"

namespace cistern {
namespace {

using trace_test::expect_fault;
using trace_test::gzip;
using trace_test::TempFolder;

std::string sample(int count = 1000) {
  std::string text = "event,id,size,stream,time_us\n";
  for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(count); ++i) {
    text += "a," + std::to_string(i) + ",100,0," + std::to_string(i * i) + "\n";
  }
  return text;
}

TEST(TraceSource, Missing) {
  TempFolder folder;
  expect_fault(folder.file("none.csv"), 0, "no file of this name", "a trace file");
}

TEST(TraceSource, Folder) {
  TempFolder folder;
  expect_fault(folder.file(""), 0, "a directory", "a trace file");
}

TEST(TraceSource, Empty) {
  TempFolder folder;
  expect_fault(folder.write("t.csv", ""), 0, "an empty file", "a trace");
  expect_fault(folder.write("t.csv.gz", gzip("")), 0, "gzip data with nothing in it", "csv");
}

TEST(TraceSource, Unreadable) {
  if (geteuid() == 0) GTEST_SKIP() << "root may read everything";
  TempFolder folder;
  const std::string path = folder.write("t.csv", sample());
  trace_test::fs::permissions(path, trace_test::fs::perms::none);
  expect_fault(path, 0, "a file that cannot be opened", "a readable trace file");
}

TEST(TraceSource, Binary) {
  TempFolder folder;
  expect_fault(folder.write("t.csv", std::string("\x7f"
                                                 "ELF\x02\x01\0\0\0\0",
                                                 10)),
               0, "binary data: \"\\x7fELF", "csv");
  expect_fault(folder.write("u.csv", std::string(5000, '\0')), 0, "binary data", "PyTorch");
}

TEST(TraceSource, OtherText) {
  TempFolder folder;
  expect_fault(folder.write("t.json", "{\"traceEvents\": []}"), 1, "the first line \"{", "RMM");
}

TEST(TraceSource, CutGzipAtEveryPlace) {
  TempFolder folder;
  const std::string whole = gzip(sample());
  for (std::size_t size = 3; size < whole.size(); size += whole.size() / 97 + 1) {
    const std::string path = folder.write("t.csv.gz", whole.substr(0, size));
    try {
      read_trace(path);
      ADD_FAILURE() << "cut at " << size;
    } catch (const TraceError& e) {
      EXPECT_NE(e.found().find("the end of the file inside the gzip data"), std::string::npos) << e.what();
    }
  }
}

TEST(TraceSource, CutGzipSaysTheLine) {
  TempFolder folder;
  const std::string whole = gzip(sample(50000));
  const std::string path = folder.write("t.csv.gz", whole.substr(0, whole.size() / 2));
  try {
    read_trace(path);
    FAIL();
  } catch (const TraceError& e) {
    EXPECT_GT(e.line(), 1000u) << e.what();
    EXPECT_LT(e.line(), 50000u) << e.what();
    EXPECT_NE(e.expected().find("is the file cut?"), std::string::npos);
  }
}

TEST(TraceSource, DamagedGzip) {
  TempFolder folder;
  std::string bytes = gzip(sample());
  bytes[bytes.size() - 6] = static_cast<char>(bytes[bytes.size() - 6] ^ 1);  // In the checksum.
  expect_fault(folder.write("t.csv.gz", bytes), 1002, "damaged gzip data", "whole gzip data");
}

TEST(TraceSource, GarbageBehindGzip) {
  TempFolder folder;
  expect_fault(folder.write("t.csv.gz", gzip(sample()) + "more"), 1002, "\"more\" behind the gzip data",
               "the end of the file");
}

TEST(TraceSource, JoinedGzip) {
  TempFolder folder;
  const std::string text = sample();
  const std::string path = folder.write("t.csv.gz", gzip(text.substr(0, 500)) + gzip(text.substr(500)));
  EXPECT_EQ(read_trace(path).events.size(), 1000u);
}

TEST(TraceSource, ContentDecidesNotTheName) {
  TempFolder folder;
  EXPECT_EQ(read_trace(folder.write("t.txt", gzip(sample()))).events.size(), 1000u);
  EXPECT_EQ(read_trace(folder.write("t.csv.gz", sample())).events.size(), 1000u);
}

TEST(TraceSource, ReadAllKeepsItsLimit) {
  TempFolder folder;
  const std::string path = folder.write("t.bin.gz", gzip(std::string(1 << 20, 'x')));
  trace::ByteSource small(path);
  EXPECT_THROW(trace::read_all(small, (1 << 20) - 1), TraceError);
  trace::ByteSource enough(path);
  EXPECT_EQ(trace::read_all(enough, 1 << 20).size(), 1u << 20);
}

TEST(TraceSource, PeekLeavesTheBytes) {
  TempFolder folder;
  trace::ByteSource source(folder.write("t", "abcdef"));
  EXPECT_EQ(source.peek(2), "ab");
  EXPECT_EQ(source.peek(4), "abcd");
  std::array<char, 3> three{};
  EXPECT_EQ(source.read(three), 3u);
  EXPECT_EQ(source.peek(100), "def");
  EXPECT_EQ(trace::read_all(source, 100), "def");
}

TEST(TraceSink, NothingIsLeftWithoutCommit) {
  TempFolder folder;
  {
    trace::ByteSink sink(folder.file("t.csv"));
    sink.write("half a file");
  }
  EXPECT_TRUE(folder.empty());
}

TEST(TraceSink, AnOldFileStaysUntilCommit) {
  TempFolder folder;
  const std::string path = folder.write("t.csv", "old");
  trace::ByteSink sink(path);
  sink.write("new");
  EXPECT_EQ(trace_test::slurp(path), "old");
  sink.commit();
  EXPECT_EQ(trace_test::slurp(path), "new");
}

TEST(TraceSink, PlacesThatCannotBeWritten) {
  TempFolder folder;
  EXPECT_THROW(trace::ByteSink(folder.file("")), TraceError);
  EXPECT_THROW(trace::ByteSink(folder.file("no/such/folder.csv")), TraceError);
}

TEST(TraceSink, FullDevice) {
  if (!trace_test::fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  trace::ByteSink sink("/dev/full");
  EXPECT_THROW(
      {
        sink.write(std::string(1 << 20, 'x'));
        sink.commit();
      },
      TraceError);
}

}  // namespace
}  // namespace cistern
