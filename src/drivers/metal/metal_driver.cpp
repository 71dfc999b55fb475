// Devices, what they can do, residency.
#include "drivers/metal/metal_driver.hpp"

#include <algorithm>
#include <bit>

#include "drivers/environment.hpp"
#include "drivers/metal/metal_device.hpp"

#if defined(__unix__) || defined(__APPLE__)
#include <unistd.h>
#endif

namespace cistern::drivers {
namespace metal {
namespace {

constexpr std::size_t kDefaultObjects = 499000;  // What macOS allows a process unless iogpu.rsrc_limit says otherwise.
constexpr std::size_t kLargestSmallBlock =
    8192;  // Bytes up to which blocks share slabs: one alignment for all of them.
constexpr std::size_t kBaseAlignment =
    16384;                             // Bytes; of every segment's start, so that pages of 4 and 16 KiB look alike.
constexpr std::size_t kMostSets = 30;  // Of 32 a queue: two are left to the program.

long process_id() {
#if defined(__unix__) || defined(__APPLE__)
  return getpid();
#else
  return 0;
#endif
}

}  // namespace

ErrorText& MetalDriver::text() {
  thread_local ErrorText error;
  return error;
}

std::string MetalDriver::error_text() const { return text().c_str(); }

Status MetalDriver::no(const char* what) {
  text().set("metal: this device has no %s", what);
  return Status::unsupported;
}

MetalDriver::MetalDriver(Ref<Device> device, const MetalConfig& config)
    : config_(config), process_(process_id()), device_(std::move(device)) {}

MetalDriver::~MetalDriver() {
  // A forked child has no device to give anything back to.
  if (process_id() != process_) {
    for (auto& [at, segment] : segments_) segment.buffer.leave(), segment.heap.leave();
    for (auto& [at, host] : hosts_) host.buffer.leave();
    for (auto& [at, wrapped] : wraps_) wrapped.buffer.leave();
    for (auto& [index, record] : queues_) record.queue.leave(), record.event.leave();
    device_.leave();
    return;
  }
  const objc::AutoreleasePool pool;
  residency_.reset();
  for (const auto& [object, segment] : block_objects_) objc::runtime().release(object);
  segments_.clear();
  hosts_.clear();
  wraps_.clear();
  queues_.clear();
  device_.reset();
}

bool MetalDriver::usable() {
  if (process_id() == process_) return true;
  text().set("metal: a forked child cannot use the device; start it with exec");
  return false;
}

// Whether a placement heap of this storage works, down to a buffer in it: the only sure way to know. The host's address
// of a block is computed from its segment's, so contents must follow offsets.
bool MetalDriver::try_heaps(Storage storage) {
  const Hazard hazard = config_.tracked_hazards ? Hazard::tracked : Hazard::untracked;
  const Ref<Heap> heap = new_placement_heap(device_.get(), 4 * kBaseAlignment, storage, hazard);
  count_call();
  if (!heap || !responds(heap.get(), "newBufferWithLength:options:offset:")) return false;
  const UInt options = resource_options(storage, hazard);
  const Ref<Buffer> whole = new_buffer_in(heap.get(), 4 * kBaseAlignment, options, 0);
  const Ref<Buffer> part = new_buffer_in(heap.get(), kBaseAlignment, options, kBaseAlignment);
  count_call(2);
  if (!whole || !part || storage == Storage::private_) return whole && part;
  const auto* const start = static_cast<const char*>(contents(whole.get()));
  return start != nullptr && contents(part.get()) == start + kBaseAlignment;
}

// Asked once for every doubling: the steady state makes no call. Returns the largest alignment.
std::size_t MetalDriver::ask_layouts() {
  const UInt options = resource_options(storage_, config_.tracked_hazards ? Hazard::tracked : Hazard::untracked);
  Layout last{64, 64};  // No less than Capabilities::alignment allows.
  for (unsigned width = 0; width < layouts_.size(); ++width) {
    if (width < 62 && (std::size_t{1} << width) <= capabilities_.max_buffer) {
      // The smallest size of the band shows how sizes are rounded.
      const std::size_t least = width == 0 ? 1 : (std::size_t{1} << (width - 1)) + 1;
      const SizeAndAlign small = heap_buffer_size_and_align(device_.get(), least, options);
      const SizeAndAlign large = heap_buffer_size_and_align(device_.get(), std::size_t{1} << width, options);
      count_call(2);
      last.alignment = std::bit_ceil(std::max<std::size_t>({last.alignment, small.align, large.align}));
      const std::size_t over = small.size > least ? small.size - (least - 1) : 1;
      last.unit =
          std::max({last.unit, last.alignment, std::bit_ceil(over) > least ? last.alignment : std::bit_ceil(over)});
    }
    layouts_[width] = last;
  }
  // Small blocks stand side by side in slabs, so they all have the alignment of the largest.
  const Layout& small = layouts_[static_cast<unsigned>(std::bit_width(kLargestSmallBlock - 1))];
  capabilities_.alignment = std::max(small.alignment, small.unit);
  for (Layout& layout : layouts_) {
    layout.alignment = std::max(layout.alignment, capabilities_.alignment);
    layout.unit = std::max(layout.unit, layout.alignment);
  }
  return layouts_.back().alignment;
}

bool MetalDriver::start(std::string& why) {
  const objc::AutoreleasePool pool;
  Capabilities& c = capabilities_;
  c.name = name(device_.get());
  c.unified_memory = has_unified_memory(device_.get());
  c.recommended_working_set = recommended_working_set(device_.get());
  const std::size_t memory = objc::system_number("hw.memsize", c.recommended_working_set / 3 * 4);
  // A discrete device names its own memory as the working set.
  c.total_memory = c.unified_memory || c.recommended_working_set == 0 ? memory : c.recommended_working_set;
  page_ = c.page_size = objc::system_number("hw.pagesize", 16384);
  count_call(5);

  // Virtual machines have a device that accepts heaps and then fails in them.
  const bool virtual_machine = c.name.find("Paravirtual") != std::string::npos;
  const auto choose = [&](Storage storage) {
    storage_ = storage;
    return try_heaps(storage);
  };
  bool heaps =
      config_.memory != MetalMemory::whole_buffers && !(virtual_machine && config_.memory == MetalMemory::automatic);
  if (heaps) {
    switch (config_.storage) {
      case MetalStorage::shared:
        heaps = choose(Storage::shared);
        break;
      case MetalStorage::private_:
        heaps = choose(Storage::private_);
        break;
      case MetalStorage::automatic:
        // Shared heaps need Apple's own processors.
        heaps = (c.unified_memory && choose(Storage::shared)) || (!c.unified_memory && choose(Storage::private_));
        break;
    }
  }
  const std::size_t longest = max_buffer_length(device_.get());
  pad_ = heaps && page_ < kBaseAlignment && storage_ == Storage::shared ? kBaseAlignment : 0;
  c.max_buffer = longest - std::min(longest, pad_);
  const std::size_t most_alignment = ask_layouts();
  // What stands before an aligned start would break an alignment above the page's. No known device has both.
  if (pad_ != 0 && most_alignment > page_) heaps = false;
  if (!heaps) {
    pad_ = 0;
    if (config_.memory == MetalMemory::heaps) {
      why = "metal: placement heaps do not work on " + c.name;
      return false;
    }
    storage_ = Storage::shared;
  }

  c.virtual_memory = false;
  c.double_mapping = false;
  c.whole_buffers = !heaps;
  c.host_accessible = storage_ == Storage::shared;
  c.asynchronous = true;
  c.can_copy = true;
  c.block_objects = !heaps || config_.block_objects;
  c.segment_objects = heaps && !config_.block_objects;
  // Blocks are aligned in their segment, so a segment, and what is between two of them, is a multiple of every
  // alignment.
  c.granularity =
      heaps ? std::max({std::bit_ceil(config_.granularity), kBaseAlignment, most_alignment}) : kBaseAlignment;
  c.max_objects =
      config_.max_objects != 0 ? config_.max_objects : objc::system_number("iogpu.rsrc_limit", kDefaultObjects);

  const std::size_t set_bytes =
      std::max(Residency::kLeastSetBytes, c.recommended_working_set / Residency::kSetsPerWorkingSet);
  residency_.emplace(set_bytes, kMostSets);
  c.residency = static_cast<bool>(new_residency_set(device_.get()));
  if (c.residency) residency_->set_device(device_.get());
  const UInt sparse_options = resource_options(Storage::private_, Hazard::untracked);
  c.sparse_buffers = says_placement_sparse(device_.get()) &&
                     static_cast<bool>(new_sparse_buffer(device_.get(), std::size_t{4} << 20, sparse_options));
  count_call(3);
  return true;
}

Status MetalDriver::set_wired_limit(std::size_t bytes) {
  if (!capabilities_.residency) return no("residency sets (macOS 15)");
  if (!usable()) return Status::failed;
  if (bytes > capabilities_.recommended_working_set) {
    // The words that users of MLX know; they look for them.
    text().set(
        "metal: Setting a wired limit larger than the maximum working set size is not allowed (asked for %zu bytes, "
        "the "
        "recommended working set has %zu)",
        bytes, capabilities_.recommended_working_set);
    return Status::failed;
  }
  const objc::AutoreleasePool pool;
  with_residency([&](Residency& r) {
    r.set_limit(bytes);
    r.commit();
  });
  return Status::ok;
}

void MetalDriver::segment_used(const Segment& segment, bool used) {
  const auto found = segments_.find(segment.base);
  if (found == segments_.end() || !capabilities_.residency || !usable()) return;
  const objc::AutoreleasePool pool;
  with_residency([&](Residency& r) { r.set_idle(found->second.heap.get(), !used); });
}

Status MetalDriver::commit_residency() {
  if (!capabilities_.residency || !residency_->staged()) return Status::ok;
  if (!usable()) return Status::failed;
  const objc::AutoreleasePool pool;
  with_residency([](Residency& r) { r.commit(); });
  removed_bytes_ = 0;
  return Status::ok;
}

MetalFigures MetalDriver::figures() const {
  const ResidencyFigures residency = residency_->figures();
  return {objects_live_.load(std::memory_order_relaxed),
          objects_made_.load(std::memory_order_relaxed),
          residency.wired,
          residency.waiting,
          residency.sets,
          residency.commits};
}

std::vector<std::string> MetalDriver::check_invariants() const {
  std::vector<std::string> broken = residency_->check_invariants();
  const std::size_t counted = segments_.size() + hosts_.size() + wraps_.size() + block_objects_.size();
  if (counted != objects_live_.load(std::memory_order_relaxed))
    broken.push_back("metal: the count of objects is wrong");
  std::size_t over = 0;
  for (const auto& [at, segment] : segments_) over += segment.objects;
  if (over != block_objects_.size()) broken.push_back("metal: the counts of objects over segments are wrong");
  return broken;
}

namespace {

// The device of this index, owned; the system's default device is the first.
Ref<Device> device_at(int index) {
  Ref<Device> first = Ref<Device>::adopt(objc::runtime().create_default_device());
  if (index == 0 || !first) return first;
  if (objc::runtime().copy_all_devices == nullptr) return {};
  const Ref<objc::Object> all = Ref<objc::Object>::adopt(objc::runtime().copy_all_devices());
  const Sel count = objc::runtime().register_name("count");
  const Sel object_at = objc::runtime().register_name("objectAtIndex:");
  int seen = 0;
  for (UInt i = 0; all && i < send<UInt>(all.get(), count); ++i) {
    void* const device = send<void*, UInt>(all.get(), object_at, i);
    if (device != first.get() && ++seen == index) return Ref<Device>::retain(device);
  }
  return {};
}

}  // namespace
}  // namespace metal

std::optional<MetalConfig> metal_config_from_environment(std::string* why) {
  MetalConfig config;
  std::string refused;
  read_choice("CISTERN_METAL_STORAGE", {{"shared", MetalStorage::shared}, {"private", MetalStorage::private_}},
              config.storage, refused);
  read_choice("CISTERN_METAL_MEMORY", {{"heaps", MetalMemory::heaps}, {"whole", MetalMemory::whole_buffers}},
              config.memory, refused);
  read_choice("CISTERN_METAL_TRACKED", {{"0", false}, {"1", true}}, config.tracked_hazards, refused);
  read_choice("CISTERN_METAL_OBJECTS", {{"0", false}, {"1", true}}, config.block_objects, refused);
  read_number("CISTERN_METAL_MAX_OBJECTS", config.max_objects, refused);
  if (refused.empty()) return config;
  if (why != nullptr) *why = refused;
  return std::nullopt;
}

int metal_device_count(std::string* why) {
  std::string reason;
  if (objc::load(reason) == nullptr) {
    if (why != nullptr) *why = reason;
    return 0;
  }
  const objc::AutoreleasePool pool;
  int count = 0;
  while (metal::device_at(count)) ++count;
  if (count == 0 && why != nullptr) *why = "metal: there is no device";
  return count;
}

std::unique_ptr<Driver> make_metal_driver(int index, const MetalConfig& config, std::string* why) {
  std::string reason = "metal: there is no device " + std::to_string(index);
  std::unique_ptr<metal::MetalDriver> driver;
  if (index >= 0 && objc::load(reason) != nullptr) {
    const objc::AutoreleasePool pool;
    if (auto device = metal::device_at(index)) {
      driver = std::make_unique<metal::MetalDriver>(std::move(device), config);
      if (!driver->start(reason)) driver.reset();
    }
  }
  if (driver == nullptr && why != nullptr) *why = reason;
  return driver;
}

MetalFigures metal_figures(const Driver& driver) { return static_cast<const metal::MetalDriver&>(driver).figures(); }

std::vector<std::string> check_metal_invariants(const Driver& driver) {
  return static_cast<const metal::MetalDriver&>(driver).check_invariants();
}

}  // namespace cistern::drivers
