// Misuse is an exception that names the fault, and changes nothing.
#include <gmock/gmock.h>

#include <thread>

#include "allocator/allocator_fixture.hpp"
#include "cistern/error.hpp"

namespace cistern::allocation {
namespace {

using testing::HasSubstr;

template <typename Call>
std::string fault_of(Call call) {
  try {
    call();
  } catch (const invalid_argument& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(Misuse, ADoubleFreeNamesPointerSizeAndDevice) {
  const auto a = make_cpu();
  const Buffer b = a->malloc(1000);
  char pointer[32];
  std::snprintf(pointer, sizeof pointer, "%p", b.ptr());
  a->free(b);
  const std::string text = fault_of([&] { a->free(b); });
  EXPECT_THAT(text, HasSubstr("double free"));
  EXPECT_THAT(text, HasSubstr(pointer));
  EXPECT_THAT(text, HasSubstr("1024 bytes"));
  EXPECT_THAT(text, HasSubstr("cpu"));
  EXPECT_EQ(a->stats().active, 0U);
  expect_sound(*a);
}

TEST(Misuse, AStaleHandleIsRecognisedAfterReuse) {
  const auto a = make_cpu();
  const Buffer b = a->malloc(1000);
  a->free(b);
  const Buffer c = a->malloc(1000);
  ASSERT_EQ(b.block(), c.block());
  EXPECT_THAT(fault_of([&] { a->free(b); }), HasSubstr("stale"));
  EXPECT_THAT(fault_of([&] { a->size(b); }), HasSubstr("size"));
  EXPECT_THAT(fault_of([&] { static_cast<void>(b.raw_ptr()); }), HasSubstr("raw_ptr"));
  EXPECT_TRUE(c.live());
  a->free(c);
  expect_sound(*a);
}

TEST(Misuse, DoubleFreesAcrossThreads) {
  const auto a = make_cpu();
  for (const std::size_t bytes : {64UL, 100000UL, 4UL << 20}) {
    const Buffer b = a->malloc(bytes);
    std::thread([&] { a->free(b); }).join();
    EXPECT_FALSE(b.live());
    EXPECT_THAT(fault_of([&] { a->free(b); }), HasSubstr("double free"));
    std::thread([&] { EXPECT_THAT(fault_of([&] { a->free(b); }), HasSubstr("double free")); }).join();
    EXPECT_THAT(fault_of([&] { a->size(b); }), HasSubstr("use after free"));
    EXPECT_EQ(a->stats().active, 0U);
    expect_sound(*a);
  }
}

TEST(Misuse, TheWrongDeviceIsNamed) {
  const auto a = make_cpu();
  Model m;
  const Buffer b = a->malloc(10);
  const Buffer c = m->malloc(10, m.stream(0));
  EXPECT_THAT(fault_of([&] { m->free(b); }), HasSubstr("belongs to another"));
  EXPECT_THAT(fault_of([&] { a->free(c); }), HasSubstr("model:5"));
  EXPECT_THAT(fault_of([&] { a->malloc(10, m.stream(1)); }), HasSubstr("model:5"));
  EXPECT_THAT(fault_of([&] { a->free(b, m.stream(1)); }), HasSubstr("model:5"));
  EXPECT_THAT(fault_of([&] { a->record_use(b, m.stream(1)); }), HasSubstr("record_use"));
  EXPECT_TRUE(b.live());
  EXPECT_TRUE(c.live());
  cistern::free(b);
  cistern::free(c);
  expect_sound(*a);
  expect_sound(*m);
}

TEST(Misuse, NullBuffersAreNamed) {
  const auto a = make_cpu();
  EXPECT_EQ(a->size(Buffer()), 0U);
  EXPECT_THAT(fault_of([&] { a->record_use(Buffer(), a->stream(nullptr)); }), HasSubstr("null"));
}

TEST(Misuse, ForeignPointersAreNamed) {
  const auto a = make_cpu();
  int local = 0;
  EXPECT_THAT(fault_of([&] { a->free_raw(&local); }), HasSubstr("no live buffer"));
  const Buffer b = a->malloc(1000);
  EXPECT_THAT(fault_of([&] { a->free_raw(static_cast<char*>(b.ptr()) + 64); }), HasSubstr("no live buffer"));
  a->free(b);
}

}  // namespace
}  // namespace cistern::allocation
