// Makes Stream values from entries of a stream table. Used by the allocator layer and by tests. No state, no locking.
#pragma once

#include "allocator/stream_table.hpp"
#include "cistern/stream.hpp"

namespace cistern::allocation {

struct StreamFactory {
  static Stream make(Device device, const StreamEntry& entry) {
    return Stream(device, entry.slot, entry.native, entry.id.load(std::memory_order_relaxed));
  }
};

}  // namespace cistern::allocation
