// Registry: the one allocator of each device, made at first use and never destroyed. Thread-safe.
// The only file that knows which drivers there are: see make_driver() in registry.cpp.
#pragma once

#include <memory>
#include <string>

#include "allocator/device_allocator.hpp"
#include "cistern/device.hpp"

namespace cistern::allocation {

// Throws invalid_argument when the device is not available.
DeviceAllocator& device_allocator(Device device);
// The CPU without a cache: each buffer is one aligned allocation of the C library.
DeviceAllocator& system_device_allocator();

// Host memory for copies to and from the device; the device's own allocator where the host reaches its memory.
DeviceAllocator& staging_device_allocator(Device device);

// A driver for an allocator of one's own (replay, benchmarks); null, and `why` set, when the device cannot be used.
std::unique_ptr<drivers::Driver> make_driver(Device device, std::string* why = nullptr);
// Says that a device is not there, and why, in words.
std::string unavailable(Device device);
// In a forked child: another thread may have been making an allocator, which nobody has.
void renew_registry_lock();

}  // namespace cistern::allocation
