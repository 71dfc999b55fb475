// Replay targets over the library's own allocator: `cistern` asks it directly, `pool` through an arena pool for each
// stream. make_target() and unavailable() are here too: this is the file that knows which policy runs where.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "allocator/device_allocator.hpp"
#include "allocator/registry.hpp"
#include "cistern/buffer_pool.hpp"
#include "cistern/error.hpp"
#include "cistern/planned_arena.hpp"
#include "drivers/model/model_driver.hpp"
#include "trace/replay_target.hpp"
#include "trace/whole_buffers.hpp"

namespace cistern::trace {
namespace {

using allocation::DeviceAllocator;

// A fresh allocator on a driver of its own, and what the trace calls its streams.
struct FreshDevice {
  FreshDevice(const TargetOptions& options, const Program& program) {
    std::unique_ptr<drivers::Driver> driver;
    if (options.device.type == DeviceType::model) {
      drivers::ModelConfig config;
      config.lag_us = static_cast<double>(options.lag_us);
      auto made = drivers::make_model_driver(config);
      model = made.get();
      driver = std::move(made);
    } else {
      std::string why;
      driver = allocation::make_driver(options.device, &why);
      if (driver == nullptr)
        throw invalid_argument(fmt::format("device {} cannot be used: {}", cistern::to_string(options.device), why));
    }
    reachable = model == nullptr && driver->capabilities().host_accessible;
    host_accessible =
        model == nullptr && driver->capabilities().host_accessible && !driver->capabilities().block_objects;
    allocator = std::make_unique<DeviceAllocator>(options.device, std::move(driver));
    if (options.limit != 0) allocator->set_memory_limit(options.limit);
    // What residency costs is to be seen in the count of calls.
    if (const auto& c = allocator->driver().capabilities(); c.residency)
      allocator->set_wired_limit(c.recommended_working_set);
    for (const std::uint64_t number : program.streams) {
      // The default stream is null; another keeps the number that the trace gave it, or is made.
      void* made = number == 0 ? nullptr : allocator->driver().make_stream();
      if (made != nullptr) made_streams.push_back(made);
      streams.push_back(allocator->stream(made != nullptr ? made : reinterpret_cast<void*>(number)));
    }
  }
  ~FreshDevice() {
    for (const Stream& stream : streams) {
      if (std::find(made_streams.begin(), made_streams.end(), stream.native()) == made_streams.end()) continue;
      try {
        allocator->stream_destroyed(stream);
      } catch (const std::exception&) {
        continue;  // The allocator still knows it, so it stays.
      }
      allocator->driver().drop_stream(stream.native());
    }
  }
  FreshDevice(const FreshDevice&) = delete;
  FreshDevice& operator=(const FreshDevice&) = delete;

  TargetFigures figures(std::uint64_t idle) const {
    const Stats stats = allocator->stats();
    TargetFigures out;
    out.reserved = stats.reserved;
    out.peak_reserved = stats.peak_reserved;
    out.active = stats.active - std::min<std::uint64_t>(idle, stats.active);
    out.driver_calls = stats.driver_calls;
    out.handle_ops = stats.handles_created + stats.handles_moved + stats.handles_released;
    out.handle_seconds = model != nullptr ? model->handle_seconds() : 0;
    return out;
  }

  std::vector<std::string> check() const {
    std::vector<std::string> out = allocator->check_invariants();
    if (model == nullptr) return out;
    for (std::string& message : model->check_invariants()) out.push_back("model device: " + std::move(message));
    for (std::string& message : model->violations()) out.push_back("model device: " + std::move(message));
    return out;
  }

  drivers::ModelDriver* model = nullptr;
  bool host_accessible = false;
  bool reachable = false;  // The host can follow addresses.
  std::unique_ptr<DeviceAllocator> allocator;
  std::vector<Stream> streams;
  std::vector<void*> made_streams;
};

// What both policies do with the model device's clock and work, and with the CPU's pages.
class DeviceMemory {
 public:
  explicit DeviceMemory(FreshDevice& device) : device_(device) {}
  // A program that frees in the order of a stream made that stream wait for the others' use of the block.
  void join(std::uint16_t stream) {
    if (device_.model == nullptr) return;
    for (const Stream& other : device_.streams) {
      drivers::Event event = drivers::Event::none;
      if (other == device_.streams[stream] || device_.model->record(other.native(), event) != drivers::Status::ok)
        continue;
      device_.model->wait(device_.streams[stream].native(), event);
      device_.model->release(event);
    }
  }
  void advance(std::uint64_t time_us) {
    if (device_.model != nullptr) device_.model->advance_to(static_cast<double>(time_us));
  }

