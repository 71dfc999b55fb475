// What the tests of the allocator over Metal share: the stand-in freshly started, one allocator, and at the end no
// broken rule and nothing alive. Test code only.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "allocator/allocator_fixture.hpp"
#include "drivers/metal/metal_driver.hpp"
#include "standin/metal/metal_library.hpp"

namespace cistern::allocation {

using drivers::MetalConfig;
using drivers::MetalFigures;
using drivers::MetalMemory;
using drivers::MetalStorage;

class MetalAllocator : public ::testing::Test {
 protected:
  using Settings = std::map<std::string, std::string>;
  void SetUp() override {
    if (!library().is_standin()) GTEST_SKIP() << "needs the stand-in: " << library().why();
  }
  void TearDown() override {
    if (!library().is_standin()) return;
    if (allocator_ != nullptr) {
      expect_sound(*allocator_);
      for (const std::string& message : drivers::check_metal_invariants(driver())) ADD_FAILURE() << message;
    }
    allocator_.reset();
    control().complete_all();
    EXPECT_EQ(library().violations(), std::vector<std::string>{});
    EXPECT_EQ(library().leaks(), std::vector<std::string>{});
  }
  static standin::metal::MetalLibrary& library() { return standin::metal::MetalLibrary::get(); }
  static standin::metal::Controls& control() { return library().control; }

  void start(const MetalConfig& config = {}, const Settings& settings = {}, const FrontConfig& front = {}) {
    allocator_.reset();
    library().restart(settings);
    std::string why;
    auto made = drivers::make_metal_driver(0, config, &why);
    ASSERT_NE(made, nullptr) << why;
    allocator_ = std::make_unique<DeviceAllocator>(Device::metal(), std::move(made), front);
  }
  DeviceAllocator& allocator() { return *allocator_; }
  drivers::Driver& driver() { return allocator_->driver(); }
  MetalFigures figures() { return drivers::metal_figures(driver()); }
  Stream queue(int i) { return allocator_->stream(library().queue(i)); }
  Buffer malloc(std::size_t bytes, int i = 1) { return allocator_->malloc(bytes, queue(i)); }

  std::unique_ptr<DeviceAllocator> allocator_;
};

inline void* contents(const Buffer& buffer) {
  const drivers::objc::AutoreleasePool pool;
  return drivers::metal::contents(static_cast<drivers::metal::Buffer*>(buffer.ptr()));
}

}  // namespace cistern::allocation
