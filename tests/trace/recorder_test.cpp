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

TEST(TraceRecorder, TheNameSaysWhatIsWritten) {
  TempFolder folder;
  for (const char* const name : {"r", "r.txt", "r.gz", "r.rmm", "r.log", "r.rmm.csv", "r.rmm.csv.gz", "r.pickle",
                                 "r.json.gz", "r.csv.zst", "r.CSV", "csv"}) {
    try {
      TraceRecorder r(folder.file(name));
      ADD_FAILURE() << "accepted: " << name;
    } catch (const TraceError& error) {
      EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find(".csv or .csv.gz"), std::string::npos) << error.what();
    }
    EXPECT_FALSE(trace_test::fs::exists(folder.file(name))) << name;
  }
}

TEST(TraceRecorder, WhatWasRecordedBeforeAFaultIsAWholeFile) {
  TempFolder folder;
  TraceRecorder r(folder.file("r.csv.gz"));
  for (std::uint64_t key = 0; key < 5; ++key) r.allocated(key, 100);
  r.allocated(std::uint64_t{5}, UINT64_MAX);
  EXPECT_THROW(r.close(), TraceError);
  EXPECT_EQ(read_trace(folder.file("r.csv.gz")).events.size(), 5u);
}

// close() must throw with this text, and what is in the file must be a trace.
void expect_refused(TraceRecorder& r, const std::string& file, std::uint64_t events, const std::string& text) {
  EXPECT_EQ(r.events(), events);
  try {
    r.close();
    ADD_FAILURE() << "closed without a word of " << text;
  } catch (const TraceError& error) {
    EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
  }
  if (events > 0) {
    EXPECT_EQ(read_trace(file).events.size(), events);
  }
}

TEST(TraceRecorder, SumsThatNoTraceCanHoldAreRefused) {
  TempFolder folder;
  TraceRecorder r(folder.file("r.csv"));
  for (std::uint64_t key = 0; key < 3; ++key) r.allocated(key, std::uint64_t{1} << 62);
  expect_refused(r, folder.file("r.csv"), 1, "live bytes");
  TraceRecorder freed(folder.file("f.csv"));
  for (std::uint64_t key = 0; key < 3; ++key) {
    freed.allocated(key, std::uint64_t{1} << 62);
    freed.freed(key);
  }
  for (int i = 0; i < 3; ++i) freed.allocated(std::uint64_t{9}, std::uint64_t{1} << 62);  // Freed unseen.
  freed.close();
  EXPECT_EQ(read_trace(folder.file("f.csv")).events.size(), 11u);
}

TEST(TraceRecorder, MoreStreamsThanATraceCanHoldAreRefused) {
  TempFolder folder;
  TraceRecorder r(folder.file("r.csv"));
  for (std::uint64_t i = 1; i <= 70000; ++i) r.allocated(i, 1, i);
  expect_refused(r, folder.file("r.csv"), 65535, "65536 streams");
  TraceRecorder frees(folder.file("f.csv"));
  for (std::uint64_t i = 1; i <= 70000; ++i) {
    frees.allocated(i, 1);
    frees.freed(i, i);
  }
  expect_refused(frees, folder.file("f.csv"), 2 * 65535 + 1, "65536 streams");
}

TEST(TraceRecorder, NothingRecordedIsToldByClose) {
  TempFolder folder;
  TraceRecorder r(folder.file("r.csv"));
  r.freed(std::uint64_t{1});
  r.flush();
  expect_refused(r, folder.file("r.csv"), 0, "without events");
  r.close();
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
