// Order between streams that share a device's memory, over the model device, which knows what work is pending on every
// physical byte and lists each use that did not wait for it.
#include <vector>

#include "allocator/allocator_fixture.hpp"

namespace cistern::allocation {
namespace {

class SharedOrder : public ::testing::Test {
 protected:
  void TearDown() override {
    expect_sound(*model);
    model.driver->complete_all();
  }
  // Work on the stream that uses the whole buffer, pending from now on.
  bool use(const Stream& stream, const Buffer& buffer) {
    return model.driver->touch(stream.native(), reinterpret_cast<std::uintptr_t>(buffer.ptr()), buffer.size());
  }

  Model model{{.total_memory = 512_MiB, .manual = true}};  // Fails the test for each broken rule.
};

TEST_F(SharedOrder, AnotherStreamWaitsOnceForWhatWasFreed) {
  const Stream first = model.stream(1), second = model.stream(2);
  const Buffer freed = model->malloc(64_MiB, first);
  EXPECT_TRUE(use(first, freed));
  model->free(freed);
  model->free(model->malloc(128_MiB, first));  // The block leaves the list of recent ones.
  const std::uint64_t calls = model->stats().driver_calls;
  std::vector<Buffer> taken;
  for (int i = 0; i < 8; ++i) {
    taken.push_back(model->malloc(8_MiB, second));
    EXPECT_TRUE(use(second, taken.back()));
  }
  EXPECT_LE(model->stats().driver_calls - calls, 3U) << "one event, one wait, and its release";
  EXPECT_EQ(model->stats().host_waits, 0U);
  for (const Buffer& buffer : taken) model->free(buffer);
}

// No event can be recorded on a stream that is being captured.
TEST_F(SharedOrder, AFirstRequestGetsNothingThatItCannotWaitFor) {
  const Stream first = model.stream(0), second = model.stream(1);
  const Buffer freed = model->malloc(8_MiB, first);
  EXPECT_TRUE(use(first, freed));
  model->free(freed);
  model->free(model->malloc(16_MiB, first));
  model.driver->fail(drivers::Call::record, 1, drivers::Status::capturing, 1000);
  const Buffer other = model->malloc(4_MiB, second);
  model.driver->clear_faults();
  EXPECT_TRUE(use(second, other));
  model->free(other);
}

// A block outlives its pool. What others took of its memory still carries the number of the stream that freed it, when
// that number could serve another stream.
TEST_F(SharedOrder, AReleasedPoolsNumberIsKeptUntilItsBlocksAreBack) {
  const Stream captured = model.stream(1), next = model.stream(2), third = model.stream(3), fourth = model.stream(4);
  const std::uint64_t pool = model->make_pool();
  model->begin_pool(pool, captured);
  const Buffer block = model->malloc(4_MiB, captured);
  model->end_pool(pool);
  model->release_pool(pool);
  EXPECT_TRUE(use(captured, block));
  model->free(block);
  const Buffer part = model->malloc(2_MiB + 512, third);
  EXPECT_TRUE(use(third, part));
  const std::uint64_t other_pool = model->make_pool();
  model->begin_pool(other_pool, next);
  const Buffer in_pool = model->malloc(1_MiB, next);
  model->end_pool(other_pool);
  const Buffer rest = model->malloc(1_MiB, fourth);
  EXPECT_TRUE(use(fourth, rest));
  for (const Buffer& buffer : {part, in_pool, rest}) model->free(buffer);
}

}  // namespace
}  // namespace cistern::allocation
