// Devices by name, the default device, free functions, owning handles, the allocator without a cache.
#include "allocator/registry.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <type_traits>
#include <utility>

#include "cistern/allocator.hpp"
#include "cistern/memory.hpp"

namespace cistern {
namespace {

TEST(Devices, TextIsReadBack) {
  EXPECT_EQ(to_string(Device::cpu()), "cpu");
  EXPECT_EQ(to_string(Device::cuda(1)), "cuda:1");
  for (const Device device : {Device::cpu(), Device::cuda(0), Device::cuda(7), Device::metal(), Device::model(3)}) {
    EXPECT_EQ(parse_device(to_string(device)), device);
  }
  EXPECT_EQ(parse_device("cuda"), Device::cuda(0));
  for (const char* text : {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "CPU", "cuda:99999999999"}) {
    EXPECT_THROW(parse_device(text), invalid_argument) << text;
  }
}

TEST(Devices, WhatIsNotThereIsRefused) {
  EXPECT_TRUE(is_available(Device::cpu()));
  EXPECT_TRUE(is_available(Device::model()));
  EXPECT_FALSE(is_available({DeviceType::cpu, 1}));
  EXPECT_FALSE(is_available({DeviceType::model, -1}));
  EXPECT_THROW(allocator({DeviceType::cpu, 1}), invalid_argument);
  EXPECT_THROW(set_default_device({DeviceType::model, 1000}), invalid_argument);
  EXPECT_THROW(Stream(Device{DeviceType::cpu, 5}), invalid_argument);
}

TEST(Devices, TheDefaultCanBeSet) {
  EXPECT_EQ(default_device(), Device::cpu());
  set_default_device(Device::model(2));
  EXPECT_EQ(default_device(), Device::model(2));
  EXPECT_EQ(&allocator(), &allocator(Device::model(2)));
  EXPECT_EQ(Stream().device(), Device::model(2));
  set_default_device(Device::cpu());
}

TEST(FreeFunctions, FindTheBuffersDevice) {
  const Buffer a = cistern::malloc(100);
  const Buffer b = cistern::malloc(100, Stream(Device::model()));
  EXPECT_EQ(a.device(), Device::cpu());
  EXPECT_EQ(b.device(), Device::model());
  cistern::free(a);
  cistern::free(b);
  EXPECT_FALSE(a.live());
  EXPECT_FALSE(b.live());
  cistern::free(Buffer());
}

TEST(MemoryFunctions, AgreeWithTheStats) {
  const Buffer b = cistern::malloc(1 << 20);
  const Stats s = stats();
  EXPECT_EQ(get_active_memory(), s.active);
  EXPECT_EQ(get_peak_memory(), s.peak_active);
  EXPECT_EQ(get_cache_memory(), s.cached);
  EXPECT_EQ(get_reserved_memory(), s.reserved);
  EXPECT_EQ(get_peak_reserved_memory(), s.peak_reserved);
  EXPECT_EQ(get_memory_limit(), s.memory_limit);
  EXPECT_EQ(get_cache_limit(), s.cache_limit);
  EXPECT_EQ(get_wired_limit(), s.wired_limit);
  cistern::free(b);
  clear_cache();
  reset_peak_memory();
  EXPECT_EQ(get_peak_memory(), get_active_memory());
}

TEST(MemoryFunctions, ScopesPutLimitsBack) {
  const std::size_t memory = get_memory_limit(), cache = get_cache_limit();
  {
    const ScopedMemoryLimit limit(64 << 20);
    EXPECT_EQ(get_memory_limit(), 64U << 20);
    EXPECT_THROW(cistern::malloc(65 << 20), out_of_memory);
    const ScopedCacheLimit cached(1 << 20);
    EXPECT_EQ(get_cache_limit(), 1U << 20);
  }
  EXPECT_EQ(get_memory_limit(), memory);
  EXPECT_EQ(get_cache_limit(), cache);
}

TEST(MemoryFunctions, OptionsAreKeptByDevice) {
  set_memory_options({true, false, false});
  EXPECT_TRUE(get_memory_options().zero_on_alloc);
  EXPECT_FALSE(get_memory_options(Device::model()).zero_on_alloc);
  EXPECT_TRUE(set_memory_options({}).zero_on_alloc);
}

TEST(OwningHandles, FreeTheirBuffer) {
  Buffer seen;
  {
    UniqueBuffer a = make_unique_buffer(1000);
    seen = a.get();
    UniqueBuffer b = std::move(a);
    EXPECT_FALSE(a);
    EXPECT_EQ(b.get(), seen);
    EXPECT_TRUE(seen.live());
  }
  EXPECT_FALSE(seen.live());
  SharedBuffer last;
  {
    const SharedBuffer s = make_shared_buffer(1000);
    last = s;
    seen = *s;
  }
  EXPECT_TRUE(seen.live());
  last.reset();
  EXPECT_FALSE(seen.live());
  UniqueBuffer twice = make_unique_buffer(10);
  cistern::free(twice.get());
  twice.reset();  // Dropped: nothing throws out of a destructor.
  const Buffer released = make_unique_buffer(10).release();
  EXPECT_TRUE(released.live());
  cistern::free(released);
}

TEST(SystemAllocator, KeepsNothing) {
  Allocator& a = system_allocator();
  EXPECT_EQ(a.device(), Device::cpu());
  auto& inner = allocation::system_device_allocator();
  for (const std::size_t bytes : {0UL, 1UL, 100UL, 8193UL, 5UL << 20}) {
    const Buffer b = a.malloc(bytes);
    EXPECT_GE(b.size(), bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(b.ptr()) % 64, 0U);
    if (b.size() != 0) std::memset(b.ptr(), 1, b.size());
    EXPECT_EQ(a.find(b.ptr()), b);
    for (const std::string& message : inner.check_invariants()) ADD_FAILURE() << message;
    cistern::free(b);
    EXPECT_EQ(inner.stats().reserved, 0U);
    EXPECT_THROW(a.free(b), invalid_argument);
  }
  const Buffer other = allocator(Device::cpu()).malloc(10);
  EXPECT_THROW(a.free(other), invalid_argument);
  cistern::free(other);
}

TEST(SystemAllocator, TakesTheStreamsOfTheCpu) {
  Allocator& a = system_allocator();
  const Stream one(Device::cpu(), reinterpret_cast<void*>(std::uintptr_t{77}));
  for (const Stream& stream : {Stream(Device::cpu()), one}) {
    const Buffer b = a.malloc(100, stream);
    a.record_use(b, one);
    a.free(b, stream);
    EXPECT_FALSE(b.live());
  }
  stream_destroyed(one);
  EXPECT_THROW(a.malloc(100, one), invalid_argument);
  EXPECT_THROW(a.malloc(100, Stream(Device::model())), invalid_argument);
  for (const std::string& message : allocation::system_device_allocator().check_invariants()) ADD_FAILURE() << message;
}

TEST(Streams, OnTheCpuAreNames) {
  const Stream one(Device::cpu(), reinterpret_cast<void*>(std::uintptr_t{1}));
  Allocator& a = allocator(Device::cpu());
  const Buffer b = a.malloc(100, one);
  a.record_use(b, Stream(Device::cpu()));
  a.free(b, Stream(Device::cpu()));
  stream_destroyed(one);
  EXPECT_THROW(a.malloc(100, one), invalid_argument);
  EXPECT_THROW(stream_destroyed(one), invalid_argument);
}

static_assert(std::is_trivially_copyable_v<Buffer> && sizeof(Buffer) == 16);

}  // namespace
}  // namespace cistern
