// The callbacks that may free memory before an allocation fails. Thread-safe; callbacks run without any lock held.
#pragma once

#include <cstddef>

#include "cistern/device.hpp"

namespace cistern::allocation {

// Calls all of them. Whether one says that another attempt is worth it.
bool call_out_of_memory_callbacks(Device device, std::size_t bytes);

// Around fork().
void lock_callbacks();
void unlock_callbacks();

}  // namespace cistern::allocation
