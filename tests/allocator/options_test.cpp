// Content options and tags: the long way, with the same results otherwise.
#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include "allocator/allocator_fixture.hpp"
#include "allocator/tags.hpp"

namespace cistern::allocation {
namespace {

bool all_are(const Buffer& b, unsigned char value) {
  const auto* bytes = static_cast<const unsigned char*>(b.ptr());
  return std::all_of(bytes, bytes + b.size(), [value](unsigned char c) { return c == value; });
}

TEST(Options, ZeroOnAllocClearsEveryBuffer) {
  for (const MemoryOptions options : {MemoryOptions{true, false, false}, MemoryOptions{false, true, false}}) {
    const auto a = make_cpu();
    for (const std::size_t bytes : {100UL, 100000UL, 3UL << 20}) {
      const Buffer b = a->malloc(bytes);
      std::memset(b.ptr(), 0xFF, b.size());
      a->free(b);
    }
    a->set_options(options);
    EXPECT_EQ(a->options().zero_on_reuse, options.zero_on_reuse);
    for (const std::size_t bytes : {100UL, 100000UL, 3UL << 20}) {
      const Buffer b = a->malloc(bytes);
      EXPECT_TRUE(all_are(b, 0)) << bytes;
      std::memset(b.ptr(), 0xFF, b.size());
      a->free(b);
    }
    expect_sound(*a);
  }
}

TEST(Options, PoisonOnFreeOverwrites) {
  const auto a = make_cpu();
  const Buffer before = a->malloc(1000);  // Owned by this thread's cache before the option is set.
  a->set_options({false, false, true});
  for (const Buffer& b : {before, a->malloc(100), a->malloc(100000)}) {
    auto* bytes = static_cast<unsigned char*>(b.ptr());
    std::memset(bytes, 1, b.size());
    const std::size_t size = b.size();
    a->free(b);
    EXPECT_EQ(bytes[0], 0xDE);
    EXPECT_EQ(bytes[size - 1], 0xDE);
  }
  const Buffer other = a->malloc(64);
  auto* bytes = static_cast<unsigned char*>(other.ptr());
  std::thread([&] { a->free(other); }).join();
  EXPECT_EQ(bytes[63], 0xDE);
  const MemoryOptions previous = a->set_options({});
  EXPECT_TRUE(previous.poison_on_free);
  const Buffer again = a->malloc(64);
  bytes = static_cast<unsigned char*>(again.ptr());
  std::memset(bytes, 7, 64);
  a->free(again);
  EXPECT_EQ(bytes[63], 7);
  expect_sound(*a);
}

TEST(Tags, BytesAreCountedByTheInnermostName) {
  const auto a = make_cpu();
  std::vector<Buffer> buffers;
  buffers.push_back(a->malloc(64));
  {
    const ScopedTag outer("test outer");
    buffers.push_back(a->malloc(1_MiB));
    {
      const ScopedTag inner("test inner");
      buffers.push_back(a->malloc(2_MiB));
      buffers.push_back(a->malloc(64));
      const ScopedTag none("");
      buffers.push_back(a->malloc(4_MiB));
    }
    buffers.push_back(a->malloc(1_MiB));
  }
  buffers.push_back(a->malloc(64));
  const auto tags = a->tags();
  ASSERT_EQ(tags.size(), 2U);
  const bool inner_first = tags[0].name == "test inner";
  EXPECT_EQ(tags[inner_first ? 0 : 1].active, 2_MiB + 64);
  EXPECT_EQ(tags[inner_first ? 1 : 0].active, 2_MiB);
  expect_sound(*a);
  // Freed by anybody, with or without a tag.
  std::thread([&] {
    const ScopedTag tag("test third");
    for (const Buffer& b : buffers) a->free(b);
  }).join();
  for (const TagStats& tag : a->tags()) EXPECT_EQ(tag.active, 0U);
  EXPECT_EQ(a->tags().size(), 2U);
  EXPECT_EQ(a->stats().active, 0U);
  expect_sound(*a);
}

TEST(Tags, NumbersAreStableAndEmptyIsNone) {
  EXPECT_EQ(tag_number(""), 0);
  const std::uint16_t number = tag_number("test name");
  EXPECT_NE(number, 0);
  EXPECT_EQ(tag_number("test name"), number);
  EXPECT_EQ(tag_name(number), "test name");
  EXPECT_EQ(tag_name(0), "");
}

}  // namespace
}  // namespace cistern::allocation
