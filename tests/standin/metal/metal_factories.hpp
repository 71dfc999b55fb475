// The Metal driver in its modes, for the conformance suite: over the stand-in, or over another library when
// $CISTERN_METAL_LIBRARY names one. Test code only.
#pragma once

#include <utility>

#include "conformance/driver_factory.hpp"
#include "standin/metal/metal_library.hpp"

namespace cistern::conformance {

// `settings` are of the stand-in. Over another library a factory that needs some is not there.
inline DriverFactory metal_factory(std::string name, drivers::MetalConfig config,
                                   std::map<std::string, std::string> settings = {}) {
  using standin::metal::MetalLibrary;
  DriverFactory factory;
  factory.name = std::move(name);
  factory.make = [config, settings]() -> std::unique_ptr<drivers::Driver> {
    MetalLibrary& library = MetalLibrary::get();
    if (!library.usable() || (!library.is_standin() && !settings.empty())) return nullptr;
    if (library.is_standin()) library.restart(settings);
    return drivers::make_metal_driver(0, config);
  };
  factory.stream = [](drivers::Driver&, int i) { return MetalLibrary::get().queue(i); };
  factory.complete_all = [](drivers::Driver& driver) {
    if (MetalLibrary::get().is_standin()) {
      MetalLibrary::get().control.complete_all();
    } else {
      driver.synchronize_device();
    }
  };
  factory.complaints = [](drivers::Driver& driver) {
    std::vector<std::string> all = drivers::check_metal_invariants(driver);
    if (!MetalLibrary::get().is_standin()) return all;
    for (std::string& text : MetalLibrary::get().violations()) all.push_back(std::move(text));
    const drivers::MetalFigures figures = drivers::metal_figures(driver);
    if (figures.objects != 0) all.push_back(std::to_string(figures.objects) + " objects were not given back");
    return all;
  };
  return factory;
}

inline std::vector<DriverFactory> metal_factories() {
  using drivers::MetalConfig;
  using drivers::MetalMemory;
  using drivers::MetalStorage;
  MetalConfig few;
  few.max_objects = 64;
  MetalConfig offsets;
  offsets.block_objects = false;
  MetalConfig tracked;
  tracked.tracked_hazards = true;
  MetalConfig device_only;
  device_only.storage = MetalStorage::private_;
  return {
      metal_factory("metal", {}),
      metal_factory("metal_few_objects", few),
      metal_factory("metal_offsets", offsets, {{"MANUAL", "1"}}),
      metal_factory("metal_tracked", tracked, {{"LAG_US", "3000"}, {"JUNK", "1"}}),
      metal_factory("metal_private", device_only, {{"LAG_US", "0"}, {"LARGE_ALIGN", "16384"}}),
      metal_factory("metal_discrete", {}, {{"WITHOUT", "unified shared_heaps residency"}, {"PAGE", "4096"}}),
      metal_factory("metal_small_pages", {}, {{"PAGE", "4096"}, {"WITH", "sparse"}}),
      metal_factory("metal_virtual_machine", {}, {{"NAME", "Apple Paravirtual device"}, {"WITHOUT", "heaps"}}),
      metal_factory("metal_old_system", {}, {{"WITHOUT", "placement residency shared_wait no_copy"}}),
  };
}

}  // namespace cistern::conformance
