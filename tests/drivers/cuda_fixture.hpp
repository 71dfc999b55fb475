// For the tests of the CUDA driver: a fresh stand-in for each test, checked at its end; or, where a test can do with
// it, the vendor's library. Test code only.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "drivers/cuda/cuda_driver.hpp"
#include "standin/cuda/cuda_library.hpp"

namespace cistern::drivers {

class CudaTest : public ::testing::Test {
 protected:
  using Settings = std::map<std::string, std::string>;

  void SetUp() override {
    if (!library().usable()) GTEST_SKIP() << library().why();
    if (needs_standin() && !library().is_standin()) GTEST_SKIP() << "needs the stand-in";
    restart();
  }
  void TearDown() override {
    if (!library().usable() || !library().is_standin()) return;
    library().control.complete_all();
    if (!expects_violations_) {
      EXPECT_EQ(library().violations(), std::vector<std::string>{});
    }
    if (!expects_leaks_) {
      EXPECT_EQ(library().leaks(), std::vector<std::string>{});
    }
  }
  // Whether the test asks for more than the vendor's library has.
  virtual bool needs_standin() const { return true; }

  static standin::CudaLibrary& library() { return standin::CudaLibrary::get(); }
  static const standin::Controls& control() { return library().control; }
  static void restart(const Settings& settings = {}) {
    if (library().is_standin()) library().restart(settings);
  }
  static std::unique_ptr<Driver> make(const CudaConfig& config = {}, int index = 0) {
    std::string why;
    auto made = make_cuda_driver(index, config, &why);
    EXPECT_NE(made, nullptr) << why;
    return made;
  }
  static Address address(const void* ptr) { return static_cast<Address>(reinterpret_cast<std::uintptr_t>(ptr)); }
  static bool contains(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  }
  // This test breaks rules on purpose.
  void expect_violations() { expects_violations_ = true; }
  void expect_leaks() { expects_leaks_ = true; }

 private:
  bool expects_violations_ = false;
  bool expects_leaks_ = false;
};

// One piece, mapped; given back at the end of its life.
class Mapped {
 public:
  Mapped(Driver& driver, std::size_t cells) : driver_(driver), bytes_(cells * driver.capabilities().granularity) {
    EXPECT_EQ(driver_.reserve(bytes_, base_), Status::ok) << driver_.error_text();
    EXPECT_EQ(driver_.create(bytes_, piece_), Status::ok) << driver_.error_text();
    EXPECT_EQ(driver_.map(base_, piece_, bytes_), Status::ok) << driver_.error_text();
  }
  ~Mapped() {
    if (abandoned_) return;
    EXPECT_EQ(driver_.synchronize_device(), Status::ok) << driver_.error_text();
    EXPECT_EQ(driver_.unmap(base_, bytes_), Status::ok) << driver_.error_text();
    EXPECT_EQ(driver_.destroy(piece_), Status::ok) << driver_.error_text();
    EXPECT_EQ(driver_.unreserve(base_, bytes_), Status::ok) << driver_.error_text();
  }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;

  Address at() const { return base_; }
  std::size_t bytes() const { return bytes_; }
  Physical piece() const { return piece_; }
  // Leaves everything as it is.
  void abandon() { abandoned_ = true; }

 private:
  Driver& driver_;
  std::size_t bytes_;
  Address base_ = 0;
  bool abandoned_ = false;
  Physical piece_{};
};

}  // namespace cistern::drivers
