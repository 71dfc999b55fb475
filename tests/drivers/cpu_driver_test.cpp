// What only the CPU driver has: resident memory, forks, limits of address space, control groups.
#include "drivers/cpu/cpu_driver.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "drivers/cpu/host_memory.hpp"
#include "sanitizers.hpp"

namespace cistern::drivers {
namespace {

constexpr std::size_t kCell = std::size_t{2} << 20;

std::uint8_t* bytes_at(Address at) { return reinterpret_cast<std::uint8_t*>(static_cast<std::uintptr_t>(at)); }

#if defined(__linux__)
// Pages of [at, at + bytes) that are in memory, in bytes.
std::size_t resident(Address at, std::size_t bytes) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> pages(bytes / page);
  if (mincore(bytes_at(at), bytes, pages.data()) != 0) return SIZE_MAX;
  std::size_t count = 0;
  for (const unsigned char p : pages) count += p & 1u;
  return count * page;
}

// Ends quickly and quietly: no test framework in the child.
template <class Body>
int run_in_child(Body body) {
  const pid_t child = fork();
  if (child == 0) _exit(body() ? 0 : 1);
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}
#endif

class CpuDriverTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(driver_->reserve(32 * kCell, base_), Status::ok) << driver_->error_text(); }

  Physical mapped(std::size_t cell, std::size_t cells) {
    Physical piece{};
    EXPECT_EQ(driver_->create(cells * kCell, piece), Status::ok);
    EXPECT_EQ(driver_->map(base_ + cell * kCell, piece, cells * kCell), Status::ok) << driver_->error_text();
    return piece;
  }

  std::unique_ptr<Driver> driver_ = make_cpu_driver();
  Address base_ = 0;
};

TEST_F(CpuDriverTest, TotalMemoryIsWhatTheProcessMayUse) {
  EXPECT_EQ(driver_->capabilities().total_memory, usable_memory());
  EXPECT_LE(usable_memory(), physical_memory());
  EXPECT_GT(physical_memory(), 0u);
}

TEST_F(CpuDriverTest, CommitsNothingBeforeTheTouchAndGivesItBackAtTheUnmap) {
#if !defined(__linux__)
  GTEST_SKIP() << "counts resident pages as Linux does";
#else
  EXPECT_EQ(resident(base_, 32 * kCell), 0u);
  mapped(4, 8);
  EXPECT_EQ(resident(base_, 32 * kCell), 0u);
  std::memset(bytes_at(base_ + 4 * kCell), 1, 8 * kCell);
  EXPECT_EQ(resident(base_, 32 * kCell), 8 * kCell);
  EXPECT_EQ(driver_->unmap(base_ + 4 * kCell, 8 * kCell), Status::ok);
  EXPECT_EQ(resident(base_, 32 * kCell), 0u);
#endif
}

TEST_F(CpuDriverTest, HandlesCostNoSystemCall) {
  const std::uint64_t before = driver_->calls();
  mapped(0, 1);
  EXPECT_EQ(driver_->calls(), before);
  EXPECT_EQ(driver_->unmap(base_, kCell), Status::ok);
  EXPECT_GT(driver_->calls(), before);
}

TEST_F(CpuDriverTest, ManyPiecesNeedNoMappingsOfTheirOwn) {
  // More than the number of mappings that a process may have.
  constexpr std::size_t kMany = 40000;
  Address base = 0;
  ASSERT_EQ(driver_->reserve(kMany * kCell, base), Status::ok) << driver_->error_text();
  for (std::size_t i = 0; i < kMany; ++i) {
    Physical piece{};
    ASSERT_EQ(driver_->create(kCell, piece), Status::ok);
    ASSERT_EQ(driver_->map(base + i * kCell, piece, kCell), Status::ok);
  }
  for (std::size_t i = 0; i < kMany; i += 2) ASSERT_EQ(driver_->unmap(base + i * kCell, kCell), Status::ok);
  for (std::size_t i = 1; i < kMany; i += 2) ASSERT_EQ(driver_->unmap(base + i * kCell, kCell), Status::ok);
  EXPECT_EQ(driver_->unreserve(base, kMany * kCell), Status::ok);
}

