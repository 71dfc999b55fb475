// `cistern info`: the version, how it was built, and the devices of this computer.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>

#include "allocator/registry.hpp"
#include "cistern/allocator.hpp"
#include "cistern/memory.hpp"
#include "cli.hpp"
#include "drivers/cuda/cuda_driver.hpp"
#include "drivers/metal/metal_driver.hpp"
#include "report/text.hpp"
#include "terminal.hpp"

namespace cistern::tools {
namespace {

using nlohmann::ordered_json;

constexpr std::int32_t kMaxDevices = 64;  // Of a kind.

std::string compiler() {
#if defined(__clang__)
  return fmt::format("clang {}.{}.{}", __clang_major__, __clang_minor__, __clang_patchlevel__);
#elif defined(__GNUC__)
  return fmt::format("gcc {}.{}.{}", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
#else
  return "unknown";
#endif
}

const char* build_kind() {
#if defined(NDEBUG)
  return "release";
#else
  return "debug";
#endif
}

const char* platform() {
#if defined(__APPLE__)
  return "macOS";
#elif defined(__linux__)
  return "Linux";
#else
  return "unknown";
#endif
}

const char* processor() {
#if defined(__x86_64__)
  return "x86-64";
#elif defined(__aarch64__)
  return "arm64";
#else
  return "unknown";
#endif
}

struct DeviceInfo {
  Device device;
  drivers::Capabilities capabilities;
  Stats stats;
};

// The model device is one, however many may be made. `unusable` gets the words about devices that are there, but cannot
// be used as the environment asks.
std::vector<DeviceInfo> devices(std::vector<std::string>& unusable) {
  std::vector<DeviceInfo> out;
  for (const DeviceType type : {DeviceType::cpu, DeviceType::cuda, DeviceType::metal, DeviceType::model}) {
    for (std::int32_t i = 0; i < kMaxDevices; ++i) {
      const Device device{type, i};
      if (!is_available(device) || (type == DeviceType::model && i > 0)) break;
      try {
        const auto& allocator = allocation::device_allocator(device);
        out.push_back({device, allocator.driver().capabilities(), stats(device)});
      } catch (const std::exception& error) {
        unusable.emplace_back(report::clean_utf8(without_name(error.what())));
      }
    }
  }
  return out;
}

// Where the memory of buffers comes from.
const char* source_of(const drivers::Capabilities& c) {
  if (c.virtual_memory) return "mapped pieces";
  if (c.ordered_buffers) return "the device's pool";
  return c.whole_buffers ? "whole buffers" : "segments";
}

std::string yes(bool value) { return value ? "yes" : "no"; }

ordered_json device_json(const DeviceInfo& info) {
  const drivers::Capabilities& c = info.capabilities;
  ordered_json out;
  out["device"] = to_string(info.device);
  out["name"] = report::clean_utf8(c.name);
  out["total_memory"] = c.total_memory;
  out["memory_limit"] = info.stats.memory_limit;
  out["cache_limit"] = info.stats.cache_limit;
  out["granularity"] = c.granularity;
  out["alignment"] = c.alignment;
  out["memory_from"] = source_of(c);
  out["virtual_memory"] = c.virtual_memory;
  out["double_mapping"] = c.double_mapping;
  out["host_accessible"] = c.host_accessible;
  out["asynchronous"] = c.asynchronous;
  out["fresh_is_zero"] = c.fresh_is_zero;
  out["block_objects"] = c.block_objects;
  out["residency"] = c.residency;
  out["whole_buffers"] = c.whole_buffers;
  if (c.unified_memory || c.recommended_working_set != 0) out["unified_memory"] = c.unified_memory;
  if (c.recommended_working_set != 0) out["recommended_working_set"] = c.recommended_working_set;
  if (c.max_buffer != SIZE_MAX) out["max_buffer"] = c.max_buffer;
  if (c.max_objects != SIZE_MAX) out["max_objects"] = c.max_objects;
  if (c.page_size != 0) out["page_size"] = c.page_size;
  if (info.device.type == DeviceType::metal) out["sparse_buffers"] = c.sparse_buffers;
  return out;
}

// What CUDA devices can do besides.
void add_cuda(const std::vector<DeviceInfo>& list, ordered_json& devices_json) {
  const auto all = drivers::list_cuda_devices();
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (list[i].device.type != DeviceType::cuda) continue;
    const auto index = static_cast<std::size_t>(list[i].device.index);
    if (index >= all.size()) continue;
    const drivers::CudaDeviceInfo& c = all[index];
    devices_json[i]["cuda"] = {{"compute", fmt::format("{}.{}", c.compute_major, c.compute_minor)},
                               {"virtual_memory", c.virtual_memory},
                               {"memory_pools", c.memory_pools},
                               {"managed", c.managed},
                               {"concurrent_managed", c.concurrent_managed},
                               {"exportable", c.exportable},
                               {"rdma", c.rdma}};
  }
}

void print_cuda() {
  std::string why;
  const auto all = drivers::list_cuda_devices(&why);
  if (all.empty()) {
    fmt::print("\n{}\n", report::clean_utf8(why));
    return;
  }
  const int version = drivers::cuda_driver_version();
  fmt::print("\nCUDA driver {}.{}\n", version / 1000, version % 1000 / 10);
  std::vector<std::vector<std::string>> rows = {
      {"device", "compute", "managed", "concurrent managed", "memory pools", "exportable", "RDMA"}, {}};
  for (const drivers::CudaDeviceInfo& c : all) {
    rows.push_back({fmt::format("cuda:{}", c.index), fmt::format("{}.{}", c.compute_major, c.compute_minor),
                    yes(c.managed), yes(c.concurrent_managed), yes(c.memory_pools), yes(c.exportable), yes(c.rdma)});
  }
  fmt::print("{}", format_table(rows, 2));
}

// Why there is no Metal device, where one was to be expected.
void print_metal() {
  std::string why;
#if !defined(__APPLE__)
  if (std::getenv("CISTERN_METAL_LIBRARY") == nullptr) return;
#endif
  if (drivers::metal_device_count(&why) == 0) fmt::print("\n{}\n", report::clean_utf8(why));
}

int info(bool json) {
  std::vector<std::string> unusable;
  const std::vector<DeviceInfo> list = devices(unusable);
  if (json) {
    ordered_json out;
    out["version"] = CISTERN_VERSION;
    out["build"] = {
        {"compiler", compiler()}, {"kind", build_kind()}, {"platform", platform()}, {"processor", processor()}};
    out["devices"] = ordered_json::array();
    for (const DeviceInfo& device : list) out["devices"].push_back(device_json(device));
    add_cuda(list, out["devices"]);
    out["unusable"] = unusable;
    fmt::print("{}\n", out.dump());
    return kOk;
  }
  fmt::print("cistern {} ({}, {}, {} {})\n\n", CISTERN_VERSION, compiler(), build_kind(), platform(), processor());
  std::vector<std::vector<std::string>> rows = {{"device", "name", "memory", "limit", "granularity", "alignment",
                                                 "memory from", "host reaches it", "asynchronous"},
                                                {}};
  for (const DeviceInfo& d : list) {
    const drivers::Capabilities& c = d.capabilities;
    rows.push_back({to_string(d.device), report::clean_utf8(c.name), report::format_bytes(c.total_memory),
                    report::format_bytes(d.stats.memory_limit), report::format_bytes(c.granularity),
                    report::format_bytes(c.alignment), source_of(c), yes(c.host_accessible), yes(c.asynchronous)});
  }
  fmt::print("{}", format_table(rows, 2));
  if (!unusable.empty()) fmt::print("\n{}\n", fmt::join(unusable, "\n"));
  print_cuda();
  print_metal();
  return kOk;
}

}  // namespace

void add_info(CLI::App& app, int& status) {
  auto json = std::make_shared<bool>(false);
  CLI::App* command = app.add_subcommand("info", "Version, build and devices");
  command->add_flag("--json", *json, "One JSON object");
  command->callback([json, &status] { status = info(*json); });
}

}  // namespace cistern::tools
