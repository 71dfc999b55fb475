// What the tests of the Metal driver share: the stand-in freshly started, one driver, nothing left at the end.
// Test code only.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "drivers/metal/metal_driver.hpp"
#include "standin/metal/metal_library.hpp"

namespace cistern::drivers {

class MetalTest : public ::testing::Test {
 protected:
  using Settings = std::map<std::string, std::string>;
  static constexpr std::size_t kMiB = std::size_t{1} << 20;

  void SetUp() override {
    if (!library().is_standin()) GTEST_SKIP() << "needs the stand-in: " << library().why();
    library().restart();
  }
  void TearDown() override {
    if (!library().is_standin()) return;
    if (driver_ != nullptr) {
      library().control.complete_all();
      EXPECT_EQ(check_metal_invariants(*driver_), std::vector<std::string>{});
    }
    driver_.reset();
    if (!expects_violations_) {
      EXPECT_EQ(library().violations(), std::vector<std::string>{});
    }
    EXPECT_EQ(library().leaks(), std::vector<std::string>{});
  }

  static standin::metal::MetalLibrary& library() { return standin::metal::MetalLibrary::get(); }
  static standin::metal::Controls& control() { return library().control; }
  static std::uint64_t messages(const char* selector) { return control().calls(selector); }

  void start(const MetalConfig& config = {}, const Settings& settings = {}) {
    driver_.reset();
    library().restart(settings);
    std::string why;
    driver_ = make_metal_driver(0, config, &why);
    ASSERT_NE(driver_, nullptr) << why;
  }
  Driver& driver() { return *driver_; }
  MetalFigures figures() const { return metal_figures(*driver_); }
  Segment segment(std::size_t bytes) {
    Segment out;
    EXPECT_EQ(driver().create_segment(bytes, out), Status::ok) << driver().error_text();
    return out;
  }
  void* object(const Segment& over, std::size_t offset, std::size_t bytes) {
    void* out = nullptr;
    EXPECT_EQ(driver().create_object(over, offset, bytes, out), Status::ok) << driver().error_text();
    return out;
  }
  void drop(const Segment& segment) {
    EXPECT_EQ(driver().destroy_segment(segment), Status::ok) << driver().error_text();
  }
  // This test breaks rules on purpose.
  void expect_violations() { expects_violations_ = true; }

  std::unique_ptr<Driver> driver_;

 private:
  bool expects_violations_ = false;
};

}  // namespace cistern::drivers
