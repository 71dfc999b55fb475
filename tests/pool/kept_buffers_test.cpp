// A buffer that a pool's or an arena's handle stands on ends with its keeper alone: a free of the plain Buffer, by
// handle or by address, is refused and changes nothing, on every kind of device.
#include <gmock/gmock.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "allocator/allocator_fixture.hpp"
#include "cistern/buffer_pool.hpp"
#include "cistern/error.hpp"
#include "cistern/planned_arena.hpp"
#include "drivers/cuda/cuda_driver.hpp"
#include "pool/expect_rules.hpp"
#include "standin/cuda/cuda_library.hpp"

namespace cistern {
namespace {

using allocation::DeviceAllocator;
using ::testing::HasSubstr;

// One block of a size class, one of a cache's exact bins, one too large for a cache.
constexpr std::size_t kSizes[] = {16, 1024, 192 << 10, 48 << 20};

class KeptBuffers : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (GetParam() == "cpu") {
      own_ = allocation::make_cpu();
    } else if (GetParam() == "system") {
      own_ = std::make_unique<DeviceAllocator>(Device::cpu(), drivers::make_cpu_driver(drivers::CpuMode::system));
    } else if (GetParam() == "model") {
      own_ = std::make_unique<DeviceAllocator>(Device::model(5), drivers::make_model_driver());
    } else {
      standin::CudaLibrary& library = standin::CudaLibrary::get();
      if (!library.is_standin()) GTEST_SKIP() << "needs the stand-in: " << library.why();
      library.restart();
      std::string why;
      auto driver = drivers::make_cuda_driver(0, {}, &why);
      ASSERT_NE(driver, nullptr) << why;
      own_ = std::make_unique<DeviceAllocator>(Device::cuda(0), std::move(driver));
    }
    stream_.emplace(own_->stream(nullptr));
  }
  void TearDown() override {
    if (own_ != nullptr) allocation::expect_sound(*own_);
  }

  // Every way to end a buffer that the public interface has.
  void refused_everywhere(Buffer buffer, const std::string& keeper) {
    void* const at = buffer.ptr();
    const std::size_t size = buffer.size();
    refused([&] { own_->free(buffer); }, "free", keeper);
    refused([&] { own_->free(buffer, *stream_); }, "free", keeper);
    refused([&] { cistern::free(buffer); }, "free", keeper);
    if (own_->find(at)) refused([&] { own_->free_raw(at); }, "free", keeper);
    std::thread([&] { refused([&] { own_->free(buffer); }, "free", keeper); }).join();
    UniqueBuffer(buffer).reset();  // Never throws.
    EXPECT_TRUE(buffer.live());
    EXPECT_EQ(buffer.ptr(), at);
    EXPECT_EQ(buffer.size(), size);
    // Nobody else gets the bytes.
    std::vector<Buffer> others;
    for (int i = 0; i < 3; ++i) others.push_back(own_->malloc(size, *stream_));
    for (const Buffer& other : others) {
      EXPECT_NE(other.ptr(), at);
      own_->free(other);
    }
  }
  void refused(const std::function<void()>& act, const std::string& call, const std::string& keeper) {
    const Stats before = own_->stats();
    try {
      act();
      ADD_FAILURE() << "accepted, expected: " << call << " of what is " << keeper;
    } catch (const invalid_argument& error) {
      EXPECT_THAT(error.what(), HasSubstr("cistern: " + call + ": buffer 0x"));
      EXPECT_THAT(error.what(), HasSubstr(to_string(own_->device())));
      EXPECT_THAT(error.what(), HasSubstr(keeper));
    }
    EXPECT_EQ(own_->stats().active, before.active);
    EXPECT_EQ(own_->stats().live_buffers, before.live_buffers);
  }
  // Whoever registers the buffer gets `keeper` in the refusal.
  void registration_refused(BufferPool& pool, Buffer buffer, const std::string& keeper) {
    UniqueBuffer owned(buffer);
    EXPECT_THAT([&] { (void)pool.register_existing(buffer, DType::u8, {1}); },
                ::testing::ThrowsMessage<invalid_argument>(HasSubstr(keeper)));
    EXPECT_THAT([&] { (void)pool.register_existing(std::move(owned), DType::u8, {1}); },
                ::testing::ThrowsMessage<invalid_argument>(HasSubstr(keeper)));
    EXPECT_EQ(owned.release(), buffer);  // NOLINT(bugprone-use-after-move): a refused buffer is kept.
    testing::expect_rules(pool);
  }

