// Stream order on the model device, which finds every missing wait: uses by other streams, destroyed streams, moves to
// host memory, devices without virtual memory.
#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "allocator/allocator_fixture.hpp"
#include "cistern/error.hpp"

namespace cistern::allocation {
namespace {

drivers::ModelConfig manual() {
  drivers::ModelConfig config;
  config.manual = true;
  config.total_memory = 1024_MiB;
  return config;
}

void touch(Model& m, const Stream& s, const Buffer& b) {
  EXPECT_TRUE(m.driver->touch(s.native(), reinterpret_cast<std::uintptr_t>(b.ptr()), b.size()));
}

std::string text_of(auto&& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
}

// An event that another buffer waits for is asked about only when what is there does not serve.
TEST(Streams, HostMemoryThatIsThereAsksForNothing) {
  Model m(manual());
  const Buffer used = m->malloc(8), whole = m->malloc(1_MiB);
  m->record_use(used, m.stream(1));
  m->free(used);
  m->free(whole);
  const std::uint64_t calls = m->stats().driver_calls;
  std::vector<Buffer> buffers{m->malloc(1_MiB)};
  for (int i = 0; i < 1000; ++i) buffers.push_back(m->malloc(8));
  EXPECT_EQ(m->stats().driver_calls, calls);
  for (const Buffer& b : buffers) m->free(b);
  m.driver->complete_all();
  expect_sound(*m);
}

TEST(Streams, ErrorsSayWhatAndWhere) {
  Model m(manual());
  const Stream s = m.stream(1);
  const std::uint64_t pool = m->make_pool();
  m->begin_pool(pool, s);
  EXPECT_NE(text_of([&] { m->stream_destroyed(s); }).find("waited for: a capture pool is open on the stream"),
            std::string::npos);
  m->end_pool(pool);
  m->release_pool(pool);

  m->set_memory_limit(64_MiB);
  const Buffer b = m->malloc(60_MiB, s);
  const std::string text = text_of([&] { static_cast<void>(m->host_pointer(b)); });
  for (const char* const part : {"raw_ptr: no room to move buffer", "out of memory on model:5: asked for 60.0 MiB",
                                 "limit 64.0 MiB", "active 60.0 MiB", "largest free range"}) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }
  m->free(b);
  m.driver->complete_all();
}

TEST(Streams, ValuesNameStreams) {
  Model m(manual());
  const Stream zero = m.stream(0), one = m.stream(1);
  EXPECT_EQ(one, m.stream(1));
  EXPECT_FALSE(zero == one);
  EXPECT_NE(zero.slot(), one.slot());
  m.driver->destroy_stream(reinterpret_cast<void*>(std::uintptr_t{1}));
  const Stream again = m.stream(1);  // The handle came back as another stream.
  EXPECT_FALSE(again == one);
}

TEST(Streams, TooManyAreRefusedWithDeviceAndLimit) {
  Model m(manual());
  std::vector<Stream> alive;
  const Stream other = m.stream(1);
  try {
    for (std::uintptr_t i = 2; i <= StreamTable::kMaxStreams; ++i) alive.push_back(m.stream(i));
    FAIL() << "all were taken";
  } catch (const invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find("4096 streams of model:5 are alive"), std::string::npos) << error.what();
  }
  EXPECT_EQ(alive.size(), StreamTable::kMaxStreams - 2) << "beside the default stream and the first";
  m->stream_destroyed(other);
  EXPECT_NO_THROW((void)m.stream(StreamTable::kMaxStreams));
}

TEST(Streams, MemoryIsReusedAtOnceOnTheSameStream) {
  Model m(manual());
  const Stream s = m.stream(1);
  for (const std::size_t bytes : {512UL, 5000UL, 100000UL, 8UL << 20}) {
    const Buffer b = m->malloc(bytes, s);
    touch(m, s, b);
    void* ptr = b.ptr();
    m->free(b);
    const Buffer c = m->malloc(bytes, s);
    EXPECT_EQ(c.ptr(), ptr);
    touch(m, s, c);
    m->free(c, s);
  }
  EXPECT_EQ(m->stats().host_waits, 0U);
  expect_sound(*m);
}

