// Capture pools and the map of one device's memory, as its allocator shows them.
#include <utility>

#include "allocator/device_allocator.hpp"

namespace cistern::allocation {

std::uint64_t DeviceAllocator::make_pool() {
  const Central::Lock lock(central_);
  return central_.make_pool(lock);
}

void DeviceAllocator::begin_pool(std::uint64_t pool, CaptureFilter filter, StreamEntry* only) {
  if (!filter) throw invalid_argument("cistern: begin_capture_pool: the filter is empty");
  const Central::Lock lock(central_);
  central_.begin_capture(lock, pool, std::move(filter), only);
}

void DeviceAllocator::begin_pool(std::uint64_t pool, const Stream& stream) {
  StreamEntry* const entry = streams_.at(stream.slot());
  check_stream_entry(entry, stream, "begin_capture_pool");
  begin_pool(
      pool, [native = stream.native()](void* other) { return other == native; }, entry);
}

void DeviceAllocator::end_pool(std::uint64_t pool) {
  std::shared_ptr<const CaptureFilter> filter;  // What it holds may allocate when it ends: after the lock.
  const Central::Lock lock(central_);
  filter = central_.end_capture(lock, pool);
}

void DeviceAllocator::release_pool(std::uint64_t pool) {
  const Central::Lock lock(central_);
  central_.release_pool(lock, pool);
}

std::size_t DeviceAllocator::pool_bytes(std::uint64_t pool) {
  const Central::Lock lock(central_);
  return central_.pool_bytes(lock, pool);
}

std::vector<MemorySegment> DeviceAllocator::map() {
  const Central::Lock lock(central_);
  central_.drain(lock);
  return central_.map(lock);
}

}  // namespace cistern::allocation
