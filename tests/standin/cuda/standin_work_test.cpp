// The stand-in's streams run behind the host, in order, and its contexts, captures and faults are as the vendor's.
#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "standin/cuda/standin_fixture.hpp"

namespace cistern::standin {
namespace {

class StandinWork : public StandinTest {};
class StandinCapture : public StandinTest {
 protected:
  static Result end(Stream s) {
    void* graph = nullptr;
    const Result result = library().program.end(s, &graph);
    EXPECT_EQ(graph != nullptr, result == kSuccess);
    if (graph != nullptr) {
      EXPECT_EQ(library().program.destroy(graph), kSuccess);
    }
    return result;
  }
};

TEST_F(StandinWork, NothingIsDoneBeforeItIsTold) {
  start({{"MANUAL", "1"}});
  const DevicePtr a = mapped(1);
  const Stream s = stream(), t = stream();
  EXPECT_EQ(control().launch_fill(s, a, 1000, 1), kSuccess);
  const EventHandle first = record(s), second = record(t);
  EXPECT_EQ(api().event_query(first), kNotReady);
  control().complete(t);
  EXPECT_EQ(api().event_query(second), kSuccess);
  EXPECT_EQ(api().event_query(first), kNotReady);
  EXPECT_EQ(control().pending(), 2u);
  EXPECT_EQ(api().event_synchronize(first), kSuccess) << "waiting is telling";
  EXPECT_EQ(control().host_waits(), 1u);
  EXPECT_EQ(control().pending(), 0u);
  EXPECT_EQ(api().event_query(event()), kSuccess) << "never recorded";
}

TEST_F(StandinWork, StreamsAreBehindByTheirLag) {
  start({{"LAG_US", "20000"}});
  const Stream s = stream();
  const auto before = std::chrono::steady_clock::now();
  const EventHandle e = record(s);
  EXPECT_EQ(api().event_query(e), kNotReady);
  EXPECT_EQ(api().event_synchronize(e), kSuccess);
  EXPECT_GE(std::chrono::steady_clock::now() - before, std::chrono::milliseconds(20));
  control().set_stream_lag_us(s, 0);
  EXPECT_EQ(api().event_query(record(s)), kSuccess);
}

TEST_F(StandinWork, AWaitHoldsBackWhatComesAfterIt) {
  start({{"MANUAL", "1"}});
  const DevicePtr a = mapped(1);
  const Stream s = stream(), t = stream();
  EXPECT_EQ(control().launch_fill(s, a, 1000, 1), kSuccess);
  const EventHandle e = record(s);
  EXPECT_EQ(api().stream_wait(t, e, 0), kSuccess);
  EXPECT_EQ(api().event_record(e, t), kSuccess) << "the wait is for what was recorded then";
  EXPECT_EQ(control().launch_check(t, a, 1000, 1), kSuccess);
  EXPECT_EQ(library().program.synchronize(t), kSuccess);
  EXPECT_EQ(control().mismatches(), 0u);
  EXPECT_TRUE(clean());
}

TEST_F(StandinWork, UseInNoOrderIsARace) {
  start({{"MANUAL", "1"}});
  const DevicePtr a = mapped(2);
  const Stream s = stream(), t = stream();
  EXPECT_EQ(control().launch_touch(s, a, 1000, 0), kSuccess);
  EXPECT_EQ(control().launch_touch(t, a, 1000, 0), kSuccess) << "two reads are fine";
  EXPECT_EQ(control().launch_touch(t, a + 1000, 1000, 1), kSuccess) << "other bytes, too";
  EXPECT_TRUE(clean());
  EXPECT_EQ(control().launch_touch(t, a + 999, 1, 1), kSuccess);
  EXPECT_TRUE(complained("race"));
  EXPECT_EQ(api().context_synchronize(), kSuccess);
  EXPECT_EQ(control().launch_touch(s, a, 2000, 1), kSuccess) << "after a host wait";
  EXPECT_TRUE(clean());
}

TEST_F(StandinWork, ARaceIsSeenThroughAnotherAddressOfTheSameMemory) {
  start({{"MANUAL", "1"}});
  const PhysicalHandle piece = create(1);
  const DevicePtr a = reserve(1), b = reserve(1);
  EXPECT_EQ(map(a, piece, 1), kSuccess);
  EXPECT_EQ(map(b, piece, 1), kSuccess);
  EXPECT_EQ(grant(a, 1), kSuccess);
  EXPECT_EQ(grant(b, 1), kSuccess);
  EXPECT_EQ(control().launch_touch(stream(), a, 100, 1), kSuccess);
  EXPECT_EQ(control().launch_touch(stream(), b, 100, 0), kSuccess);
  EXPECT_TRUE(complained("race"));
}

TEST_F(StandinWork, TheLegacyStreamWaitsForOthersAndTheyForIt) {
  start({{"MANUAL", "1"}});
  const DevicePtr a = mapped(1);
  const Stream s = stream(), apart = stream(kStreamNonBlocking);
  EXPECT_EQ(control().launch_touch(s, a, 100, 1), kSuccess);
  EXPECT_EQ(control().launch_touch(nullptr, a, 100, 1), kSuccess);
  EXPECT_EQ(control().launch_touch(s, a, 100, 1), kSuccess);
  const EventHandle e = record(s);
  control().complete(s);
  EXPECT_EQ(api().event_query(e), kSuccess) << "brought the legacy stream's work with it";
  EXPECT_TRUE(clean());
  EXPECT_EQ(control().launch_touch(nullptr, a, 100, 1), kSuccess);
  EXPECT_EQ(control().launch_touch(apart, a, 100, 1), kSuccess);
  EXPECT_TRUE(complained("race"));
}

TEST_F(StandinWork, AWaitAloneInTheLegacyStreamHoldsBackOthers) {
  enum class Who { blocking, own, own_of_another_thread };
  for (const bool used_before : {false, true}) {
    for (const Who who : {Who::blocking, Who::own, Who::own_of_another_thread}) {
      start({{"MANUAL", "1"}});
      const DevicePtr a = mapped(2);
      if (used_before) {
        EXPECT_EQ(control().launch_touch(nullptr, a + kCell, 100, 1), kSuccess);
        EXPECT_EQ(api().context_synchronize(), kSuccess);
      }
      const Stream apart = stream(kStreamNonBlocking);
      const Stream in = who == Who::blocking ? stream() : reinterpret_cast<Stream>(kPerThreadStream);
      EXPECT_EQ(control().launch_fill(apart, a, 1000, 1), kSuccess);
      EXPECT_EQ(api().stream_wait(nullptr, record(apart), 0), kSuccess);
      Context context = nullptr;
      EXPECT_EQ(api().context_current(&context), kSuccess);
      const auto check = [&] {
        EXPECT_EQ(api().context_push(context), kSuccess);
        EXPECT_EQ(control().launch_check(in, a, 1000, 1), kSuccess);
        control().complete(in);
        EXPECT_EQ(api().context_pop(nullptr), kSuccess);
      };
      if (who == Who::own_of_another_thread) {
        std::thread(check).join();
      } else {
        check();
      }
      EXPECT_EQ(control().pending(), 0u) << "brought the other stream's work with it";
      EXPECT_EQ(control().mismatches(), 0u);
      EXPECT_TRUE(clean());
      EXPECT_EQ(control().launch_fill(apart, a, 1000, 2), kSuccess);
      EXPECT_EQ(control().launch_touch(nullptr, a, 1000, 1), kSuccess);
      EXPECT_TRUE(complained("race")) << "the wait was for what was recorded then";
      EXPECT_EQ(api().context_synchronize(), kSuccess);
    }
  }
}

TEST_F(StandinWork, AWaitAloneInABlockingStreamHoldsBackTheLegacyStream) {
  for (const bool per_thread : {false, true}) {
    start({{"MANUAL", "1"}});
    const DevicePtr a = mapped(1);
    const Stream apart = stream(kStreamNonBlocking), other = stream(kStreamNonBlocking);
    const Stream waits = per_thread ? reinterpret_cast<Stream>(kPerThreadStream) : stream();
    EXPECT_EQ(control().launch_fill(apart, a, 1000, 1), kSuccess);
    EXPECT_EQ(api().stream_wait(waits, record(apart), 0), kSuccess);
    EXPECT_EQ(control().launch_check(nullptr, a, 1000, 1), kSuccess);
    control().complete(nullptr);
    EXPECT_EQ(control().pending(), 0u) << "brought the other stream's work with it";
    EXPECT_EQ(control().mismatches(), 0u);
    EXPECT_TRUE(clean());
    // Of a stream that does not wait for the legacy stream it is its own affair.
    EXPECT_EQ(control().launch_fill(apart, a, 1000, 2), kSuccess);
    EXPECT_EQ(api().stream_wait(other, record(apart), 0), kSuccess);
    EXPECT_EQ(control().launch_check(nullptr, a, 1000, 2), kSuccess);
    EXPECT_TRUE(complained("race"));
    EXPECT_EQ(api().context_synchronize(), kSuccess);
  }
}

TEST_F(StandinWork, ADestroyedHandleComesBackAsAnotherStream) {
  start({{"MANUAL", "1"}});
  const DevicePtr a = mapped(1);
  const Stream s = stream();
  unsigned long long first = 0, second = 0;
  EXPECT_EQ(api().stream_number(s, &first), kSuccess);
  EXPECT_EQ(control().launch_touch(s, a, 100, 1), kSuccess);
  EXPECT_EQ(api().stream_destroy(s), kSuccess);
  EXPECT_EQ(control().launch_touch(s, a, 100, 1), kInvalidHandle);
  EXPECT_TRUE(complained("is destroyed"));
  const Stream t = stream();
  ASSERT_EQ(t, s);
  EXPECT_EQ(api().stream_number(t, &second), kSuccess);
  EXPECT_NE(first, second);
  EXPECT_EQ(control().launch_touch(t, a, 100, 1), kSuccess);
  EXPECT_TRUE(complained("race")) << "the old stream's work still runs";
  EXPECT_EQ(library().program.synchronize(t), kSuccess);
  EXPECT_EQ(control().pending(), 1u) << "and is not waited for here";
  EXPECT_EQ(api().context_synchronize(), kSuccess);
}

TEST_F(StandinWork, EventsAndStreamsBelongToADevice) {
  start({{"DEVICES", "2"}});
  const Stream other = library().stream(1, 1);
  EXPECT_EQ(api().event_record(event(), other), kInvalidHandle);
  EXPECT_TRUE(complained("different contexts"));
  const EventHandle e = event();
  EXPECT_EQ(api().event_destroy(e), kSuccess);
  EXPECT_EQ(api().event_record(e, nullptr), kInvalidHandle);
  EXPECT_TRUE(complained("event"));
}

TEST_F(StandinWork, CallsNeedAContext) {
  Context context = nullptr;
  EXPECT_EQ(api().context_pop(&context), kSuccess);
  EventHandle e = nullptr;
  EXPECT_EQ(api().event_create(&e, 0), kInvalidContext);
  EXPECT_TRUE(complained("no current context"));
  EXPECT_EQ(api().context_pop(&context), kInvalidContext);
  EXPECT_EQ(api().context_push(reinterpret_cast<Context>(64)), kInvalidContext);
}

TEST_F(StandinWork, HostFunctionsRunElsewhereAndMayNotCallTheDriver) {
  struct Seen {
    std::atomic<int> result{-1};
    std::thread::id thread;
  };
  static Seen seen;
  const Stream s = stream();
  const auto function = [](void* data) {
    int count = 0;
    static_cast<Seen*>(data)->thread = std::this_thread::get_id();
    static_cast<Seen*>(data)->result = CudaLibrary::get().api.device_count(&count);
  };
  ASSERT_EQ(library().program.launch_host(s, function, &seen), kSuccess);
  EXPECT_EQ(library().program.synchronize(s), kSuccess);
  EXPECT_EQ(seen.result, kNotPermitted);
  EXPECT_NE(seen.thread, std::this_thread::get_id());
  EXPECT_TRUE(complained("host function"));
}

TEST_F(StandinWork, TheNthCallFails) {
  control().fail("cuEventCreate", 2, kOutOfMemory, 2);
  EventHandle e = nullptr;
  EXPECT_EQ(api().event_create(&e, 0), kSuccess);
  EXPECT_EQ(api().event_create(&e, 0), kOutOfMemory);
  EXPECT_EQ(api().event_create(&e, 0), kOutOfMemory);
  EXPECT_EQ(api().event_create(&e, 0), kSuccess);
  EXPECT_EQ(control().injected(), 2u);
  EXPECT_EQ(control().calls("cuEventCreate"), 4u);
  start({{"FAIL", "cuStreamCreate:2:999"}});
  Stream s = nullptr;
  EXPECT_EQ(api().stream_create(&s, 0), kSuccess);
  EXPECT_EQ(api().stream_create(&s, 0), 999);
  EXPECT_EQ(api().stream_create(&s, 0), kSuccess);
}

TEST_F(StandinCapture, AnUnsafeCallOfAnyThreadEndsAGlobalCapture) {
  const Stream s = stream(kStreamNonBlocking);
  ASSERT_EQ(library().program.begin(s, kCaptureGlobal), kSuccess);
  DevicePtr at = 0;
  std::thread([&] { EXPECT_EQ(api().address_reserve(&at, kCell, 0, 0, 0), kCaptureUnsupported); }).join();
  EXPECT_TRUE(complained("ends the capture"));
  EXPECT_EQ(end(s), kCaptureInvalidated);
  EXPECT_EQ(library().program.synchronize(s), kSuccess) << "usable again";
}

TEST_F(StandinCapture, ModesOfThreadAndCapture) {
  const Stream s = stream(kStreamNonBlocking);
  const auto other_thread = [&](int mode) {
    Result result = kSuccess;
    std::thread([&] {
      DevicePtr at = 0;
      api().exchange_capture_mode(&mode);
      result = api().address_reserve(&at, kCell, 0, 0, 0);
    }).join();
    return result;
  };
  for (const int capture : {kCaptureGlobal, kCaptureThreadLocal, kCaptureRelaxed}) {
    for (const int thread : {kCaptureGlobal, kCaptureThreadLocal, kCaptureRelaxed}) {
      ASSERT_EQ(library().program.begin(s, capture), kSuccess);
      const bool ends = capture == kCaptureGlobal && thread == kCaptureGlobal;
      EXPECT_EQ(other_thread(thread), ends ? kCaptureUnsupported : kSuccess) << capture << ' ' << thread;
      EXPECT_EQ(end(s), ends ? kCaptureInvalidated : kSuccess);
      // The capturing thread itself.
      int mode = thread;
      DevicePtr at = 0;
      ASSERT_EQ(library().program.begin(s, capture), kSuccess);
      api().exchange_capture_mode(&mode);
      const bool own = capture != kCaptureRelaxed && thread != kCaptureRelaxed;
      EXPECT_EQ(api().address_reserve(&at, kCell, 0, 0, 0), own ? kCaptureUnsupported : kSuccess);
      api().exchange_capture_mode(&mode);
      EXPECT_EQ(end(s), own ? kCaptureInvalidated : kSuccess);
    }
  }
}

TEST_F(StandinCapture, WhatNoModeAllows) {
  const Stream s = stream();
  int mode = kCaptureRelaxed;
  api().exchange_capture_mode(&mode);
  const EventHandle outside = record(stream());
  const auto ends_it = [&](auto call, Result result) {
    EXPECT_EQ(library().program.begin(s, kCaptureGlobal), kSuccess);
    EXPECT_EQ(call(), result);
    EXPECT_EQ(end(s), kCaptureInvalidated);
  };
  ends_it([&] { return api().context_synchronize(); }, kCaptureUnsupported);
  ends_it([&] { return library().program.synchronize(s); }, kCaptureUnsupported);
  ends_it([&] { return api().stream_wait(s, outside, 0); }, kCaptureIsolation);
  ends_it([&] { return api().event_record(outside, nullptr); }, kCaptureImplicit);
  ends_it(
      [&] {
        EXPECT_EQ(api().event_record(outside, s), kSuccess);
        return api().event_query(outside);
      },
      kCapturedEvent);
  int state = -1;
  ASSERT_EQ(library().program.begin(s, kCaptureGlobal), kSuccess);
  EXPECT_EQ(api().stream_capturing(nullptr, &state), kCaptureImplicit) << "asking does no harm";
  EXPECT_EQ(api().stream_capturing(s, &state), kSuccess);
  EXPECT_EQ(state, kCaptureActive);
  EXPECT_EQ(end(s), kSuccess);
  EXPECT_EQ(api().stream_capturing(s, &state), kSuccess);
  EXPECT_EQ(state, kCaptureNone);
  api().exchange_capture_mode(&mode);
}

TEST_F(StandinCapture, AForkedStreamMustBeJoined) {
  const DevicePtr a = mapped(1);
  const Stream s = stream(), side = stream();
  const EventHandle fork = event(), join = event();
  for (const bool joined : {true, false}) {
    ASSERT_EQ(library().program.begin(s, kCaptureGlobal), kSuccess);
    EXPECT_EQ(api().event_record(fork, s), kSuccess);
    EXPECT_EQ(api().stream_wait(side, fork, 0), kSuccess);
    EXPECT_EQ(control().launch_touch(side, a, 100, 1), kSuccess);
    if (joined) {
      EXPECT_EQ(api().event_record(join, side), kSuccess);
      EXPECT_EQ(api().stream_wait(s, join, 0), kSuccess);
    }
    EXPECT_EQ(end(s), joined ? kSuccess : kCaptureUnjoined);
  }
}

TEST_F(StandinCapture, AGraphUsesItsAddressesAtEachLaunch) {
  start({{"LAG_US", "0"}});
  const DevicePtr a = mapped(1);
  const Stream s = stream();
  void *graph = nullptr, *executable = nullptr;
  ASSERT_EQ(library().program.begin(s, kCaptureGlobal), kSuccess);
  EXPECT_EQ(control().launch_fill(s, a, 1000, 5), kSuccess);
  EXPECT_EQ(control().launch_check(s, a, 1000, 5), kSuccess);
  ASSERT_EQ(library().program.end(s, &graph), kSuccess);
  ASSERT_EQ(library().program.instantiate(&executable, graph, 0), kSuccess);
  EXPECT_EQ(library().program.launch(executable, s), kSuccess);
  EXPECT_EQ(library().program.launch(executable, s), kSuccess);
  EXPECT_EQ(control().mismatches(), 0u);
  EXPECT_TRUE(clean());
  EXPECT_EQ(api().physical_unmap(a, kCell), kSuccess);
  EXPECT_EQ(library().program.launch(executable, s), kSuccess);
  EXPECT_TRUE(complained("the kernel dies"));
}

TEST(StandinExit, AValueThatIsNoneEndsTheProcessByName) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  if (!CudaLibrary::get().usable() || !CudaLibrary::get().is_standin()) GTEST_SKIP() << "needs the stand-in";
  const auto refused = [](const std::string& name, const std::string& value, const std::string& expected) {
    EXPECT_EXIT(
        CudaLibrary::get().restart({{name, value}}), ::testing::ExitedWithCode(kBadSettingExit),
        ::testing::StartsWith("cistern stand-in: CISTERN_STANDIN_" + name + "=" + value + ": expected " + expected));
  };
  for (const char* const value : {"abc", "0", "1", "1GiB", "-4194304"}) refused("MEMORY", value, "bytes");
  for (const char* const value : {"abc", "0", "13.0"}) refused("VERSION", value, "1000 x major");
  for (const char* const value : {"two", "-1", "65"}) refused("DEVICES", value, "a count from 0 to 64");
  for (const char* const value : {"fast", "-1", "nan"}) refused("LAG_US", value, "microseconds");
  for (const char* const name : {"MANUAL", "JUNK"}) refused(name, "yes", "0 or 1");
  refused("WITHOUT", "foo", "some of: virtual_memory managed");
  refused("WITHOUT", "pools,foo", "some of");
  refused("REFUSE", "managed", "some of: virtual_memory posix rdma");
  for (const char* const value : {"foo", "foo:1", "cuMemCreate", "cuMemCreate:x", "cuMemCreate:1:x",
                                  "cuMemCreate:1:2:x", "cuMemCreate:1:2:3:4", ":1", "cuMemCreate_v2:1"}) {
    refused("FAIL", value, "NAME:NTH");
  }
  EXPECT_EXIT(
      {
        setenv("CISTERN_STANDIN_REPORT", "loud", 1);
        CudaLibrary::get().restart();
      },
      ::testing::ExitedWithCode(kBadSettingExit), "CISTERN_STANDIN_REPORT=loud: expected 1 or strict");
  for (const char* const value : {"*:0", "kernel:1", "cuMemCreate:1:999:18446744073709551615", "cuGraphLaunch:2"}) {
    CudaLibrary::get().restart({{"FAIL", value}, {"WITHOUT", "pools, peers"}, {"LAG_US", "0.5"}});
  }
  CudaLibrary::get().restart();
}

TEST(StandinExit, LeaksAreReportedAtExit) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  if (!CudaLibrary::get().usable() || !CudaLibrary::get().is_standin()) GTEST_SKIP() << "needs the stand-in";
  EXPECT_EXIT(
      {
        CudaLibrary::get().restart();
        setenv("CISTERN_STANDIN_REPORT", "strict", 1);
        DevicePtr at = 0;
        CudaLibrary::get().api.address_reserve(&at, std::size_t{2} << 20, 0, 0, 0);
        std::exit(0);
      },
      ::testing::ExitedWithCode(kStrictExit), "not given back: reserved range");
  EXPECT_EXIT(
      {
        CudaLibrary::get().restart();
        setenv("CISTERN_STANDIN_REPORT", "strict", 1);
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace cistern::standin