  std::unique_ptr<DeviceAllocator> own_;
  std::optional<Stream> stream_;
};

TEST_P(KeptBuffers, OfAPool) {
  for (const std::size_t bytes : kSizes) {
    BufferPool pool(*own_, *stream_);
    TypedBuffer handle = pool.alloc(DType::u8, {bytes});
    const Buffer buffer = handle.buffer();
    refused_everywhere(buffer, "BufferPool's own");
    registration_refused(pool, buffer, "BufferPool's own");
    BufferPool other(*own_, *stream_);
    registration_refused(other, buffer, "BufferPool's own");
    // Free in the pool's hands, and handed out again.
    handle.reset();
    pool.reset();
    refused_everywhere(buffer, "BufferPool's own");
    handle = pool.alloc(DType::u8, {bytes});
    EXPECT_EQ(handle.buffer(), buffer);
    refused_everywhere(buffer, "BufferPool's own");
    testing::expect_rules(pool);
    handle.reset();
    pool.reset();
    pool.trim();
    EXPECT_FALSE(buffer.live());
    EXPECT_EQ(own_->stats().active, 0U);
  }
}

TEST_P(KeptBuffers, OfAPoolThatIsGone) {
  for (const std::size_t bytes : kSizes) {
    std::optional<BufferPool> pool(std::in_place, *own_, *stream_);
    TypedBuffer handle = pool->alloc(DType::u8, {bytes});
    pool.reset();
    const Buffer buffer = handle.buffer();
    refused_everywhere(buffer, "BufferPool's own");
    std::thread([last = std::move(handle)]() mutable { last.reset(); }).join();
    EXPECT_FALSE(buffer.live());
    EXPECT_EQ(own_->stats().active, 0U);
  }
}

TEST_P(KeptBuffers, UsedOnAnotherStream) {
  BufferPool pool(*own_, *stream_);
  const bool real = own_->device().type == DeviceType::cuda;
  const Stream other = own_->stream(real ? standin::CudaLibrary::get().stream(1) : reinterpret_cast<void*>(7));
  TypedBuffer handle = pool.alloc(DType::u8, {4096});
  handle.record_use(other);
  const Buffer buffer = handle.buffer();
  refused([&] { own_->free(buffer, other); }, "free", "BufferPool's own");
  refused_everywhere(buffer, "BufferPool's own");
  pool.release(handle);
  EXPECT_FALSE(buffer.live());
}

TEST_P(KeptBuffers, Tagged) {
  const ScopedTag tag("kept");
  BufferPool pool(*own_, *stream_);
  TypedBuffer handle = pool.alloc(DType::u8, {1000});
  refused_everywhere(handle.buffer(), "BufferPool's own");
  handle.reset();
  pool.clear();
  EXPECT_EQ(own_->stats().active, 0U);
  EXPECT_EQ(own_->tags().front().active, 0U);
}

