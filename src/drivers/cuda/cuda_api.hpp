// The part of the CUDA driver's binary interface that Cistern uses: types, numbers and a table of entry points. These
// are own declarations, so that no toolkit is needed to build; the interface is stable, each entry point by its
// version. Makes no call. Used by the CUDA driver and by the stand-in of the tests. Constant after loading: no locking.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cistern::drivers::cuda {

using Result = int;
using DeviceNumber = int;
using DevicePtr = unsigned long long;
using PhysicalHandle = unsigned long long;
struct ContextObject;
struct StreamObject;
struct EventObject;
struct PoolObject;
using Context = ContextObject*;
using Stream = StreamObject*;
using EventHandle = EventObject*;
using Pool = PoolObject*;

// Results that the driver tells apart. All others are reported by name.
enum : Result {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kDeinitialized = 4,
  kStubLibrary = 34,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kInvalidContext = 201,
  kEccUncorrectable = 214,
  kInvalidHandle = 400,
  kNotFound = 500,
  kNotReady = 600,
  kIllegalAddress = 700,
  kLaunchTimeout = 702,
  kPeerAccessAlreadyEnabled = 704,
  kContextIsDestroyed = 709,
  kAssert = 710,
  kHostMemoryAlreadyRegistered = 712,
  kHostMemoryNotRegistered = 713,
  kHardwareStackError = 714,  // With the next five: a kernel died.
  kLaunchFailed = 719,
  kNotPermitted = 800,
  kNotSupported = 801,
  kCaptureUnsupported = 900,
  kCaptureInvalidated = 901,
  kCaptureMerge = 902,
  kCaptureUnmatched = 903,
  kCaptureUnjoined = 904,
  kCaptureIsolation = 905,
  kCaptureImplicit = 906,
  kCapturedEvent = 907,
  kCaptureWrongThread = 908,
};

enum Attribute : int {
  kIntegrated = 18,
  kUnifiedAddressing = 41,
  kComputeCapabilityMajor = 75,
  kComputeCapabilityMinor = 76,
  kManagedMemory = 83,
  kPageableMemoryAccess = 88,
  kConcurrentManagedAccess = 89,
  kVirtualMemorySupported = 102,
  kPosixHandlesSupported = 103,
  kRdmaWithVirtualMemory = 110,
  kMemoryPoolsSupported = 115,
};

enum PoolAttribute : int { kReleaseThreshold = 4, kReservedNow = 5, kReservedHigh = 6, kUsedNow = 7, kUsedHigh = 8 };

inline constexpr int kPinnedAllocation = 1;
inline constexpr int kDeviceLocation = 1;
inline constexpr int kNoHandleType = 0;
inline constexpr int kPosixHandle = 1;
inline constexpr int kAccessNone = 0;
inline constexpr int kAccessReadWrite = 3;
inline constexpr int kMinimumGranularity = 0;
inline constexpr int kPointerDeviceAddress = 3;  // A pointer attribute.
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kHostPortable = 1;
inline constexpr unsigned kHostDeviceMap = 2;
inline constexpr unsigned kAttachGlobal = 1;
enum CaptureMode : int { kCaptureGlobal = 0, kCaptureThreadLocal = 1, kCaptureRelaxed = 2 };
enum CaptureStatus : int { kCaptureNone = 0, kCaptureActive = 1, kCaptureBroken = 2 };

// Handles that stand for streams which nobody creates. Null is the legacy stream, too.
inline constexpr std::uintptr_t kLegacyStream = 1;
inline constexpr std::uintptr_t kPerThreadStream = 2;

struct Location {
  int type;
  int id;
};

struct AllocationProperties {
  int type;
  int handle_types;
  Location location;
  void* win32;
  unsigned char compression;
  unsigned char rdma;
  unsigned short usage;
  unsigned char reserved[4];
};
static_assert(sizeof(AllocationProperties) == 32 && offsetof(AllocationProperties, rdma) == 25);

struct AccessDescription {
  Location location;
  int flags;
};
static_assert(sizeof(AccessDescription) == 12);

enum class Need : std::uint8_t { required, optional };

