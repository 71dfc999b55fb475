// Every call into the vendor's library fails in turn, under the whole allocator: the books stay right, the vendor's
// rules are kept, nothing leaks, and the next attempt works.
#include <random>

#include "allocator/cuda_fixture.hpp"
#include "cistern/error.hpp"

namespace cistern::allocation {
namespace {

using drivers::CudaMode;

class CudaAllocatorFaults : public CudaAllocator, public testing::WithParamInterface<CudaMode> {
 protected:
  // A workload that grows, moves, uses two streams, goes to the host and gives back. Returns how much of it failed.
  int work(std::uint64_t seed) {
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
      } catch (const invalid_argument&) {
        ++failed;  // The stream could not be asked who it is.
      }
    };
    for (int step = 0; step < 60; ++step) {
      const int s = static_cast<int>(random() % 2);
      const std::uint64_t kind = random() % 8;
      if (live.size() < 12 && kind < 5) {
        const std::size_t bytes = 1 + random() % (std::size_t{1} << (6 + random() % 18));
        guarded([&] { live.push_back(kind == 0 ? allocator().malloc(bytes) : malloc(bytes, s)); });
      } else if (!live.empty()) {
        std::swap(live[random() % live.size()], live.back());
        if (kind == 5) {
          guarded([&] { static_cast<void>(live.back().raw_ptr()); });
        } else {
          guarded([&] { allocator().record_use(live.back(), stream(s)); });
        }
        allocator().free(live.back());
        live.pop_back();
      }
      if (step % 30 == 29) guarded([&] { allocator().clear_cache(); });
    }
    for (const Buffer& b : live) allocator().free(b);
    guarded([&] { allocator().clear_cache(); });
    return failed;
  }
};

TEST_P(CudaAllocatorFaults, OfEveryCallLeaveTheBooksRight) {
  for (std::uint64_t nth = 1; nth < 1500; ++nth) {
    start({.mode = GetParam()}, {{"MEMORY", "100663296"}, {"LAG_US", "20"}});
    if (HasFatalFailure()) return;
    static_cast<void>(native(1));  // The program's own call.
    const drivers::cuda::Result result = nth % 2 == 0 ? drivers::cuda::kOutOfMemory : drivers::cuda::kInvalidValue;
    control().fail("*", nth, result, 1 + nth % 3);
    work(nth % 5);
    const bool injected = control().injected() != 0;
    control().fail("*", 0, result, 0);
    expect_sound(allocator());
    EXPECT_EQ(work(7), 0) << "after the " << nth << "th call failed";
    expect_sound(allocator());
    EXPECT_EQ(library().violations(), std::vector<std::string>{}) << "the " << nth << "th call failed";
    allocator_.reset();
    EXPECT_EQ(library().leaks(), std::vector<std::string>{}) << "the " << nth << "th call failed";
    if (!injected || HasFailure()) break;
  }
}

std::string mode_name(const testing::TestParamInfo<CudaMode>& info) {
  if (info.param == CudaMode::segments) return "segments";
  return info.param == CudaMode::stream_ordered ? "pool" : "virtual_memory";
}

INSTANTIATE_TEST_SUITE_P(Modes, CudaAllocatorFaults,
                         testing::Values(CudaMode::virtual_memory, CudaMode::segments, CudaMode::stream_ordered),
                         mode_name);

}  // namespace
}  // namespace cistern::allocation
