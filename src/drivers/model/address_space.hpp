// Addresses for model devices: ranges of one process-wide space, so that no two devices ever show the same address, as
// real devices of one process do not. Thread-safe (one lock inside).
#pragma once

#include <cstddef>

#include "drivers/driver.hpp"

namespace cistern::drivers {

// Lowest free range of `bytes` at a multiple of `alignment` (a power of two); 0 when the space is used up.
Address take_model_addresses(std::size_t bytes, std::size_t alignment);
void give_model_addresses(Address base);

}  // namespace cistern::drivers
