// BufferPool: what each operation does to the counts, the content and the memory below.
#include "cistern/buffer_pool.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "cistern/error.hpp"
#include "pool/counting_allocator.hpp"
#include "pool/expect_rules.hpp"

namespace cistern {
namespace {

using testing::CountingAllocator;
using testing::expect_rules;

class BufferPoolTest : public ::testing::Test {
 protected:
  BufferPool& make(PoolOptions options = {}) { return pool_.emplace(below_, Stream(Device::cpu()), options); }
  void TearDown() override {
    pool_.reset();
    EXPECT_EQ(below_.live(), 0u) << "memory was not given back";
    EXPECT_EQ(below_.wrong_frees, 0u);
  }

  CountingAllocator below_;
  std::optional<BufferPool> pool_;
};

TEST_F(BufferPoolTest, CountsAfterEachOperation) {
  BufferPool& pool = make();
  EXPECT_EQ(pool.total_count(), 0u);
  TypedBuffer a = pool.alloc(1000, DType::u8, {1000});
  TypedBuffer b = pool.alloc(3000, DType::u8, {3000});
  EXPECT_EQ(pool.in_use_count(), 2u);
  EXPECT_EQ(pool.in_use_bytes(), 1024u + 4096u);
  EXPECT_EQ(pool.free_count(), 0u);
  pool.release(a);
  EXPECT_FALSE(a);
  EXPECT_EQ(pool.in_use_count(), 1u);
  EXPECT_EQ(pool.free_bytes(), 1024u);
  expect_rules(pool);
  b.reset();
  EXPECT_EQ(pool.in_use_count(), 1u) << "a dropped buffer is in use until reset()";
  pool.reset();
  EXPECT_EQ(pool.in_use_count(), 0u);
  EXPECT_EQ(pool.free_count(), 2u);
  EXPECT_EQ(below_.mallocs, 2u);
  (void)pool.alloc(600, DType::u8, {600});
  (void)pool.alloc(4096, DType::u8, {4096});
  EXPECT_EQ(below_.mallocs, 2u) << "both come from their buckets";
  expect_rules(pool);
}

TEST_F(BufferPoolTest, ReleasedBufferIsTheNextOne) {
  BufferPool& pool = make();
  const TypedBuffer a = pool.alloc(DType::f32, {100});
  TypedBuffer b = pool.alloc(DType::f32, {100});
  const TypedBuffer c = pool.alloc(DType::f32, {100});
  const std::byte* place = b.data();
  pool.release(std::move(b));
  EXPECT_EQ(pool.alloc(DType::f32, {90}).data(), place);
  expect_rules(pool);
}

TEST_F(BufferPoolTest, SameRequestsGetSameAddressesEachCycle) {
  BufferPool& pool = make();
  std::vector<const std::byte*> first;
  for (int cycle = 0; cycle < 3; ++cycle) {
    for (std::size_t i = 0; i < 50; ++i) {
      const TypedBuffer buffer = pool.alloc(DType::f32, {i * 17 % 400});
      if (cycle == 0) {
        first.push_back(buffer.data());
      } else {
        EXPECT_EQ(buffer.data(), first[i]);
      }
    }
    pool.reset();
  }
}

TEST_F(BufferPoolTest, FreshBuffersAreZeroAndOthersOnDemand) {
  for (const bool zero_on_reuse : {false, true}) {
    BufferPool& pool = make({.bucketing = Bucketing::power_of_two, .zero_on_reuse = zero_on_reuse});
    for (int cycle = 0; cycle < 2; ++cycle) {
      for (const std::size_t bytes : {1u, 64u, 1000u, 100000u}) {
        const TypedBuffer buffer = pool.alloc(DType::u8, {bytes});
        const auto content = buffer.as_span<std::uint8_t>();
        const bool zero = std::all_of(content.begin(), content.end(), [](std::uint8_t v) { return v == 0; });
        EXPECT_EQ(zero, cycle == 0 || zero_on_reuse);
        std::fill(content.begin(), content.end(), std::uint8_t{7});
      }
      pool.reset();
    }
  }
}

TEST_F(BufferPoolTest, BucketBytesOfEachMode) {
  EXPECT_EQ(make({.bucketing = Bucketing::power_of_two}).bucket_bytes(1025), 2048u);
  EXPECT_EQ(make({.bucketing = Bucketing::eight_steps}).bucket_bytes(1025), 1152u);
  BufferPool& exact = make({.bucketing = Bucketing::exact});
  EXPECT_EQ(exact.bucket_bytes(1025), 1025u);
  EXPECT_THROW((void)exact.bucket_bytes(SIZE_MAX), invalid_argument);
  for (std::size_t i = 0; i < 300; ++i) (void)exact.alloc(DType::u8, {i});
  EXPECT_EQ(exact.total_count(), 300u);
  EXPECT_EQ(exact.total_bytes(), 1u + 299u * 300u / 2u);
  exact.reset();
  for (std::size_t i = 0; i < 300; ++i) (void)exact.alloc(DType::u8, {299 - i});
  EXPECT_EQ(below_.mallocs, 300u);
  expect_rules(exact);
}

TEST_F(BufferPoolTest, EscapedBuffersStayAndComeBack) {
  BufferPool& pool = make();
  TypedBuffer kept = pool.alloc(DType::i32, {100});
  kept.as_span<int>()[0] = 42;
  TypedBuffer view = pool.alloc(DType::i32, {100}).slice_view(4, 10);
  (void)pool.alloc(DType::i32, {100});
  pool.reset();
  EXPECT_EQ(pool.in_use_count(), 2u);
  EXPECT_EQ(pool.escaped_count(), 2u);
  EXPECT_EQ(pool.free_count(), 1u);
  expect_rules(pool);
  const TypedBuffer other = pool.alloc(DType::i32, {100});
  const TypedBuffer another = pool.alloc(DType::i32, {100});
  EXPECT_FALSE(other.data() == kept.data() || another.data() == kept.data());
  EXPECT_EQ(kept.as_span<int>()[0], 42);
  EXPECT_EQ(below_.mallocs, 4u);
  kept.reset();
  view.reset();
  EXPECT_EQ(pool.escaped_count(), 0u);
  EXPECT_EQ(pool.free_count(), 2u);
  expect_rules(pool);
}

TEST_F(BufferPoolTest, EscapedBufferServesAMissBeforeTheAllocator) {
  BufferPool& pool = make();
  TypedBuffer kept = pool.alloc(DType::i32, {100});
  pool.reset();
  kept.reset();
  (void)pool.alloc(DType::i32, {100});
  EXPECT_EQ(below_.mallocs, 1u);
  expect_rules(pool);
}

TEST_F(BufferPoolTest, ManyEscapesAreFoundAgainBitByBit) {
  BufferPool& pool = make();
  std::vector<TypedBuffer> kept;
  for (int i = 0; i < 1000; ++i) {
    kept.push_back(pool.alloc(DType::i32, {100}));
    pool.reset();
  }
  EXPECT_EQ(pool.escaped_count(), 1000u);
  kept.clear();
  // Each cycle looks at a few, and a miss at some more: no more memory is needed.
  const std::size_t before = below_.mallocs;
  for (int i = 0; i < 1000; ++i) {
    (void)pool.alloc(DType::i32, {100});
    pool.reset();
  }
  EXPECT_EQ(below_.mallocs, before);
  EXPECT_EQ(pool.free_count(), 1000u);
}

TEST_F(BufferPoolTest, ResetOnRequestRefusesEscapes) {
  BufferPool& pool = make();
  TypedBuffer kept = pool.alloc(DType::bf16, {100});
  const TypedBuffer copy = kept;
  (void)pool.alloc(DType::bf16, {100});
  try {
    pool.reset(Escape::error);
    ADD_FAILURE();
  } catch (const invalid_argument& error) {
    EXPECT_STREQ(error.what(), "BufferPool::reset: handles still refer to 1 buffers: bf16 in 256 bytes (2 handles)");
  }
  EXPECT_EQ(pool.in_use_count(), 2u);
  EXPECT_EQ(pool.escaped_count(), 0u);
  pool.reset();
  EXPECT_NO_THROW(pool.reset(Escape::error)) << "what escaped before belongs to its handles";
  expect_rules(pool);
}

TEST_F(BufferPoolTest, ReleaseWithOtherHandlesWaitsForThem) {
  BufferPool& pool = make();
  TypedBuffer a = pool.alloc(DType::u8, {100});
  TypedBuffer copy = a;
  TypedBuffer view = a.slice_view(0, 10);
  pool.release(a);
  EXPECT_EQ(pool.free_count(), 0u);
  EXPECT_EQ(pool.escaped_count(), 1u);
  EXPECT_THROW(pool.release(copy), invalid_argument);
  EXPECT_TRUE(copy);
  copy.reset();
  EXPECT_EQ(pool.free_count(), 0u);
  view.reset();
  EXPECT_EQ(pool.free_count(), 1u);
  expect_rules(pool);
}

TEST_F(BufferPoolTest, ReleaseAndResetMix) {
  BufferPool& pool = make();
  TypedBuffer kept = pool.alloc(DType::u8, {100});
  TypedBuffer copy = kept;
  pool.reset();
  pool.release(kept);  // After it escaped: as dropping it.
  EXPECT_THROW(pool.release(copy), invalid_argument);
  copy.reset();
  pool.reset();
  EXPECT_EQ(pool.free_count(), 1u);
  // The copy may be the last handle as well.
  TypedBuffer first = pool.alloc(DType::u8, {100});
  TypedBuffer second = first;
  first.reset();
  pool.release(second);
  EXPECT_EQ(pool.free_count(), 1u);
  pool.reset();
  EXPECT_EQ(pool.free_count(), 1u);
  expect_rules(pool);
}

TEST_F(BufferPoolTest, TrimGivesFreeMemoryBack) {
  BufferPool& pool = make();
  const TypedBuffer kept = pool.alloc(DType::u8, {5000});
  TypedBuffer dropped = pool.alloc(DType::u8, {5000});
  pool.release(dropped);
  (void)pool.alloc(DType::u8, {100});
  pool.trim();
  EXPECT_EQ(pool.free_count(), 0u);
  EXPECT_EQ(pool.total_count(), 2u);
  EXPECT_EQ(below_.live(), 2u);
  expect_rules(pool);
}

TEST_F(BufferPoolTest, ClearForgetsAllButHandlesKeepTheirMemory) {
  BufferPool& pool = make();
  TypedBuffer kept = pool.alloc(DType::u8, {5000});
  TypedBuffer escaped = pool.alloc(DType::u8, {300});
  (void)pool.alloc(DType::u8, {100});
  pool.clear();
  EXPECT_EQ(pool.total_count(), 0u);
  EXPECT_EQ(below_.live(), 2u);
  kept.as_span<std::uint8_t>()[4999] = 1;
  EXPECT_THROW(pool.release(kept), invalid_argument);
  EXPECT_TRUE(kept);
  (void)pool.alloc(DType::u8, {5000});
  EXPECT_EQ(below_.live(), 3u);
  kept.reset();
  EXPECT_EQ(below_.live(), 2u) << "the last handle gives the memory back at once";
  const TypedBuffer copy = escaped;
  escaped.reset();
  EXPECT_EQ(below_.live(), 2u);
  expect_rules(pool);
}

TEST_F(BufferPoolTest, HandlesOutliveThePool) {
  BufferPool& pool = make();
  TypedBuffer a = pool.alloc(DType::i32, {100});
  TypedBuffer b = pool.alloc(DType::i32, {100});
  pool.reset();
  TypedBuffer c = pool.alloc(DType::i32, {100});
  TypedBuffer view = c.slice_view(0, 4);
  a.as_span<int>()[3] = 5;
  pool_.reset();
  EXPECT_EQ(below_.live(), 3u);
  EXPECT_EQ(a.as_span<int>()[3], 5);
  a.reset();
  EXPECT_EQ(below_.live(), 2u);
  c.reset();
  EXPECT_EQ(below_.live(), 2u);
  view.reset();
  b.reset();
  EXPECT_EQ(below_.live(), 0u);
}

TEST_F(BufferPoolTest, BatchIsAllOrNothing) {
  BufferPool& pool = make();
  const std::vector<BufferRequest> requests = {
      {400, DType::f32, {100}}, {400, DType::f32, {10, 10}}, {64, DType::u8, {64}}, {200, DType::f16, {100}}};
  std::vector<TypedBuffer> batch = pool.alloc_batch(requests);
  ASSERT_EQ(batch.size(), 4u);
  EXPECT_EQ(batch[1].shape(), (Shape{10, 10}));
  EXPECT_EQ(batch[3].dtype(), DType::f16);
  EXPECT_EQ(pool.in_use_count(), 4u);
  const std::byte* place = batch[0].data();
  below_.fail_in = 2;
  EXPECT_THROW((void)pool.alloc_batch(requests), out_of_memory);
  below_.fail_in = SIZE_MAX;
  EXPECT_EQ(pool.in_use_count(), 4u);
  expect_rules(pool);
  below_.limit = below_.live();
  EXPECT_THROW(pool.alloc_batch(requests, batch), out_of_memory);
  EXPECT_EQ(batch[0].data(), place);
  below_.limit = SIZE_MAX;
  std::vector<BufferRequest> wrong = requests;
  wrong[3].byte_len = 201;
  const std::size_t mallocs = below_.mallocs;
  EXPECT_THROW((void)pool.alloc_batch(wrong), invalid_argument);
  EXPECT_EQ(below_.mallocs, mallocs) << "a wrong request is seen before any is served";
  EXPECT_THROW(pool.alloc_batch(requests, std::span(batch).first(3)), invalid_argument);
  pool.alloc_batch(requests, batch);
  pool.reset();
  EXPECT_EQ(pool.escaped_count(), 4u);
  expect_rules(pool);
}

TEST_F(BufferPoolTest, OutOfMemoryGivesFreeBuffersBackFirst) {
  BufferPool& pool = make();
  (void)pool.alloc(DType::u8, {100});
  (void)pool.alloc(DType::u8, {1000});
  pool.reset();
  below_.limit = 2;
  const TypedBuffer large = pool.alloc(DType::u8, {10000});
  EXPECT_EQ(pool.total_count(), 1u);
  const TypedBuffer larger = pool.alloc(DType::u8, {20000});
  EXPECT_THROW((void)pool.alloc(DType::u8, {40000}), out_of_memory);
  EXPECT_EQ(pool.in_use_count(), 2u);
  expect_rules(pool);
  below_.limit = SIZE_MAX;
  (void)pool.alloc(DType::u8, {40000});
  expect_rules(pool);
}

TEST_F(BufferPoolTest, RegisteredBuffersAreKeptAndNotRecycled) {
  BufferPool& pool = make();
  const Buffer weights = below_.malloc(4000);
  UniqueBuffer cache(allocator(Device::cpu()).malloc(2000));
  TypedBuffer w = pool.register_existing(weights, DType::f32, {10, 100});
  EXPECT_EQ(w.data(), weights.raw_ptr());
  EXPECT_EQ(pool.registered_count(), 1u);
  EXPECT_EQ(pool.registered_bytes(), 4000u);
  EXPECT_EQ(pool.total_count(), 0u);
  EXPECT_THROW((void)pool.register_existing(weights, DType::f32, {10}), invalid_argument);
  EXPECT_THROW((void)pool.register_existing(Buffer(), DType::f32, {10}), invalid_argument);
  EXPECT_THROW((void)pool.register_existing(cache.get(), DType::f32, {100000}), invalid_argument);
  EXPECT_THROW(pool.release(w), invalid_argument);
  pool.reset();
  w.reset();
  pool.reset();
  EXPECT_EQ(pool.free_count(), 0u);
  EXPECT_EQ(pool.registered_count(), 1u);
  expect_rules(pool);
  pool.clear();
  EXPECT_EQ(pool.registered_count(), 0u);
  EXPECT_TRUE(weights.live()) << "its owner frees it";
  below_.free(weights);
}

TEST_F(BufferPoolTest, OwnedRegisteredBufferGoesWithItsLastHandle) {
  BufferPool& pool = make();
  const Buffer plain = below_.malloc(2000);
  UniqueBuffer cache(plain);
  TypedBuffer handle = pool.register_existing(std::move(cache), DType::f32, {500});
  EXPECT_FALSE(cache.get());  // NOLINT(bugprone-use-after-move)
  const TypedBuffer copy = handle;
  pool.clear();
  EXPECT_TRUE(plain.live());
  handle.reset();
  EXPECT_TRUE(plain.live());
  EXPECT_EQ(copy.element_count(), 500u);
  const_cast<TypedBuffer&>(copy).reset();
  EXPECT_FALSE(plain.live());
  const Buffer second = below_.malloc(100);
  (void)pool.register_existing(UniqueBuffer(second), DType::u8, {100});
  EXPECT_TRUE(second.live());
  pool_.reset();
  EXPECT_FALSE(second.live());
}

TEST_F(BufferPoolTest, BuffersUsedOnOtherStreamsGoToTheAllocator) {
  BufferPool& pool = make();
  const Stream other(Device::cpu(), reinterpret_cast<void*>(7));
  TypedBuffer own = pool.alloc(DType::u8, {100});
  own.record_use(pool.stream());
  EXPECT_EQ(below_.uses, 0u);
  TypedBuffer used = pool.alloc(DType::u8, {1000});
  used.record_use(other);
  EXPECT_EQ(below_.uses, 1u);
  EXPECT_EQ(used.use_count(), 1u);
  used.reset();
  own.reset();
  pool.reset();
  EXPECT_EQ(pool.total_count(), 1u);
  // The same after release, and after an escape.
  used = pool.alloc(DType::u8, {1000});
  used.record_use(other);
  pool.release(used);
  EXPECT_EQ(pool.total_count(), 1u);
  used = pool.alloc(DType::u8, {1000});
  used.record_use(other);
  pool.reset();
  EXPECT_EQ(pool.escaped_count(), 1u);
  used.reset();
  EXPECT_EQ(pool.total_count(), 1u);
  EXPECT_EQ(below_.live(), 1u);
  expect_rules(pool);
}

}  // namespace
}  // namespace cistern
