// The CUDA driver in its modes, for the conformance suite: over the stand-in, or over the vendor's library when
// $CISTERN_CUDA_LIBRARY names that. Test code only.
#pragma once

#include <utility>

#include "conformance/driver_factory.hpp"
#include "drivers/cuda/cuda_driver.hpp"
#include "standin/cuda/cuda_library.hpp"

namespace cistern::conformance {

// `settings` are of the stand-in. Over the vendor's library a factory that needs some is not there.
inline DriverFactory cuda_factory(std::string name, drivers::CudaConfig config,
                                  std::map<std::string, std::string> settings = {}) {
  using standin::CudaLibrary;
  DriverFactory factory;
  factory.name = std::move(name);
  factory.make = [config, settings]() -> std::unique_ptr<drivers::Driver> {
    CudaLibrary& library = CudaLibrary::get();
    if (!library.usable() || (!library.is_standin() && !settings.empty())) return nullptr;
    if (library.is_standin()) library.restart(settings);
    return drivers::make_cuda_driver(0, config);
  };
  factory.stream = [](drivers::Driver&, int i) -> void* { return CudaLibrary::get().stream(i); };
  factory.complete_all = [](drivers::Driver& driver) {
    if (CudaLibrary::get().is_standin()) {
      CudaLibrary::get().control.complete_all();
    } else {
      driver.synchronize_device();
    }
  };
  factory.complaints = [](drivers::Driver&) {
    if (!CudaLibrary::get().is_standin()) return std::vector<std::string>{};
    std::vector<std::string> all = CudaLibrary::get().violations();
    for (std::string& leak : CudaLibrary::get().leaks()) all.push_back(std::move(leak));
    return all;
  };
  return factory;
}

inline std::vector<DriverFactory> cuda_factories() {
  using drivers::CudaMode;
  using drivers::CudaUnified;
  return {
      cuda_factory("cuda", {}),
      cuda_factory("cuda_segments", {.mode = CudaMode::segments, .unified = CudaUnified::pinned}),
      cuda_factory("cuda_pool", {.mode = CudaMode::stream_ordered, .unified = CudaUnified::managed}),
      cuda_factory("cuda_manual", {}, {{"MANUAL", "1"}, {"JUNK", "1"}}),
      cuda_factory("cuda_at_once", {}, {{"LAG_US", "0"}, {"WITHOUT", "managed rdma posix"}}),
      cuda_factory("cuda_far_behind", {}, {{"LAG_US", "3000"}}),
  };
}

}  // namespace cistern::conformance
