// The CPU's memory as a device. Two modes:
//   cached  one large mapping a reserve(); memory is committed by touching it and given back by madvise(). Pieces and
//           mappings are bookkeeping only: the bytes belong to the address, a map() always shows zeros.
//   system  nothing but aligned whole buffers from the C library (allocate_host), for an allocator without a cache.
// Does not choose, cache or limit anything. Streams are names without meaning: work is done when a call returns.
// Called by the allocator layer, under the device's lock where driver.hpp asks for it; there is no lock inside, so a
// forked child goes on undisturbed.
#pragma once

#include <cstdint>
#include <memory>

#include "drivers/driver.hpp"

namespace cistern::drivers {

enum class CpuMode : std::uint8_t { cached, system };

std::unique_ptr<Driver> make_cpu_driver(CpuMode mode = CpuMode::cached);

}  // namespace cistern::drivers
