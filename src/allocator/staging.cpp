// Streams of the device's own allocator for its staging memory.
#include "allocator/staging.hpp"

#include <optional>

namespace cistern::allocation {

StagingAllocator::StagingAllocator(DeviceAllocator& streams_of, std::unique_ptr<drivers::Driver> driver)
    : DeviceAllocator(streams_of.device(), std::move(driver)), streams_of_(streams_of) {
  // Pinned memory is the computer's: as much of it as the CPU's limit allows.
  set_memory_limit(this->driver().capabilities().total_memory / 10 * 8);
}

Stream StagingAllocator::own(const Stream& stream, const char* call) {
  streams_of_.check_stream(stream, call);
  {
    const std::lock_guard lock(mutex_);
    const auto found = known_.find(stream.id());
    if (found != known_.end()) return found->second;
  }
  const Stream made = DeviceAllocator::stream(stream.native());
  const std::lock_guard lock(mutex_);
  return known_.emplace(stream.id(), made).first->second;
}

Buffer StagingAllocator::malloc(std::size_t bytes, const Stream& stream) {
  return DeviceAllocator::malloc(bytes, own(stream, "malloc"));
}

void StagingAllocator::free(Buffer buffer, const Stream& stream) {
  if (buffer.block() != nullptr) DeviceAllocator::free(buffer, own(stream, "free"));
}

void StagingAllocator::record_use(Buffer buffer, const Stream& stream) {
  DeviceAllocator::record_use(buffer, own(stream, "record_use"));
}

void StagingAllocator::forget(const Stream& stream) {
  std::optional<Stream> known;
  {
    const std::lock_guard lock(mutex_);
    const auto found = known_.find(stream.id());
    if (found == known_.end()) return;
    known = found->second;
    known_.erase(found);
  }
  stream_destroyed(*known);
}

}  // namespace cistern::allocation
