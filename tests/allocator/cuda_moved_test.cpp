// Memory of a stream that moved to the host (raw_ptr()): the stream goes on using it, and it goes back in its order.
#include <cstring>

#include "allocator/capture_fixture.hpp"
#include "cistern/error.hpp"

namespace cistern::allocation {
namespace {

class MovedBuffers : public CapturePools {
 protected:
  // A buffer of the stream that has moved, with a kernel behind the host that checks it.
  Buffer moved(const Stream& s, std::size_t bytes) {
    const Buffer b = a().malloc(bytes, s);
    fill(s, b, 1);
    static_cast<void>(b.raw_ptr());
    check(s, b, 1);
    return b;
  }
  // Whatever is allocated now may be written by the host at once.
  void reuse(std::size_t bytes) {
    const Buffer b = a().malloc(bytes);
    std::memset(b.raw_ptr(), 7, bytes);
    EXPECT_EQ(library().api.context_synchronize(), 0);
    a().free(b);
  }
};

TEST_F(MovedBuffers, TheyServeAgainWhenTheirStreamIsDoneWithThem) {
  for (const CudaMode mode : {CudaMode::virtual_memory, CudaMode::segments, CudaMode::stream_ordered}) {
    for (const std::size_t bytes : {std::size_t{8}, std::size_t{2560}, std::size_t{100'000}, 22_MiB}) {
      start({.mode = mode}, {{"LAG_US", "5000"}});
      const Stream s = stream(1);
      a().free(moved(s, bytes));
      reuse(bytes);
      EXPECT_EQ(control().mismatches(), 0u) << bytes;
      a().free(moved(s, bytes));
      a().set_cache_limit(0);
      a().free(moved(s, bytes));
      a().clear_cache();
    }
  }
}

TEST_F(MovedBuffers, AUseByTheirOwnStreamThatWasSaidBeforeTheMoveCounts) {
  start({}, {{"LAG_US", "5000"}});
  const Stream s = stream(1);
  const Buffer b = a().malloc(100_KiB, s);
  a().record_use(b, s);
  fill(s, b, 1);
  static_cast<void>(b.raw_ptr());
  check(s, b, 1);
  a().free(b);
  reuse(100_KiB);
  EXPECT_EQ(control().mismatches(), 0u);
}

TEST_F(MovedBuffers, AMoveThatFailsLeavesNoUseBehind) {
  const Stream s = stream(1), other = stream(2);
  for (const char* const call : {"cuMemcpyAsync", "cuEventSynchronize"}) {
    const Buffer b = a().malloc(3_MiB, s);
    control().fail(call, 1, cuda::kLaunchFailed, 1);
    EXPECT_THROW(static_cast<void>(b.raw_ptr()), driver_error) << call;
    control().fail(call, 0, cuda::kSuccess, 1);
    a().record_use(b, other);
    a().free(b);
    a().map();
    EXPECT_TRUE(a().central().uses().empty()) << call;
  }
}

TEST_F(MovedBuffers, TheirStreamMayBeDestroyedBeforeThey) {
  start({}, {{"LAG_US", "5000"}});
  const cuda::Stream handle = library().make_stream();
  const Stream s = a().stream(handle);
  const Buffer b = moved(s, 100_KiB);
  a().stream_destroyed(s);
  library().destroy_stream(handle);
  a().free(b);
  reuse(100_KiB);
  EXPECT_EQ(control().mismatches(), 0u);
}

// --- Frees that wait for work ----------------------------------------------------------------------------------------

TEST_F(MovedBuffers, TheDeviceIsAskedOnceHoweverManyFreesWait) {
  start({}, {{"MANUAL", "1"}});
  const Stream s = stream(1);
  const auto calls_of_one = [&] {
    const Buffer b = a().malloc(4096);
    EXPECT_EQ(control().launch_touch(native(s), at(b), b.size(), 1), 0);
    a().free(b, s);
    const std::uint64_t before = a().driver().calls();
    a().free(a().malloc(4096));
    return a().driver().calls() - before;
  };
  for (int i = 0; i < 20; ++i) calls_of_one();
  const std::uint64_t few = calls_of_one();
  for (int i = 0; i < 200; ++i) calls_of_one();
  EXPECT_LE(calls_of_one(), few);
  control().complete_all();
}

}  // namespace
}  // namespace cistern::allocation