TEST_F(CpuDriverTest, DevicePointersAreHostPointers) {
  EXPECT_TRUE(driver_->capabilities().host_accessible);
  mapped(1, 1);
  bytes_at(base_ + kCell)[5] = 9;
  void* out = nullptr;
  ASSERT_EQ(driver_->allocate_host(HostKind::unified, 64, out), Status::ok);
  EXPECT_EQ(driver_->copy(static_cast<Address>(reinterpret_cast<std::uintptr_t>(out)), base_ + kCell, 64, nullptr),
            Status::ok);
  EXPECT_EQ(static_cast<std::uint8_t*>(out)[5], 9);
  EXPECT_EQ(driver_->free_host(HostKind::unified, out, 64), Status::ok);
  void* object = nullptr;
  std::array<std::uint8_t, 8> mine{};
  EXPECT_EQ(driver_->wrap(mine.data(), mine.size(), object), Status::ok);
  EXPECT_EQ(object, mine.data());
}

#if defined(__linux__)
TEST_F(CpuDriverTest, AForkedChildGoesOn) {
  const Physical piece = mapped(0, 2);
  std::memset(bytes_at(base_), 3, 2 * kCell);
  const int status = run_in_child([&] {
    if (bytes_at(base_)[kCell] != 3) return false;
    bytes_at(base_)[0] = 4;
    Physical more{};
    if (driver_->create(kCell, more) != Status::ok) return false;
    if (driver_->map(base_ + 8 * kCell, more, kCell) != Status::ok) return false;
    std::memset(bytes_at(base_ + 8 * kCell), 1, kCell);
    if (driver_->unmap(base_, 2 * kCell) != Status::ok || driver_->destroy(piece) != Status::ok) return false;
    Address other = 0;
    return driver_->reserve(kCell, other) == Status::ok && bytes_at(base_)[0] == 0;
  });
  EXPECT_EQ(status, 0);
  EXPECT_EQ(bytes_at(base_)[0], 3) << "the child's memory is its own";
  EXPECT_EQ(driver_->unmap(base_, 2 * kCell), Status::ok);
}

TEST_F(CpuDriverTest, ALimitOfAddressSpaceRefusesAndHalvingFindsRoom) {
  if (kSanitized) GTEST_SKIP() << "sanitizers reserve address space, which a limit on it does not leave room for";
  const int status = run_in_child([&] {
    const rlimit limit{std::size_t{4} << 30, std::size_t{4} << 30};
    if (setrlimit(RLIMIT_AS, &limit) != 0) return false;
    std::size_t bytes = std::size_t{1} << 40;
    Address base = 0;
    if (driver_->reserve(bytes, base) != Status::out_of_memory || base != 0) return false;
    while (driver_->reserve(bytes, base) == Status::out_of_memory) bytes /= 2;
    return base != 0 && bytes >= (std::size_t{1} << 30);
  });
  EXPECT_EQ(status, 0);
}

TEST_F(CpuDriverTest, LockedMemoryIsGivenBackToo) {
  if (kSanitized) GTEST_SKIP() << "sanitizers leave no memory locked";
  const int status = run_in_child([&] {
    mapped(0, 1);
    std::memset(bytes_at(base_), 1, kCell);
    // Not everyone may lock 2 MiB; then there is nothing to see.
    if (mlock(bytes_at(base_), kCell) != 0) return true;
    return driver_->unmap(base_, kCell) == Status::ok && resident(base_, kCell) == 0 && bytes_at(base_)[0] == 0;
  });
  EXPECT_EQ(status, 0);
}
#endif