// X(member, name, version in which this form of it appeared, exported symbol, need, parameters...)
// The version is 1000 x major + 10 x minor, as cuGetProcAddress wants it.
#define CISTERN_CUDA_ENTRY_POINTS(X)                                                                                   \
  X(init, "cuInit", 2000, "cuInit", required, unsigned)                                                                \
  X(driver_version, "cuDriverGetVersion", 2020, "cuDriverGetVersion", required, int*)                                  \
  X(error_name, "cuGetErrorName", 6000, "cuGetErrorName", required, Result, const char**)                              \
  X(error_string, "cuGetErrorString", 6000, "cuGetErrorString", required, Result, const char**)                        \
  X(device_count, "cuDeviceGetCount", 2000, "cuDeviceGetCount", required, int*)                                        \
  X(device, "cuDeviceGet", 2000, "cuDeviceGet", required, DeviceNumber*, int)                                          \
  X(device_name, "cuDeviceGetName", 2000, "cuDeviceGetName", required, char*, int, DeviceNumber)                       \
  X(device_total, "cuDeviceTotalMem", 3020, "cuDeviceTotalMem_v2", required, std::size_t*, DeviceNumber)               \
  X(device_attribute, "cuDeviceGetAttribute", 2000, "cuDeviceGetAttribute", required, int*, int, DeviceNumber)         \
  X(device_can_access, "cuDeviceCanAccessPeer", 4000, "cuDeviceCanAccessPeer", required, int*, DeviceNumber,           \
    DeviceNumber)                                                                                                      \
  X(primary_retain, "cuDevicePrimaryCtxRetain", 7000, "cuDevicePrimaryCtxRetain", required, Context*, DeviceNumber)    \
  X(primary_release, "cuDevicePrimaryCtxRelease", 11000, "cuDevicePrimaryCtxRelease_v2", required, DeviceNumber)       \
  X(context_push, "cuCtxPushCurrent", 4000, "cuCtxPushCurrent_v2", required, Context)                                  \
  X(context_pop, "cuCtxPopCurrent", 4000, "cuCtxPopCurrent_v2", required, Context*)                                    \
  X(context_current, "cuCtxGetCurrent", 4000, "cuCtxGetCurrent", required, Context*)                                   \
  X(context_device, "cuCtxGetDevice", 2000, "cuCtxGetDevice", required, DeviceNumber*)                                 \
  X(context_synchronize, "cuCtxSynchronize", 2000, "cuCtxSynchronize", required, )                                     \
  X(context_enable_peer, "cuCtxEnablePeerAccess", 4000, "cuCtxEnablePeerAccess", required, Context, unsigned)          \
  X(exchange_capture_mode, "cuThreadExchangeStreamCaptureMode", 10010, "cuThreadExchangeStreamCaptureMode", required,  \
    int*)                                                                                                              \
  X(memory_info, "cuMemGetInfo", 3020, "cuMemGetInfo_v2", required, std::size_t*, std::size_t*)                        \
  X(memory_allocate, "cuMemAlloc", 3020, "cuMemAlloc_v2", required, DevicePtr*, std::size_t)                           \
  X(memory_free, "cuMemFree", 3020, "cuMemFree_v2", required, DevicePtr)                                               \
  X(managed_allocate, "cuMemAllocManaged", 6000, "cuMemAllocManaged", required, DevicePtr*, std::size_t, unsigned)     \
  X(host_allocate, "cuMemHostAlloc", 2020, "cuMemHostAlloc", required, void**, std::size_t, unsigned)                  \
  X(host_free, "cuMemFreeHost", 2000, "cuMemFreeHost", required, void*)                                                \
  X(host_register, "cuMemHostRegister", 6050, "cuMemHostRegister_v2", required, void*, std::size_t, unsigned)          \
  X(host_unregister, "cuMemHostUnregister", 4000, "cuMemHostUnregister", required, void*)                              \
  X(host_device_pointer, "cuMemHostGetDevicePointer", 3020, "cuMemHostGetDevicePointer_v2", required, DevicePtr*,      \
    void*, unsigned)                                                                                                   \
  X(pointer_attribute, "cuPointerGetAttribute", 4000, "cuPointerGetAttribute", required, void*, int, DevicePtr)        \
  X(address_reserve, "cuMemAddressReserve", 10020, "cuMemAddressReserve", optional, DevicePtr*, std::size_t,           \
    std::size_t, DevicePtr, unsigned long long)                                                                        \
  X(address_free, "cuMemAddressFree", 10020, "cuMemAddressFree", optional, DevicePtr, std::size_t)                     \
  X(physical_create, "cuMemCreate", 10020, "cuMemCreate", optional, PhysicalHandle*, std::size_t,                      \
    const AllocationProperties*, unsigned long long)                                                                   \
  X(physical_release, "cuMemRelease", 10020, "cuMemRelease", optional, PhysicalHandle)                                 \
  X(physical_map, "cuMemMap", 10020, "cuMemMap", optional, DevicePtr, std::size_t, std::size_t, PhysicalHandle,        \
    unsigned long long)                                                                                                \
  X(physical_unmap, "cuMemUnmap", 10020, "cuMemUnmap", optional, DevicePtr, std::size_t)                               \
  X(set_access, "cuMemSetAccess", 10020, "cuMemSetAccess", optional, DevicePtr, std::size_t, const AccessDescription*, \
    std::size_t)                                                                                                       \
  X(granularity, "cuMemGetAllocationGranularity", 10020, "cuMemGetAllocationGranularity", optional, std::size_t*,      \
    const AllocationProperties*, int)                                                                                  \
  X(export_handle, "cuMemExportToShareableHandle", 10020, "cuMemExportToShareableHandle", optional, void*,             \
    PhysicalHandle, int, unsigned long long)                                                                           \
  X(import_handle, "cuMemImportFromShareableHandle", 10020, "cuMemImportFromShareableHandle", optional,                \
    PhysicalHandle*, void*, int)                                                                                       \
  X(allocate_async, "cuMemAllocAsync", 11020, "cuMemAllocAsync", optional, DevicePtr*, std::size_t, Stream)            \
  X(free_async, "cuMemFreeAsync", 11020, "cuMemFreeAsync", optional, DevicePtr, Stream)                                \
  X(default_pool, "cuDeviceGetDefaultMemPool", 11020, "cuDeviceGetDefaultMemPool", optional, Pool*, DeviceNumber)      \
  X(pool_set, "cuMemPoolSetAttribute", 11020, "cuMemPoolSetAttribute", optional, Pool, int, void*)                     \
  X(pool_get, "cuMemPoolGetAttribute", 11020, "cuMemPoolGetAttribute", optional, Pool, int, void*)                     \
  X(pool_trim, "cuMemPoolTrimTo", 11020, "cuMemPoolTrimTo", optional, Pool, std::size_t)                               \
  X(pool_access, "cuMemPoolSetAccess", 11020, "cuMemPoolSetAccess", optional, Pool, const AccessDescription*,          \
    std::size_t)                                                                                                       \
  X(copy_async, "cuMemcpyAsync", 4000, "cuMemcpyAsync", required, DevicePtr, DevicePtr, std::size_t, Stream)           \
  X(fill_async, "cuMemsetD8Async", 3020, "cuMemsetD8Async", required, DevicePtr, unsigned char, std::size_t, Stream)   \
  X(stream_create, "cuStreamCreate", 2000, "cuStreamCreate", required, Stream*, unsigned)                              \
  X(stream_destroy, "cuStreamDestroy", 4000, "cuStreamDestroy_v2", required, Stream)                                   \
  X(stream_flags, "cuStreamGetFlags", 5050, "cuStreamGetFlags", required, Stream, unsigned*)                           \
  X(stream_wait, "cuStreamWaitEvent", 3020, "cuStreamWaitEvent", required, Stream, EventHandle, unsigned)              \
  X(stream_capturing, "cuStreamIsCapturing", 10000, "cuStreamIsCapturing", required, Stream, int*)                     \
  X(stream_context, "cuStreamGetCtx", 9020, "cuStreamGetCtx", required, Stream, Context*)                              \
  X(stream_number, "cuStreamGetId", 12000, "cuStreamGetId", optional, Stream, unsigned long long*)                     \
  X(event_create, "cuEventCreate", 2000, "cuEventCreate", required, EventHandle*, unsigned)                            \
  X(event_destroy, "cuEventDestroy", 4000, "cuEventDestroy_v2", required, EventHandle)                                 \
  X(event_record, "cuEventRecord", 2000, "cuEventRecord", required, EventHandle, Stream)                               \
  X(event_query, "cuEventQuery", 2000, "cuEventQuery", required, EventHandle)                                          \
  X(event_synchronize, "cuEventSynchronize", 2000, "cuEventSynchronize", required, EventHandle)

struct CudaApi {
#define CISTERN_CUDA_MEMBER(member, name, version, symbol, need, ...) Result (*member)(__VA_ARGS__) = nullptr;
  CISTERN_CUDA_ENTRY_POINTS(CISTERN_CUDA_MEMBER)
#undef CISTERN_CUDA_MEMBER
  int version = 0;  // Of the driver, as cuDriverGetVersion says it.

  bool has_virtual_memory() const {
    return address_reserve != nullptr && address_free != nullptr && physical_create != nullptr &&
           physical_release != nullptr && physical_map != nullptr && physical_unmap != nullptr &&
           set_access != nullptr && granularity != nullptr;
  }
  bool has_pools() const {
    return allocate_async != nullptr && free_async != nullptr && default_pool != nullptr && pool_set != nullptr &&
           pool_get != nullptr && pool_trim != nullptr && pool_access != nullptr;
  }
};

}  // namespace cistern::drivers::cuda
