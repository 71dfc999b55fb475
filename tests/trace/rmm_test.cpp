// RMM logs: the forms that its logging adaptor has written over time, and faults.
#include "trace/rmm.hpp"

#include <gtest/gtest.h>

#include "trace/support.hpp"

namespace cistern {
namespace {

using trace_test::expect_consistent;
using trace_test::expect_fault;
using trace_test::TempFolder;

const std::string kHeader = "Thread,Time,Action,Pointer,Size,Stream\n";

TEST(RmmTrace, AsTheAdaptorWrites) {
  TempFolder folder;
  const Trace t =
      read_trace(folder.write("pool.rmm.csv", kHeader + "2342727,15:47:02.841961,allocate,0x10012400000,1048576,0\n"
                                                        "2342727,15:47:02.841977,allocate,0x10012500000,512,0x55d0c8\n"
                                                        "2342728,15:47:02.842000,allocate failure,(nil),99999999999,0\n"
                                                        "2342727,15:47:03.000001,free,0x10012400000,1048576,0x1\n"
                                                        "2342727,15:47:04.000000,allocate,0x10012400000,256,0x2\n"));
  expect_consistent(t);
  EXPECT_EQ(t.name, "pool");
  ASSERT_EQ(t.events.size(), 4u);
  EXPECT_EQ(t.events[0].time_us, 0u);
  EXPECT_EQ(t.events[1].time_us, 16u);
  EXPECT_EQ(t.events[2], (TraceEvent{1048576, 158040, 0, 2, TraceEventKind::free}));
  EXPECT_EQ(t.events[3].id, 2u) << "an address used again is another allocation";
  EXPECT_EQ(t.streams, (std::vector<std::uint64_t>{0, 0x55d0c8, 1, 2}));
  EXPECT_EQ(t.stream_name(1), "0x55d0c8");
  EXPECT_EQ(t.failed_allocations, 1u);
}

TEST(RmmTrace, OtherForms) {
  TempFolder folder;
  const Trace old = read_trace(folder.write("a.csv", kHeader + "1,10:00:00:000010,allocate,0x100,8,0\n"
                                                               "1,10:00:00:000030,free,0x100,8,0\n"));
  EXPECT_EQ(old.events[1].time_us, 20u);
  const Trace epoch = read_trace(folder.write("b.csv", kHeader + "1,1634567890.5,allocate,0x100,8,17\n"
                                                                 "1,1634567891.25,deallocate,0x100,8,17\n"));
  EXPECT_EQ(epoch.events[1].time_us, 750000u);
  EXPECT_EQ(epoch.streams[1], 17u);
}

TEST(RmmTrace, MidnightAndThreadsOutOfOrder) {
  TempFolder folder;
  const Trace t = read_trace(folder.write("t.log", kHeader + "1,23:59:59.000000,allocate,0x1,8,0\n"
                                                             "2,23:59:58.999990,allocate,0x2,8,0\n"
                                                             "1,00:00:01.000000,allocate,0x3,8,0\n"
                                                             "2,23:59:59.900000,allocate,0x4,8,0\n"
                                                             "1,00:00:02.000000,allocate,0x5,8,0\n"));
  expect_consistent(t);
  EXPECT_EQ(t.events[1].time_us, 0u);
  EXPECT_EQ(t.events[2].time_us, 2000000u);
  EXPECT_EQ(t.events[3].time_us, 2000000u);
  EXPECT_EQ(t.events[4].time_us, 3000000u);
}

TEST(RmmTrace, RequestsForNothing) {
  TempFolder folder;
  const Trace t = read_trace(folder.write("t.log", kHeader + "1,00:00:00.000000,allocate,(nil),0,0\n"
                                                             "1,00:00:00.000000,allocate,(nil),0,0\n"
                                                             "1,00:00:00.000000,free,(nil),0,0\n"
                                                             "1,00:00:00.000000,allocate,0x100,0,0\n"));
  EXPECT_EQ(t.events.size(), 1u);
}

struct Fault {
  const char* name;
  const char* rows;
  std::uint64_t line;
  const char* found;
  const char* expected;
};
class RmmFault : public testing::TestWithParam<Fault> {};

TEST_P(RmmFault, IsRefusedWithLineAndReason) {
  TempFolder folder;
  const Fault& fault = GetParam();
  expect_fault(folder.write("bad.log", kHeader + fault.rows), fault.line, fault.found, fault.expected);
}

const Fault kFaults[] = {
    {"nothing", "", 0, "no event", "at least one"},
    {"columns", "1,00:00:00.0,allocate,0x1,8\n", 2, "5 columns", "6 columns"},
    {"thread", "x,00:00:00.0,allocate,0x1,8,0\n", 2, "as Thread", "a number"},
    {"time", "1,noon,allocate,0x1,8,0\n", 2, "the time \"noon\"", "HH:MM:SS"},
    {"time_hour", "1,24:00:00.0,allocate,0x1,8,0\n", 2, "the time", "HH:MM:SS"},
    {"time_cut", "1,10:00:,allocate,0x1,8,0\n", 2, "the time", "HH:MM:SS"},
    {"time_huge", "1,99999999999999999999,allocate,0x1,8,0\n", 2, "the time", "HH:MM:SS"},
    {"time_forms", "1,10:00:00.0,allocate,0x1,8,0\n1,5.0,free,0x1,8,0\n", 3, "another form", "one form"},
    {"action", "1,00:00:00.0,realloc,0x1,8,0\n", 2, "the action \"realloc\"", "allocate, free"},
    {"pointer", "1,00:00:00.0,allocate,0xzz,8,0\n", 2, "as Pointer", "a number"},
    {"size", "1,00:00:00.0,allocate,0x1,-8,0\n", 2, "a negative number as Size", "a number"},
    {"size_2_63", "1,00:00:00.0,allocate,0x1,9223372036854775808,0\n", 2, "the size", "9223372036854775807"},
    {"stream", "1,00:00:00.0,allocate,0x1,8,s\n", 2, "as Stream", "a number"},
    {"free_first", "1,00:00:00.0,free,0x1,8,0\n", 2, "a free of 0x1, which is not allocated", "a line before"},
    {"in_use", "1,00:00:00.0,allocate,0x1,8,0\n1,00:00:00.0,allocate,0x1,8,0\n", 3, "in use", "free"},
    {"free_size", "1,00:00:00.0,allocate,0x1,8,0\n1,00:00:00.0,free,0x1,9,0\n", 3, "with size 9", "8"},
};
INSTANTIATE_TEST_SUITE_P(All, RmmFault, testing::ValuesIn(kFaults), [](const auto& p) { return p.param.name; });

TEST(RmmTrace, WrongHeader) {
  TempFolder folder;
  expect_fault(folder.write("t.csv", "Thread,Time,Action,Pointer,Size\n"), 1, "the first line", "Stream");
}

}  // namespace
}  // namespace cistern
