// BufferPool: every mistake is an exception that names it, and changes nothing.
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "cistern/buffer_pool.hpp"
#include "cistern/error.hpp"
#include "pool/expect_rules.hpp"

namespace cistern {
namespace {

class PoolMisuseTest : public ::testing::Test {
 protected:
  void refused(const std::function<void()>& act, const std::string& text) {
    const std::size_t in_use = pool_.in_use_count();
    const std::size_t total = pool_.total_bytes();
    try {
      act();
      ADD_FAILURE() << "accepted, expected: " << text;
    } catch (const invalid_argument& error) {
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    }
    EXPECT_EQ(pool_.in_use_count(), in_use);
    EXPECT_EQ(pool_.total_bytes(), total);
    testing::expect_rules(pool_);
  }

  BufferPool pool_{Device::cpu()};
};

TEST_F(PoolMisuseTest, WrongByteLength) {
  refused([&] { (void)pool_.alloc(100, DType::f32, {5, 6}); }, "100 bytes do not match f32[5, 6], which needs 120");
  refused([&] { (void)pool_.alloc(1, DType::f32, {0}); }, "needs 0");
  refused([&] { (void)pool_.alloc(0, DType::f32, {}); }, "needs 4");
}

TEST_F(PoolMisuseTest, WrongDevice) {
  EXPECT_EQ(pool_.alloc(Device::cpu(), 4, DType::f32, {1}).byte_len(), 4u);
  refused([&] { (void)pool_.alloc(Device::model(), 4, DType::f32, {1}); }, "not of model");
  refused([&] { BufferPool(allocator(Device::cpu()), Stream(Device::model())); }, "the stream is of model");
}

TEST_F(PoolMisuseTest, WrongDType) {
  refused([&] { (void)pool_.alloc(4, static_cast<DType>(200), {1}); }, "no dtype number 200");
  refused([&] { (void)pool_.alloc(static_cast<DType>(16), {1}); }, "no dtype number 16");
}

TEST_F(PoolMisuseTest, HugeSizes) {
  const std::uint32_t m = UINT32_MAX;
  refused([&] { (void)pool_.alloc(SIZE_MAX, DType::u8, {SIZE_MAX}); }, "63 bits");
  refused([&] { (void)pool_.alloc(SIZE_MAX, DType::u8, {INT64_MAX}); }, "do not match");
  refused([&] { (void)pool_.alloc(std::size_t{1} << 63, DType::u16, {std::size_t{1} << 62}); }, "more than any device");
  refused([&] { (void)pool_.alloc(4, DType::f32, {m, m, m}); }, "do not fit in 64 bits");
  refused([&] { (void)pool_.alloc(DType::f64, {m, m}); }, "do not fit in 64 bits");
  for (const Bucketing mode : {Bucketing::power_of_two, Bucketing::eight_steps, Bucketing::exact}) {
    BufferPool pool(Device::cpu(), {.bucketing = mode});
    // The largest that is asked of the allocator, which refuses it in its own way.
    EXPECT_ANY_THROW((void)pool.alloc(DType::u8, {INT64_MAX}));
    EXPECT_ANY_THROW((void)pool.alloc(DType::u8, {INT64_MAX / 8}));
    EXPECT_EQ(pool.total_count(), 0u);
    testing::expect_rules(pool);
  }
}

TEST_F(PoolMisuseTest, ReleaseOfWhatIsNotThere) {
  TypedBuffer empty;
  refused([&] { pool_.release(empty); }, "empty");
  TypedBuffer a = pool_.alloc(4, DType::f32, {1});
  pool_.release(a);
  refused([&] { pool_.release(a); }, "released before");
}

TEST_F(PoolMisuseTest, ReleaseTwiceThroughCopies) {
  TypedBuffer a = pool_.alloc(4, DType::f32, {1});
  TypedBuffer b = a;
  pool_.release(a);
  refused([&] { pool_.release(b); }, "released before");
  refused([&] { pool_.release(std::move(b)); }, "released before");
  EXPECT_TRUE(b);  // NOLINT(bugprone-use-after-move): a refused handle is kept.
}

TEST_F(PoolMisuseTest, ReleaseOfAView) {
  TypedBuffer a = pool_.alloc(40, DType::f32, {10});
  TypedBuffer view = a.slice_view(0, 10);
  refused([&] { pool_.release(view); }, "view");
  TypedBuffer reshaped = a.reshape({5, 2});
  refused([&] { pool_.release(reshaped); }, "view");
  EXPECT_EQ(a.use_count(), 3u);
}

TEST_F(PoolMisuseTest, ReleaseOfForeignBuffers) {
  BufferPool other(Device::cpu());
  TypedBuffer foreign = other.alloc(4, DType::f32, {1});
  refused([&] { pool_.release(foreign); }, "another pool");
  EXPECT_EQ(other.in_use_count(), 1u);
}

TEST_F(PoolMisuseTest, ReleaseAfterClear) {
  TypedBuffer a = pool_.alloc(4, DType::f32, {1});
  pool_.clear();
  refused([&] { pool_.release(a); }, "before clear()");
  pool_.clear();
  refused([&] { pool_.release(a); }, "before clear()");
}

TEST_F(PoolMisuseTest, RegisteredBuffers) {
  Allocator& below = allocator(Device::cpu());
  const Buffer buffer = below.malloc(400);
  TypedBuffer handle = pool_.register_existing(buffer, DType::f32, {100});
  refused([&] { pool_.release(handle); }, "registered");
  refused([&] { (void)pool_.register_existing(buffer, DType::f32, {1}); }, "registered with a BufferPool");
  const Buffer small = below.malloc(40);
  refused([&] { (void)pool_.register_existing(small, DType::f32, {10000}); }, "needs 40000");
  refused([&] { (void)pool_.register_existing(small, static_cast<DType>(99), {1}); }, "no dtype number 99");
  below.free(small);
  refused([&] { (void)pool_.register_existing(small, DType::f32, {1}); }, "freed");
  pool_.clear();
  handle.reset();
  below.free(buffer);
}

TEST_F(PoolMisuseTest, UnknownBucketing) {
  refused([&] { BufferPool(Device::cpu(), {.bucketing = static_cast<Bucketing>(9)}); }, "no bucketing number 9");
}

TEST_F(PoolMisuseTest, ZeroOnReuseNeedsTheCpu) {
  refused([&] { BufferPool(Device::model(), {.zero_on_reuse = true}); }, "zero_on_reuse");
}

}  // namespace
}  // namespace cistern
