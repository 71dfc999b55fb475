// Entry points: memory that is mapped by pieces, plain memory, host memory.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "standin/cuda/entry.hpp"

using namespace cistern::standin;

namespace {

constexpr std::size_t kHostLimit = std::size_t{1} << 40;  // Bytes of host memory that a request may have.

bool whole(std::size_t bytes) { return bytes != 0 && bytes % kFrame == 0; }
std::uint64_t bit(int device) { return std::uint64_t{1} << device; }

Result check_properties(const State& s, const AllocationProperties* p) {
  const auto refused = [&](const char* name) {
    return s.config.without.contains(name) || s.config.refuse.contains(name);
  };
  if (s.config.without.contains("virtual_memory")) return kNotSupported;
  if (p->type != kPinnedAllocation || p->location.type != kDeviceLocation || p->win32 != nullptr) return kInvalidValue;
  if (p->location.id < 0 || p->location.id >= static_cast<int>(s.devices.size())) return kInvalidDevice;
  if (p->handle_types == kPosixHandle && refused("posix")) return kNotSupported;
  if (p->handle_types != kPosixHandle && p->handle_types != kNoHandleType) return kNotSupported;
  return p->rdma != 0 && refused("rdma") ? kNotSupported : kSuccess;
}

// Takes a whole region away. Its kernels, if any are left, die.
void remove_region(State& s, Regions::Map::iterator region, const char* name) {
  const auto [at, gone] = *region;
  doom(s, at, gone.bytes, name);
  s.regions.all().erase(region);
  if (gone.kind == Kind::mapped) {
    --gone.backing->maps;
  } else if (gone.kind == Kind::allocated) {
    gone.backing->maps = 0;
    s.addresses.give(at, (gone.bytes + kFrame - 1) / kFrame * kFrame);
  } else if (gone.kind != Kind::registered) {
    release_host(at, gone.bytes);
  }
  drop_backing(s, gone.backing);
}

Result host_region(State& s, std::size_t bytes, Kind kind, void*& out) {
  if (bytes == 0) return kInvalidValue;
  if (bytes > kHostLimit) return kOutOfMemory;
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return kOutOfMemory;
  auto backing = std::make_shared<Backing>();
  backing->bytes = bytes;
  backing->host = static_cast<std::byte*>(memory);
  s.regions.all().emplace(address_of(memory), Region{bytes, kind, std::move(backing), ~std::uint64_t{0}});
  out = memory;
  return kSuccess;
}

}  // namespace

CISTERN_ENTRY cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  Call call("cuMemGetInfo", Call::context);
  if (call.result != kSuccess) return call.result;
  const Memory& memory = call.device->memory;
  *total = memory.total();
  *free = memory.used() > memory.total() ? 0 : memory.total() - memory.used();
  return kSuccess;
}

CISTERN_ENTRY cuMemAddressReserve(DevicePtr* start, std::size_t bytes, std::size_t alignment, DevicePtr wanted,
                                  unsigned long long flags) {
  Call call("cuMemAddressReserve", Call::unsafe);
  if (call.result != kSuccess) return call.result;
  if (!whole(bytes) || alignment % kFrame != 0 || wanted != 0 || flags != 0) return kInvalidValue;
  const DevicePtr at = call.s.addresses.take(bytes, std::max(alignment, kFrame));
  if (at == 0) return kOutOfMemory;
  *start = at;
  return kSuccess;
}

CISTERN_ENTRY cuMemAddressFree(DevicePtr start, std::size_t bytes) {
  Call call("cuMemAddressFree", Call::unsafe);
  if (call.result != kSuccess) return call.result;
  if (call.s.regions.any(start, bytes)) {
    return violation(call.s, kInvalidValue, "cuMemAddressFree: something is mapped in the range at %#llx", start);
  }
  if (!call.s.addresses.give(start, bytes)) {
    return violation(call.s, kInvalidValue, "cuMemAddressFree: %#llx is not a whole range", start);
  }
  return kSuccess;
}