TEST_P(KeptBuffers, RegisteredByItsOwner) {
  for (const std::size_t bytes : kSizes) {
    const Buffer buffer = own_->malloc(bytes, *stream_);
    BufferPool pool(*own_, *stream_);
    BufferPool second(*own_, *stream_);
    TypedBuffer handle = pool.register_existing(buffer, DType::u8, {bytes});
    refused_everywhere(buffer, "registered with a BufferPool");
    registration_refused(pool, buffer, "registered with a BufferPool");
    registration_refused(second, buffer, "registered with a BufferPool");
    handle.reset();
    refused_everywhere(buffer, "registered with a BufferPool");
    pool.clear();
    handle = second.register_existing(buffer, DType::u8, {bytes});
    second.clear();
    refused_everywhere(buffer, "registered with a BufferPool");
    handle.reset();
    EXPECT_TRUE(buffer.live());
    own_->free(buffer);
    EXPECT_EQ(own_->stats().active, 0U);
  }
}

TEST_P(KeptBuffers, RegisteredForGood) {
  UniqueBuffer owned(own_->malloc(100, *stream_));
  const Buffer buffer = owned.get();
  BufferPool pool(*own_, *stream_);
  TypedBuffer handle = pool.register_existing(std::move(owned), DType::u8, {100});
  refused_everywhere(buffer, "registered with a BufferPool");
  handle.reset();
  pool.clear();
  EXPECT_FALSE(buffer.live());
}

TEST_P(KeptBuffers, RegisteredViews) {
  std::vector<char> bytes(4096);
  const Buffer view = own_->make_buffer(bytes.data(), bytes.size());
  if (!view) GTEST_SKIP() << "the device takes no such view";
  BufferPool pool(*own_, *stream_);
  TypedBuffer handle = pool.register_existing(view, DType::u8, {4096});
  refused([&] { own_->release(view); }, "release", "registered with a BufferPool");
  handle.reset();
  pool.clear();
  own_->release(view);
  EXPECT_EQ(own_->stats().active, 0U);
}

TEST_P(KeptBuffers, SlabOfAnArena) {
  std::optional<PlannedArena> arena(std::in_place, *own_, *stream_, ArenaOptions{.background = false});
  const auto cycle = [&] {
    for (const std::size_t bytes : {100UL, 4096UL, 700000UL}) (void)arena->alloc(DType::u8, {bytes});
    arena->end_cycle();
  };
  for (int i = 0; i < 4; ++i) cycle();
  ASSERT_GT(arena->figures().from_slab, 0U);
  TypedBuffer handle = arena->alloc(DType::u8, {100});
  const Buffer slab = handle.buffer();
  refused_everywhere(slab, "the slab of a PlannedArena");
  BufferPool pool(*own_, *stream_);
  registration_refused(pool, slab, "the slab of a PlannedArena");
  for (const std::string& rule : arena->check_invariants()) ADD_FAILURE() << rule;
  arena.reset();
  refused_everywhere(slab, "the slab of a PlannedArena");
  handle.reset();
  EXPECT_FALSE(slab.live());
  EXPECT_EQ(own_->stats().active, 0U);
}

// The pool works on while other threads try.
TEST_P(KeptBuffers, FreesFromOtherThreadsAreRefusedWhileThePoolWorks) {
  BufferPool pool(*own_, *stream_);
  TypedBuffer held = pool.alloc(DType::u8, {4096});
  const Buffer buffer = held.buffer();
  std::atomic<bool> stop{false};
  std::atomic<int> refusals{0}, accepted{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      while (!stop) {
        try {
          own_->free(buffer);
          ++accepted;
        } catch (const invalid_argument&) {
          ++refusals;
        }
      }
    });
  }
  for (int i = 0; i < 2000 || refusals < 100; ++i) {
    const TypedBuffer a = pool.alloc(DType::u8, {4096});
    EXPECT_NE(a.buffer(), buffer);
    pool.reset();
    if (i % 16 == 0) pool.trim();
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(accepted, 0);
  EXPECT_TRUE(buffer.live());
  testing::expect_rules(pool);
}

INSTANTIATE_TEST_SUITE_P(Devices, KeptBuffers, ::testing::Values("cpu", "system", "model", "cuda"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace cistern
