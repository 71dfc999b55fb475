// Which CUDA devices there are, what the environment asks of them, and drivers for them: the functions of
// cuda_driver.hpp. Any thread.
#include <array>
#include <utility>

#include "drivers/cuda/cuda_device.hpp"
#include "drivers/cuda/cuda_driver.hpp"
#include "drivers/cuda/cuda_loader.hpp"
#include "drivers/environment.hpp"

namespace cistern::drivers {
namespace {

// Null, and `why` set, when there is no driver or no device.
const cuda::CudaApi* usable_library(int& devices, std::string& why) {
  const cuda::CudaApi* const api = cuda::library(why);
  if (api == nullptr) return nullptr;
  const cuda::Entered entered(*api, nullptr);
  if (!entered.ok()) {
    why = cuda::last_error();
    return nullptr;
  }
  if (const cuda::Result result = api->device_count(&devices); result != cuda::kSuccess) {
    cuda::report(*api, result, "cuDeviceGetCount");
    why = cuda::last_error();
    return nullptr;
  }
  if (devices > 0) return api;
  why = "CUDA: the driver is here, but no device that it can use";
  return nullptr;
}

void put(std::string* out, std::string text) {
  if (out != nullptr) *out = std::move(text);
}

}  // namespace

std::optional<CudaConfig> cuda_config_from_environment(std::string* why) {
  CudaConfig config;
  std::string refused;
  read_choice(
      "CISTERN_CUDA_MEMORY",
      {{"virtual", CudaMode::virtual_memory}, {"segments", CudaMode::segments}, {"pool", CudaMode::stream_ordered}},
      config.mode, refused);
  read_choice("CISTERN_CUDA_UNIFIED", {{"managed", CudaUnified::managed}, {"pinned", CudaUnified::pinned}},
              config.unified, refused);
  if (refused.empty()) return config;
  put(why, refused);
  return std::nullopt;
}

std::vector<CudaDeviceInfo> list_cuda_devices(std::string* why) {
  std::string text;
  std::vector<CudaDeviceInfo> out;
  int count = 0;
  const cuda::CudaApi* const api = usable_library(count, text);
  put(why, text);
  if (api == nullptr) return out;
  for (int i = 0; i < count; ++i) {
    CudaDeviceInfo info;
    cuda::DeviceNumber device = 0;
    std::array<char, 256> name{};
    if (api->device(&device, i) != cuda::kSuccess) continue;
    if (api->device_name(name.data(), static_cast<int>(name.size()) - 1, device) == cuda::kSuccess) {
      info.name = name.data();
    }
    api->device_total(&info.total_memory, device);
    api->device_attribute(&info.compute_major, cuda::kComputeCapabilityMajor, device);
    api->device_attribute(&info.compute_minor, cuda::kComputeCapabilityMinor, device);
    const auto has = [&](cuda::Attribute which) {
      int value = 0;
      return api->device_attribute(&value, which, device) == cuda::kSuccess && value != 0;
    };
    info.index = i;
    info.virtual_memory = api->has_virtual_memory() && has(cuda::kVirtualMemorySupported);
    info.memory_pools = api->has_pools() && has(cuda::kMemoryPoolsSupported);
    info.managed = has(cuda::kManagedMemory);
    info.concurrent_managed = has(cuda::kConcurrentManagedAccess);
    info.exportable = info.virtual_memory && has(cuda::kPosixHandlesSupported);
    info.rdma = info.virtual_memory && has(cuda::kRdmaWithVirtualMemory);
    out.push_back(std::move(info));
  }
  return out;
}

int cuda_driver_version() {
  std::string text;
  const cuda::CudaApi* const api = cuda::library(text);
  return api == nullptr ? 0 : api->version;
}

std::unique_ptr<Driver> make_cuda_driver(int index, const CudaConfig& config, std::string* why) {
  std::string text;
  int count = 0;
  const cuda::CudaApi* const api = usable_library(count, text);
  put(why, text);
  if (api == nullptr) return nullptr;
  if (index < 0 || index >= count) {
    put(why, "CUDA: there is no device " + std::to_string(index) + "; " + std::to_string(count) + " can be used");
    return nullptr;
  }
  auto driver = std::make_unique<cuda::CudaDriver>(*api, index, config);
  if (driver->start()) return driver;
  put(why, cuda::last_error());
  return nullptr;
}

}  // namespace cistern::drivers
