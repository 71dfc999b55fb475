// What the tests of the allocator layer share: allocators over drivers of their own, and the check after every step.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "allocator/device_allocator.hpp"
#include "drivers/cpu/cpu_driver.hpp"
#include "drivers/model/model_driver.hpp"

namespace cistern::allocation {

inline constexpr std::size_t operator""_KiB(unsigned long long n) { return n << 10; }
inline constexpr std::size_t operator""_MiB(unsigned long long n) { return n << 20; }

inline void expect_sound(DeviceAllocator& allocator) {
  for (const std::string& message : allocator.check_invariants()) ADD_FAILURE() << message;
}

inline std::unique_ptr<DeviceAllocator> make_cpu(FrontConfig config = {}) {
  return std::make_unique<DeviceAllocator>(Device::cpu(), drivers::make_cpu_driver(), config);
}

// A model device and its allocator; what the driver found broken shows up as a failure at the end.
struct Model {
  explicit Model(drivers::ModelConfig config = {}) {
    config.report = report;
    auto made = drivers::make_model_driver(config);
    driver = made.get();
    allocator = std::make_unique<DeviceAllocator>(Device::model(5), std::move(made));
  }
  ~Model() {
    allocator.reset();
    for (const std::string& message : report->violations) ADD_FAILURE() << "violation: " << message;
    for (const std::string& message : report->leaks) ADD_FAILURE() << "leak: " << message;
  }
  DeviceAllocator* operator->() { return allocator.get(); }
  DeviceAllocator& operator*() { return *allocator; }
  Stream stream(std::uintptr_t number) { return allocator->stream(reinterpret_cast<void*>(number)); }

  std::shared_ptr<drivers::ModelReport> report = std::make_shared<drivers::ModelReport>();
  drivers::ModelDriver* driver = nullptr;
  std::unique_ptr<DeviceAllocator> allocator;
};

}  // namespace cistern::allocation
