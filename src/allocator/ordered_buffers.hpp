// OrderedBuffers: whole buffers from the device's own pool (Driver::allocate_ordered), which keeps, splits and reuses
// memory in stream order itself. Watches what that pool holds: nobody else can use it, so it is given back while it is
// over the limit or while the device is nearly full (kernels and graphs need memory, too, and fail without it).
// Locking: all under the device's lock, except find(), which any thread may call.
#pragma once

#include <cstdint>
#include <mutex>
#include <unordered_map>

#include "core/block.hpp"
#include "drivers/driver.hpp"

namespace cistern::allocation {

class OrderedBuffers {
 public:
  explicit OrderedBuffers(drivers::Driver& driver) : driver_(driver) {}
  OrderedBuffers(const OrderedBuffers&) = delete;
  OrderedBuffers& operator=(const OrderedBuffers&) = delete;

  // To hold and let go around fork().
  std::mutex& mutex() { return addresses_mutex_; }

  // Fills a descriptor with memory in the order of the stream that `native` names at each time.
  drivers::Status make(core::Block& block, std::uint64_t bytes, void* const* native);
  // Gives the memory back in that order. False when the driver failed; the block is as before.
  bool destroy(core::Block& block);
  // The memory of `from` belongs to another descriptor from now on.
  void rebind(const core::Block& from, core::Block* to);
  void* native_of(const core::Block& block) const { return *by_address_.at(at(block)).native; }
  // The buffer that starts at `address`; null when there is none.
  core::Block* find(std::uint64_t address) const;

  // Looks at the pool after allocations of some size, at once with `now`. `limit` in bytes.
  void watch(std::uint64_t limit, bool now);
  // Asks the pool to give back what it can of `bytes`; returns what it did.
  std::uint64_t give_back(std::uint64_t bytes);

  std::uint64_t bytes() const { return bytes_; }  // Live.
  std::uint64_t count() const { return by_address_.size(); }
  std::uint64_t changes() const { return changes_; }  // Of the count.
  // What the pool held when it was last looked at; never less than what is live.
  std::uint64_t reserved() const { return reserved_ > bytes_ ? reserved_ : bytes_; }

 private:
  struct Entry {
    core::Block* block;
    void* const* native;
  };
  static std::uint64_t at(const core::Block& block) { return block.address.load(std::memory_order_relaxed); }

  drivers::Driver& driver_;
  mutable std::mutex addresses_mutex_;  // Leaf lock, for the next line.
  std::unordered_map<std::uint64_t, Entry> by_address_;
  std::uint64_t bytes_ = 0;
  std::uint64_t changes_ = 0;
  std::uint64_t reserved_ = 0;
  std::uint64_t unseen_ = 0;  // Bytes allocated since the last look.
};

}  // namespace cistern::allocation
