// Handles dropped and copied by other threads while the pool works, is cleared and is destroyed.
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <random>
#include <thread>

#include "cistern/buffer_pool.hpp"
#include "pool/counting_allocator.hpp"
#include "pool/expect_rules.hpp"

namespace cistern {
namespace {

using testing::CountingAllocator;
using testing::expect_rules;

// Threads that drop what they are given.
class Droppers {
 public:
  explicit Droppers(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) threads_.emplace_back([this] { work(); });
  }
  ~Droppers() { finish(); }

  void give(TypedBuffer handle) {
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back(std::move(handle));
    }
    wake_.notify_one();
  }
  // Returns when all handles are gone.
  void finish() {
    {
      const std::lock_guard lock(mutex_);
      end_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  std::atomic<std::size_t> wrong{0};

 private:
  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [this] { return end_ || !queue_.empty(); });
      if (queue_.empty()) return;
      TypedBuffer handle = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      {
        // The bytes are this thread's until the handle goes.
        const auto content = handle.as_span<std::uint32_t>();
        for (const std::uint32_t value : content) wrong += value != content[0];
        TypedBuffer copy = handle;
        handle.reset();
        TypedBuffer view = copy.slice_view(0, 1);
        copy.reset();
      }
      handle.reset();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<TypedBuffer> queue_;
  bool end_ = false;
  std::vector<std::thread> threads_;
};

void fill(const TypedBuffer& buffer, std::uint32_t value) {
  for (std::uint32_t& element : buffer.as_span<std::uint32_t>()) element = value;
}

TEST(PoolThreadsTest, OtherThreadsDropWhileThePoolWorks) {
  CountingAllocator below;
  {
    BufferPool pool(below, Stream(Device::cpu()));
    Droppers droppers(2);
    std::mt19937 random(1);
    for (std::uint32_t cycle = 0; cycle < 300; ++cycle) {
      for (std::uint32_t i = 0; i < 40; ++i) {
        TypedBuffer buffer = pool.alloc(DType::u32, {16 + random() % 200});
        fill(buffer, cycle * 64 + i);
        if (random() % 2 == 0) {
          droppers.give(std::move(buffer));
        } else if (random() % 4 == 0) {
          TypedBuffer copy = buffer;
          pool.release(buffer);
          droppers.give(std::move(copy));
        }
      }
      pool.reset();
    }
    droppers.finish();
    EXPECT_EQ(droppers.wrong, 0u);
    pool.reset();
    EXPECT_EQ(pool.in_use_count(), 0u);
    expect_rules(pool);
  }
  EXPECT_EQ(below.live(), 0u);
  EXPECT_EQ(below.wrong_frees, 0u);
}

TEST(PoolThreadsTest, PoolIsClearedAndDestroyedMeanwhile) {
  CountingAllocator below;
  Droppers droppers(2);
  std::mt19937 random(2);
  for (std::uint32_t round = 0; round < 300; ++round) {
    BufferPool pool(below, Stream(Device::cpu()));
    for (std::uint32_t i = 0; i < 30; ++i) {
      TypedBuffer buffer = pool.alloc(DType::u32, {16 + random() % 200});
      fill(buffer, round);
      if (random() % 4 == 0) droppers.give(TypedBuffer(buffer));
      droppers.give(std::move(buffer));
      if (random() % 16 == 0) pool.reset();
      if (random() % 16 == 0) pool.clear();
    }
  }
  droppers.finish();
  EXPECT_EQ(droppers.wrong, 0u);
  EXPECT_EQ(below.live(), 0u) << "the last handle or the pool gives memory back, never neither";
  EXPECT_EQ(below.wrong_frees, 0u) << "and never both";
}

// Waits closely at first, so that both threads go on at nearly the same moment.
void wait_for(const std::atomic<std::uint32_t>& value, std::uint32_t wanted) {
  for (std::uint32_t looks = 0; value.load(std::memory_order_acquire) != wanted; ++looks) {
    if (looks > 2000) std::this_thread::yield();
  }
}

// The narrow race alone: one handle is dropped at the very moment that its pool ends.
TEST(PoolThreadsTest, LastDropAgainstTheEnd) {
  CountingAllocator below;
  below.dirty = false;
  std::atomic<std::uint32_t> round{0};
  std::atomic<std::uint32_t> done{0};
  std::vector<TypedBuffer> handles(4);
  constexpr std::uint32_t kRounds = 3000;
  std::thread dropper([&] {
    for (std::uint32_t i = 1; i <= kRounds; ++i) {
      wait_for(round, i);
      for (TypedBuffer& handle : handles) handle.reset();
      done.store(i, std::memory_order_release);
    }
  });
  for (std::uint32_t i = 1; i <= kRounds; ++i) {
    auto pool = std::make_unique<BufferPool>(below, Stream(Device::cpu()));
    for (TypedBuffer& handle : handles) handle = pool->alloc(DType::u32, {16});
    handles[3] = handles[2];
    round.store(i, std::memory_order_release);
    for (std::uint32_t spin = 0; spin < i % 64; ++spin) std::atomic_signal_fence(std::memory_order_seq_cst);
    pool.reset();
    wait_for(done, i);
    ASSERT_EQ(below.live(), 0u) << "round " << i;
  }
  dropper.join();
  EXPECT_EQ(below.wrong_frees, 0u);
}

TEST(PoolThreadsTest, PoolMovesFromThreadToThread) {
  CountingAllocator below;
  BufferPool pool(below, Stream(Device::cpu()));
  std::vector<TypedBuffer> kept;
  for (int i = 0; i < 20; ++i) {
    std::thread([&] {
      kept.push_back(pool.alloc(DType::u32, {100}));
      (void)pool.alloc(DType::u32, {100});
      pool.reset();
      if (i % 3 == 0) kept.clear();
    }).join();
  }
  expect_rules(pool);
  EXPECT_LE(pool.total_count(), 6u);
}

}  // namespace
}  // namespace cistern
