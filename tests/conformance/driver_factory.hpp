// What the conformance suite must know of a driver. Test code only.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "drivers/driver.hpp"

namespace cistern::conformance {

using drivers::Driver;

struct DriverFactory {
  std::string name;  // Letters, digits and _ only.
  // Null when the device is not there: its tests are skipped.
  std::function<std::unique_ptr<Driver>()> make;
  // There is memory behind the addresses, so bytes can be looked at.
  bool stores_bytes = true;
  // Misuse is refused with Status::failed. A vendor's driver may crash instead, then those tests are left out.
  bool refuses_misuse = true;
  // The native handle of stream 0, 1, 2 ...; a number where the device has no handles.
  std::function<void*(Driver&, int)> stream = [](Driver&, int i) {
    return reinterpret_cast<void*>(static_cast<std::uintptr_t>(i));
  };
  // Makes submitted work done, where it does not go on by itself.
  std::function<void(Driver&)> complete_all = [](Driver&) {};
  // What broke a rule or was not given back, as far as the driver knows.
  std::function<std::vector<std::string>(Driver&)> complaints = [](Driver&) { return std::vector<std::string>{}; };
};

}  // namespace cistern::conformance
