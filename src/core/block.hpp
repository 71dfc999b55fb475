// Block: the descriptor behind every Buffer. One cache line, never unmapped, recycled with its serial going on, so that
// a handle that outlived its allocation is always recognised. Written by its owner; see the table for who may write
// what.
//
//   serial       odd while live, even while free. Written by the owning thread with a plain store; by compare-exchange
//                when no cache owns the block; by whoever empties an inbox for a block claimed through `remote`.
//   owner        the bin of the thread cache that takes the block back (see thread_cache.hpp), or that of
//                `central_owner`. Changed only while the block is free, except for kAttention and the keeper: other
//                threads set them to make the owner take the long way (they claimed the block, used it on other
//                streams, its memory moved, or a pool keeps it).
//   remote       what other threads left for the owner: low half of the serial that one of them freed, 0 for nothing.
//                While it is not 0 the block is linked in an inbox through `remote_next`, once, until whoever empties
//                the inbox clears the field.
//   address      changes while the block is live only when its memory moves to the host (raw_ptr()), under the
//                device's lock.
//   the rest     written by whoever holds the block while it is free, by nobody while it is live.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace cistern::core {

enum BlockFlags : std::uint8_t {
  kBlockView = 1,        // Memory of somebody else (make_buffer).
  kBlockSlab = 2,        // Part of a slab; `home` is the Slab. Otherwise `home` is the HeapNode.
  kBlockHost = 4,        // Memory from Driver::allocate_host; `home` is its capacity as a number.
  kBlockEmpty = 16,      // malloc(0): a smallest block that shows a capacity of 0.
  kBlockObject = 32,     // ptr() is the object kept beside the descriptor,
  kBlockOwnObject = 64,  // which was made for this block alone.
  kBlockOrdered = 128,   // A whole buffer of the device's own pool; `home` as for kBlockHost.
};

// Memory from elsewhere than a heap of pages.
inline constexpr int kBlockElsewhere = kBlockView | kBlockHost | kBlockOrdered;

// In `owner`. No address of this process has the bits.
inline constexpr std::uintptr_t kAttention = ~(~std::uintptr_t{0} >> 1);
// Who stands on the block and takes no free but its own; 0: nobody. Set together with kAttention, so that only the long
// way of free() looks at it.
inline constexpr unsigned kKeeperShift = 61;
inline constexpr std::uintptr_t kKeeperMask = std::uintptr_t{3} << kKeeperShift;
inline constexpr std::uintptr_t kOwnerBits = kAttention | kKeeperMask;
static_assert((kAttention & kKeeperMask) == 0);

struct alignas(64) Block {
  std::atomic<std::uint64_t> serial{0};
  std::atomic<std::uintptr_t> owner{0};
  Block* next = nullptr;
  Block* remote_next = nullptr;
  std::atomic<std::uint64_t> address{0};
  std::uint64_t capacity = 0;
  void* home = nullptr;
  std::atomic<std::uint32_t> remote{0};
  std::uint16_t tag = 0;
  std::uint8_t bin = 0;  // Size class of a small block.
  std::uint8_t flags = 0;
};

static_assert(sizeof(Block) == 64);

// For readers without the device's lock, too.
inline std::uint8_t flags_of(const Block* block) {
  return std::atomic_ref(const_cast<Block*>(block)->flags).load(std::memory_order_relaxed);
}
// Whether a descriptor in use stands for a whole node of a heap of pages.
inline bool is_node(const Block* block) { return (flags_of(block) & (kBlockElsewhere | kBlockSlab)) == 0; }

// Others may read them at that moment: who looks for a block by its address, or asks where a block that moves lies.
inline void set_flags(Block* block, int flags) {
  std::atomic_ref(block->flags).store(static_cast<std::uint8_t>(flags), std::memory_order_relaxed);
}

// Whether another thread has freed the allocation of this serial, which the owner of the block has not seen yet.
inline bool claimed(const Block* block, std::uint64_t serial) {
  return block->remote.load(std::memory_order_relaxed) == static_cast<std::uint32_t>(serial);
}
// Whether the block is handed out. For who holds the device's lock.
inline bool is_live(const Block* block) {
  const std::uint64_t serial = block->serial.load(std::memory_order_relaxed);
  return serial % 2 != 0 && !claimed(block, serial);
}

// Asks for the line of a block that is read first and written afterwards, so that it comes from another processor once
// and not twice. Without effect where the processor cannot.
inline void prefetch_for_write(const Block* block) {
#if defined(__x86_64__)
  // The builtin asks for writing only when compiled for a newer processor than the oldest of the family.
  asm volatile("prefetchw %0" : : "m"(*block));
#else
  __builtin_prefetch(block, 1);
#endif
}

}  // namespace cistern::core
