// A driver that fails on its Nth call, for every N of a workload: the books stay right, and a later attempt succeeds.
#include <random>
#include <vector>

#include "allocator/allocator_fixture.hpp"
#include "cistern/error.hpp"

namespace cistern::allocation {
namespace {

// Runs a workload that grows, moves, uses two streams and gives back. Returns how many allocations failed.
int work(Model& m, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  int failed = 0;
  std::vector<Buffer> live;
  const auto guarded = [&](auto call) {
    try {
      call();
    } catch (const out_of_memory&) {
      ++failed;
    } catch (const driver_error&) {
      ++failed;
    }
  };
  for (int step = 0; step < 120; ++step) {
    const Stream s = m.stream(random() % 2);
    if (live.size() < 12 && random() % 3 != 0) {
      const std::size_t bytes = 1 + random() % (std::size_t{1} << (8 + random() % 16));
      guarded([&] {
        live.push_back(m->malloc(bytes, s));
        m.driver->touch(s.native(), reinterpret_cast<std::uintptr_t>(live.back().ptr()), live.back().size());
      });
    } else if (!live.empty()) {
      std::swap(live[random() % live.size()], live.back());
      if (random() % 4 == 0) {
        m->free(live.back(), s);
      } else {
        m->free(live.back());
      }
      live.pop_back();
    }
    if (step % 40 == 39) m->clear_cache();
    if (step % 10 == 0) m.driver->complete_all();
  }
  for (const Buffer& b : live) m->free(b);
  m->clear_cache();
  return failed;
}

class Faults : public testing::TestWithParam<bool> {};

TEST_P(Faults, OfEveryCallLeaveTheBooksRight) {
  drivers::ModelConfig config;
  config.manual = true;
  config.virtual_memory = GetParam();
  config.total_memory = 96_MiB;
  config.check_order = false;  // The workload's own uses are not ordered.
  for (std::uint64_t nth = 1; nth < 400; ++nth) {
    Model m(config);
    const drivers::Status status = nth % 2 == 0 ? drivers::Status::out_of_memory : drivers::Status::failed;
    m.driver->fail(drivers::Call::any, nth, status, 1 + nth % 3);
    work(m, nth % 5);
    expect_sound(*m);
    const bool injected = m.driver->injected_faults() != 0;
    m.driver->clear_faults();
    EXPECT_EQ(work(m, 7), 0) << "after the " << nth << "th call failed";
    expect_sound(*m);
    if (!injected || HasFailure()) break;
  }
}

INSTANTIATE_TEST_SUITE_P(VirtualMemoryAndSegments, Faults, testing::Bool());

}  // namespace
}  // namespace cistern::allocation
