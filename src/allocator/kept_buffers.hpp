// Buffers that somebody else's handles stand on: a pool's, an arena's slab, memory registered with a pool. free() and
// release() refuse them, by handle and by address, until their keeper lets go; the short way of free() knows nothing
// of it, since a kept block asks for attention (core/block.hpp).
//
//   state     free(), release()   keep()               let_go()
//   not kept  as ever             kept                 nothing
//   kept      invalid_argument    tells who keeps it   not kept
//
// Does not: free anything. Used by the pool layer. Lock-free, any thread; a program that frees a buffer while it hands
// it to a keeper races with itself.
#pragma once

#include <cstdint>
#include <string>

#include "cistern/buffer.hpp"

namespace cistern::allocation {

// At most four: core::kKeeperMask has two bits.
enum class Keeper : std::uint8_t {
  none,
  pool,        // A buffer that a BufferPool recycles.
  registered,  // Somebody's, which a BufferPool has a handle for.
  slab,        // Of a PlannedArena.
};

// What the buffer is, and when it ends: "the slab of a PlannedArena, ...".
std::string to_string(Keeper keeper);

Keeper keeper_of(const core::Block* block) noexcept;

// Keeps a live buffer. Returns who does already, with nothing changed, else Keeper::none. pre: the buffer is live.
Keeper keep(Buffer buffer, Keeper keeper) noexcept;
// Nothing happens for a buffer that is not live or not kept.
void let_go(Buffer buffer) noexcept;

}  // namespace cistern::allocation
