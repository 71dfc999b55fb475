// The stand-in's memory. Device addresses are numbers in a window that no host pointer lies in, so host code that
// follows one crashes. Behind them are frames of one file in memory for each device; what a page table is for hardware,
// Regions is here: two addresses may show the same frames. Internal to the stand-in; under its mutex.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "drivers/cuda/cuda_api.hpp"

namespace cistern::standin {

using drivers::cuda::DevicePtr;

inline constexpr std::size_t kFrame = std::size_t{2} << 20;  // Bytes; also the granularity.

// Ranges of device addresses, first fit after the last one given out, so that an address is reused late.
class AddressSpace {
 public:
  static constexpr DevicePtr kStart = DevicePtr{0x2000} << 32;
  static constexpr DevicePtr kEnd = DevicePtr{0x5000} << 32;

  // 0 when there is no room.
  DevicePtr take(std::size_t bytes, std::size_t alignment);
  bool give(DevicePtr at, std::size_t bytes);
  // The range around [at, at + bytes): its start, or 0.
  DevicePtr range_of(DevicePtr at, std::size_t bytes) const;
  static bool inside(DevicePtr at) { return at >= kStart && at < kEnd; }
  const std::map<DevicePtr, std::size_t>& all() const { return used_; }

 private:
  std::map<DevicePtr, std::size_t> used_;
  DevicePtr next_ = kStart;
};

// The frames of a device.
class Memory {
 public:
  Memory() = default;
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  bool start(std::size_t bytes);
  bool take(std::size_t frames, bool junk, std::vector<std::byte*>& out);
  void give(const std::vector<std::byte*>& frames);
  std::size_t total() const { return total_; }
  std::size_t used() const { return used_; }
  // Another process takes or gives memory.
  void set_total(std::size_t bytes) { total_ = bytes < capacity_ ? bytes : capacity_; }

 private:
  int file_ = -1;
  std::byte* base_ = nullptr;
  std::size_t capacity_ = 0;
  std::size_t total_ = 0;
  std::size_t used_ = 0;
  std::size_t next_ = 0;  // Frames below it were used before.
  std::vector<std::byte*> free_;
};

// Work that uses bytes of a Backing.
struct Use {
  std::uint64_t stream = 0;
  std::uint64_t seq = 0;
  std::size_t offset = 0;
  std::size_t bytes = 0;
  bool writes = false;
};

// Bytes: frames of a device or host memory.
struct Backing {
  int device = -1;
  std::size_t bytes = 0;
  std::vector<std::byte*> frames;
  std::byte* host = nullptr;
  std::size_t handles = 0;  // Count of creates and imports not released.
  std::size_t maps = 0;
  bool exportable = false;
  std::vector<Use> uses;
  std::size_t prune_at = 16;

  std::byte* byte_at(std::size_t offset) const {
    return host != nullptr ? host + offset : frames[offset / kFrame] + offset % kFrame;
  }
  // Bytes from `offset` on that lie in one piece.
  std::size_t run_at(std::size_t offset) const { return host != nullptr ? bytes - offset : kFrame - offset % kFrame; }
};
using BackingPtr = std::shared_ptr<Backing>;

enum class Kind : std::uint8_t { mapped, allocated, pool, managed, pinned, registered };

struct Region {
  std::size_t bytes = 0;
  Kind kind = Kind::mapped;
  BackingPtr backing;
  std::uint64_t access = 0;  // A bit for each device.
};

class Regions {
 public:
  using Map = std::map<DevicePtr, Region>;
  Map& all() { return map_; }
  const Map& all() const { return map_; }
  // The region around `at`, or end().
  Map::iterator around(DevicePtr at);
  bool any(DevicePtr at, std::size_t bytes);

 private:
  Map map_;
};

// The device's pool for stream-ordered allocation: blocks in chunks.
struct PoolState {
  struct Block {
    std::size_t bytes = 0;
    bool live = false;     // Not freed by the program.
    bool pending = false;  // Freed by the program, but its stream is not there yet.
  };
  std::map<DevicePtr, Block> blocks;        // Cover every chunk.
  std::map<DevicePtr, std::size_t> chunks;  // Bytes by start.
  std::uint64_t threshold = 0;
  std::size_t reserved = 0, reserved_high = 0;
  std::size_t used = 0, used_high = 0;
  std::uint64_t peers = 0;  // Devices that may use it.
};

// A stretch of a Backing.
struct Hit {
  BackingPtr backing;
  std::size_t offset = 0;
  std::size_t bytes = 0;
};

struct State;
struct Device;

// What [at, at + bytes) shows to the device; false, and why, when it may not use all of it. `pageable`: host memory
// that the driver does not know will do, too.
bool resolve(State& s, int device, DevicePtr at, std::size_t bytes, bool pageable, std::vector<Hit>& out,
             std::string& why);
// Memory of a device. False when it has no more.
bool make_backing(State& s, int device, std::size_t bytes, BackingPtr& out);
// Gives host memory back to the system.
void release_host(DevicePtr at, std::size_t bytes);
void drop_backing(State& s, const BackingPtr& backing);
// The kernels that use the range die.
bool doom(State& s, DevicePtr at, std::size_t bytes, const char* call);

DevicePtr pool_allocate(State& s, Device& device, std::size_t bytes);
void pool_return(State& s, Device& device, DevicePtr at);
void pool_trim(State& s, Device& device, std::size_t keep);

}  // namespace cistern::standin