TEST(Streams, UsesByOtherStreamsAreWaitedForInTheStream) {
  Model m(manual());
  const Stream one = m.stream(1), two = m.stream(2);
  for (int round = 0; round < 20; ++round) {
    for (const std::size_t bytes : {512UL, 100000UL, 8UL << 20}) {
      const Buffer b = m->malloc(bytes, one);
      touch(m, one, b);
      // The program's own order between the streams; the allocator must keep the other direction.
      drivers::Event event{};
      ASSERT_EQ(m.driver->record(one.native(), event), drivers::Status::ok);
      ASSERT_EQ(m.driver->wait(two.native(), event), drivers::Status::ok);
      m.driver->release(event);
      touch(m, two, b);
      if (round % 2 == 0) {
        m->record_use(b, two);
        m->record_use(b, two);
        m->free(b);
      } else {
        m->free(b, two);
      }
      EXPECT_FALSE(b.live());
      EXPECT_THROW(m->free(b), invalid_argument);
      expect_sound(*m);
      const Buffer c = m->malloc(bytes, one);
      touch(m, one, c);
      m->free(c);
      if (round == 10) m.driver->complete_all();
    }
  }
  EXPECT_EQ(m->stats().host_waits, 0U);
  EXPECT_TRUE(m->central().uses().empty());
}

TEST(Streams, PhysicalMemoryMovesBetweenStreamsInOrder) {
  drivers::ModelConfig config = manual();
  config.total_memory = 128_MiB;
  Model m(config);
  const Stream one = m.stream(1), two = m.stream(2);
  for (int round = 0; round < 10; ++round) {
    const Stream& s = round % 2 == 0 ? one : two;
    std::vector<Buffer> buffers;
    for (int i = 0; i < 10; ++i) {
      buffers.push_back(m->malloc(10_MiB, s));
      touch(m, s, buffers.back());
    }
    expect_sound(*m);
    for (const Buffer& b : buffers) m->free(b);
  }
}

TEST(Streams, ADestroyedStreamsMemoryServesOthers) {
  drivers::ModelConfig config = manual();
  config.total_memory = 128_MiB;
  Model m(config);
  for (std::uintptr_t number = 1; number < 40; ++number) {
    const Stream s = m.stream(number);
    const Buffer b = m->malloc(80_MiB, s), small = m->malloc(512, s);
    touch(m, s, b);
    touch(m, s, small);
    m->free(b);
    m->stream_destroyed(s);
    m.driver->destroy_stream(s.native());
    EXPECT_THROW(m->malloc(10, s), invalid_argument);
    EXPECT_THROW(m->free(small, s), invalid_argument);
    EXPECT_THROW(m->stream_destroyed(s), invalid_argument);
    m->free(small);
    expect_sound(*m);
  }
  EXPECT_LE(m->stats().peak_reserved, 128_MiB);
}

TEST(Streams, MallocWithoutAStreamIsReachedByTheHost) {
  Model m;
  const Buffer b = m->malloc(1000);
  ASSERT_GE(b.size(), 1000U);
  static_cast<char*>(b.raw_ptr())[999] = 1;
  EXPECT_EQ(b.raw_ptr(), b.ptr());
  EXPECT_EQ(m->find(b.ptr()), b);
  const Buffer c = m->malloc(1000);
  EXPECT_NE(b.ptr(), c.ptr());
  EXPECT_GE(m->stats().reserved, b.size() + c.size());
  expect_sound(*m);
  m->free(b);
  EXPECT_FALSE(m->find(c.ptr()) == b);
  m->free_raw(c.ptr());
  const Buffer d = m->malloc(900);  // Served again.
  m->free(d);
  expect_sound(*m);
  m->clear_cache();
  EXPECT_EQ(m->stats().reserved, 0U);
  EXPECT_EQ(m->malloc(0).size(), 0U);
}

