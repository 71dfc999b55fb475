// Addresses for a trace that has none: formats that speak of addresses need them. Best fit, one range per stream; no
// statement about how Cistern would place the blocks. A pure function; no locking.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cistern/trace.hpp"

namespace cistern::trace {

inline constexpr std::uint64_t kPlacementStep = 512;  // Bytes; what CUDA aligns to. No block is smaller.

struct Placement {
  struct Range {
    std::uint16_t stream = 0;
    std::uint64_t address = 0;
    std::uint64_t size = 0;  // A multiple of 2 MiB.
  };
  std::vector<std::uint64_t> addresses;  // By id; unique among live blocks, a multiple of kPlacementStep, never 0.
  std::vector<Range> ranges;             // One for each stream that allocates.
};

// Bytes that a block of `size` takes.
constexpr std::uint64_t placed_size(std::uint64_t size) {
  return size == 0 ? kPlacementStep : (size + kPlacementStep - 1) / kPlacementStep * kPlacementStep;
}

// Throws TraceError (naming `path`) when the addresses would pass 2^53: readers of JSON and JavaScript know no larger
// whole numbers.
Placement place(const Trace& trace, const std::string& path);

}  // namespace cistern::trace
