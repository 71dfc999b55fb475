// A Metal device. Two ways to hand out memory:
//   heaps          placement heaps as segments, an MTLBuffer made over each block (or, without objects, none)
//   whole buffers  an MTLBuffer from the device each, where heaps do not work: virtual machines, old systems
// Does not choose, cache or limit anything but what the system limits: buffer length, count of objects, wired memory.
// The library is Apple's, or the one that $CISTERN_METAL_LIBRARY names. A stream is an id<MTLCommandQueue>.
// Called by the allocator layer; locking as driver.hpp says. docs/metal.md tells what was run on Apple hardware.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "drivers/driver.hpp"

namespace cistern::drivers {

enum class MetalStorage : std::uint8_t {
  automatic,  // shared where host and device have one memory, otherwise private.
  shared,     // Host and device reach it.
  private_,   // The device alone reaches it; the host by a copy.
};

enum class MetalMemory : std::uint8_t {
  automatic,  // heaps where a first one works and the device is no virtual machine's.
  heaps,
  whole_buffers,
};

struct MetalConfig {
  MetalMemory memory = MetalMemory::automatic;
  MetalStorage storage = MetalStorage::automatic;
  // A tracked heap makes Metal run all work on any of its buffers one after the other.
  bool tracked_hazards = false;
  // An MTLBuffer per block, offset() 0. Otherwise ptr() is the segment's buffer and offset() says where.
  bool block_objects = true;
  // Live objects that may be; 0: what the system says, or 499,000.
  std::size_t max_objects = 0;
  // Bytes; segments are multiples. A power of two, at least the system's page.
  std::size_t granularity = std::size_t{1} << 20;
};

// What CISTERN_METAL_STORAGE (shared, private), CISTERN_METAL_MEMORY (heaps, whole), CISTERN_METAL_TRACKED (1),
// CISTERN_METAL_OBJECTS (0) and CISTERN_METAL_MAX_OBJECTS (a number) say; the defaults where they are not set.
// Nothing, and `why` set, when a value is none of these.
std::optional<MetalConfig> metal_config_from_environment(std::string* why = nullptr);

struct MetalFigures {
  std::uint64_t objects = 0;       // Live now: segments, block objects, whole buffers, wraps.
  std::uint64_t objects_made = 0;  // Since the start.
  std::size_t wired = 0;           // Bytes.
  std::size_t waiting = 0;         // Bytes that the wired limit keeps out.
  std::size_t residency_sets = 0;
  std::uint64_t residency_commits = 0;
};

// How many Metal devices this process sees; 0, and `why` set, when there is no Metal.
int metal_device_count(std::string* why = nullptr);

// Null, and `why` set, when the device is not there or cannot do what `config` asks.
std::unique_ptr<Driver> make_metal_driver(int index, const MetalConfig& config = {}, std::string* why = nullptr);

// pre: `driver` came from make_metal_driver(). Any thread.
MetalFigures metal_figures(const Driver& driver);
// The same; one message a broken rule.
std::vector<std::string> check_metal_invariants(const Driver& driver);

}  // namespace cistern::drivers
