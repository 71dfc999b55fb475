// Devices by name, their allocators, and the default device.
#include "allocator/registry.hpp"

#include <array>
#include <atomic>
#include <charconv>
#include <mutex>
#include <new>
#include <utility>

#include "allocator/second_allocator.hpp"
#include "cistern/allocator.hpp"
#include "cistern/memory.hpp"
#include "drivers/cpu/cpu_driver.hpp"
#include "drivers/cuda/cuda_driver.hpp"
#include "drivers/metal/metal_driver.hpp"
#include "drivers/model/model_driver.hpp"

namespace cistern {
namespace allocation {
namespace {

constexpr std::int32_t kMaxIndex = 64;  // Devices of a kind.

// How many devices of a kind this computer has, and the driver of one. A new kind of device is a line in each.
// Where there is none, `why` says so for vendors' devices.
std::int32_t device_count(DeviceType type, std::string* why = nullptr) {
  switch (type) {
    case DeviceType::cpu:
      return 1;
    case DeviceType::model:
      return kMaxIndex;
    case DeviceType::cuda:
      return static_cast<std::int32_t>(drivers::list_cuda_devices(why).size());
    case DeviceType::metal:
      return drivers::metal_device_count(why);
  }
  return 0;
}

}  // namespace

std::unique_ptr<drivers::Driver> make_driver(Device device, std::string* why) {
  switch (device.type) {
    case DeviceType::cpu:
      return drivers::make_cpu_driver(drivers::CpuMode::cached);
    case DeviceType::model:
      return drivers::make_model_driver();
    case DeviceType::cuda: {
      const auto config = drivers::cuda_config_from_environment(why);
      return config ? drivers::make_cuda_driver(device.index, *config, why) : nullptr;
    }
    case DeviceType::metal: {
      const auto config = drivers::metal_config_from_environment(why);
      return config ? drivers::make_metal_driver(device.index, *config, why) : nullptr;
    }
  }
  return nullptr;
}

namespace {

constexpr std::array<const char*, 4> kNames = {"cpu", "cuda", "metal", "model"};

struct Registry {
  std::array<std::array<std::atomic<DeviceAllocator*>, kMaxIndex>, kNames.size()> allocators{};
  std::array<std::atomic<DeviceAllocator*>, kMaxIndex> staging{};  // CUDA devices only.
  std::atomic<DeviceAllocator*> system{nullptr};
  std::atomic<DeviceAllocator*> chosen{nullptr};
};

constinit Registry registry;

std::mutex& registry_mutex() {
  alignas(std::mutex) static unsigned char storage[sizeof(std::mutex)];
  static std::mutex* mutex = new (storage) std::mutex;
  return *mutex;
}

// Made under the lock, published for readers without one, leaked on purpose: buffers are used by static destructors and
// by threads that outlive main().
template <typename Make>
DeviceAllocator& made_once(std::atomic<DeviceAllocator*>& slot, Make make) {
  if (DeviceAllocator* known = slot.load(std::memory_order_acquire)) [[likely]]
    return *known;
  const std::lock_guard lock(registry_mutex());
  if (DeviceAllocator* known = slot.load(std::memory_order_acquire)) return *known;
  DeviceAllocator* fresh = make();
  slot.store(fresh, std::memory_order_release);
  return *fresh;
}

}  // namespace

// What the lock guards is one store, so that it need not be held around fork(): a vendor's library may fork while it
// is.
void renew_registry_lock() { new (&registry_mutex()) std::mutex; }

std::string unavailable(Device device) {
  std::string text = "device " + to_string(device) + " is not available";
  if (static_cast<std::size_t>(device.type) >= kNames.size()) return text;
  std::string why;
  const std::int32_t count = device_count(device.type, &why);
  if (!why.empty()) return text + ": " + why;
  text += count == 1 ? "; there is 1: " : "; there are " + std::to_string(count) + ": ";
  text += to_string(Device{device.type, 0});
  return count == 1 ? text : text + " to " + to_string(Device{device.type, count - 1});
}

DeviceAllocator& device_allocator(Device device) {
  const auto type = static_cast<std::size_t>(device.type);
  if (type < kNames.size() && device.index >= 0 && device.index < kMaxIndex) {
    auto& slot = registry.allocators[type][static_cast<std::size_t>(device.index)];
    if (DeviceAllocator* known = slot.load(std::memory_order_acquire)) [[likely]]
      return *known;
    if (is_available(device)) {
      return made_once(slot, [&]() -> DeviceAllocator* {
        std::string why;
        auto driver = make_driver(device, &why);
        // The device is there, but cannot do what is asked of it.
        if (driver == nullptr)
          throw invalid_argument("cistern: device " + to_string(device) + " cannot be used: " + why);
        if (device.type == DeviceType::cpu) return new PrimaryAllocator(device, std::move(driver));
        return new DeviceAllocator(device, std::move(driver));
      });
    }
  }
  throw invalid_argument("cistern: " + unavailable(device));
}

DeviceAllocator& staging_device_allocator(Device device) {
  DeviceAllocator& own = device_allocator(device);
  if (device.type != DeviceType::cuda) return own;
  return made_once(registry.staging[static_cast<std::size_t>(device.index)], [&]() -> DeviceAllocator* {
    std::string why;
    auto driver = drivers::make_cuda_driver(device.index, {.mode = drivers::CudaMode::pinned_host}, &why);
    if (driver == nullptr) throw driver_error("cistern: no staging memory for " + to_string(device) + ": " + why);
    auto made = std::make_unique<SecondAllocator>(own, std::move(driver));
    // Pinned memory is the computer's: as much of it as the CPU's limit allows.
    made->set_memory_limit(made->driver().capabilities().total_memory / 10 * 8);
    return made.release();
  });
}

DeviceAllocator& system_device_allocator() {
  DeviceAllocator& own = device_allocator(Device::cpu());
  return made_once(registry.system,
                   [&] { return new SecondAllocator(own, drivers::make_cpu_driver(drivers::CpuMode::system)); });
}

namespace {

DeviceAllocator& chosen() {
  if (DeviceAllocator* known = registry.chosen.load(std::memory_order_acquire)) [[likely]]
    return *known;
  return device_allocator(Device::cpu());
}

}  // namespace
}  // namespace allocation

std::string to_string(Device device) {
  const auto type = static_cast<std::size_t>(device.type);
  std::string text = type < allocation::kNames.size() ? allocation::kNames[type] : "unknown";
  if (device.type != DeviceType::cpu || device.index != 0) text += ':' + std::to_string(device.index);
  return text;
}

Device parse_device(std::string_view text) {
  const std::size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  for (std::size_t type = 0; type < allocation::kNames.size(); ++type) {
    if (name != allocation::kNames[type]) continue;
    Device device{static_cast<DeviceType>(type), 0};
    if (colon == std::string_view::npos) return device;
    const std::string_view digits = text.substr(colon + 1);
    const char* const end = digits.data() + digits.size();
    const auto [stop, error] = std::from_chars(digits.data(), end, device.index);
    if (error == std::errc() && stop == end && device.index >= 0) return device;
    break;
  }
  throw invalid_argument("cistern: '" + std::string(text) +
                         "' names no device; expected cpu, cuda:N, metal:N or model:N");
}

bool is_available(Device device) {
  return static_cast<std::size_t>(device.type) < allocation::kNames.size() && device.index >= 0 &&
         device.index < allocation::device_count(device.type);
}

Device default_device() { return allocation::chosen().device(); }

void set_default_device(Device device) {
  allocation::registry.chosen.store(&allocation::device_allocator(device), std::memory_order_release);
}

Allocator& allocator() { return allocation::chosen(); }
Allocator& allocator(Device device) { return allocation::device_allocator(device); }
Allocator& staging_allocator(Device device) { return allocation::staging_device_allocator(device); }
Allocator& system_allocator() { return allocation::system_device_allocator(); }

Buffer malloc(std::size_t bytes) { return allocation::chosen().malloc(bytes); }
Buffer malloc(std::size_t bytes, const Stream& stream) {
  return allocation::device_allocator(stream.device()).malloc(bytes, stream);
}

void free(Buffer buffer) {
  if (!buffer) return;
  allocation::DeviceAllocator* owner = allocation::allocator_of(buffer.block());
  if (owner == nullptr) throw invalid_argument("cistern: free: the buffer's allocator is gone");
  owner->free(buffer);
}

Stream::Stream() : Stream(default_device()) {}
Stream::Stream(Device device) : Stream(allocation::device_allocator(device).stream(nullptr)) {}
Stream::Stream(Device device, void* native) : Stream(allocation::device_allocator(device).stream(native)) {}

void stream_destroyed(const Stream& stream) {
  allocation::DeviceAllocator& own = allocation::device_allocator(stream.device());
  own.check_stream(stream, "stream_destroyed");
  const Device device = stream.device();
  allocation::DeviceAllocator* second = nullptr;
  if (device.type == DeviceType::cuda) {
    second = allocation::registry.staging[static_cast<std::size_t>(device.index)].load(std::memory_order_acquire);
  } else if (device.type == DeviceType::cpu) {
    second = allocation::registry.system.load(std::memory_order_acquire);
  }
  if (second != nullptr) static_cast<allocation::SecondAllocator*>(second)->forget(stream);
  own.stream_destroyed(stream);
}

}  // namespace cistern