CISTERN_ENTRY cuMemGetAllocationGranularity(std::size_t* bytes, const AllocationProperties* properties, int) {
  Call call("cuMemGetAllocationGranularity", Call::plain);
  if (call.result != kSuccess) return call.result;
  if (const Result result = check_properties(call.s, properties); result != kSuccess) return result;
  *bytes = kFrame;
  return kSuccess;
}

CISTERN_ENTRY cuMemCreate(PhysicalHandle* handle, std::size_t bytes, const AllocationProperties* properties,
                          unsigned long long flags) {
  Call call("cuMemCreate", Call::unsafe);
  if (call.result != kSuccess) return call.result;
  State& s = call.s;
  if (const Result result = check_properties(s, properties); result != kSuccess) return result;
  if (s.config.refuse.contains("virtual_memory")) return kNotPermitted;
  if (!whole(bytes) || flags != 0) return violation(s, kInvalidValue, "cuMemCreate: %zu bytes", bytes);
  BackingPtr backing;
  if (!make_backing(s, properties->location.id, bytes, backing)) return kOutOfMemory;
  backing->handles = 1;
  backing->exportable = properties->handle_types == kPosixHandle;
  *handle = s.next_piece++;
  s.pieces.emplace(*handle, std::move(backing));
  return kSuccess;
}

CISTERN_ENTRY cuMemRelease(PhysicalHandle handle) {
  Call call("cuMemRelease", Call::unsafe);
  if (call.result != kSuccess) return call.result;
  const auto found = call.s.pieces.find(handle);
  if (found == call.s.pieces.end()) {
    return violation(call.s, kInvalidValue, "cuMemRelease: there is no handle %llu, or it is released", handle);
  }
  const BackingPtr backing = found->second;
  call.s.pieces.erase(found);
  --backing->handles;
  drop_backing(call.s, backing);
  return kSuccess;
}

CISTERN_ENTRY cuMemMap(DevicePtr at, std::size_t bytes, std::size_t offset, PhysicalHandle handle,
                       unsigned long long flags) {
  Call call("cuMemMap", Call::unsafe);
  if (call.result != kSuccess) return call.result;
  State& s = call.s;
  const auto piece = s.pieces.find(handle);
  if (piece == s.pieces.end()) return violation(s, kInvalidValue, "cuMemMap: there is no handle %llu", handle);
  if (offset != 0 || flags != 0 || bytes != piece->second->bytes || at % kFrame != 0) {
    return violation(s, kInvalidValue, "cuMemMap: a handle maps whole, at a multiple of the granularity");
  }
  if (s.addresses.range_of(at, bytes) == 0) {
    return violation(s, kInvalidValue, "cuMemMap: %#llx is not in a reserved range", at);
  }
  if (s.regions.any(at, bytes)) return violation(s, kInvalidValue, "cuMemMap: something is mapped at %#llx", at);
  s.regions.all().emplace(at, Region{bytes, Kind::mapped, piece->second, 0});
  ++piece->second->maps;
  return kSuccess;
}

CISTERN_ENTRY cuMemUnmap(DevicePtr at, std::size_t bytes) {
  Call call("cuMemUnmap", Call::unsafe);
  if (call.result != kSuccess) return call.result;
  const auto region = call.s.regions.all().find(at);
  if (region == call.s.regions.all().end() || region->second.kind != Kind::mapped || region->second.bytes != bytes) {
    return violation(call.s, kInvalidValue, "cuMemUnmap: [%#llx, +%zu) is not one whole mapping", at, bytes);
  }
  remove_region(call.s, region, "cuMemUnmap");
  return kSuccess;
}

