// What every driver must do with streams and events.
#include <array>
#include <atomic>
#include <set>
#include <thread>

#include "conformance/driver_conformance.hpp"

namespace cistern::conformance {
namespace {

class StreamConformance : public DriverConformance {};

TEST_P(StreamConformance, StreamIdsAreStableAndDifferent) {
  std::set<std::uint64_t> ids;
  for (int i = 0; i < 4; ++i) ids.insert(driver().stream_id(stream(i)));
  EXPECT_EQ(ids.size(), 4u);
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(ids.contains(driver().stream_id(stream(i))));
}

TEST_P(StreamConformance, EventsPass) {
  Event event{};
  ASSERT_EQ(driver().record(stream(1), event), Status::ok);
  EXPECT_NE(event, Event::none);
  if (!capabilities().asynchronous) {
    EXPECT_TRUE(driver().passed(event));
  }
  EXPECT_EQ(driver().synchronize(event), Status::ok);
  EXPECT_TRUE(driver().passed(event));
  EXPECT_TRUE(driver().passed(event)) << "and stays so";
  driver().release(event);
}

TEST_P(StreamConformance, NoEventHasAlwaysPassed) {
  EXPECT_TRUE(driver().passed(Event::none));
  EXPECT_EQ(driver().wait(stream(0), Event::none), Status::ok);
  EXPECT_EQ(driver().synchronize(Event::none), Status::ok);
  driver().release(Event::none);
}

TEST_P(StreamConformance, WorkGoesOnByItselfOrWhenTold) {
  Event event{};
  ASSERT_EQ(driver().record(stream(0), event), Status::ok);
  GetParam().complete_all(driver());
  for (int i = 0; i < 10000 && !driver().passed(event); ++i) std::this_thread::yield();
  EXPECT_TRUE(driver().passed(event));
  driver().release(event);
}

TEST_P(StreamConformance, AStreamWaitsForAnother) {
  std::vector<Event> events;
  // A long chain between two streams; its last event takes all with it.
  for (int i = 0; i < 1000; ++i) {
    Event event{};
    ASSERT_EQ(driver().record(stream(i % 2), event), Status::ok);
    ASSERT_EQ(driver().wait(stream((i + 1) % 2), event), Status::ok);
    events.push_back(event);
  }
  ASSERT_EQ(driver().synchronize(events.back()), Status::ok);
  for (const Event event : events) {
    EXPECT_TRUE(driver().passed(event));
    driver().release(event);
  }
}

TEST_P(StreamConformance, AnEventMayBeReleasedWhileItIsWaitedFor) {
  Event event{};
  ASSERT_EQ(driver().record(stream(0), event), Status::ok);
  ASSERT_EQ(driver().wait(stream(1), event), Status::ok);
  driver().release(event);
  Event after{};
  ASSERT_EQ(driver().record(stream(1), after), Status::ok);
  EXPECT_EQ(driver().synchronize(after), Status::ok);
  EXPECT_TRUE(driver().passed(after));
  driver().release(after);
}

TEST_P(StreamConformance, AStreamIsOrderedAfterAnother) {
  Event earlier{}, later{};
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(driver().record(stream(i % 2), earlier), Status::ok);
    ASSERT_EQ(driver().order(stream(i % 2), stream((i + 1) % 2)), Status::ok);
    ASSERT_EQ(driver().record(stream((i + 1) % 2), later), Status::ok);
    ASSERT_EQ(driver().synchronize(later), Status::ok);
    EXPECT_TRUE(driver().passed(earlier));
    driver().release(earlier);
    driver().release(later);
  }
  EXPECT_EQ(driver().order(stream(0), stream(0)), Status::ok);
}

TEST_P(StreamConformance, SynchronizeDevicePassesEverything) {
  std::array<Event, 8> events{};
  for (std::size_t i = 0; i < events.size(); ++i) {
    ASSERT_EQ(driver().record(stream(static_cast<int>(i % 4)), events[i]), Status::ok);
  }
  EXPECT_EQ(driver().synchronize_device(), Status::ok);
  for (const Event event : events) {
    EXPECT_TRUE(driver().passed(event));
    driver().release(event);
  }
}

TEST_P(StreamConformance, AnyThreadMayAskWhileAnotherWorks) {
  std::array<Event, 64> events{};
  for (Event& event : events) ASSERT_EQ(driver().record(stream(0), event), Status::ok);
  std::atomic<bool> stop{false};
  std::vector<std::thread> askers;
  for (int t = 0; t < 2; ++t) {
    askers.emplace_back([&] {
      while (!stop) {
        for (const Event event : events) driver().passed(event);
        std::size_t size = 0, alignment = 0;
        driver().block_layout(1000, size, alignment);
        driver().stream_id(nullptr);
        static_cast<void>(driver().calls());
        static_cast<void>(driver().error_text());
      }
    });
  }
  for (int i = 0; i < 500; ++i) {
    Event event{};
    EXPECT_EQ(driver().record(stream(i % 3), event), Status::ok);
    EXPECT_EQ(driver().synchronize(event), Status::ok);
    driver().release(event);
  }
  stop = true;
  for (std::thread& asker : askers) asker.join();
  EXPECT_EQ(driver().synchronize_device(), Status::ok);
  for (const Event event : events) driver().release(event);
}

TEST_P(StreamConformance, AForgottenStreamLeavesTheOthersAlone) {
  const std::uint64_t kept = driver().stream_id(stream(1));
  const std::uint64_t gone = driver().stream_id(stream(2));
  Event event{};
  ASSERT_EQ(driver().record(stream(2), event), Status::ok);
  driver().forget_stream(stream(2), gone);
  EXPECT_EQ(driver().stream_id(stream(1)), kept);
  EXPECT_EQ(driver().synchronize(event), Status::ok) << "its work goes on";
  driver().release(event);
}

std::string name_of(const ::testing::TestParamInfo<DriverFactory>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Drivers, StreamConformance, ::testing::ValuesIn(driver_factories()), name_of);

}  // namespace
}  // namespace cistern::conformance
