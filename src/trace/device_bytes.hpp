// DeviceBytes: whether blocks keep their bytes on a device whose memory the host cannot follow. Writes a block's edges
// when it is allocated and copies them back before it is freed, both in the order of the block's stream, so that work
// runs behind the host as a program's does; compares when all is done. Does not: write whole blocks. Called by the
// checking replay on one thread. No lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "drivers/driver.hpp"

namespace cistern::trace {

class DeviceBytes {
 public:
  static constexpr std::size_t kEdge = 64;  // Bytes at either end.

  explicit DeviceBytes(drivers::Driver& driver) : driver_(driver) {}
  ~DeviceBytes();
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;

  // `value` is what every byte of the block's edges becomes.
  void write(drivers::Address at, std::size_t bytes, std::uint8_t value, void* native);
  void read(drivers::Address at, std::size_t bytes, std::uint8_t value, void* native);
  // Waits for the device, compares what was read so far, and forgets it. Blocks that were not as written, and calls
  // that failed.
  std::uint64_t finish();
  std::uint64_t verified() const { return verified_; }  // Bytes.

 private:
  static constexpr std::size_t kChunk = std::size_t{4} << 20;
  struct Expected {
    const unsigned char* host;
    std::uint8_t bytes;
    std::uint8_t value;
  };
  unsigned char* room(std::size_t bytes);

  drivers::Driver& driver_;
  std::vector<unsigned char*> chunks_;  // Pinned memory.
  std::size_t chunk_ = 0;               // The one in use,
  std::size_t used_ = kChunk;           // and its bytes in use.
  std::vector<Expected> expected_;
  std::uint64_t failed_ = 0;
  std::uint64_t verified_ = 0;
};

}  // namespace cistern::trace
