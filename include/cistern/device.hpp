// Device: which memory is meant. Values only; all functions are thread-safe.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

namespace cistern {

enum class DeviceType : std::uint8_t {
  cpu,    ///< Host memory.
  cuda,   ///< An NVIDIA GPU.
  metal,  ///< An Apple GPU.
  model,  ///< A device with no memory behind it: arithmetic, prices and stream rules only.
};

struct Device {
  DeviceType type = DeviceType::cpu;
  std::int32_t index = 0;

  static constexpr Device cpu() { return {DeviceType::cpu, 0}; }
  static constexpr Device cuda(std::int32_t index = 0) { return {DeviceType::cuda, index}; }
  static constexpr Device metal(std::int32_t index = 0) { return {DeviceType::metal, index}; }
  static constexpr Device model(std::int32_t index = 0) { return {DeviceType::model, index}; }

  friend constexpr auto operator<=>(const Device&, const Device&) = default;
};

/// "cpu", "cuda:0", "metal:0", "model:0".
std::string to_string(Device device);

/// Reads what to_string() writes; the index may be left out. Throws invalid_argument naming the text.
Device parse_device(std::string_view text);

/// Whether this build, on this computer, can allocate there.
bool is_available(Device device);

/// The device that allocator() uses; the CPU until set. Throws invalid_argument when the device is not available.
Device default_device();
void set_default_device(Device device);

}  // namespace cistern
