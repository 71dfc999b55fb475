// In steady state the pool takes nothing from the heap and asks nothing of the allocator.
#include <gtest/gtest.h>

#include <cstddef>

#include "cistern/buffer_pool.hpp"
#include "pool/counting_allocator.hpp"
#include "pool/counting_new.hpp"

namespace cistern {
namespace {

TEST(PoolAllocationTest, SteadyStateTakesNothing) {
  for (const Bucketing mode : {Bucketing::power_of_two, Bucketing::eight_steps, Bucketing::exact}) {
    testing::CountingAllocator below;
    BufferPool pool(below, Stream(Device::cpu()), {.bucketing = mode});
    std::vector<TypedBuffer> kept(8);
    std::vector<TypedBuffer> batch(2);
    const BufferRequest requests[] = {{400, DType::f32, {100}}, {64, DType::u8, {8, 8}}};
    std::size_t heap = 0;
    std::size_t calls = 0;
    for (std::size_t cycle = 0; cycle < 50; ++cycle) {
      if (cycle == 10) {
        heap = allocations.load();
        calls = below.mallocs + below.frees;
      }
      for (std::size_t i = 0; i < 200; ++i) {
        TypedBuffer buffer = pool.alloc(i * 4, DType::f32, {i});
        const TypedBuffer view = buffer.slice_view(0, i / 2);
        if (i % 7 == 0) pool.release(buffer);
        if (i % 25 == 0) kept[i / 25] = buffer;  // Escapes, until the next cycle.
      }
      pool.alloc_batch(requests, batch);
      pool.reset();
    }
    EXPECT_EQ(allocations.load() - heap, 0u);
    EXPECT_EQ(below.mallocs + below.frees - calls, 0u);
  }
}

TEST(PoolAllocationTest, FirstBufferIsCounted) {
  BufferPool pool(Device::cpu());
  const std::size_t before = allocations.load();
  (void)pool.alloc(DType::u8, {100});
  EXPECT_GT(allocations.load(), before) << "the counter works";
}

}  // namespace
}  // namespace cistern