TEST(CpuSystemMode, IsWholeBuffersOnly) {
  const auto driver = make_cpu_driver(CpuMode::system);
  EXPECT_TRUE(driver->capabilities().whole_buffers);
  EXPECT_FALSE(driver->capabilities().virtual_memory);
  EXPECT_EQ(driver->capabilities().total_memory, usable_memory());
  Address base = 0;
  EXPECT_EQ(driver->reserve(kCell, base), Status::unsupported);
  EXPECT_NE(driver->error_text().find("system"), std::string::npos);
}

// A file tree with a control group's files in it.
class CgroupTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string path = ::testing::TempDir() + "/cgroupXXXXXX";
    ASSERT_NE(mkdtemp(path.data()), nullptr);
    root_ = path;
  }
  void TearDown() override { ASSERT_EQ(std::system(("rm -rf '" + root_ + "'").c_str()), 0); }
  void file(const std::string& path, const std::string& text) {
    const std::string whole = root_ + path;
    ASSERT_EQ(std::system(("mkdir -p '" + whole.substr(0, whole.rfind('/')) + "'").c_str()), 0);
    std::ofstream(whole) << text;
  }
  std::string root_;
};

constexpr const char* kVersion2Mount =
    "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

TEST_F(CgroupTest, NothingThereMeansNoLimit) { EXPECT_EQ(cgroup_memory_limit(root_), SIZE_MAX); }

TEST_F(CgroupTest, Version2TakesTheSmallestOfTheParents) {
  file("/proc/self/cgroup", "0::/a/b/c\n");
  file("/proc/self/mountinfo", std::string("20 1 8:1 / / rw - ext4 /dev/sda1 rw\n") + kVersion2Mount);
  file("/sys/fs/cgroup/a/b/c/memory.max", "max\n");
  file("/sys/fs/cgroup/a/b/memory.max", "3000000000\n");
  file("/sys/fs/cgroup/a/memory.max", "5000000000\n");
  EXPECT_EQ(cgroup_memory_limit(root_), 3000000000u);
  file("/sys/fs/cgroup/a/b/c/memory.max", "1000000000\n");
  EXPECT_EQ(cgroup_memory_limit(root_), 1000000000u);
}

TEST_F(CgroupTest, Version2InANamespaceReadsTheTop) {
  file("/proc/self/cgroup", "0::/\n");
  file("/proc/self/mountinfo", kVersion2Mount);
  file("/sys/fs/cgroup/memory.max", "123456789\n");
  EXPECT_EQ(cgroup_memory_limit(root_), 123456789u);
  file("/proc/self/cgroup", "0::/../other\n");
  EXPECT_EQ(cgroup_memory_limit(root_), 123456789u);
}

TEST_F(CgroupTest, AMountOfASubtreeIsSeenFromItsTop) {
  file("/proc/self/cgroup", "0::/pods/one/work\n");
  file("/proc/self/mountinfo", "30 23 0:26 /pods/one /my\\040groups rw - cgroup2 cgroup2 rw\n");
  file("/my groups/work/memory.max", "777000000\n");
  EXPECT_EQ(cgroup_memory_limit(root_), 777000000u);
}

TEST_F(CgroupTest, Version1TakesTheMemoryController) {
  file("/proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/x/y\n0::/\n");
  file("/proc/self/mountinfo",
       "31 23 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
       "32 23 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
  file("/sys/fs/cgroup/memory/x/y/memory.limit_in_bytes", "9223372036854771712\n");
  file("/sys/fs/cgroup/memory/x/memory.limit_in_bytes", "2000000000\n");
  EXPECT_EQ(cgroup_memory_limit(root_), 2000000000u);
}

TEST_F(CgroupTest, NonsenseIsNoLimit) {
  file("/proc/self/cgroup", "what\n0\n::\n0::/a\n");
  file("/proc/self/mountinfo", std::string("- \n - \n30 - cgroup2\n") + kVersion2Mount);
  file("/sys/fs/cgroup/a/memory.max", "lots\n");
  EXPECT_EQ(cgroup_memory_limit(root_), SIZE_MAX);
}

}  // namespace
}  // namespace cistern::drivers
