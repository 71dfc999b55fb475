// Streams of a device's first allocator for its second one.
#include "allocator/second_allocator.hpp"

#include <optional>

namespace cistern::allocation {

SecondAllocator::SecondAllocator(DeviceAllocator& streams_of, std::unique_ptr<drivers::Driver> driver)
    : DeviceAllocator(streams_of.device(), std::move(driver)), streams_of_(streams_of) {}

Stream SecondAllocator::own(const Stream& stream, const char* call) {
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

Buffer SecondAllocator::malloc(std::size_t bytes, const Stream& stream) {
  return DeviceAllocator::malloc(bytes, own(stream, "malloc"));
}

void SecondAllocator::free(Buffer buffer, const Stream& stream) {
  if (buffer.block() != nullptr) DeviceAllocator::free(buffer, own(stream, "free"));
}

void SecondAllocator::record_use(Buffer buffer, const Stream& stream) {
  DeviceAllocator::record_use(buffer, own(stream, "record_use"));
}

void SecondAllocator::forget(const Stream& stream) {
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

void SecondAllocator::lock_for_fork() {
  DeviceAllocator::lock_for_fork();
  mutex_.lock();
}

void SecondAllocator::unlock_after_fork() {
  mutex_.unlock();
  DeviceAllocator::unlock_after_fork();
}

}  // namespace cistern::allocation
