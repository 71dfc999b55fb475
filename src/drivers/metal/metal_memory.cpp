// Segments, objects over blocks, whole buffers, views.
#include <algorithm>
#include <bit>
#include <new>

#include "drivers/metal/metal_device.hpp"

namespace cistern::drivers::metal {
namespace {

// Segments that the host cannot reach get addresses that no program of a 64-bit system has (user space ends at 2^47),
// and no other driver either. They are handed out once in steps of 2 MiB and come back when their segment goes.
constexpr Address kFirstAddress = Address{1} << 47;
constexpr Address kEndAddress = Address{1} << 48;
constexpr std::size_t kAddressStep = std::size_t{2} << 20;

struct Addresses {
  std::mutex mutex;
  Address next = kFirstAddress;
  std::multimap<std::size_t, Address> spare;  // By bytes.
};

Addresses& addresses() {
  static Addresses* const all = new Addresses;
  return *all;
}

constexpr std::size_t round_up(std::size_t bytes, std::size_t unit) {
  const std::size_t most = SIZE_MAX / unit * unit;
  return bytes > most ? most : (bytes + unit - 1) / unit * unit;
}

Address address_of(const void* ptr) { return static_cast<Address>(reinterpret_cast<std::uintptr_t>(ptr)); }

// The record that covers [at, at + bytes), if it is the last one that starts at or before it.
template <class Map>
auto covering(const Map& map, Address at, std::size_t bytes) {
  auto found = map.upper_bound(at);
  if (found == map.begin()) return map.end();
  --found;
  const std::size_t inside = at - found->first;
  return inside <= found->second.bytes && bytes <= found->second.bytes - inside ? found : map.end();
}

}  // namespace

Address MetalDriver::take_address(std::size_t bytes) {
  Addresses& all = addresses();
  const std::lock_guard lock(all.mutex);
  bytes = round_up(bytes, kAddressStep);
  if (const auto found = all.spare.lower_bound(bytes); found != all.spare.end() && found->first == bytes) {
    const Address at = found->second;
    all.spare.erase(found);
    return at;
  }
  if (bytes > kEndAddress - all.next) return 0;
  all.next += bytes;
  return all.next - bytes;
}

void MetalDriver::give_address(Address at, std::size_t bytes) {
  Addresses& all = addresses();
  const std::lock_guard lock(all.mutex);
  all.spare.emplace(round_up(bytes, kAddressStep), at);
}

Status MetalDriver::check_object_count() {
  if (!usable()) return Status::failed;
  if (objects_live_.load(std::memory_order_relaxed) < capabilities_.max_objects) return Status::ok;
  text().set("metal: Resource limit (%zu) exceeded: so many buffers and heaps are alive", capabilities_.max_objects);
  return Status::out_of_memory;
}

void MetalDriver::made_object() noexcept {
  objects_live_.fetch_add(1, std::memory_order_relaxed);
  objects_made_.fetch_add(1, std::memory_order_relaxed);
}
void MetalDriver::dropped_object() noexcept { objects_live_.fetch_sub(1, std::memory_order_relaxed); }

void MetalDriver::block_layout(std::size_t bytes, std::size_t& size, std::size_t& alignment) const {
  const Layout& layout = layouts_[std::min<std::size_t>(
      layouts_.size() - 1, static_cast<unsigned>(std::bit_width(bytes == 0 ? 0 : bytes - 1)))];
  alignment = layout.alignment;
  size = round_up(std::max<std::size_t>(bytes, 1), layout.unit);
}

// --- Segments -------------------------------------------------------------------------------------------------------

Status MetalDriver::create_segment(std::size_t bytes, Segment& out) {
  if (capabilities_.whole_buffers) return no("heaps that work");
  if (bytes == 0 || bytes % capabilities_.granularity != 0) {
    text().set("metal: a segment of %zu bytes is no multiple of %zu", bytes, capabilities_.granularity);
    return Status::failed;
  }
  if (bytes > capabilities_.max_buffer) {
    text().set(
        "metal: Attempting to allocate %zu bytes which is greater than the maximum allowed buffer size of %zu bytes",
        bytes, capabilities_.max_buffer);
    return Status::out_of_memory;
  }
  if (const Status s = check_object_count(); s != Status::ok) return s;
  const objc::AutoreleasePool pool;
  const Hazard hazard = config_.tracked_hazards ? Hazard::tracked : Hazard::untracked;
  SegmentRecord record;
  record.bytes = bytes;
  for (int attempt = 0; attempt < 2; ++attempt) {
    record.heap = new_placement_heap(device_.get(), bytes + pad_, storage_, hazard);
    count_call();
    // A set keeps what was taken out of it until its next commit.
    if (record.heap || attempt > 0 || removed_bytes_ == 0) break;
    commit_residency();
  }
  const UInt options = resource_options(storage_, hazard);
  if (record.heap) {
    record.buffer = new_buffer_in(record.heap.get(), bytes, options, 0);
    count_call();
  }
  if (record.buffer && pad_ != 0) {
    // Where the heap starts is known only now; the segment, and the buffer over it, start at a multiple of the pad.
    const Address start = address_of(contents(record.buffer.get()));
    record.lead = round_up(start, pad_) - start;
    if (record.lead != 0) {
      record.buffer = new_buffer_in(record.heap.get(), bytes, options, record.lead);
      count_call();
    }
  }
  if (!record.buffer) {
    text().set("metal: newHeapWithDescriptor: no heap of %zu bytes; %zu bytes are allocated on the device", bytes,
               current_allocated_size(device_.get()));
    return Status::out_of_memory;
  }
  Address base = 0;
  if (capabilities_.host_accessible) {
    base = address_of(contents(record.buffer.get()));
  } else {
    base = take_address(bytes);
  }
  if (base == 0) {
    text().set("metal: a heap of %zu bytes has no address", bytes);
    return Status::out_of_memory;
  }
  void* const object = record.buffer.get();
  void* const heap = record.heap.get();
  try {
    segments_.emplace(base, std::move(record));
  } catch (const std::bad_alloc&) {
    if (!capabilities_.host_accessible) give_address(base, bytes);
    text().set("metal: no host memory for the record of a segment");
    return Status::out_of_memory;
  }
  with_residency([&](Residency& r) { r.insert(heap, bytes); });
  made_object();
  out = {object, base, bytes};
  return Status::ok;
}

Status MetalDriver::destroy_segment(const Segment& segment) {
  if (!usable()) return Status::failed;
  const auto found = segments_.find(segment.base);
  if (found == segments_.end() || found->second.buffer.get() != segment.object) {
    text().set("metal: there is no segment at %#llx", static_cast<unsigned long long>(segment.base));
    return Status::failed;
  }
  if (found->second.objects != 0) {
    text().set("metal: %zu objects still stand over the segment", found->second.objects);
    return Status::failed;
  }
  const objc::AutoreleasePool pool;
  with_residency([&](Residency& r) { r.erase(found->second.heap.get()); });
  if (residency_->staged()) removed_bytes_ += found->second.bytes;
  count_call(2);
  if (!capabilities_.host_accessible) give_address(segment.base, segment.bytes);
  segments_.erase(found);
  dropped_object();
  // Memory that was given back shall not wait for long.
  if (removed_bytes_ > std::max(Residency::kLeastSetBytes, capabilities_.recommended_working_set / 20))
    commit_residency();
  return Status::ok;
}

Status MetalDriver::create_object(const Segment& segment, std::size_t offset, std::size_t bytes, void*& object) {
  if (capabilities_.whole_buffers) return no("heaps that work");
  const auto found = segments_.find(segment.base);
  if (found == segments_.end() || bytes == 0 || offset > found->second.bytes || bytes > found->second.bytes - offset) {
    text().set("metal: [%zu, +%zu) is no part of a segment", offset, bytes);
    return Status::failed;
  }
  if (const Status s = check_object_count(); s != Status::ok) return s;
  const objc::AutoreleasePool pool;
  const Hazard hazard = config_.tracked_hazards ? Hazard::tracked : Hazard::untracked;
  Ref<Buffer> buffer =
      new_buffer_in(found->second.heap.get(), bytes, resource_options(storage_, hazard), found->second.lead + offset);
  count_call();
  if (!buffer) {
    text().set("metal: no buffer of %zu bytes at %zu in a heap", bytes, offset);
    return Status::out_of_memory;
  }
  try {
    block_objects_.emplace(buffer.get(), segment.base);
  } catch (const std::bad_alloc&) {
    text().set("metal: no host memory for the record of an object");
    return Status::out_of_memory;
  }
  ++found->second.objects;
  made_object();
  object = buffer.leave();
  return Status::ok;
}

void MetalDriver::destroy_object(void* object) {
  const auto found = block_objects_.find(object);
  if (found == block_objects_.end() || !usable()) return;
  const auto segment = segments_.find(found->second);
  if (segment != segments_.end()) --segment->second.objects;
  block_objects_.erase(found);
  const objc::AutoreleasePool pool;
  objc::runtime().release(object);
  count_call();
  dropped_object();
}

// --- Whole buffers --------------------------------------------------------------------------------------------------

Status MetalDriver::allocate_host(HostKind, std::size_t bytes, void*& out) {
  if (bytes > capabilities_.max_buffer) {
    text().set(
        "metal: Attempting to allocate %zu bytes which is greater than the maximum allowed buffer size of %zu bytes",
        bytes, capabilities_.max_buffer);
    return Status::out_of_memory;
  }
  if (const Status s = check_object_count(); s != Status::ok) return s;
  const objc::AutoreleasePool pool;
  const UInt options = resource_options(Storage::shared, config_.tracked_hazards ? Hazard::tracked : Hazard::untracked);
  // There are no empty buffers.
  BufferRecord record;
  record.bytes = std::max<std::size_t>(bytes, 1);
  for (int attempt = 0; attempt < 2; ++attempt) {
    record.buffer = new_buffer(device_.get(), round_up(record.bytes, 64), options);
    count_call();
    if (record.buffer || attempt > 0 || removed_bytes_ == 0) break;
    commit_residency();
  }
  void* const memory = record.buffer ? contents(record.buffer.get()) : nullptr;
  if (memory == nullptr) {
    text().set("metal: newBufferWithLength:options: no buffer of %zu bytes; %zu bytes are allocated on the device",
               bytes, current_allocated_size(device_.get()));
    return Status::out_of_memory;
  }
  void* const object = record.buffer.get();
  try {
    hosts_.emplace(address_of(memory), std::move(record));
  } catch (const std::bad_alloc&) {
    text().set("metal: no host memory for the record of a buffer");
    return Status::out_of_memory;
  }
  with_residency([&](Residency& r) { r.insert(object, bytes); });
  made_object();
  out = memory;
  return Status::ok;
}

Status MetalDriver::free_host(HostKind, void* ptr, std::size_t) {
  if (!usable()) return Status::failed;
  const auto found = hosts_.find(address_of(ptr));
  if (found == hosts_.end()) {
    text().set("metal: there is no buffer at %p", ptr);
    return Status::failed;
  }
  const objc::AutoreleasePool pool;
  with_residency([&](Residency& r) { r.erase(found->second.buffer.get()); });
  if (residency_->staged()) removed_bytes_ += found->second.bytes;
  count_call(1);
  hosts_.erase(found);
  dropped_object();
  if (removed_bytes_ > std::max(Residency::kLeastSetBytes, capabilities_.recommended_working_set / 20))
    commit_residency();
  return Status::ok;
}

void* MetalDriver::host_object(void* ptr) {
  const auto found = hosts_.find(address_of(ptr));
  return found == hosts_.end() ? nullptr : static_cast<void*>(found->second.buffer.get());
}

// --- Views ----------------------------------------------------------------------------------------------------------

Status MetalDriver::wrap(void* ptr, std::size_t bytes, void*& object) {
  // Metal takes whole pages. The rest of the last page belongs to the same page anyway, and nothing is written there.
  if (ptr == nullptr || bytes == 0 || address_of(ptr) % page_ != 0 || bytes > SIZE_MAX - page_) {
    text().set("metal: %zu bytes at %p cannot be wrapped: the start must be a multiple of %zu", bytes, ptr, page_);
    return Status::unsupported;
  }
  const std::size_t whole = round_up(bytes, page_);
  if (whole > capabilities_.max_buffer) {
    text().set("metal: a view of %zu bytes is greater than the maximum allowed buffer size of %zu bytes", bytes,
               capabilities_.max_buffer);
    return Status::unsupported;
  }
  if (const Status s = check_object_count(); s != Status::ok) return s;
  const objc::AutoreleasePool pool;
  const UInt options = resource_options(Storage::shared, config_.tracked_hazards ? Hazard::tracked : Hazard::untracked);
  BufferRecord record;
  record.bytes = whole;
  record.buffer = new_buffer_no_copy(device_.get(), ptr, whole, options);
  count_call();
  if (!record.buffer) {
    text().set("metal: newBufferWithBytesNoCopy: the system cannot show %zu bytes at %p to the device", bytes, ptr);
    return Status::unsupported;
  }
  void* const made = record.buffer.get();
  try {
    wraps_.emplace(address_of(ptr), std::move(record));
  } catch (const std::bad_alloc&) {
    text().set("metal: no host memory for the record of a view");
    return Status::out_of_memory;
  }
  with_residency([&](Residency& r) { r.insert(made, whole); });
  made_object();
  object = made;
  return Status::ok;
}

void MetalDriver::unwrap(void* object) {
  if (!usable()) return;
  const objc::AutoreleasePool pool;
  const auto found = std::find_if(wraps_.begin(), wraps_.end(),
                                  [&](const auto& entry) { return entry.second.buffer.get() == object; });
  if (found == wraps_.end()) return;
  with_residency([&](Residency& r) { r.erase(object); });
  if (residency_->staged()) removed_bytes_ += found->second.bytes;
  count_call(1);
  wraps_.erase(found);
  dropped_object();
}

// --- Where an address is --------------------------------------------------------------------------------------------

std::optional<MetalDriver::Place> MetalDriver::locate(Address at, std::size_t bytes) const {
  if (const auto found = covering(segments_, at, bytes); found != segments_.end()) {
    return Place{found->second.buffer.get(), at - found->first};
  }
  if (const auto found = covering(hosts_, at, bytes); found != hosts_.end()) {
    return Place{found->second.buffer.get(), at - found->first};
  }
  // Views may overlap; the nearest that covers the range will do.
  for (auto found = wraps_.upper_bound(at); found != wraps_.begin();) {
    --found;
    const std::size_t inside = at - found->first;
    if (inside <= found->second.bytes && bytes <= found->second.bytes - inside) {
      return Place{found->second.buffer.get(), inside};
    }
  }
  return std::nullopt;
}

Status MetalDriver::memory_info(std::size_t& free, std::size_t& total) {
  if (!usable()) return Status::failed;
  const objc::AutoreleasePool pool;
  const std::size_t used = current_allocated_size(device_.get());
  count_call();
  total = capabilities_.total_memory;
  free = total - std::min(total, used);
  return Status::ok;
}

}  // namespace cistern::drivers::metal
