// SecondAllocator: a second allocator of a device, over a driver of its own: pinned host memory for copies to and from
// the device, or the C library's memory on the CPU. It takes the streams of the device's first allocator and knows them
// by the same handle. Used by the registry. Thread-safe.
#pragma once

#include <cstdint>
#include <mutex>
#include <unordered_map>

#include "allocator/device_allocator.hpp"

namespace cistern::allocation {

class SecondAllocator final : public DeviceAllocator {
 public:
  // `streams_of` is the device's first allocator and outlives this one.
  SecondAllocator(DeviceAllocator& streams_of, std::unique_ptr<drivers::Driver> driver);

  using DeviceAllocator::free;
  using DeviceAllocator::malloc;
  Buffer malloc(std::size_t bytes, const Stream& stream) override;
  void free(Buffer buffer, const Stream& stream) override;
  void record_use(Buffer buffer, const Stream& stream) override;
  // The device's first allocator is about to forget the stream.
  void forget(const Stream& stream);
  void lock_for_fork() override;
  void unlock_after_fork() override;

 private:
  Stream own(const Stream& stream, const char* call);

  DeviceAllocator& streams_of_;
  std::mutex mutex_;                                 // Leaf lock, for the next line.
  std::unordered_map<std::uint64_t, Stream> known_;  // By the id that the first allocator gave.
};

}  // namespace cistern::allocation
