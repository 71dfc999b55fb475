// An NVIDIA GPU as a device. Four modes:
//   virtual_memory  reserve, create and map over the driver's virtual memory
//   segments        whole segments by cuMemAlloc, where there is no virtual memory
//   stream_ordered  whole buffers by cuMemAllocAsync from the device's default pool
//   pinned_host     whole buffers of host memory that the device reaches, for staging
// Does not choose, cache or limit anything. Works in the device's primary context, beside the CUDA runtime and the
// libraries over it in one process; a stream is what the program calls cudaStream_t or CUstream.
// Called by the allocator layer; locking as driver.hpp says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "drivers/driver.hpp"

namespace cistern::drivers {

enum class CudaMode : std::uint8_t { automatic, virtual_memory, segments, stream_ordered, pinned_host };

// What HostKind::unified is.
enum class CudaUnified : std::uint8_t {
  automatic,  // managed where every device has concurrent managed access, otherwise pinned.
  managed,    // Migrates between host and device.
  pinned,     // Host memory that the device reaches over the bus.
};

struct CudaConfig {
  CudaMode mode = CudaMode::automatic;
  CudaUnified unified = CudaUnified::automatic;
  // Bytes that the device's pool keeps when nothing uses them (stream_ordered).
  std::uint64_t release_threshold = UINT64_MAX;
};

// CISTERN_CUDA_MEMORY: virtual, segments or pool; CISTERN_CUDA_UNIFIED: managed or pinned; automatic where not set.
// Nothing, and `why` set, when a value is none of these.
std::optional<CudaConfig> cuda_config_from_environment(std::string* why = nullptr);

struct CudaDeviceInfo {
  int index = 0;
  std::string name;
  std::size_t total_memory = 0;  // Bytes.
  int compute_major = 0;
  int compute_minor = 0;
  bool virtual_memory = false;
  bool memory_pools = false;
  bool managed = false;             // There is managed memory at all.
  bool concurrent_managed = false;  // Host and device may use managed memory at the same time.
  bool exportable = false;          // Pieces can be given to other processes as file descriptors.
  bool rdma = false;
};

// The devices of this process, in the vendor's order (CUDA_VISIBLE_DEVICES holds). Makes no context. Empty, and `why`
// set, when there is no driver or no device. Any thread.
std::vector<CudaDeviceInfo> list_cuda_devices(std::string* why = nullptr);

// As cuDriverGetVersion() says it: 1000 x major + 10 x minor; 0 without a driver.
int cuda_driver_version();

// Null, and `why` set, when the device is not there or cannot do what `config` asks.
std::unique_ptr<Driver> make_cuda_driver(int index, const CudaConfig& config = {}, std::string* why = nullptr);

}  // namespace cistern::drivers
