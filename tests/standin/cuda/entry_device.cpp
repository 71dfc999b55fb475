// Entry points: start, errors, devices, contexts, and the way to all of them.
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "standin/cuda/entry.hpp"

using namespace cistern::standin;

namespace {

struct ErrorName {
  Result result;
  const char* name;
  const char* text;
};
constexpr ErrorName kErrors[] = {
    {kSuccess, "CUDA_SUCCESS", "no error"},
    {kInvalidValue, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {kOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {kNotInitialized, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {kDeinitialized, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {kNoDevice, "CUDA_ERROR_NO_DEVICE", "no device is there"},
    {kInvalidDevice, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {kInvalidContext, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {kInvalidHandle, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {kNotFound, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {kNotReady, "CUDA_ERROR_NOT_READY", "device not ready"},
    {kIllegalAddress, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {kPeerAccessAlreadyEnabled, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access is already enabled"},
    {kContextIsDestroyed, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {kHostMemoryAlreadyRegistered, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "memory is already registered"},
    {kHostMemoryNotRegistered, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "memory was never registered"},
    {kNotPermitted, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {kNotSupported, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {kCaptureUnsupported, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "not permitted when a stream is capturing"},
    {kCaptureInvalidated, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "the capture failed earlier"},
    {kCaptureUnmatched, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "the capture began in another stream"},
    {kCaptureUnjoined, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "a stream was not joined to the first one"},
    {kCaptureIsolation, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "dependency on work outside of the capture"},
    {kCaptureImplicit, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "the legacy stream depends on a capturing stream"},
    {kCapturedEvent, "CUDA_ERROR_CAPTURED_EVENT", "the event was recorded in a capture"},
    {kCaptureWrongThread, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", "the capture began in another thread"},
};

const ErrorName* find_error(Result result) {
  const auto* const found =
      std::find_if(std::begin(kErrors), std::end(kErrors), [&](const ErrorName& e) { return e.result == result; });
  return found == std::end(kErrors) ? nullptr : found;
}

Device* device_at(State& s, int index) {
  return index < 0 || index >= static_cast<int>(s.devices.size()) ? nullptr
                                                                  : s.devices[static_cast<std::size_t>(index)].get();
}

int attribute(const State& s, int which) {
  const auto has = [&](const char* name) { return s.config.without.contains(name) ? 0 : 1; };
  switch (which) {
    case kUnifiedAddressing:
      return 1;
    case kComputeCapabilityMajor:
      return 9;
    case kManagedMemory:
      return has("managed");
    case kConcurrentManagedAccess:
      return has("managed") * has("concurrent");
    case kVirtualMemorySupported:
      return has("virtual_memory");
    case kPosixHandlesSupported:
      return has("posix");
    case kRdmaWithVirtualMemory:
      return has("rdma");
    case kMemoryPoolsSupported:
      return has("pools");
    default:
      return 0;
  }
}

// Entry points that test programs use and the driver does not, by the version in which they appeared.
struct More {
  const char* name;
  int version;
  const char* symbol;
};
constexpr More kMore[] = {
    {"cuStreamBeginCapture", 10010, "cuStreamBeginCapture_v2"},
    {"cuStreamEndCapture", 10000, "cuStreamEndCapture"},
    {"cuGraphInstantiateWithFlags", 11040, "cuGraphInstantiateWithFlags"},
    {"cuGraphLaunch", 10000, "cuGraphLaunch"},
    {"cuGraphDestroy", 10000, "cuGraphDestroy"},
    {"cuGraphExecDestroy", 10000, "cuGraphExecDestroy"},
    {"cuLaunchHostFunc", 10000, "cuLaunchHostFunc"},
    {"cuStreamQuery", 2000, "cuStreamQuery"},
};

}  // namespace

CISTERN_ENTRY cuInit(unsigned flags) {
  Call call("cuInit", Call::before_init);
  if (call.result != kSuccess) return call.result;
  if (flags != 0) return kInvalidValue;
  if (call.s.config.devices <= 0) return kNoDevice;
  start(call.s);
  return kSuccess;
}

CISTERN_ENTRY cuDriverGetVersion(int* version) {
  Call call("cuDriverGetVersion", Call::before_init);
  if (call.result != kSuccess) return call.result;
  *version = call.s.config.version;
  return kSuccess;
}

CISTERN_ENTRY cuGetErrorName(Result result, const char** name) {
  const ErrorName* const found = find_error(result);
  *name = found == nullptr ? nullptr : found->name;
  return found == nullptr ? kInvalidValue : kSuccess;
}

CISTERN_ENTRY cuGetErrorString(Result result, const char** text) {
  const ErrorName* const found = find_error(result);
  *text = found == nullptr ? nullptr : found->text;
  return found == nullptr ? kInvalidValue : kSuccess;
}

CISTERN_ENTRY cuDeviceGetCount(int* count) {
  Call call("cuDeviceGetCount", Call::plain);
  if (call.result == kSuccess) *count = static_cast<int>(call.s.devices.size());
  return call.result;
}

CISTERN_ENTRY cuDeviceGet(DeviceNumber* device, int index) {
  Call call("cuDeviceGet", Call::plain);
  if (call.result != kSuccess) return call.result;
  if (device_at(call.s, index) == nullptr) return kInvalidDevice;
  *device = index;
  return kSuccess;
}

CISTERN_ENTRY cuDeviceGetName(char* name, int bytes, DeviceNumber device) {
  Call call("cuDeviceGetName", Call::plain);
  if (call.result != kSuccess) return call.result;
  if (device_at(call.s, device) == nullptr) return kInvalidDevice;
  std::snprintf(name, static_cast<std::size_t>(bytes), "Stand-in GPU %d", device);
  return kSuccess;
}

CISTERN_ENTRY cuDeviceTotalMem_v2(std::size_t* bytes, DeviceNumber device) {
  Call call("cuDeviceTotalMem", Call::plain);
  if (call.result != kSuccess) return call.result;
  const Device* const found = device_at(call.s, device);
  if (found == nullptr) return kInvalidDevice;
  *bytes = found->memory.total();
  return kSuccess;
}

CISTERN_ENTRY cuDeviceGetAttribute(int* value, int which, DeviceNumber device) {
  Call call("cuDeviceGetAttribute", Call::plain);
  if (call.result != kSuccess) return call.result;
  if (device_at(call.s, device) == nullptr) return kInvalidDevice;
  *value = attribute(call.s, which);
  return kSuccess;
}

CISTERN_ENTRY cuDeviceCanAccessPeer(int* can, DeviceNumber device, DeviceNumber peer) {
  Call call("cuDeviceCanAccessPeer", Call::plain);
  if (call.result != kSuccess) return call.result;
  if (device_at(call.s, device) == nullptr || device_at(call.s, peer) == nullptr) return kInvalidDevice;
  *can = device != peer && !call.s.config.without.contains("peers") ? 1 : 0;
  return kSuccess;
}

CISTERN_ENTRY cuDevicePrimaryCtxRetain(Context* context, DeviceNumber device) {
  Call call("cuDevicePrimaryCtxRetain", Call::unsafe);
  if (call.result != kSuccess) return call.result;
  Device* const found = device_at(call.s, device);
  if (found == nullptr) return kInvalidDevice;
  ++found->context.retained;
  *context = &found->context;
  return kSuccess;
}

CISTERN_ENTRY cuDevicePrimaryCtxRelease_v2(DeviceNumber device) {
  Call call("cuDevicePrimaryCtxRelease", Call::never_fails);
  if (call.result != kSuccess) return call.result;
  Device* const found = device_at(call.s, device);
  if (found == nullptr) return kInvalidDevice;
  if (found->context.retained == 0) {
    return violation(call.s, kInvalidContext, "cuDevicePrimaryCtxRelease: the context is not held");
  }
  --found->context.retained;
  return kSuccess;
}

CISTERN_ENTRY cuCtxPushCurrent_v2(Context context) {
  Call call("cuCtxPushCurrent", Call::plain);
  if (call.result != kSuccess) return call.result;
  for (const auto& device : call.s.devices) {
    if (&device->context != context || context->retained == 0) continue;
    this_thread().contexts.push_back(context);
    return kSuccess;
  }
  return violation(call.s, kInvalidContext, "cuCtxPushCurrent: there is no context %p", static_cast<void*>(context));
}

CISTERN_ENTRY cuCtxPopCurrent_v2(Context* context) {
  Call call("cuCtxPopCurrent", Call::never_fails);
  if (call.result != kSuccess) return call.result;
  auto& contexts = this_thread().contexts;
  if (contexts.empty()) return violation(call.s, kInvalidContext, "cuCtxPopCurrent: there is no current context");
  if (context != nullptr) *context = contexts.back();
  contexts.pop_back();
  return kSuccess;
}

CISTERN_ENTRY cuCtxGetCurrent(Context* context) {
  Call call("cuCtxGetCurrent", Call::plain);
  if (call.result != kSuccess) return call.result;
  const auto& contexts = this_thread().contexts;
  *context = contexts.empty() ? nullptr : contexts.back();
  return kSuccess;
}

CISTERN_ENTRY cuCtxGetDevice(DeviceNumber* device) {
  Call call("cuCtxGetDevice", Call::context);
  if (call.result == kSuccess) *device = call.device->index;
  return call.result;
}

CISTERN_ENTRY cuCtxSynchronize() {
  Call call("cuCtxSynchronize", Call::context | Call::unsafe);
  if (call.result != kSuccess) return call.result;
  // Not even the relaxed mode allows this.
  for (const auto& [id, capture] : call.s.captures) {
    if (capture.device == call.device->index)
      call.result = break_capture(call.s, id, kCaptureUnsupported, "cuCtxSynchronize");
  }
  if (call.result != kSuccess) return call.result;
  wait_for_device(call.s, call.lock, call.device->index);
  PoolState& pool = call.device->pool;
  if (pool.reserved > pool.threshold) pool_trim(call.s, *call.device, pool.threshold);
  return call.device->error;
}

CISTERN_ENTRY cuCtxEnablePeerAccess(Context peer, unsigned) {
  Call call("cuCtxEnablePeerAccess", Call::context | Call::unsafe);
  if (call.result != kSuccess) return call.result;
  State& s = call.s;
  if (peer == nullptr || device_at(s, peer->device) == nullptr || peer == &call.device->context) return kInvalidContext;
  const std::uint64_t bit = std::uint64_t{1} << call.device->index;
  Device& owner = *s.devices[static_cast<std::size_t>(peer->device)];
  if ((owner.peers & bit) != 0) return kPeerAccessAlreadyEnabled;
  owner.peers |= bit;
  for (auto& [at, region] : s.regions.all()) {
    if (region.kind == Kind::allocated && region.backing->device == peer->device) region.access |= bit;
  }
  return kSuccess;
}

CISTERN_ENTRY cuGetProcAddress_v2(const char* name, void** function, int version, unsigned long long flags,
                                  int* status) {
  constexpr int kNoSymbol = 1, kTooOld = 2;
  int have = 0;
  {
    Call call("cuGetProcAddress", Call::before_init | Call::never_fails);
    if (call.result != kSuccess) return call.result;
    have = call.s.config.version;
  }
  *function = nullptr;
  int found_status = kNoSymbol;
  if (version > have || (flags & ~3ULL) != 0) return kInvalidValue;
  const auto offer = [&](const char* known, int since, const char* symbol) {
    if (std::strcmp(name, known) != 0) return;
    if (since > have || since > version) {
      found_status = kTooOld;
      return;
    }
    // The library is loaded locally, so it looks into itself.
    Dl_info self{};
    if (dladdr(reinterpret_cast<void*>(&cuInit), &self) == 0) return;
    void* const me = dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    if (me == nullptr) return;
    *function = dlsym(me, symbol);
    dlclose(me);
    found_status = *function != nullptr ? 0 : kNoSymbol;
  };
#define CISTERN_OFFER(member, known, since, symbol, need, ...) offer(known, since, symbol);
  CISTERN_CUDA_ENTRY_POINTS(CISTERN_OFFER)
#undef CISTERN_OFFER
  for (const More& more : kMore) offer(more.name, more.version, more.symbol);
  if (status != nullptr) *status = found_status;
  return kSuccess;
}
