// HostBuffers: memory that the host reaches from Driver::allocate_host, for devices whose own memory it cannot reach
// (and for the CPU's mode without a cache). Does not: look at limits. Locking: all under the device's lock, except
// find(), which any thread may call.
//
//   request        where (pooled)                                                  start
//   <= 8 bytes     4 pages of 16 KiB, there from the first buffer on               multiple of 8
//   <= 8 KiB       slabs of 256 KiB, one size class each; empty ones can leave     multiple of the device's alignment
//   larger         a whole buffer, which cannot be split: a free one waits in a BufferCache for a request of a close
//   size
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <unordered_map>

#include "core/block.hpp"
#include "core/block_pool.hpp"
#include "core/buffer_cache.hpp"
#include "core/size_class.hpp"
#include "core/units.hpp"
#include "drivers/driver.hpp"

namespace cistern::allocation {

class HostBuffers {
 public:
  static constexpr std::uint64_t kTiny = 8;                   // Bytes; a scalar of any dtype.
  static constexpr std::uint64_t kTinyPage = 16 * core::KiB;  // The page that the vendor's managed memory moves by.
  static constexpr std::uint64_t kTinyPages = 4;              // 8192 scalars at a time.
  static constexpr std::uint64_t kTinyBytes = kTinyPages * kTinyPage;
  static constexpr std::uint64_t kSlabBytes = 256 * core::KiB;  // Host memory is dear to get (0.1 ms), cheap to hold.

  HostBuffers(drivers::Driver& driver, const core::SizeClasses& classes, core::BlockPool& pool);
  ~HostBuffers();
  HostBuffers(const HostBuffers&) = delete;
  HostBuffers& operator=(const HostBuffers&) = delete;

  // To hold and let go around fork().
  std::mutex& mutex() { return addresses_mutex_; }

  // Whether there are small blocks. Not where a buffer has an object of its own, nor where nothing is kept.
  bool pooled() const { return pooled_; }
  // A small block of what is there, without a driver call; null when there is none, or `bytes` is not small.
  core::Block* take_small(std::uint64_t bytes);
  // One more slab for small blocks of this size. pre: pooled(), 0 < bytes <= the largest class.
  drivers::Status add_slab(std::uint64_t bytes);
  // Whether the pages for the smallest blocks are still to be made.
  bool can_start() const { return pooled_ && !started_; }
  // Makes them. A failure is tried again at the next call. pre: can_start().
  void start();

  // A free whole buffer of at least `bytes`, but less than min(2 bytes, bytes + 128 KiB); null when there is none.
  core::Block* take_cached(std::uint64_t bytes);
  // Fills a descriptor with a new whole buffer.
  drivers::Status make(core::Block& block, std::uint64_t bytes);
  // Takes a free block back, small or whole.
  void keep(core::Block* block);
  // The memory of `from` belongs to another descriptor from now on.
  void rebind(const core::Block& from, core::Block* to);
  // Gives the memory of a whole buffer back to the driver. False when the driver failed; the block is as before.
  bool destroy(core::Block& block);
  // Gives the whole buffer that is free for longest back to the driver; its bytes. 0 when there is none, or the driver
  // failed.
  std::uint64_t release_oldest();
  // Slabs without a block in use go back to the driver.
  void release_slabs();

  // The buffer that starts at `address`, free or not; null when there is none.
  core::Block* find(std::uint64_t address) const;

  static bool is_part(const core::Block* block) { return block->bin != kWhole; }
  std::uint64_t bytes() const { return bytes_; }  // In use and free, slabs included.
  std::uint64_t slab_bytes() const { return slab_bytes_; }
  std::uint64_t count() const { return count_; }
  std::uint64_t changes() const { return changes_; }  // Of the count.

 private:
  // In `bin` of a host block's descriptor.
  static constexpr std::uint8_t kWhole = 0;
  static constexpr std::uint8_t kPart = 1;
  static constexpr std::size_t kTinyClass = core::SizeClasses::kMaxClasses;

  struct Slab {
    std::uint64_t base = 0;
    std::uint64_t bytes = 0;
    std::uint64_t block_bytes = 0;
    std::size_t kind = 0;      // Size class, or kTinyClass.
    std::uint32_t carved = 0;  // Blocks that have a descriptor; always the first ones.
    std::uint32_t used = 0;
    core::Block* free = nullptr;  // Of the carved ones.
    Slab* next = nullptr;         // In the list of its kind, where it has room.
    Slab* prev = nullptr;
    bool full() const { return free == nullptr && (carved + std::uint64_t{1}) * block_bytes > bytes; }
  };
  std::size_t kind_of(std::uint64_t bytes) const { return bytes <= kTiny ? kTinyClass : classes_.index(bytes); }
  drivers::Status add(std::size_t kind, std::uint64_t block_bytes, std::uint64_t bytes);
  core::Block* take_oldest();
  void drop(core::Block* block);
  void link(Slab& slab);
  void unlink(Slab& slab);
  core::Block* carve(Slab& slab);
  Slab& slab_of(const core::Block* block);

  drivers::Driver& driver_;
  const core::SizeClasses& classes_;
  core::BlockPool& pool_;
  const bool pooled_;
  core::BufferCache free_;        // Whole ones.
  core::Block* stuck_ = nullptr;  // The same, where neither the host had memory to remember them nor the driver let go.
  std::map<std::uint64_t, Slab> slabs_;                           // By base.
  std::array<Slab*, core::SizeClasses::kMaxClasses + 1> room_{};  // Slabs with room, by kind.
  mutable std::mutex addresses_mutex_;                            // Leaf lock, for the next line.
  std::unordered_map<std::uint64_t, core::Block*> by_address_;    // Whole ones and carved parts.
  std::uint64_t bytes_ = 0;
  std::uint64_t slab_bytes_ = 0;
  std::uint64_t count_ = 0;
  std::uint64_t changes_ = 0;
  bool started_ = false;  // The smallest blocks have their pages.
};

}  // namespace cistern::allocation