 protected:
  // The block is used by its stream from here on: pages are written, or work is submitted.
  void use(std::uint64_t address, std::uint64_t bytes, std::uint16_t stream) {
    if (bytes == 0 || address == 0) return;
    if (device_.reachable) {
      touch_pages(reinterpret_cast<void*>(address), bytes);
    } else if (device_.model != nullptr) {
      device_.model->touch(device_.streams[stream].native(), address, bytes);
    }
  }
  // The program's last use, just before the host frees: on a device that runs behind, the work outlives the block.
  void use_last(std::uint64_t address, std::uint64_t bytes, std::uint16_t stream) {
    if (device_.model != nullptr) use(address, bytes, stream);
  }

  FreshDevice& device_;
};

// kHost: streams mean nothing, the plain calls are what a program makes.
template <bool kHost>
class AllocatorMemory : public DeviceMemory {
 public:
  using Handle = Buffer;
  AllocatorMemory(FreshDevice& device, const Program&)
      : DeviceMemory(device), allocator_(*device.allocator), streams_(device.streams.data()) {}

  Buffer allocate(std::uint64_t bytes, std::uint16_t stream) {
    if constexpr (kHost) return allocator_.malloc(bytes);
    return allocator_.malloc(bytes, streams_[stream]);
  }
  void free(Buffer& buffer) { allocator_.free(buffer); }
  void free_on(Buffer& buffer, std::uint16_t stream) {
    if constexpr (kHost) return allocator_.free(buffer);
    allocator_.free(buffer, streams_[stream]);
  }
  std::uint64_t address(const Buffer& buffer) const {
    return buffer && buffer.size() > 0 ? allocation::address_of(buffer.block()) : 0;
  }
  void touch(const Buffer& buffer, std::uint64_t bytes, std::uint16_t stream) { use(address(buffer), bytes, stream); }
  void leave(const Buffer& buffer, std::uint64_t bytes, std::uint16_t stream) {
    use_last(address(buffer), bytes, stream);
  }
  void end_pass() {}
  std::uint64_t idle() const { return 0; }
  std::vector<std::string> check() const { return {}; }

 private:
  DeviceAllocator& allocator_;
  const Stream* streams_;
};

// What the policies over typed buffers have in common.
struct PoolHandle {
  TypedBuffer buffer;
  std::uint16_t stream = 0;  // Whose pool it is from: a free in another stream's order still goes there.
};

class PooledMemory : public DeviceMemory {
 public:
  using Handle = PoolHandle;
  using DeviceMemory::DeviceMemory;

  std::uint64_t address(const PoolHandle& handle) const {
    if (handle.buffer.byte_len() == 0) return 0;
    return allocation::address_of(handle.buffer.buffer().block()) + handle.buffer.byte_offset();
  }
  void touch(const PoolHandle& handle, std::uint64_t bytes, std::uint16_t stream) {
    use(address(handle), bytes, stream);
  }
  void leave(const PoolHandle& handle, std::uint64_t bytes, std::uint16_t stream) {
    use_last(address(handle), bytes, stream);
  }

 protected:
  template <class Pools>
  static std::vector<std::string> check_all(const Pools& pools, const char* name) {
    std::vector<std::string> out;
    for (const auto& pool : pools) {
      for (const std::string& message : pool->check_invariants()) out.push_back(fmt::format("{}: {}", name, message));
    }
    return out;
  }
};

class PoolMemory : public PooledMemory {
 public:
  PoolMemory(FreshDevice& device, const Program&) : PooledMemory(device) {
    for (const Stream& stream : device.streams) {
      pools_.push_back(std::make_unique<BufferPool>(*device.allocator, stream));
    }
  }

  PoolHandle allocate(std::uint64_t bytes, std::uint16_t stream) {
    return {pools_[stream]->alloc(bytes, DType::u8, Shape{bytes}), stream};
  }
  void free(PoolHandle& handle) {
    if (handle.buffer) pools_[handle.stream]->release(handle.buffer);
  }
  void free_on(PoolHandle& handle, std::uint16_t) { free(handle); }
  void end_pass() {}
  std::uint64_t idle() const {
    std::uint64_t sum = 0;
    for (const auto& pool : pools_) sum += pool->free_bytes();
    return sum;
  }
  std::vector<std::string> check() const { return check_all(pools_, "pool"); }

 private:
  std::vector<std::unique_ptr<BufferPool>> pools_;
};

// The trace is one cycle of a loop, known beforehand: each stream's part of it is planned before the first pass.
class PlannedMemory : public PooledMemory {
 public:
  PlannedMemory(FreshDevice& device, const Program& program) : PooledMemory(device) {
    const std::vector<std::vector<ArenaLife>> cycles = cycles_of(program);
    for (std::size_t i = 0; i < device.streams.size(); ++i) {
      arenas_.push_back(std::make_unique<PlannedArena>(*device.allocator, device.streams[i]));
      if (cycles[i].empty()) continue;
      try {
        arenas_.back()->learn(cycles[i]);
      } catch (const out_of_memory&) {
        // No room for the slab under the limit: what the pool cannot serve either is counted as it happens.
      }
    }
  }

