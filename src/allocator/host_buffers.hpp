// HostBuffers: whole buffers from Driver::allocate_host, for devices whose own memory the host cannot reach (and for
// the CPU's mode without a cache). They cannot be split, so a free one serves again for a close size only. Does not:
// look at limits. Locking: all under the device's lock, except find(), which any thread may call.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <unordered_map>

#include "core/block.hpp"
#include "drivers/driver.hpp"

namespace cistern::allocation {

class HostBuffers {
 public:
  explicit HostBuffers(drivers::Driver& driver) : driver_(driver) {}
  ~HostBuffers();
  HostBuffers(const HostBuffers&) = delete;
  HostBuffers& operator=(const HostBuffers&) = delete;

  // To hold and let go around fork().
  std::mutex& mutex() { return addresses_mutex_; }

  // A free buffer of at least `bytes`, but less than min(2 bytes, bytes + 128 KiB); null when there is none.
  core::Block* take_cached(std::uint64_t bytes);
  // Fills a descriptor with new memory.
  drivers::Status make(core::Block& block, std::uint64_t bytes);
  void keep(core::Block* block);
  // The memory of `made` belongs to another descriptor from now on.
  void rebind(const core::Block& made, core::Block* block);
  // Gives the memory of a block back to the driver. False when the driver failed; the block is as before.
  bool destroy(core::Block& block);
  // The largest free buffer, taken out; null when there is none.
  core::Block* take_largest();

  // The buffer that starts at `address`, free or not; null when there is none.
  core::Block* find(std::uint64_t address) const;

  std::uint64_t bytes() const { return bytes_; }  // In use and free.
  std::uint64_t cached_bytes() const { return cached_bytes_; }
  std::uint64_t count() const { return count_; }

 private:
  drivers::Driver& driver_;
  std::multimap<std::uint64_t, core::Block*> free_;  // By capacity.
  mutable std::mutex addresses_mutex_;               // Leaf lock, for the next line.
  std::unordered_map<std::uint64_t, core::Block*> by_address_;
  std::uint64_t bytes_ = 0;
  std::uint64_t cached_bytes_ = 0;
  std::uint64_t count_ = 0;
};

}  // namespace cistern::allocation
