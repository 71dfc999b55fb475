// TraceRecorder: what it writes is a trace, from any number of threads, and it never throws into the program.
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "trace/support.hpp"

namespace cistern {
namespace {

using trace_test::expect_consistent;
using trace_test::TempFolder;

TEST(TraceRecorder, WritesWhatHappened) {
  TempFolder folder;
  for (const char* name : {"r.csv", "r.csv.gz"}) {
    TraceRecorder r(folder.file(name));
    int x = 0, y = 0;
    r.allocated(&x, 100);
    r.allocated(&y, 200, 5);
    r.freed(&x);
    r.allocated(&x, 300);
    r.freed(&y, 6);
    EXPECT_EQ(r.events(), 5u);
    EXPECT_EQ(r.missed(), 0u);
    r.close();
    const Trace t = read_trace(folder.file(name));
    expect_consistent(t);
    ASSERT_EQ(t.events.size(), 5u);
    EXPECT_EQ(t.events[3].id, 2u);
    EXPECT_EQ(t.streams, (std::vector<std::uint64_t>{0, 5, 6}));
    EXPECT_EQ(t.events[4].stream, 2u);
    EXPECT_EQ(t.peak_live_bytes, 500u);
  }
}

TEST(TraceRecorder, MissedEventsKeepTheTraceValid) {
  TempFolder folder;
  TraceRecorder r(folder.file("r.csv"));
  r.freed(std::uint64_t{7});
  r.allocated(std::uint64_t{1}, 10);
  r.allocated(std::uint64_t{1}, 20);
  EXPECT_EQ(r.missed(), 2u);
  r.close();
  const Trace t = read_trace(folder.file("r.csv"));
  expect_consistent(t);
  EXPECT_EQ(t.events.size(), 3u);
  EXPECT_EQ(t.live_at_end_bytes, 20u);
}

TEST(TraceRecorder, FlushedEventsCanBeReadWhileItRuns) {
  TempFolder folder;
  TraceRecorder r(folder.file("r.csv"));
  r.allocated(std::uint64_t{1}, 10);
  r.flush();
  EXPECT_EQ(read_trace(folder.file("r.csv")).events.size(), 1u);
}

TEST(TraceRecorder, ClosesItself) {
  TempFolder folder;
  { TraceRecorder(folder.file("r.csv.gz")).allocated(std::uint64_t{1}, 10); }
  EXPECT_EQ(read_trace(folder.file("r.csv.gz")).events.size(), 1u);
}

TEST(TraceRecorder, EventsAfterCloseAreIgnored) {
  TempFolder folder;
  TraceRecorder r(folder.file("r.csv"));
  r.allocated(std::uint64_t{1}, 10);
  r.close();
  r.freed(std::uint64_t{1});
  r.close();
  r.flush();
  EXPECT_EQ(r.events(), 1u);
}

TEST(TraceRecorder, FailuresAreKeptForClose) {
  TempFolder folder;
  TraceRecorder r(folder.file("r.csv"));
  r.allocated(std::uint64_t{1}, std::uint64_t{1} << 63);
  r.allocated(std::uint64_t{2}, 1);
  EXPECT_EQ(r.events(), 0u);
  EXPECT_THROW(r.flush(), TraceError);
  EXPECT_THROW(r.close(), TraceError);
  EXPECT_THROW(TraceRecorder(folder.file("")), TraceError);
}

TEST(TraceRecorder, WhatWasRecordedBeforeAFaultIsAWholeFile) {
  TempFolder folder;
  TraceRecorder r(folder.file("r.csv.gz"));
  for (std::uint64_t key = 0; key < 5; ++key) r.allocated(key, 100);
  r.allocated(std::uint64_t{5}, UINT64_MAX);
  EXPECT_THROW(r.close(), TraceError);
  EXPECT_EQ(read_trace(folder.file("r.csv.gz")).events.size(), 5u);
}

TEST(TraceRecorder, AFullDiskIsToldByClose) {
  if (!trace_test::fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  EXPECT_THROW(TraceRecorder("/dev/full"), TraceError);
}

TEST(TraceRecorder, ManyThreads) {
  TempFolder folder;
  constexpr std::uint64_t kThreads = 8, kEach = 5000;
  TraceRecorder r(folder.file("r.csv.gz"));
  std::vector<std::thread> threads;
  for (std::uint64_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&r, thread] {
      for (std::uint64_t i = 0; i < kEach; ++i) {
        const std::uint64_t key = thread * kEach + i;
        r.allocated(key, i, thread);
        if (i % 3 != 0) r.freed(key);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  r.close();
  const Trace t = read_trace(folder.file("r.csv.gz"));
  expect_consistent(t);
  EXPECT_EQ(t.allocations, kThreads * kEach);
  EXPECT_EQ(t.events.size(), r.events());
}

}  // namespace
}  // namespace cistern