  PoolHandle allocate(std::uint64_t bytes, std::uint16_t stream) {
    return {arenas_[stream]->alloc(bytes, DType::u8, Shape{bytes}), stream};
  }
  void free(PoolHandle& handle) { handle.buffer.reset(); }
  void free_on(PoolHandle& handle, std::uint16_t) { free(handle); }
  void end_pass() {
    for (const auto& arena : arenas_) arena->end_cycle();
  }
  std::uint64_t idle() const { return 0; }  // A slab is in use by its plan.
  std::vector<std::string> check() const { return check_all(arenas_, "planned arena"); }

 private:
  static std::vector<std::vector<ArenaLife>> cycles_of(const Program& program) {
    std::vector<std::vector<ArenaLife>> cycles(program.streams.size());
    std::vector<std::pair<std::uint16_t, std::size_t>> places(program.slots);  // Stream, and number in its cycle.
    for (const Op& op : program.ops) {
      auto& [stream, number] = places[op.slot];
      if (op.kind == OpKind::allocate) {
        stream = op.stream;
        number = cycles[stream].size();
        cycles[stream].push_back({op.bytes, 0});
      } else {
        cycles[stream][number].dead_at = cycles[stream].size();
      }
    }
    for (auto& cycle : cycles) {
      for (ArenaLife& life : cycle) {
        if (life.dead_at == 0) life.dead_at = cycle.size();
      }
    }
    return cycles;
  }

  std::vector<std::unique_ptr<PlannedArena>> arenas_;
};

template <class Memory>
// NOLINTNEXTLINE(cppcoreguidelines-virtual-class-destructor): Target's is virtual; LaneTarget depends on Memory.
class AllocatorTarget final : public LaneTarget<Memory> {
 public:
  AllocatorTarget(const TargetOptions& options, const Program& program) : device_(options, program) {
    for (unsigned lane = 0; lane < options.lanes; ++lane)
      this->add_lane(std::make_unique<Memory>(device_, program), program.slots);
  }
  ~AllocatorTarget() override { this->clear_lanes(); }

  DeviceBytes* device_bytes() override {
    // The model has no bytes.
    if (device_.reachable || device_.model != nullptr || !device_.allocator->driver().capabilities().can_copy)
      return nullptr;
    if (bytes_ == nullptr) bytes_ = std::make_unique<DeviceBytes>(device_.allocator->driver());
    return bytes_.get();
  }
  void* native(std::uint16_t stream) const override { return device_.streams[stream].native(); }

  void start_pass() override { device_.allocator->reset_peaks(); }
  TargetFigures figures() const override {
    std::uint64_t idle = 0;
    for (std::size_t lane = 0; lane < this->lanes(); ++lane) idle += this->memory(lane).idle();
    return device_.figures(idle);
  }
  std::uint64_t alignment() const override { return device_.allocator->driver().capabilities().alignment; }
  bool host_accessible() const override { return device_.reachable; }
  bool accounts_for_memory() const override { return true; }
  std::vector<std::string> check_invariants() const override {
    std::vector<std::string> out = device_.check();
    for (std::size_t lane = 0; lane < this->lanes(); ++lane) {
      for (std::string& message : this->memory(lane).check()) out.push_back(std::move(message));
    }
    return out;
  }

 private:
  FreshDevice device_;
  std::unique_ptr<DeviceBytes> bytes_;
};

}  // namespace

std::string unavailable(Policy policy, Device device) {
  const std::string name = cistern::to_string(device);
  if (!is_available(device)) return allocation::unavailable(device);
  const bool whole = policy == Policy::system || policy == Policy::buffer_cache;
  if (whole && device.type == DeviceType::cuda) {
    return fmt::format("allocator {} does not run on device {}; expected cpu, metal or model", to_string(policy), name);
  }
  return {};
}

std::unique_ptr<Target> make_target(const TargetOptions& options, const Program& program) {
  if (std::string why = unavailable(options.policy, options.device); !why.empty()) throw invalid_argument(why);
  switch (options.policy) {
    case Policy::system:
    case Policy::buffer_cache:
      return make_whole_target(options, program);
    case Policy::pool:
      return std::make_unique<AllocatorTarget<PoolMemory>>(options, program);
    case Policy::planned:
      return std::make_unique<AllocatorTarget<PlannedMemory>>(options, program);
    case Policy::cistern:
      break;
  }
  if (options.device.type == DeviceType::cpu)
    return std::make_unique<AllocatorTarget<AllocatorMemory<true>>>(options, program);
  return std::make_unique<AllocatorTarget<AllocatorMemory<false>>>(options, program);
}

}  // namespace cistern::trace
