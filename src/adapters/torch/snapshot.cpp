// Figures, history and snapshots of the PyTorch adapter, as C functions for its Python module. Any thread.
#include <memory>

#include "adapters/c_api.hpp"
#include "adapters/torch/books.hpp"
#include "cistern/memory.hpp"

struct cistern_torch_snapshot {
  std::vector<cistern_torch_segment> segments;
  std::vector<cistern_torch_block> blocks;
  std::vector<cistern_torch_event> events;
};

namespace cistern::torch_adapter {
namespace {

void add_device(cistern_torch_snapshot& snapshot, int device) {
  const Books& books = Books::get();
  for (const MemorySegment& segment : memory_map(Device::cuda(device))) {
    const PoolId pool = segment.capture_pool == 0 ? PoolId{0, 0} : books.pools.id_of(segment.capture_pool);
    snapshot.segments.push_back({segment.address, segment.bytes, reinterpret_cast<std::uintptr_t>(segment.stream),
                                 pool.first, pool.second, snapshot.blocks.size(), segment.ranges.size(), device, 0});
    for (const MemoryRange& range : segment.ranges) {
      std::size_t requested = range.live ? books.history.requested(range.address) : 0;
      if (requested == 0 || requested > range.bytes) requested = range.bytes;
      snapshot.blocks.push_back({range.address, range.bytes, requested, range.live ? 1 : 0, 0});
    }
  }
}

template <class T>
const T* array_of(const cistern_torch_snapshot* snapshot, std::vector<T> cistern_torch_snapshot::*array,
                  std::size_t* count) {
  if (count != nullptr) *count = snapshot != nullptr ? (snapshot->*array).size() : 0;
  return snapshot != nullptr ? (snapshot->*array).data() : nullptr;
}

}  // namespace
}  // namespace cistern::torch_adapter

using namespace cistern;
using namespace cistern::c;
using namespace cistern::torch_adapter;

extern "C" {

cistern_status cistern_torch_get_figures(int device, cistern_torch_figures* out) {
  return guarded([&] {
    require(out, "cistern_torch_get_figures", "out");
    cistern_torch_figures figures{};
    present_device(device);
    figures_of(device).read(figures);
    copy_versioned(figures, out);
  });
}

cistern_status cistern_torch_reset_peaks(int device) {
  return guarded([&] {
    const Device which = present_device(device);
    figures_of(device).reset_peaks();
    reset_peak_memory(which);
  });
}

cistern_status cistern_torch_reset_accumulated(int device) {
  return guarded([&] {
    present_device(device);
    figures_of(device).reset_accumulated();
  });
}

cistern_status cistern_torch_record_history(size_t capacity, int clear) {
  return guarded([&] { Books::get().history.start(capacity, clear != 0); });
}

cistern_status cistern_torch_take_snapshot(cistern_torch_snapshot** out) {
  return guarded([&] {
    require(out, "cistern_torch_take_snapshot", "out");
    auto snapshot = std::make_unique<cistern_torch_snapshot>();
    for (int device = 0; device < kMaxDevices; ++device) {
      if (Books::get().is_used(device)) {
        add_device(*snapshot, device);
      }
    }
    snapshot->events = Books::get().history.events();
    *out = snapshot.release();
  });
}

void cistern_torch_drop_snapshot(cistern_torch_snapshot* snapshot) { delete snapshot; }

const cistern_torch_segment* cistern_torch_segments(const cistern_torch_snapshot* snapshot, size_t* count) {
  return array_of(snapshot, &cistern_torch_snapshot::segments, count);
}
const cistern_torch_block* cistern_torch_blocks(const cistern_torch_snapshot* snapshot, size_t* count) {
  return array_of(snapshot, &cistern_torch_snapshot::blocks, count);
}
const cistern_torch_event* cistern_torch_events(const cistern_torch_snapshot* snapshot, size_t* count) {
  return array_of(snapshot, &cistern_torch_snapshot::events, count);
}

}  // extern "C"
