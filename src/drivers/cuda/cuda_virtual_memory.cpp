// Ranges, pieces and mappings, and sharing them with other devices and processes.
#include <algorithm>
#include <exception>
#include <iterator>

#include "drivers/cuda/cuda_device.hpp"

namespace cistern::drivers::cuda {
namespace {

// Bytes that no address space of a device has: the vendor's call would only say that the number is wrong.
constexpr std::size_t kBeyondAddresses = std::size_t{1} << 56;

Status no_virtual_memory() {
  set_last_error("this CUDA device is used without virtual memory");
  return Status::unsupported;
}

}  // namespace

AllocationProperties CudaDriver::properties() const {
  AllocationProperties out{};
  out.type = kPinnedAllocation;
  out.handle_types = capabilities_.exportable ? kPosixHandle : kNoHandleType;
  out.location = {kDeviceLocation, device_};
  out.rdma = capabilities_.rdma ? 1 : 0;
  return out;
}

// Whether a mapping touches [at, at + bytes).
bool CudaDriver::any_mapping(Address at, std::size_t bytes) const {
  const auto next = mappings_.lower_bound(at);
  if (next != mappings_.end() && next->first - at < bytes) return true;
  return next != mappings_.begin() && at - std::prev(next)->first < std::prev(next)->second.bytes;
}

bool CudaDriver::in_a_range(Address at, std::size_t bytes) const {
  auto range = ranges_.upper_bound(at);
  if (range == ranges_.begin()) return false;
  --range;
  const std::size_t offset = at - range->first;
  return offset < range->second && bytes <= range->second - offset;
}

Status CudaDriver::reserve(std::size_t bytes, Address& base) {
  if (!capabilities_.virtual_memory) return no_virtual_memory();
  if (!whole(bytes)) return failed("reserve: not a multiple of the granularity");
  if (bytes >= kBeyondAddresses) {
    set_last_error("reserve: %zu bytes are more than the address space", bytes);
    return Status::out_of_memory;
  }
  const Entered entered(api_, context_);
  if (!entered.ok()) return entered.status();
  DevicePtr start = 0;
  const Result result = api_.address_reserve(&start, bytes, capabilities_.granularity, 0, 0);
  // All else about the call is right, so a wrong value is a size that does not fit any more.
  if (const Status status = call(result, "cuMemAddressReserve"); status != Status::ok) {
    return result == kInvalidValue ? Status::out_of_memory : status;
  }
  try {
    ranges_.emplace(start, bytes);
  } catch (const std::exception&) {
    insist([&] { return api_.address_free(start, bytes); });
    return no_records();
  }
  base = start;
  return Status::ok;
}

Status CudaDriver::unreserve(Address base, std::size_t bytes) {
  const auto range = ranges_.find(base);
  if (range == ranges_.end() || range->second != bytes) return failed("unreserve: not a reserved range");
  if (any_mapping(base, bytes)) return failed("unreserve: something is mapped in the range");
  const Entered entered(api_, context_);
  if (!entered.ok() && !gone(entered.result())) return entered.status();
  if (entered.ok() && !orphans_.empty() && !settle_orphans(base, bytes)) return Status::failed;
  const Status status = entered.ok() ? give_back(api_.address_free(base, bytes), "cuMemAddressFree") : Status::ok;
  if (status == Status::ok) ranges_.erase(range);
  return status;
}

Status CudaDriver::create(std::size_t bytes, Physical& out) {
  if (!capabilities_.virtual_memory) return no_virtual_memory();
  if (!whole(bytes)) return failed("create: not a multiple of the granularity");
  if (bytes > capabilities_.total_memory) {
    set_last_error("create: %zu bytes are more than the device has", bytes);
    return Status::out_of_memory;
  }
  const Entered entered(api_, context_);
  if (!entered.ok()) return entered.status();
  const AllocationProperties wanted = properties();
  PhysicalHandle piece = 0;
  const Status status = call(api_.physical_create(&piece, bytes, &wanted, 0), "cuMemCreate");
  if (status != Status::ok) return status;
  try {
    pieces_.emplace(piece, Piece{bytes, 0});
  } catch (const std::exception&) {
    insist([&] { return api_.physical_release(piece); });
    return no_records();
  }
  out = Physical{piece};
  return Status::ok;
}

Status CudaDriver::destroy(Physical piece) {
  const auto found = pieces_.find(static_cast<PhysicalHandle>(piece));
  if (found == pieces_.end()) return failed("destroy: no such piece");
  if (found->second.maps != 0) return failed("destroy: the piece is mapped");
  const Entered entered(api_, context_);
  if (!entered.ok() && !gone(entered.result())) return entered.status();
  const Status status = entered.ok() ? give_back(api_.physical_release(found->first), "cuMemRelease") : Status::ok;
  if (status == Status::ok) pieces_.erase(found);
  return status;
}

// Ends a mapping that the books do not have (any more). What cannot be ended now is ended before the address is used
// again. pre: the context is entered.
void CudaDriver::hide(Address at, std::size_t bytes) {
  Result result = kSuccess;
  insist([&] { return result = api_.physical_unmap(at, bytes); });
  if (result == kSuccess) return;
  try {
    orphans_.emplace(at, bytes);
  } catch (const std::exception&) {
    no_records();  // The vendor refuses the address from now on.
  }
}

// Whether nothing is left of such mappings in the range. pre: the context is entered.
bool CudaDriver::settle_orphans(Address at, std::size_t bytes) {
  std::erase_if(orphans_, [&](const auto& orphan) {
    return call(api_.physical_unmap(orphan.first, orphan.second), "cuMemUnmap") == Status::ok;
  });
  return std::none_of(orphans_.begin(), orphans_.end(), [&](const auto& orphan) {
    return orphan.first < at + bytes && at < orphan.first + orphan.second;
  });
}

// Maps a piece and grants access; on failure nothing is mapped. pre: the context is entered.
Status CudaDriver::show(Address at, PhysicalHandle piece, std::size_t bytes) {
  if (!orphans_.empty() && !settle_orphans(at, bytes)) return Status::failed;
  Status status = call(api_.physical_map(at, bytes, 0, piece, 0), "cuMemMap");
  if (status != Status::ok) return status;
  status = call(api_.set_access(at, bytes, access_.data(), access_.size()), "cuMemSetAccess");
  if (status != Status::ok) hide(at, bytes);
  return status;
}

Status CudaDriver::map(Address at, Physical piece, std::size_t bytes) {
  const auto found = pieces_.find(static_cast<PhysicalHandle>(piece));
  if (found == pieces_.end() || found->second.bytes != bytes) return failed("map: no such piece of this size");
  if (at % capabilities_.granularity != 0 || !in_a_range(at, bytes)) return failed("map: not in a reserved range");
  if (any_mapping(at, bytes)) return failed("map: something is mapped there");
  const Entered entered(api_, context_);
  if (!entered.ok()) return entered.status();
  std::map<Address, Mapping>::iterator entry;
  try {
    entry = mappings_.emplace(at, Mapping{bytes, found->first}).first;
  } catch (const std::exception&) {
    return no_records();
  }
  const Status status = show(at, found->first, bytes);
  if (status == Status::ok) {
    ++found->second.maps;
  } else {
    mappings_.erase(entry);
  }
  return status;
}

Status CudaDriver::unmap(Address at, std::size_t bytes) {
  const auto found = mappings_.find(at);
  if (found == mappings_.end() || found->second.bytes != bytes) return failed("unmap: not a whole mapping");
  const Entered entered(api_, context_);
  if (!entered.ok() && !gone(entered.result())) return entered.status();
  const Status status = entered.ok() ? give_back(api_.physical_unmap(at, bytes), "cuMemUnmap") : Status::ok;
  if (status != Status::ok) return status;
  --pieces_.find(found->second.piece)->second.maps;
  mappings_.erase(found);
  return Status::ok;
}

// Memory that is not mapped by us (segments, unified memory) is opened from the peer's side.
Status CudaDriver::open_peer(DeviceNumber peer) {
  Context of_peer = nullptr;
  Status status = call(api_.primary_retain(&of_peer, peer), "cuDevicePrimaryCtxRetain");
  if (status != Status::ok) return status;
  {
    const Entered entered(api_, of_peer);
    status = entered.status();
    if (entered.ok()) {
      const Result result = api_.context_enable_peer(context_, 0);
      status = call(result == kPeerAccessAlreadyEnabled ? kSuccess : result, "cuCtxEnablePeerAccess");
    }
  }
  if (status == Status::ok) {
    peers_.push_back(peer);
  } else {
    api_.primary_release(peer);
  }
  return status;
}

Status CudaDriver::enable_peer(int index) {
  const Entered entered(api_, context_);
  if (!entered.ok()) return entered.status();
  DeviceNumber peer = 0;
  int can = 0;
  if (const Status status = call(api_.device(&peer, index), "cuDeviceGet"); status != Status::ok) return status;
  const auto same = [peer](const AccessDescription& known) { return known.location.id == peer; };
  if (std::any_of(access_.begin(), access_.end(), same)) return Status::ok;
  if (const Status status = call(api_.device_can_access(&can, peer, device_), "cuDeviceCanAccessPeer");
      status != Status::ok) {
    return status;
  }
  if (can == 0) {
    set_last_error("CUDA device %d cannot reach the memory of device %d", peer, device_);
    return Status::unsupported;
  }
  try {
    peers_.reserve(peers_.size() + 1);
    access_.reserve(access_.size() + 1);
  } catch (const std::exception&) {
    return no_records();
  }
  AccessDescription description{{kDeviceLocation, peer}, kAccessReadWrite};
  Status status = Status::ok;
  auto done = mappings_.begin();
  for (; done != mappings_.end() && status == Status::ok; ++done) {
    status = call(api_.set_access(done->first, done->second.bytes, &description, 1), "cuMemSetAccess");
  }
  if (status == Status::ok && pool_ != nullptr) {
    status = call(api_.pool_access(pool_, &description, 1), "cuMemPoolSetAccess");
  }
  if (status == Status::ok) status = open_peer(peer);
  if (status == Status::ok) {
    access_.push_back(description);
    return status;
  }
  description.flags = kAccessNone;
  for (auto mapping = mappings_.begin(); mapping != done; ++mapping) {
    insist([&] { return api_.set_access(mapping->first, mapping->second.bytes, &description, 1); });
  }
  return status;
}

Status CudaDriver::export_piece(Physical piece, int& handle) {
  if (!capabilities_.exportable) {
    set_last_error("%s has no pieces that can be exported", capabilities_.name.c_str());
    return Status::unsupported;
  }
  const auto found = pieces_.find(static_cast<PhysicalHandle>(piece));
  if (found == pieces_.end()) return failed("export: no such piece");
  const Entered entered(api_, context_);
  if (!entered.ok()) return entered.status();
  int descriptor = -1;
  const Status status =
      call(api_.export_handle(&descriptor, found->first, kPosixHandle, 0), "cuMemExportToShareableHandle");
  if (status == Status::ok) handle = descriptor;
  return status;
}

Status CudaDriver::import_piece(int handle, std::size_t bytes, Physical& out) {
  if (!capabilities_.exportable) {
    set_last_error("%s has no pieces that can be imported", capabilities_.name.c_str());
    return Status::unsupported;
  }
  if (!whole(bytes) || handle < 0) return failed("import: not a handle, or not a multiple of the granularity");
  const Entered entered(api_, context_);
  if (!entered.ok()) return entered.status();
  PhysicalHandle piece = 0;
  void* const descriptor = reinterpret_cast<void*>(static_cast<std::intptr_t>(handle));
  const Status status = call(api_.import_handle(&piece, descriptor, kPosixHandle), "cuMemImportFromShareableHandle");
  if (status != Status::ok) return status;
  try {
    pieces_.emplace(piece, Piece{bytes, 0});
  } catch (const std::exception&) {
    insist([&] { return api_.physical_release(piece); });
    return no_records();
  }
  out = Physical{piece};
  return Status::ok;
}

}  // namespace cistern::drivers::cuda
