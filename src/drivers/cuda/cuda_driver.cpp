// Start and end of the driver, its streams, events and bytes.
#include "drivers/cuda/cuda_driver.hpp"

#include <array>
#include <exception>

#include "drivers/cpu/host_memory.hpp"
#include "drivers/cuda/cuda_device.hpp"
#include "drivers/cuda/cuda_loader.hpp"

namespace cistern::drivers {
namespace cuda {
namespace {

constexpr std::size_t kAlignment = 512;  // Bytes; what kernels and the vendor's libraries expect.
constexpr std::size_t kSegmentGranularity = std::size_t{2} << 20;  // Bytes; a page of the device.
// Sets ids that are made here apart from those of cuStreamGetId() and of other drivers.
constexpr std::uint64_t kOwnId = std::uint64_t{1} << 62;
constexpr std::uint64_t kPerThreadId = std::uint64_t{1} << 61;
constexpr std::uint64_t kNumberedId = std::uint64_t{1} << 60;

std::uint64_t thread_number() {
  static constinit std::atomic<std::uint64_t> next{1};
  thread_local const std::uint64_t number = next.fetch_add(1, std::memory_order_relaxed);
  return number;
}

std::uint64_t next_number() {
  static constinit std::atomic<std::uint64_t> next{1};
  return kOwnId | kNumberedId | next.fetch_add(1, std::memory_order_relaxed);
}

EventHandle handle_of(Event event) { return static_cast<EventHandle>(pointer(static_cast<Address>(event))); }

// Whether the device has it; false, too, for a property that the driver does not know yet.
Result ask(const CudaApi& api, Attribute which, DeviceNumber device, bool& has) {
  int value = 0;
  const Result result = api.device_attribute(&value, which, device);
  has = result == kSuccess && value != 0;
  return result == kInvalidValue ? kSuccess : result;
}

}  // namespace

CudaDriver::CudaDriver(const CudaApi& api, int index, const CudaConfig& config)
    : api_(api), index_(index), config_(config) {}

bool CudaDriver::start() {
  {
    const Entered entered(api_, nullptr);
    if (!entered.ok()) return false;
    if (call(api_.device(&device_, index_), "cuDeviceGet") != Status::ok) return false;
    if (call(api_.primary_retain(&context_, device_), "cuDevicePrimaryCtxRetain") != Status::ok) return false;
    retained_ = true;
  }
  const Entered entered(api_, context_);
  return entered.ok() && ask_attributes() && choose_unified() && start_virtual_memory() && start_pool() &&
         asked_ == Status::ok;
}

CudaDriver::~CudaDriver() {
  if (!retained_ || forked()) return;
  {
    const Entered entered(api_, context_);
    if (gone(entered.result())) return;
    for (const EventHandle event : events_) api_.event_destroy(event);
    if (threshold_set_) api_.pool_set(pool_, kReleaseThreshold, &previous_threshold_);
  }
  for (const DeviceNumber peer : peers_) api_.primary_release(peer);
  api_.primary_release(device_);
}

// What could not be asked is kept in asked_: a device that does not answer is not one that cannot.
bool CudaDriver::has(Attribute which, DeviceNumber device) {
  bool out = false;
  const Status status = call(ask(api_, which, device, out), "cuDeviceGetAttribute");
  if (status != Status::ok) asked_ = status;
  return out;
}

// Counts a call and keeps what went wrong.
Status CudaDriver::call(Result result, const char* name) {
  count_call();
  return result == kSuccess ? Status::ok : report(api_, result, name);
}

// The same for calls that give something back: there is nothing left to give when the driver has ended.
Status CudaDriver::give_back(Result result, const char* name) { return call(gone(result) ? kSuccess : result, name); }

bool CudaDriver::ask_attributes() {
  std::array<char, 256> text{};
  std::size_t total = 0;
  if (call(api_.device_name(text.data(), static_cast<int>(text.size()) - 1, device_), "cuDeviceGetName") !=
          Status::ok ||
      call(api_.device_total(&total, device_), "cuDeviceTotalMem") != Status::ok) {
    return false;
  }
  capabilities_.name = text.data();
  capabilities_.total_memory = total;
  capabilities_.max_buffer = total;
  capabilities_.granularity = kSegmentGranularity;
  capabilities_.alignment = kAlignment;
  capabilities_.virtual_memory = false;
  capabilities_.double_mapping = false;
  capabilities_.host_accessible = false;
  capabilities_.asynchronous = true;
  capabilities_.can_copy = true;
  access_.push_back({{kDeviceLocation, device_}, kAccessReadWrite});
  return true;
}

bool CudaDriver::choose_unified() {
  if (config_.unified == CudaUnified::managed) {
    managed_ = has(kManagedMemory, device_);
    if (!managed_) set_last_error("%s has no managed memory", capabilities_.name.c_str());
    return managed_;
  }
  if (config_.unified == CudaUnified::pinned || config_.mode == CudaMode::pinned_host) return true;
  int devices = 0;
  if (call(api_.device_count(&devices), "cuDeviceGetCount") != Status::ok) return false;
  managed_ = true;
  for (int i = 0; i < devices && managed_; ++i) {
    DeviceNumber device = 0;
    if (call(api_.device(&device, i), "cuDeviceGet") != Status::ok) return false;
    managed_ = has(kConcurrentManagedAccess, device);
  }
  return true;
}

bool CudaDriver::start_virtual_memory() {
  if (config_.mode != CudaMode::automatic && config_.mode != CudaMode::virtual_memory) return true;
  bool works = api_.has_virtual_memory() && has(kVirtualMemorySupported, device_);
  if (works) {
    capabilities_.exportable =
        has(kPosixHandlesSupported, device_) && api_.export_handle != nullptr && api_.import_handle != nullptr;
    capabilities_.rdma = has(kRdmaWithVirtualMemory, device_);
    // What a device says it can do, a container or a virtual machine may still refuse: ask for less until it works.
    for (;;) {
      const AllocationProperties wanted = properties();
      std::size_t granularity = 0;
      PhysicalHandle piece = 0;
      count_call(2);
      Result result = api_.granularity(&granularity, &wanted, kMinimumGranularity);
      if (result == kSuccess) result = api_.physical_create(&piece, granularity, &wanted, 0);
      if (result == kSuccess) insist([&] { return api_.physical_release(piece); });
      // A full device says nothing about what it can do.
      if (result == kSuccess || (result == kOutOfMemory && granularity != 0)) {
        capabilities_.granularity = granularity;
        break;
      }
      report(api_, result, "cuMemCreate");
      if (capabilities_.rdma) {
        capabilities_.rdma = false;
      } else if (capabilities_.exportable) {
        capabilities_.exportable = false;
      } else {
        works = false;
        break;
      }
    }
  }
  if (!works && config_.mode == CudaMode::virtual_memory) {
    set_last_error("%s has no virtual memory management", capabilities_.name.c_str());
    return false;
  }
  capabilities_.virtual_memory = works;
  capabilities_.double_mapping = works;
  return true;
}

void CudaDriver::start_pinned() {
  if (config_.mode != CudaMode::pinned_host) return;
  capabilities_.total_memory = capabilities_.max_buffer = usable_memory();
  capabilities_.name += ", pinned host memory";
  capabilities_.whole_buffers = true;
}

bool CudaDriver::start_pool() {
  start_pinned();
  if (config_.mode != CudaMode::stream_ordered) return true;
  if (!api_.has_pools() || !has(kMemoryPoolsSupported, device_)) {
    set_last_error("%s has no memory pools", capabilities_.name.c_str());
    return false;
  }
  std::uint64_t threshold = config_.release_threshold;
  if (call(api_.default_pool(&pool_, device_), "cuDeviceGetDefaultMemPool") != Status::ok ||
      call(api_.pool_get(pool_, kReleaseThreshold, &previous_threshold_), "cuMemPoolGetAttribute") != Status::ok ||
      call(api_.pool_set(pool_, kReleaseThreshold, &threshold), "cuMemPoolSetAttribute") != Status::ok) {
    return false;
  }
  threshold_set_ = true;
  capabilities_.whole_buffers = true;
  capabilities_.ordered_buffers = true;
  return true;
}

// Announced captures of the device: to one of its drivers, but a wait of any would end them.
std::atomic<int>& CudaDriver::captures() const {
  static constinit std::array<std::atomic<int>, 64> of_devices{};
  return of_devices[static_cast<std::size_t>(index_) % of_devices.size()];
}

// Whether work may be submitted to the stream, or its end be asked for, without ending a capture.
Status CudaDriver::check_capture(Stream stream) {
  int state = kCaptureNone;
  const Result result = api_.stream_capturing(stream, &state);
  if (result != kSuccess) return call(result, "cuStreamIsCapturing");
  count_call();
  if (state == kCaptureNone) return Status::ok;
  set_last_error("the stream is being captured into a graph");
  return Status::capturing;
}

// Whether the stream belongs to this device; sets the error text when it does not.
bool CudaDriver::check_device(Stream stream) {
  const Entered entered(api_, context_);
  if (!entered.ok()) return false;
  Context owner = nullptr;
  if (call(api_.stream_context(stream, &owner), "cuStreamGetCtx") != Status::ok) return false;
  if (owner == context_) return true;
  DeviceNumber device = 0;
  const Entered in_owner(api_, owner);
  if (!in_owner.ok() || call(api_.context_device(&device), "cuCtxGetDevice") != Status::ok) return false;
  if (device == device_) return true;
  set_last_error("the stream belongs to CUDA device %d, not to device %d", device, device_);
  return false;
}

// The id that the handle had before its capture. A stream that was never seen gets a number of ours.
std::uint64_t CudaDriver::captured_id(void* native) {
  const std::lock_guard lock(mutex_);
  if (const auto found = last_ids_.find(native); found != last_ids_.end()) return found->second;
  const auto [entry, fresh] = numbers_.try_emplace(native, 0);
  if (fresh) entry->second = next_number();
  return entry->second;
}

std::uint64_t CudaDriver::stream_id(void* native) {
  const Stream stream = stream_of(native);
  const auto index = static_cast<std::uint64_t>(static_cast<unsigned>(index_));
  if (is_per_thread(native)) return kOwnId | kPerThreadId | thread_number() << 16 | index;
  if (stream == nullptr) return kOwnId | index;
  if (forked()) {
    const Entered says_why(api_, context_);
    return 0;
  }
  try {
    // Asking a stream that is being captured for its id or its context would end the capture, also one that was
    // announced to another driver of the device, or to nobody.
    {
      const Entered entered(api_, context_);
      const Status status = entered.ok() ? check_capture(stream) : entered.status();
      if (status == Status::capturing) return captured_id(native);
      if (status != Status::ok) return 0;
    }
    if (api_.stream_number == nullptr) {
      const std::lock_guard lock(mutex_);
      const auto found = numbers_.find(native);
      if (found != numbers_.end()) return found->second;
      if (!check_device(stream)) return 0;
      return numbers_[native] = next_number();
    }
    unsigned long long id = 0;
    if (call(api_.stream_number(stream, &id), "cuStreamGetId") != Status::ok) return 0;
    const std::lock_guard lock(mutex_);
    const auto known = shown_ids_.find(id);
    if (known != shown_ids_.end()) return last_ids_[native] = known->second;
    if (!check_device(stream)) return 0;
    // A stream that was first seen in its capture keeps the number that it got there.
    const auto number = numbers_.extract(native);
    return last_ids_[native] = shown_ids_[id] = number.empty() ? id : number.mapped();
  } catch (const std::exception&) {
    no_records();
    return 0;
  }
}

bool CudaDriver::shared_handle(void* native) const { return is_per_thread(native); }

// A stream that does not say is taken for one.
bool CudaDriver::blocking(void* native) {
  const Entered entered(api_, context_);
  unsigned flags = 0;
  return !entered.ok() || call(api_.stream_flags(stream_of(native), &flags), "cuStreamGetFlags") != Status::ok ||
         (flags & kStreamNonBlocking) == 0;
}

void CudaDriver::forget_stream(void* native, std::uint64_t id) {
  const std::lock_guard lock(mutex_);
  std::erase_if(shown_ids_, [&](const auto& shown) { return shown.second == id; });
  for (auto* ids : {&last_ids_, &numbers_}) {
    const auto found = ids->find(native);
    if (found != ids->end() && found->second == id) ids->erase(found);
  }
}

void* CudaDriver::make_stream() {
  const Entered entered(api_, context_);
  Stream out = nullptr;
  if (!entered.ok() || call(api_.stream_create(&out, kStreamNonBlocking), "cuStreamCreate") != Status::ok)
    return nullptr;
  return out;
}

void CudaDriver::drop_stream(void* native) {
  const Entered entered(api_, context_);
  if (native != nullptr && entered.ok()) give_back(api_.stream_destroy(stream_of(native)), "cuStreamDestroy");
}

// An event that became part of a capture would end it when it is asked for: a thread may begin one at any time, so the
// stream is asked before and after. pre: the context is current.
Status CudaDriver::record_now(Stream stream, Event& out) {
  if (const Status status = check_capture(stream); status != Status::ok) return status;
  EventHandle event = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (!events_.empty()) {
      event = events_.back();
      events_.pop_back();
    }
  }
  if (event == nullptr) {
    const Status made = call(api_.event_create(&event, kEventDisableTiming), "cuEventCreate");
    if (made != Status::ok) return made;
  }
  Status status = call(api_.event_record(event, stream), "cuEventRecord");
  if (status == Status::ok) status = check_capture(stream);
  if (status == Status::ok) {
    out = static_cast<Event>(address_of(event));
  } else {
    give_back(api_.event_destroy(event), "cuEventDestroy");
  }
  return status;
}

// pre: the context is current.
Status CudaDriver::order_now(Stream earlier, Stream later) {
  Event event = Event::none;
  if (const Status status = record_now(earlier, event); status != Status::ok) return status;
  const Status status = call(api_.stream_wait(later, handle_of(event), 0), "cuStreamWaitEvent");
  release(event);
  return status;
}

// Before an event stands for the streams of all threads: a wait in the legacy stream comes after their work; that an
// event alone does is not said. pre: the context is current.
Status CudaDriver::gather_threads(void* native) {
  return is_per_thread(native) ? order_now(stream_of(native), stream_of(native)) : Status::ok;
}

Status CudaDriver::record(void* native, Event& out) {
  const Entered entered(api_, context_);
  if (!entered.ok()) return entered.status();
  if (const Status status = gather_threads(native); status != Status::ok) return status;
  return record_now(stream_of(native), out);
}

Status CudaDriver::order(void* earlier, void* later) {
  const Entered entered(api_, context_);
  if (!entered.ok()) return entered.status();
  const Stream to = stream_of(later);
  if (const Status status = check_capture(to); status != Status::ok) return status;
  if (const Status status = gather_threads(earlier); status != Status::ok) return status;
  return order_now(stream_of(earlier), to);
}

Status CudaDriver::wait(void* native, Event event) {
  if (event == Event::none) return Status::ok;
  const Entered entered(api_, context_);
  if (!entered.ok()) return entered.status();
  const Stream stream = stream_of(native);
  if (const Status status = check_capture(stream); status != Status::ok) return status;
  return call(api_.stream_wait(stream, handle_of(event), 0), "cuStreamWaitEvent");
}

bool CudaDriver::passed(Event event) {
  if (event == Event::none) return true;
  const Entered entered(api_, context_);
  // Where nothing runs any more nothing is pending.
  if (!entered.ok()) return forked() || gone(entered.result());
  count_call();
  const Result result = api_.event_query(handle_of(event));
  if (result == kSuccess) return true;
  if (result == kNotReady) return false;
  report(api_, result, "cuEventQuery");
  return gone(result) || broken(result);
}

Status CudaDriver::synchronize(Event event) {
  if (event == Event::none) return Status::ok;
  const Entered entered(api_, context_);
  if (!entered.ok()) return gone(entered.result()) ? Status::ok : entered.status();
  return give_back(api_.event_synchronize(handle_of(event)), "cuEventSynchronize");
}

Status CudaDriver::synchronize_device() {
  const Entered entered(api_, context_);
  if (!entered.ok()) return gone(entered.result()) ? Status::ok : entered.status();
  if (captures().load(std::memory_order_relaxed) != 0) {
    set_last_error("a stream of the device is being captured into a graph");
    return Status::capturing;
  }
  // Not every capture is announced; the legacy stream knows of those on streams that it synchronises with.
  if (const Status status = check_capture(nullptr); status == Status::capturing) return status;
  return give_back(api_.context_synchronize(), "cuCtxSynchronize");
}

void CudaDriver::release(Event event) {
  if (event == Event::none) return;
  try {
    const std::lock_guard lock(mutex_);
    events_.push_back(handle_of(event));
  } catch (const std::exception&) {
    const Entered entered(api_, context_);
    if (entered.ok()) give_back(api_.event_destroy(handle_of(event)), "cuEventDestroy");
  }
}

Status CudaDriver::copy(Address to, Address from, std::size_t bytes, void* native) {
  if (bytes == 0) return Status::ok;
  const Entered entered(api_, context_);
  if (!entered.ok()) return entered.status();
  const Stream stream = stream_of(native);
  // It would be made again at each launch of the graph.
  if (const Status status = check_capture(stream); status != Status::ok) return status;
  return call(api_.copy_async(to, from, bytes, stream), "cuMemcpyAsync");
}

Status CudaDriver::fill(Address at, std::uint8_t value, std::size_t bytes, void* native) {
  if (bytes == 0) return Status::ok;
  const Entered entered(api_, context_);
  if (!entered.ok()) return entered.status();
  const Stream stream = stream_of(native);
  if (stream == nullptr) {
    if (const Status status = check_capture(stream); status != Status::ok) return status;
  }
  return call(api_.fill_async(at, value, bytes, stream), "cuMemsetD8Async");
}

Status CudaDriver::set_wired_limit(std::size_t) {
  set_last_error("CUDA has no use for a wired limit");
  return Status::unsupported;
}

}  // namespace cuda
}  // namespace cistern::drivers
