// What all files with entry points of the stand-in need. Internal to the stand-in.
#pragma once

#include "standin/cuda/state.hpp"

// In front of an exported function that has a name of the vendor's.
#define CISTERN_ENTRY extern "C" __attribute__((visibility("default"))) cistern::drivers::cuda::Result

namespace cistern::standin {

inline DevicePtr address_of(const void* ptr) { return static_cast<DevicePtr>(reinterpret_cast<std::uintptr_t>(ptr)); }

}  // namespace cistern::standin
