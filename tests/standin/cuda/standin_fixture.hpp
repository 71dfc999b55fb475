// For the tests of the stand-in itself: a fresh one with its context current. Test code only.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "standin/cuda/cuda_library.hpp"

namespace cistern::standin {

using namespace drivers::cuda;

class StandinTest : public ::testing::Test {
 protected:
  static constexpr std::size_t kCell = std::size_t{2} << 20;

  void SetUp() override {
    if (!library().usable() || !library().is_standin()) GTEST_SKIP() << "needs the stand-in";
    start({});
  }
  void TearDown() override {
    if (library().is_standin()) library().restart();
  }

  static CudaLibrary& library() { return CudaLibrary::get(); }
  static const CudaApi& api() { return library().api; }
  static const Controls& control() { return library().control; }

  // From the start, the context of device 0 current on this thread.
  static void start(const std::map<std::string, std::string>& settings) {
    library().restart(settings);
    Context context = nullptr;
    ASSERT_EQ(api().primary_retain(&context, 0), kSuccess);
    ASSERT_EQ(api().context_push(context), kSuccess);
  }
  static Stream stream(unsigned flags = 0) {
    Stream out = nullptr;
    EXPECT_EQ(api().stream_create(&out, flags), kSuccess);
    return out;
  }
  static EventHandle event() {
    EventHandle out = nullptr;
    EXPECT_EQ(api().event_create(&out, kEventDisableTiming), kSuccess);
    return out;
  }
  static EventHandle record(Stream in) {
    EventHandle out = event();
    EXPECT_EQ(api().event_record(out, in), kSuccess);
    return out;
  }
  static PhysicalHandle create(std::size_t cells, int device = 0) {
    AllocationProperties properties{};
    properties.type = kPinnedAllocation;
    properties.location = {kDeviceLocation, device};
    PhysicalHandle out = 0;
    EXPECT_EQ(api().physical_create(&out, cells * kCell, &properties, 0), kSuccess);
    return out;
  }
  static DevicePtr reserve(std::size_t cells) {
    DevicePtr out = 0;
    EXPECT_EQ(api().address_reserve(&out, cells * kCell, 0, 0, 0), kSuccess);
    return out;
  }
  static Result grant(DevicePtr at, std::size_t cells, int device = 0, int flags = kAccessReadWrite) {
    const AccessDescription description{{kDeviceLocation, device}, flags};
    return api().set_access(at, cells * kCell, &description, 1);
  }
  static Result map(DevicePtr at, PhysicalHandle piece, std::size_t cells) {
    return api().physical_map(at, cells * kCell, 0, piece, 0);
  }
  // Mapped memory with access.
  static DevicePtr mapped(std::size_t cells) {
    const DevicePtr at = reserve(cells);
    EXPECT_EQ(map(at, create(cells), cells), kSuccess);
    EXPECT_EQ(grant(at, cells), kSuccess);
    return at;
  }
  // Whether a violation with this text was listed since the last call; forgets them all.
  static ::testing::AssertionResult complained(const std::string& text) {
    const std::vector<std::string> all = library().violations();
    control().clear_violations();
    std::string listed;
    for (const std::string& line : all) {
      if (line.find(text) != std::string::npos) return ::testing::AssertionSuccess();
      listed += "\n  " + line;
    }
    return ::testing::AssertionFailure() << "no '" << text << "' in:" << listed;
  }
  static bool clean() { return library().violations().empty(); }
};

}  // namespace cistern::standin