TEST(Streams, DeviceMemoryMovesToTheHostOnDemand) {
  Model m(manual());
  const Stream s = m.stream(1);
  for (const std::size_t bytes : {600UL, 100000UL, 8UL << 20}) {
    const Buffer b = m->malloc(bytes, s), copy = b;
    touch(m, s, b);
    void* before = b.ptr();
    void* host = b.raw_ptr();
    EXPECT_NE(host, before);
    EXPECT_EQ(copy.ptr(), host);
    EXPECT_EQ(copy.raw_ptr(), host);
    EXPECT_GE(b.size(), bytes);
    EXPECT_EQ(m->find(host), b);
    EXPECT_FALSE(m->find(before));
    expect_sound(*m);
    m->free(b);
    EXPECT_THROW(m->free(copy), invalid_argument);
    expect_sound(*m);
    EXPECT_EQ(m->stats().active, 0U);
    m->clear_cache();
    EXPECT_EQ(m->stats().reserved, 0U);
  }
}

TEST(Streams, RandomWorkOnSeveralStreamsBreaksNoRule) {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    drivers::ModelConfig config = manual();
    config.total_memory = 256_MiB;
    config.manual = seed != 2;
    config.lag_us = seed == 2 ? 500 : 0;
    Model m(config);
    std::mt19937_64 random(seed);
    std::vector<Stream> streams;
    for (std::uintptr_t i = 0; i < 3; ++i) streams.push_back(m.stream(i));
    struct Live {
      Buffer buffer;
      std::size_t home;
    };
    std::vector<Live> live;
    for (int step = 0; step < 6000; ++step) {
      if (live.size() < 60 && random() % 2 == 0) {
        const std::size_t home = random() % streams.size();
        const std::size_t bytes = 1 + random() % (std::size_t{1} << (8 + random() % 14));
        live.push_back({m->malloc(bytes, streams[home]), home});
        touch(m, streams[home], live.back().buffer);
      } else if (!live.empty()) {
        std::swap(live[random() % live.size()], live.back());
        const Live l = live.back();
        live.pop_back();
        const std::size_t user = random() % streams.size();
        if (user != l.home) {
          drivers::Event event{};
          ASSERT_EQ(m.driver->record(streams[l.home].native(), event), drivers::Status::ok);
          ASSERT_EQ(m.driver->wait(streams[user].native(), event), drivers::Status::ok);
          m.driver->release(event);
          touch(m, streams[user], l.buffer);
        }
        m->free(l.buffer, streams[user]);
      }
      if (random() % 50 == 0) m.driver->advance_to(m.driver->clock_us() + 100);
      if (random() % 200 == 0) m.driver->complete(streams[random() % 3].native());
      if (step % 100 == 0) expect_sound(*m);
    }
    for (const Live& l : live) m->free(l.buffer);
    expect_sound(*m);
  }
}

class Segments : public testing::TestWithParam<bool> {};

TEST_P(Segments, BlocksLiveInSegments) {
  drivers::ModelConfig config;
  config.virtual_memory = false;
  config.block_objects = GetParam();
  config.total_memory = 1024_MiB;
  Model m(config);
  const Stream s = m.stream(0);
  std::mt19937_64 random(9);
  std::vector<Buffer> live;
  for (int step = 0; step < 4000; ++step) {
    if (live.size() < 100 && random() % 5 != 0) {
      live.push_back(m->malloc(1 + random() % (std::size_t{1} << (8 + random() % 13)), s));
      EXPECT_NE(live.back().ptr(), nullptr);
    } else if (!live.empty()) {
      std::swap(live[random() % live.size()], live.back());
      m->free(live.back());
      live.pop_back();
    }
    if (step % 100 == 0) expect_sound(*m);
    if (step % 1000 == 999) m->clear_cache();
  }
  for (const Buffer& b : live) m->free(b);
  m->clear_cache();
  EXPECT_EQ(m->stats().reserved, 0U);
  expect_sound(*m);
}

INSTANTIATE_TEST_SUITE_P(WithAndWithoutObjects, Segments, testing::Bool());

}  // namespace
}  // namespace cistern::allocation
