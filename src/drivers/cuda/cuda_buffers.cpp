// Memory that is not mapped by pieces: segments, host memory, memory of others, and the device's pool.
#include <algorithm>
#include <exception>

#include "drivers/cuda/cuda_device.hpp"

namespace cistern::drivers::cuda {
namespace {

// Bytes that nobody has, refused without a call: the vendor's call would only say that the number is wrong.
constexpr std::size_t kTooMany = SIZE_MAX / 2;

Status too_many(std::size_t bytes) {
  set_last_error("%zu bytes are more than any memory has", bytes);
  return Status::out_of_memory;
}

}  // namespace

Status CudaDriver::create_segment(std::size_t bytes, Segment& out) {
  if (capabilities_.virtual_memory || capabilities_.whole_buffers) {
    set_last_error("this CUDA device is used without segments");
    return Status::unsupported;
  }
  if (!whole(bytes)) return failed("create_segment: not a multiple of the granularity");
  if (bytes > capabilities_.total_memory) return too_many(bytes);
  const Entered entered(api_, context_);
  if (!entered.ok()) return entered.status();
  DevicePtr base = 0;
  const Status status = call(api_.memory_allocate(&base, bytes), "cuMemAlloc");
  if (status != Status::ok) return status;
  try {
    segments_.insert(base);
  } catch (const std::exception&) {
    insist([&] { return api_.memory_free(base); });
    return no_records();
  }
  out = {pointer(base), base, bytes};
  return Status::ok;
}

Status CudaDriver::destroy_segment(const Segment& segment) {
  if (!segments_.contains(segment.base)) return failed("destroy_segment: no such segment");
  const Entered entered(api_, context_);
  if (!entered.ok() && !gone(entered.result())) return entered.status();
  const Status status = entered.ok() ? give_back(api_.memory_free(segment.base), "cuMemFree") : Status::ok;
  if (status == Status::ok) segments_.erase(segment.base);
  return status;
}

Status CudaDriver::create_object(const Segment&, std::size_t, std::size_t, void*&) {
  set_last_error("CUDA has no use for objects: an address is enough");
  return Status::unsupported;
}

void CudaDriver::block_layout(std::size_t bytes, std::size_t& size, std::size_t& alignment) const {
  const std::size_t low = capabilities_.alignment - 1;
  size = bytes > SIZE_MAX - low ? SIZE_MAX & ~low : (bytes + low) & ~low;
  alignment = capabilities_.alignment;
}

Status CudaDriver::allocate_host(HostKind kind, std::size_t bytes, void*& out) {
  if (bytes >= kTooMany) return too_many(bytes);
  const Entered entered(api_, context_);
  if (!entered.ok()) return entered.status();
  const std::size_t size = std::max<std::size_t>(bytes, 1);  // An empty buffer has an address of its own, too.
  if (kind == HostKind::unified && managed_) {
    DevicePtr memory = 0;
    const Status status = call(api_.managed_allocate(&memory, size, kAttachGlobal), "cuMemAllocManaged");
    if (status == Status::ok) out = pointer(memory);
    return status;
  }
  void* memory = nullptr;
  const Status status = call(api_.host_allocate(&memory, size, kHostPortable | kHostDeviceMap), "cuMemHostAlloc");
  if (status == Status::ok) out = memory;
  return status;
}

Status CudaDriver::free_host(HostKind kind, void* ptr, std::size_t) {
  const Entered entered(api_, context_);
  if (!entered.ok()) return gone(entered.result()) ? Status::ok : entered.status();
  if (kind == HostKind::unified && managed_) return give_back(api_.memory_free(address_of(ptr)), "cuMemFree");
  return give_back(api_.host_free(ptr), "cuMemFreeHost");
}

// What we registered around [at, at + bytes), or end().
std::map<Address, CudaDriver::Registered>::iterator CudaDriver::registered_around(Address at, std::size_t bytes) {
  auto found = registered_.upper_bound(at);
  if (found == registered_.begin()) return registered_.end();
  --found;
  const std::size_t offset = at - found->first;
  return offset < found->second.bytes && bytes <= found->second.bytes - offset ? found : registered_.end();
}

// pre: mutex_ is held. `registered` may be 0.
void CudaDriver::end_wrap(Address registered) {
  const auto found = registered_.find(registered);
  if (found == registered_.end() || --found->second.wraps != 0) return;
  registered_.erase(found);
  insist([&] { return api_.host_unregister(pointer(registered)); });
}

Status CudaDriver::wrap(void* ptr, std::size_t bytes, void*& object) {
  if (ptr == nullptr || bytes == 0) return failed("wrap: there is no memory to wrap");
  const Entered entered(api_, context_);
  if (!entered.ok()) return entered.status();
  const std::lock_guard lock(mutex_);
  const Address at = address_of(ptr);
  DevicePtr seen = 0;
  Address registered = 0;
  try {
    count_call();
    const Result result = api_.pointer_attribute(&seen, kPointerDeviceAddress, at);
    if (result != kSuccess || seen == 0) {
      if (gone(result)) return report(api_, result, "cuPointerGetAttribute");
      // Host memory that CUDA has not seen yet.
      const auto entry = registered_.emplace(at, Registered{bytes, 1}).first;
      const Status status = call(api_.host_register(ptr, bytes, kHostPortable | kHostDeviceMap), "cuMemHostRegister");
      if (status != Status::ok) {
        registered_.erase(entry);
        return status;
      }
      registered = at;
      const Status shown = call(api_.host_device_pointer(&seen, ptr, 0), "cuMemHostGetDevicePointer");
      if (shown != Status::ok) {
        end_wrap(registered);
        return shown;
      }
    } else if (const auto around = registered_around(at, 1); around != registered_.end()) {
      // The device would reach only a part of it, and the vendor registers no memory twice.
      if (registered_around(at, bytes) != around) return failed("wrap: a part of the memory is wrapped already");
      registered = around->first;
      ++around->second.wraps;
    }
    Wrap& entry = wraps_[pointer(seen)];
    entry.registered = registered;
    ++entry.count;
  } catch (const std::exception&) {
    end_wrap(registered);
    return no_records();
  }
  object = pointer(seen);
  return Status::ok;
}

void CudaDriver::unwrap(void* object) {
  const std::lock_guard lock(mutex_);
  const auto found = wraps_.find(object);
  if (found == wraps_.end()) return;
  const Address registered = found->second.registered;
  if (--found->second.count == 0) wraps_.erase(found);
  // Nobody calls again for this memory, so a failure is not left at that.
  for (int attempt = 0; attempt < 2; ++attempt) {
    const Entered entered(api_, context_);
    if (!entered.ok()) continue;
    end_wrap(registered);
    return;
  }
}

Status CudaDriver::allocate_ordered(std::size_t bytes, void* native, Address& out) {
  if (!capabilities_.ordered_buffers) {
    set_last_error("this CUDA device is used without its pool");
    return Status::unsupported;
  }
  if (bytes > capabilities_.total_memory) return too_many(bytes);
  const Entered entered(api_, context_);
  if (!entered.ok()) return entered.status();
  const Stream stream = stream_of(native);
  // On a stream that is captured it would become a node of the graph, with an address that lives as long as that.
  if (const Status status = check_capture(stream); status != Status::ok) return status;
  DevicePtr memory = 0;
  const Status status = call(api_.allocate_async(&memory, std::max<std::size_t>(bytes, 1), stream), "cuMemAllocAsync");
  if (status == Status::ok) out = memory;
  return status;
}

Status CudaDriver::free_ordered(Address at, void* native) {
  if (!capabilities_.ordered_buffers) return failed("free_ordered: this CUDA device is used without its pool");
  const Entered entered(api_, context_);
  if (!entered.ok()) return gone(entered.result()) ? Status::ok : entered.status();
  const Stream stream = stream_of(native);
  if (const Status status = check_capture(stream); status != Status::ok) return status;
  return give_back(api_.free_async(at, stream), "cuMemFreeAsync");
}

Status CudaDriver::pool_figures(PoolFigures& out) {
  if (pool_ == nullptr) return Status::unsupported;
  const Entered entered(api_, context_);
  if (!entered.ok()) return entered.status();
  std::uint64_t reserved = 0;
  std::uint64_t used = 0;
  Status status = call(api_.pool_get(pool_, kReservedNow, &reserved), "cuMemPoolGetAttribute");
  if (status == Status::ok) status = call(api_.pool_get(pool_, kUsedNow, &used), "cuMemPoolGetAttribute");
  if (status == Status::ok) out = {reserved, used};
  return status;
}

Status CudaDriver::trim_pool(std::size_t keep) {
  if (pool_ == nullptr) return Status::unsupported;
  const Entered entered(api_, context_);
  if (!entered.ok()) return gone(entered.result()) ? Status::ok : entered.status();
  return give_back(api_.pool_trim(pool_, keep), "cuMemPoolTrimTo");
}

Status CudaDriver::memory_info(std::size_t& free, std::size_t& total) {
  const Entered entered(api_, context_);
  if (!entered.ok()) return entered.status();
  std::size_t free_now = 0;
  std::size_t all = 0;
  const Status status = call(api_.memory_info(&free_now, &all), "cuMemGetInfo");
  if (status != Status::ok) return status;
  free = free_now;
  total = all;
  return Status::ok;
}

}  // namespace cistern::drivers::cuda