CISTERN_ENTRY cuMemSetAccess(DevicePtr at, std::size_t bytes, const AccessDescription* descriptions,
                             std::size_t count) {
  Call call("cuMemSetAccess", Call::unsafe);
  if (call.result != kSuccess) return call.result;
  State& s = call.s;
  for (DevicePtr cell = at; cell < at + bytes; cell += kFrame) {
    const auto region = s.regions.around(cell);
    if (region == s.regions.all().end() || region->second.kind != Kind::mapped) {
      return violation(s, kInvalidValue, "cuMemSetAccess: nothing is mapped at %#llx", cell);
    }
  }
  for (std::size_t i = 0; i < count; ++i) {
    const AccessDescription& d = descriptions[i];
    if (d.location.type != kDeviceLocation || d.location.id < 0 ||
        d.location.id >= static_cast<int>(s.devices.size())) {
      return violation(s, kInvalidDevice, "cuMemSetAccess: there is no device %d", d.location.id);
    }
    for (DevicePtr cell = at; cell < at + bytes; cell += kFrame) {
      std::uint64_t& access = s.regions.around(cell)->second.access;
      access = d.flags == kAccessNone ? access & ~bit(d.location.id) : access | bit(d.location.id);
    }
  }
  return kSuccess;
}

CISTERN_ENTRY cuMemExportToShareableHandle(void* out, PhysicalHandle handle, int type, unsigned long long) {
  Call call("cuMemExportToShareableHandle", Call::unsafe);
  if (call.result != kSuccess) return call.result;
  const auto piece = call.s.pieces.find(handle);
  if (piece == call.s.pieces.end() || type != kPosixHandle || !piece->second->exportable) {
    return violation(call.s, kInvalidValue, "cuMemExportToShareableHandle: handle %llu cannot be exported", handle);
  }
  // The descriptor carries a name of the memory, good in this process.
  const int file = memfd_create("cistern-standin-piece", MFD_CLOEXEC);
  Backing* const name = piece->second.get();
  if (file < 0 || write(file, &name, sizeof name) != static_cast<ssize_t>(sizeof name)) return kOutOfMemory;
  *static_cast<int*>(out) = file;
  return kSuccess;
}

CISTERN_ENTRY cuMemImportFromShareableHandle(PhysicalHandle* handle, void* from, int type) {
  Call call("cuMemImportFromShareableHandle", Call::unsafe);
  if (call.result != kSuccess) return call.result;
  State& s = call.s;
  Backing* name = nullptr;
  const int file = static_cast<int>(reinterpret_cast<std::intptr_t>(from));
  if (type != kPosixHandle || pread(file, &name, sizeof name, 0) != static_cast<ssize_t>(sizeof name)) {
    return kInvalidValue;
  }
  BackingPtr backing;
  for (const auto& [known, piece] : s.pieces) backing = piece.get() == name ? piece : backing;
  for (const auto& [at, region] : s.regions.all()) backing = region.backing.get() == name ? region.backing : backing;
  if (backing == nullptr) return kInvalidValue;
  ++backing->handles;
  *handle = s.next_piece++;
  s.pieces.emplace(*handle, std::move(backing));
  return kSuccess;
}

CISTERN_ENTRY cuMemAlloc_v2(DevicePtr* out, std::size_t bytes) {
  Call call("cuMemAlloc", Call::context | Call::unsafe);
  if (call.result != kSuccess) return call.result;
  State& s = call.s;
  if (bytes == 0) return kInvalidValue;
  BackingPtr backing;
  if (!make_backing(s, call.device->index, bytes, backing)) return kOutOfMemory;
  backing->maps = 1;
  const DevicePtr at = s.addresses.take((bytes + kFrame - 1) / kFrame * kFrame, kFrame);
  const std::uint64_t access = bit(call.device->index) | call.device->peers;
  s.regions.all().emplace(at, Region{bytes, Kind::allocated, std::move(backing), access});
  *out = at;
  return kSuccess;
}

CISTERN_ENTRY cuMemFree_v2(DevicePtr at) {
  Call call("cuMemFree", Call::context | Call::unsafe);
  if (call.result != kSuccess) return call.result;
  const auto region = call.s.regions.all().find(at);
  if (region == call.s.regions.all().end() ||
      (region->second.kind != Kind::allocated && region->second.kind != Kind::managed)) {
    return violation(call.s, kInvalidValue, "cuMemFree: there is no memory at %#llx, or it is freed", at);
  }
  remove_region(call.s, region, "cuMemFree");
  return kSuccess;
}

