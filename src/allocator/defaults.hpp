// Default limits by kind of device, and the list of all allocators of the process. Thread-safe.
#pragma once

#include <cstdint>

#include "cistern/device.hpp"
#include "drivers/driver.hpp"

namespace cistern::allocation {

class DeviceAllocator;

// Bytes. 0.8 x memory on the CPU leaves the system its part; 0.95 x on a CUDA or model device; on Metal the smaller of
// 1.5 x the recommended working set and 0.95 x memory.
std::uint64_t default_memory_limit(DeviceType type, const drivers::Capabilities& capabilities);

// Allocators are listed so that fork() can hold their locks.
void register_instance(DeviceAllocator& instance);
void unregister_instance(DeviceAllocator& instance);

}  // namespace cistern::allocation
