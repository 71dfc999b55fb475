// The stand-in enforces the rules of memory.
#include <array>
#include <set>
#include <thread>

#include "standin/cuda/standin_fixture.hpp"

namespace cistern::standin {
namespace {

class StandinMemory : public StandinTest {};

TEST_F(StandinMemory, TwoAddressesShowTheSameBytes) {
  start({{"LAG_US", "0"}});
  const DevicePtr a = reserve(2), b = reserve(2);
  const PhysicalHandle piece = create(2);
  ASSERT_EQ(map(a, piece, 2), kSuccess);
  ASSERT_EQ(map(b, piece, 2), kSuccess);
  EXPECT_EQ(grant(a, 2), kSuccess);
  EXPECT_EQ(grant(b, 2), kSuccess);
  EXPECT_EQ(control().launch_fill(nullptr, a, 2 * kCell, 77), kSuccess);
  EXPECT_EQ(control().launch_check(nullptr, b, 2 * kCell, 77), kSuccess);
  EXPECT_EQ(control().mismatches(), 0u);
  EXPECT_EQ(control().launch_check(nullptr, b, 100, 78), kSuccess);
  EXPECT_GT(control().mismatches(), 90u) << "a check that can fail";
  EXPECT_EQ(control().physical_bytes(0), 2 * kCell);
  // The memory lives until the last mapping and the handle are gone, in any order.
  EXPECT_EQ(api().physical_release(piece), kSuccess);
  EXPECT_EQ(api().physical_unmap(a, 2 * kCell), kSuccess);
  EXPECT_EQ(control().physical_bytes(0), 2 * kCell);
  EXPECT_EQ(api().physical_unmap(b, 2 * kCell), kSuccess);
  EXPECT_EQ(control().physical_bytes(0), 0u);
  EXPECT_TRUE(clean());
}

TEST_F(StandinMemory, UnmapUnderRunningWorkKillsTheKernel) {
  start({{"MANUAL", "1"}});
  const DevicePtr a = mapped(1);
  const Stream s = stream();
  EXPECT_EQ(control().launch_touch(s, a, 512, 0), kSuccess);
  EXPECT_EQ(api().physical_unmap(a, kCell), kSuccess) << "returns at once, as the vendor's does";
  EXPECT_TRUE(complained("the kernel dies"));
  EXPECT_EQ(api().context_synchronize(), kIllegalAddress);
  std::size_t free = 0, total = 0;
  EXPECT_EQ(api().memory_info(&free, &total), kIllegalAddress) << "the context is lost";
}

TEST_F(StandinMemory, TheOldAddressDiesEvenWhenItIsMappedAgainInTime) {
  start({{"MANUAL", "1"}});
  const DevicePtr a = mapped(1);
  const Stream s = stream();
  EXPECT_EQ(control().launch_touch(s, a, 512, 1), kSuccess);
  EXPECT_EQ(api().physical_unmap(a, kCell), kSuccess);
  EXPECT_EQ(map(a, create(1), 1), kSuccess);
  EXPECT_EQ(grant(a, 1), kSuccess);
  EXPECT_EQ(library().program.synchronize(s), kIllegalAddress);
}

TEST_F(StandinMemory, AccessMustBeGranted) {
  start({{"DEVICES", "2"}, {"LAG_US", "0"}});
  const DevicePtr a = reserve(2);
  ASSERT_EQ(map(a, create(2), 2), kSuccess);
  EXPECT_EQ(grant(a, 2, 1), kSuccess) << "the other device only";
  EXPECT_EQ(control().launch_touch(nullptr, a, 512, 0), kSuccess);
  EXPECT_TRUE(complained("no access"));
  EXPECT_EQ(api().context_synchronize(), kIllegalAddress);
}

TEST_F(StandinMemory, AccessCanBeTakenAway) {
  start({{"LAG_US", "0"}});
  const DevicePtr a = mapped(1);
  EXPECT_EQ(grant(a, 1, 0, kAccessNone), kSuccess);
  EXPECT_EQ(api().fill_async(a, 0, 1, nullptr), kSuccess);
  EXPECT_TRUE(complained("no access"));
  EXPECT_EQ(grant(a + kCell, 1), kInvalidValue) << "nothing there";
  EXPECT_TRUE(complained("nothing is mapped"));
  EXPECT_EQ(grant(a, 1, 5), kInvalidDevice);
}

TEST_F(StandinMemory, MisuseOfMappings) {
  const DevicePtr a = mapped(2);
  const PhysicalHandle one = create(1);
  EXPECT_EQ(map(a, one, 1), kInvalidValue);
  EXPECT_TRUE(complained("something is mapped"));
  EXPECT_EQ(map(a + kCell, one, 1), kInvalidValue);
  EXPECT_TRUE(complained("something is mapped"));
  EXPECT_EQ(map(a + 2 * kCell, one, 1), kInvalidValue);
  EXPECT_TRUE(complained("not in a reserved range"));
  EXPECT_EQ(api().physical_map(reserve(1), kCell, kCell, one, 0), kInvalidValue) << "an offset";
  EXPECT_TRUE(complained("maps whole"));
  EXPECT_EQ(api().physical_unmap(a, kCell), kInvalidValue);
  EXPECT_TRUE(complained("not one whole mapping"));
  EXPECT_EQ(api().physical_unmap(a + kCell, kCell), kInvalidValue);
  EXPECT_TRUE(complained("not one whole mapping"));
  EXPECT_EQ(api().address_free(a, 2 * kCell), kInvalidValue);
  EXPECT_TRUE(complained("something is mapped"));
  EXPECT_EQ(api().physical_release(one), kSuccess);
  EXPECT_EQ(api().physical_release(one), kInvalidValue);
  EXPECT_TRUE(complained("released"));
  EXPECT_EQ(map(reserve(1), one, 1), kInvalidValue);
  EXPECT_TRUE(complained("no handle"));
}

TEST_F(StandinMemory, UseAfterFreeAndDoubleFree) {
  start({{"MANUAL", "1"}});
  DevicePtr plain = 0, managed = 0;
  void* pinned = nullptr;
  ASSERT_EQ(api().memory_allocate(&plain, 1000), kSuccess);
  ASSERT_EQ(api().managed_allocate(&managed, 1000, kAttachGlobal), kSuccess);
  ASSERT_EQ(api().host_allocate(&pinned, 1000, 0), kSuccess);
  EXPECT_EQ(api().memory_free(plain + 512), kInvalidValue);
  EXPECT_EQ(api().host_free(reinterpret_cast<void*>(managed)), kInvalidValue) << "the wrong call for it";
  EXPECT_TRUE(complained("no memory"));
  EXPECT_EQ(api().memory_free(plain), kSuccess);
  EXPECT_EQ(api().memory_free(plain), kInvalidValue);
  EXPECT_TRUE(complained("or it is freed"));
  EXPECT_EQ(api().memory_free(managed), kSuccess);
  EXPECT_EQ(api().host_free(pinned), kSuccess);
  EXPECT_EQ(api().host_free(pinned), kInvalidValue);
  EXPECT_EQ(control().launch_touch(nullptr, plain, 4, 0), kSuccess);
  EXPECT_TRUE(complained("nothing is mapped"));
  EXPECT_EQ(api().context_synchronize(), kIllegalAddress);
}

TEST_F(StandinMemory, AKernelPastTheEndDies) {
  start({{"LAG_US", "0"}});
  DevicePtr plain = 0;
  ASSERT_EQ(api().memory_allocate(&plain, 1000), kSuccess);
  EXPECT_EQ(control().launch_touch(nullptr, plain, 1000, 1), kSuccess);
  EXPECT_TRUE(clean());
  EXPECT_EQ(control().launch_touch(nullptr, plain, 1001, 1), kSuccess);
  EXPECT_TRUE(complained("nothing is mapped"));
}

TEST_F(StandinMemory, FreeOfMemoryInUseKills) {
  start({{"MANUAL", "1"}});
  void* pinned = nullptr;
  ASSERT_EQ(api().host_allocate(&pinned, 1000, 0), kSuccess);
  EXPECT_EQ(control().launch_touch(nullptr, reinterpret_cast<std::uintptr_t>(pinned), 8, 0), kSuccess);
  EXPECT_EQ(api().host_free(pinned), kSuccess);
  EXPECT_TRUE(complained("the kernel dies"));
}

TEST_F(StandinMemory, TheDeviceHasAsMuchAsItClaims) {
  start({{"MEMORY", "20971520"}});
  EXPECT_EQ(create(10) == 0, false);
  AllocationProperties properties{};
  properties.type = kPinnedAllocation;
  properties.location = {kDeviceLocation, 0};
  PhysicalHandle more = 0;
  EXPECT_EQ(api().physical_create(&more, kCell, &properties, 0), kOutOfMemory);
  DevicePtr plain = 0;
  EXPECT_EQ(api().memory_allocate(&plain, 1), kOutOfMemory);
  EXPECT_EQ(api().allocate_async(&plain, 1, nullptr), kOutOfMemory);
  std::size_t free = 1, total = 0;
  EXPECT_EQ(api().memory_info(&free, &total), kSuccess);
  EXPECT_EQ(free, 0u);
}

TEST_F(StandinMemory, LargeMemoryCostsNothingUntilItIsTouched) {
  start({{"MEMORY", "150323855360"}});
  const DevicePtr a = mapped(70000);
  EXPECT_EQ(control().launch_fill(nullptr, a + 65000 * kCell, 1000, 3), kSuccess);
  EXPECT_EQ(control().launch_check(nullptr, a + 65000 * kCell, 1000, 3), kSuccess);
  EXPECT_EQ(api().context_synchronize(), kSuccess);
  EXPECT_EQ(control().mismatches(), 0u);
  EXPECT_TRUE(clean());
}

TEST_F(StandinMemory, NewMemoryIsRubbishWhenAsked) {
  start({{"JUNK", "1"}, {"LAG_US", "0"}});
  const DevicePtr a = mapped(1);
  std::array<unsigned char, 16> bytes{};
  EXPECT_EQ(api().copy_async(reinterpret_cast<std::uintptr_t>(bytes.data()), a + kCell - 16, 16, nullptr), kSuccess);
  EXPECT_EQ(bytes[0], 0xA5);
  EXPECT_EQ(bytes[15], 0xA5);
}

TEST_F(StandinMemory, AddressesEndSomewhereAndAreReusedLate) {
  DevicePtr huge = 0;
  EXPECT_EQ(api().address_reserve(&huge, std::size_t{1} << 60, 0, 0, 0), kOutOfMemory);
  const DevicePtr a = reserve(1);
  EXPECT_EQ(api().address_free(a, kCell), kSuccess);
  EXPECT_NE(reserve(1), a);
  std::set<DevicePtr> all;
  DevicePtr at = 0;
  while (api().address_reserve(&at, std::size_t{1} << 40, 0, 0, 0) == kSuccess) EXPECT_TRUE(all.insert(at).second);
  EXPECT_GT(all.size(), 30u);
  EXPECT_EQ(api().address_free(*all.begin(), std::size_t{1} << 40), kSuccess);
  EXPECT_EQ(api().address_reserve(&at, std::size_t{1} << 40, 0, 0, 0), kSuccess);
}

TEST_F(StandinMemory, PooledMemoryIsFreedInStreamOrder) {
  start({{"MANUAL", "1"}});
  const Stream s = stream(), t = stream();
  DevicePtr a = 0, b = 0;
  ASSERT_EQ(api().allocate_async(&a, 1000, s), kSuccess);
  EXPECT_EQ(control().launch_touch(s, a, 1000, 1), kSuccess);
  EXPECT_EQ(api().free_async(a, s), kSuccess);
  ASSERT_EQ(api().allocate_async(&b, 1000, t), kSuccess);
  EXPECT_NE(a, b) << "the free is not there yet";
  EXPECT_EQ(api().free_async(a, s), kInvalidValue);
  EXPECT_TRUE(complained("or it is freed"));
  EXPECT_EQ(control().launch_touch(s, a, 8, 0), kSuccess);
  EXPECT_TRUE(complained("is freed"));
}

TEST_F(StandinMemory, AFreeMustComeAfterTheUses) {
  start({{"MANUAL", "1"}});
  const Stream s = stream(), t = stream();
  DevicePtr a = 0;
  ASSERT_EQ(api().allocate_async(&a, 1000, s), kSuccess);
  EXPECT_EQ(control().launch_touch(t, a, 1000, 1), kSuccess);
  EXPECT_EQ(api().free_async(a, s), kSuccess);
  EXPECT_TRUE(complained("race"));
}

TEST_F(StandinMemory, ThePoolWaitsForFreesBeforeItGivesUp) {
  start({{"MEMORY", "67108864"}});
  const Stream s = stream();
  for (int i = 0; i < 20; ++i) {
    DevicePtr a = 0;
    ASSERT_EQ(api().allocate_async(&a, 40 << 20, s), kSuccess) << i;
    EXPECT_EQ(control().launch_touch(s, a, 40 << 20, 1), kSuccess);
    EXPECT_EQ(api().free_async(a, s), kSuccess);
  }
  EXPECT_TRUE(clean());
}

TEST_F(StandinMemory, WhatIsNotGivenBackIsListed) {
  EXPECT_EQ(library().leaks().size(), 0u);
  const DevicePtr a = mapped(3);
  DevicePtr plain = 0, pooled = 0;
  void* pinned = nullptr;
  ASSERT_EQ(api().memory_allocate(&plain, 1000), kSuccess);
  ASSERT_EQ(api().allocate_async(&pooled, 1000, nullptr), kSuccess);
  ASSERT_EQ(api().host_allocate(&pinned, 1000, 0), kSuccess);
  std::string all;
  for (const std::string& line : library().leaks()) all += line + "\n";
  for (const char* const what : {"piece", "mapping", "reserved range", "device memory", "stream-ordered", "pinned"}) {
    EXPECT_NE(all.find(what), std::string::npos) << what << " in\n" << all;
  }
  EXPECT_EQ(library().leaks().size(), 6u) << all;
  EXPECT_EQ(api().physical_unmap(a, 3 * kCell), kSuccess);
  EXPECT_EQ(library().leaks().size(), 5u);
}

}  // namespace
}  // namespace cistern::standin
