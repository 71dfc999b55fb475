// In steady state the pool takes nothing from the heap and asks nothing of the allocator. This file replaces operator
// new for its whole test program, to count.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

#include "cistern/buffer_pool.hpp"
#include "pool/counting_allocator.hpp"

namespace {
std::atomic<std::size_t> allocations{0};

// Out of line: inlined, the pair below looks to the compiler like new with free().
[[gnu::noinline]] void give_back(void* memory) noexcept { std::free(memory); }

[[gnu::noinline]] void* count_and_allocate(std::size_t bytes, std::size_t alignment) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  const std::size_t rounded = (std::max<std::size_t>(bytes, 1) + alignment - 1) / alignment * alignment;
  if (void* memory = std::aligned_alloc(alignment, rounded)) return memory;
  throw std::bad_alloc();
}
}  // namespace

void* operator new(std::size_t bytes) { return count_and_allocate(bytes, alignof(std::max_align_t)); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return count_and_allocate(bytes, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return std::malloc(std::max<std::size_t>(bytes, 1));
}
void operator delete(void* memory, const std::nothrow_t&) noexcept { give_back(memory); }
void operator delete(void* memory) noexcept { give_back(memory); }
void operator delete(void* memory, std::size_t) noexcept { give_back(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { give_back(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { give_back(memory); }

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