CISTERN_ENTRY cuMemAllocManaged(DevicePtr* out, std::size_t bytes, unsigned flags) {
  Call call("cuMemAllocManaged", Call::context | Call::unsafe);
  if (call.result != kSuccess) return call.result;
  if (flags != kAttachGlobal) return kInvalidValue;
  if (call.s.config.without.contains("managed")) return kNotSupported;
  void* memory = nullptr;
  const Result result = host_region(call.s, bytes, Kind::managed, memory);
  if (result == kSuccess) *out = address_of(memory);
  return result;
}

CISTERN_ENTRY cuMemHostAlloc(void** out, std::size_t bytes, unsigned) {
  Call call("cuMemHostAlloc", Call::context | Call::unsafe);
  return call.result != kSuccess ? call.result : host_region(call.s, bytes, Kind::pinned, *out);
}

CISTERN_ENTRY cuMemFreeHost(void* memory) {
  Call call("cuMemFreeHost", Call::context | Call::unsafe);
  if (call.result != kSuccess) return call.result;
  const auto region = call.s.regions.all().find(address_of(memory));
  if (region == call.s.regions.all().end() || region->second.kind != Kind::pinned) {
    return violation(call.s, kInvalidValue, "cuMemFreeHost: there is no memory at %p, or it is freed", memory);
  }
  remove_region(call.s, region, "cuMemFreeHost");
  return kSuccess;
}

CISTERN_ENTRY cuMemHostRegister_v2(void* memory, std::size_t bytes, unsigned) {
  Call call("cuMemHostRegister", Call::context | Call::unsafe);
  if (call.result != kSuccess) return call.result;
  if (memory == nullptr || bytes == 0 || AddressSpace::inside(address_of(memory))) return kInvalidValue;
  if (call.s.regions.any(address_of(memory), bytes)) return kHostMemoryAlreadyRegistered;
  auto backing = std::make_shared<Backing>();
  backing->bytes = bytes;
  backing->host = static_cast<std::byte*>(memory);
  call.s.regions.all().emplace(address_of(memory),
                               Region{bytes, Kind::registered, std::move(backing), ~std::uint64_t{0}});
  return kSuccess;
}

CISTERN_ENTRY cuMemHostUnregister(void* memory) {
  Call call("cuMemHostUnregister", Call::context | Call::unsafe);
  if (call.result != kSuccess) return call.result;
  const auto region = call.s.regions.all().find(address_of(memory));
  if (region == call.s.regions.all().end() || region->second.kind != Kind::registered) {
    return violation(call.s, kHostMemoryNotRegistered, "cuMemHostUnregister: %p is not registered", memory);
  }
  remove_region(call.s, region, "cuMemHostUnregister");
  return kSuccess;
}

CISTERN_ENTRY cuMemHostGetDevicePointer_v2(DevicePtr* out, void* memory, unsigned) {
  Call call("cuMemHostGetDevicePointer", Call::context);
  if (call.result != kSuccess) return call.result;
  const auto region = call.s.regions.around(address_of(memory));
  if (region == call.s.regions.all().end() || AddressSpace::inside(address_of(memory))) return kInvalidValue;
  *out = address_of(memory);
  return kSuccess;
}

CISTERN_ENTRY cuPointerGetAttribute(void* out, int which, DevicePtr at) {
  Call call("cuPointerGetAttribute", Call::context);
  if (call.result != kSuccess) return call.result;
  const auto region = call.s.regions.around(at);
  if (which != kPointerDeviceAddress || region == call.s.regions.all().end()) return kInvalidValue;
  if ((region->second.access & bit(call.device->index)) == 0) return kInvalidValue;
  *static_cast<DevicePtr*>(out) = at;
  return kSuccess;
}
