// The drivers that the conformance suite runs over. A new driver, real or stand-in, is one entry in driver_factories().
// Test code only.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "conformance/driver_factory.hpp"
#include "drivers/cpu/cpu_driver.hpp"
#include "drivers/model/model_driver.hpp"
#include "standin/cuda/cuda_factories.hpp"
#include "standin/metal/metal_factories.hpp"

namespace cistern::conformance {

inline DriverFactory cpu_factory(std::string name, drivers::CpuMode mode) {
  DriverFactory factory;
  factory.name = std::move(name);
  factory.make = [mode] { return drivers::make_cpu_driver(mode); };
  return factory;
}

inline DriverFactory model_factory(std::string name, drivers::ModelConfig config) {
  DriverFactory factory;
  factory.name = std::move(name);
  factory.make = [config] { return drivers::make_model_driver(config); };
  factory.stores_bytes = false;
  factory.complete_all = [](Driver& driver) {
    auto& model = static_cast<drivers::ModelDriver&>(driver);
    model.complete_all();
    model.advance_to(model.clock_us() + 1e6);
  };
  factory.complaints = [](Driver& driver) {
    auto& model = static_cast<drivers::ModelDriver&>(driver);
    std::vector<std::string> all = model.violations();
    for (const auto& more : {model.leaks(), model.check_invariants()}) all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  return factory;
}

inline std::vector<DriverFactory> driver_factories() {
  using drivers::CpuMode;
  std::vector<DriverFactory> all{
      cpu_factory("cpu", CpuMode::cached),
      cpu_factory("cpu_system", CpuMode::system),
      model_factory("model", {}),
      model_factory("model_lag", {.lag_us = 10000}),
      model_factory("model_manual", {.manual = true}),
      model_factory("model_segments", {.max_objects = 64, .virtual_memory = false}),
      model_factory("model_objects",
                    {.max_objects = 64, .lag_us = 100, .virtual_memory = false, .block_objects = true}),
  };
  for (DriverFactory& factory : cuda_factories()) all.push_back(std::move(factory));
  for (DriverFactory& factory : metal_factories()) all.push_back(std::move(factory));
  return all;
}

}  // namespace cistern::conformance
