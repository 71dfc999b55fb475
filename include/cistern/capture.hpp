// Capture pools: memory for graphs (CUDA graphs). What is allocated while a graph is being captured comes from a
// private heap, whose pages stay where they are until the pool is released, so that its addresses hold for every
// replay. All functions are thread-safe.
//
//   made --begin--> open --end--> closed --begin--> open ...       release: from closed, or from made
//
// Say begin before the library's own begin of the capture, end after its end, also when the capture failed. A pool
// serves any number of graphs, one after the other, which then must not run at the same time. A capture is announced by
// these calls; while it lasts no event is recorded on its streams, and nothing that Cistern calls ends it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "cistern/device.hpp"
#include "cistern/stream.hpp"

namespace cistern {

struct CapturePool {
  Device device{};
  std::uint64_t id = 0;  ///< Unique in the life of the process; 0 is no pool.

  explicit constexpr operator bool() const noexcept { return id != 0; }
  friend constexpr bool operator==(const CapturePool&, const CapturePool&) noexcept = default;
};

/// Whether a stream takes part in the capture; gets the native handle, for each allocation on a stream of the device
/// while the pool is open, in the allocating thread and without a lock held. It must not allocate.
using CaptureFilter = std::function<bool(void* native)>;

/// Throws invalid_argument when the device has no streams, or gives its memory out as whole buffers.
CapturePool make_capture_pool(Device device = default_device());
/// From now on allocations on `stream`, or on the streams that `filter` names, come from the pool. No work may be
/// submitted to `stream` between this call and the begin of its capture, nor to the default stream where the two wait
/// for each other (a stream made without the flag for non-blocking). With a filter it is not known in advance which
/// streams will be captured: they must be non-blocking ones, as PyTorch's are, if other threads allocate at the same
/// time, and memory that would go back to the device stays until the capture has ended. Of several open pools that
/// want a stream the one that was opened first gets it. Throws invalid_argument for a pool that is open, was released,
/// or is another device's.
void begin_capture_pool(CapturePool pool, const Stream& stream);
void begin_capture_pool(CapturePool pool, CaptureFilter filter);
/// Allocations go where they went before. Another thread that asked the filter a moment ago may still be in it. Throws
/// invalid_argument for a pool that is not open.
void end_capture_pool(CapturePool pool);
/// No graph of the pool will run again. Waits for the device's work, then gives the pool's pages back; those under
/// buffers that still live become ordinary memory. While another capture is under way, that happens when it ends.
/// Throws invalid_argument for a pool that is open or was released.
void release_capture_pool(CapturePool pool);
/// Bytes that the pool's pages take; 0 for a pool that was released, and for one that never was.
std::size_t capture_pool_bytes(CapturePool pool);

}  // namespace cistern
