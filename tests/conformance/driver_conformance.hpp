// The fixture of the conformance suite: one driver a test, given back clean. Test code only.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "conformance/driver_factories.hpp"

namespace cistern::conformance {

using namespace drivers;

class DriverConformance : public ::testing::TestWithParam<DriverFactory> {
 protected:
  void SetUp() override {
    driver_ = GetParam().make();
    if (driver_ == nullptr) GTEST_SKIP() << GetParam().name << " is not there";
    cell_ = capabilities().granularity;
  }
  void TearDown() override {
    if (driver_ == nullptr) return;
    GetParam().complete_all(*driver_);
    if (!expects_complaints_) {
      EXPECT_EQ(GetParam().complaints(*driver_), std::vector<std::string>{});
    }
  }

  Driver& driver() { return *driver_; }
  const Capabilities& capabilities() const { return driver_->capabilities(); }
  void* stream(int i) { return GetParam().stream(*driver_, i); }
  // This test breaks rules on purpose, so a driver that lists such things may do so.
  void expect_complaints() { expects_complaints_ = true; }

  static Address address(const void* ptr) { return static_cast<Address>(reinterpret_cast<std::uintptr_t>(ptr)); }

  // Through a host buffer, so that it also works where the host cannot follow device addresses.
  void write(Address at, const std::vector<std::uint8_t>& bytes) {
    void* staging = nullptr;
    ASSERT_EQ(driver().allocate_host(HostKind::pinned, bytes.size(), staging), Status::ok);
    std::memcpy(staging, bytes.data(), bytes.size());
    ASSERT_EQ(driver().copy(at, address(staging), bytes.size(), stream(0)), Status::ok) << driver().error_text();
    ASSERT_EQ(driver().synchronize_device(), Status::ok);
    ASSERT_EQ(driver().free_host(HostKind::pinned, staging, bytes.size()), Status::ok);
  }
  std::vector<std::uint8_t> read(Address at, std::size_t bytes) {
    void* staging = nullptr;
    std::vector<std::uint8_t> out(bytes);
    EXPECT_EQ(driver().allocate_host(HostKind::pinned, bytes, staging), Status::ok);
    EXPECT_EQ(driver().copy(address(staging), at, bytes, stream(0)), Status::ok) << driver().error_text();
    EXPECT_EQ(driver().synchronize_device(), Status::ok);
    std::memcpy(out.data(), staging, bytes);
    EXPECT_EQ(driver().free_host(HostKind::pinned, staging, bytes), Status::ok);
    return out;
  }
  static std::vector<std::uint8_t> pattern(std::size_t bytes, std::uint8_t seed) {
    std::vector<std::uint8_t> out(bytes);
    for (std::size_t i = 0; i < bytes; ++i) out[i] = static_cast<std::uint8_t>(seed + i * 31 + (i >> 8));
    return out;
  }

  std::size_t cell_ = 0;

 private:
  std::unique_ptr<Driver> driver_;
  bool expects_complaints_ = false;
};

#define CISTERN_NEEDS(condition)                         \
  do {                                                   \
    if (!(condition)) GTEST_SKIP() << "not " #condition; \
  } while (false)

}  // namespace cistern::conformance
