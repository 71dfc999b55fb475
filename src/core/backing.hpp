// Backing: what a heap of pages asks of the memory below it. Implemented over a driver by the allocator layer and by
// fakes in tests. All calls come under the device's lock. A call that returns false has changed nothing.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/units.hpp"

namespace cistern::core {

enum class Piece : std::uint64_t { none = 0 };   // Physical memory; a driver's Physical or a segment.
enum class Ticket : std::uint64_t { none = 0 };  // A point in the device's work; `none` has always passed.

class Backing {
 public:
  virtual ~Backing() = default;

  // post: `piece` names `cells` cells of physical memory. False: the device has no more.
  virtual bool create(std::uint32_t cells, Piece& piece) = 0;
  virtual void destroy(Piece piece, std::uint32_t cells) = 0;
  virtual bool map(Cell at, Piece piece, std::uint32_t cells) = 0;
  // The piece, whole, is no longer needed there. pre: the ticket of everything that may touch the range has passed.
  virtual void unmap(Cell at, Piece piece, std::uint32_t cells) = 0;

  // A ticket that passes when all work submitted so far, to any stream of the device, is done. `none` where nothing
  // runs.
  virtual Ticket mark() = 0;
  virtual bool passed(Ticket ticket) = 0;
  // The host waits until it has passed. False when the device cannot be waited for now (a failure, a graph capture).
  virtual bool wait(Ticket ticket) = 0;

  // Work submitted to `later` from now on comes after what was submitted to `earlier`, without a host wait.
  virtual bool order(StreamIndex earlier, StreamIndex later) = 0;
};

}  // namespace cistern::core
