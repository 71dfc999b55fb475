// Block: the descriptor behind every Buffer. One cache line, never unmapped, recycled with its serial going on, so that a
// handle that outlived its allocation is always recognised. Written by its owner; see the table for who may write what.
//
//   serial    odd while live, even while free. Written by the owning thread with a plain store, by compare-exchange when
//             the owner is `central_owner`, by whoever empties an inbox for a block that was claimed through `remote`.
//   owner     the thread cache that takes the block back, or `central_owner`. Changed only while the block is free.
//   remote    what a foreign thread left for the owner, 0 for nothing:
//               odd               low half of the serial that it freed; the block is linked in the owner's inbox through
//                                 `remote_next`, once, until whoever empties the inbox clears the field
//               kRemoteAttention  nothing is linked; the owner must take the long way (other streams used the block,
//                                 or its memory moved)
//   address   changes while the block is live only when its memory moves to the host (raw_ptr()), under the device's lock.
//   the rest  written by whoever holds the block while it is free, by nobody while it is live.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace cistern::core {

class ThreadCache;

enum BlockFlags : std::uint8_t {
  kBlockView = 1,    // Memory of somebody else (make_buffer).
  kBlockSlab = 2,    // Part of a slab; `home` is the Slab. Otherwise `home` is the HeapNode.
  kBlockHost = 4,    // A whole buffer from Driver::allocate_host; `home` is its capacity as a number.
  kBlockPinned = 8,  // Must not move (exported, registered, part of a graph).
  kBlockEmpty = 16,  // malloc(0): a smallest block that shows a capacity of 0.
  kBlockObject = 32,     // ptr() is the object kept beside the descriptor,
  kBlockOwnObject = 64,  // which was made for this block alone.
};

inline constexpr std::uint32_t kRemoteAttention = 2;

struct alignas(64) Block {
  std::atomic<std::uint64_t> serial{0};
  std::atomic<ThreadCache*> owner{nullptr};
  Block* next = nullptr;
  Block* remote_next = nullptr;
  std::atomic<std::uint64_t> address{0};
  std::uint64_t capacity = 0;
  void* home = nullptr;
  std::atomic<std::uint32_t> remote{0};
  std::uint16_t tag = 0;
  std::uint8_t bin = 0;
  std::uint8_t flags = 0;
};

static_assert(sizeof(Block) == 64);

}  // namespace cistern::core
