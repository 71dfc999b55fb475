// The model's memory: ranges, pieces, mappings, segments and host buffers. Streams and the device's side of the class
// are in model_device.cpp.
#include "drivers/model/model_driver.hpp"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <iterator>

#include "drivers/aligned_memory.hpp"
#include "drivers/error_text.hpp"
#include "drivers/model/address_space.hpp"

namespace cistern::drivers {
namespace {

constexpr std::size_t kHostAlignment = 64;  // Bytes.
constexpr std::size_t kKeptViolations = 1000;

thread_local ErrorText last_error;

unsigned long long n(std::uint64_t v) { return v; }
Address address_of(const void* ptr) { return static_cast<Address>(reinterpret_cast<std::uintptr_t>(ptr)); }

}  // namespace

ModelDriver::ModelDriver(ModelConfig config)
    : config_(std::move(config)), timeline_(config_.lag_us, config_.manual), total_(config_.total_memory) {
  capabilities_.name = config_.virtual_memory ? "model" : "model (segments)";
  capabilities_.total_memory = config_.total_memory;
  capabilities_.granularity = config_.granularity;
  capabilities_.alignment = config_.alignment;
  capabilities_.max_buffer = config_.max_buffer;
  capabilities_.max_objects = config_.max_objects;
  capabilities_.virtual_memory = config_.virtual_memory;
  capabilities_.double_mapping = config_.virtual_memory && config_.double_mapping;
  capabilities_.host_accessible = false;
  capabilities_.asynchronous = config_.manual || config_.lag_us > 0;
  capabilities_.fresh_is_zero = false;
  capabilities_.block_objects = !config_.virtual_memory && config_.block_objects;
  capabilities_.can_copy = true;
}

ModelDriver::~ModelDriver() {
  if (config_.report != nullptr) {
    config_.report->violations = violations_;
    config_.report->leaks = leaks_locked();
  }
  for (const auto& [at, region] : regions_) {
    if (region.kind == Kind::host) aligned_free(reinterpret_cast<void*>(static_cast<std::uintptr_t>(at)));
    if (region.kind == Kind::segment) give_model_addresses(at);
  }
  for (const auto& [base, bytes] : ranges_) give_model_addresses(base);
}

std::string ModelDriver::error_text() const { return last_error.c_str(); }

// Counts and prices a call; what the fault plan wants in its place, or ok.
Status ModelDriver::begin(Call call, double handle_us, std::uint64_t vendor_calls) {
  count_call(vendor_calls);
  handle_us_ += handle_us;
  const Status status = faults_.next(call);
  if (status != Status::ok) last_error.set("%s: fails by plan", name(call));
  return status;
}

Status ModelDriver::refuse(Status status, const char* format, ...) {
  char text[256];
  std::va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  last_error.set("%s", text);
  return status;
}

Status ModelDriver::violation(const char* format, ...) {
  char text[256];
  std::va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  last_error.set("%s", text);
  ++violation_count_;
  if (violations_.size() < kKeptViolations) violations_.emplace_back(text);
  return Status::failed;
}

bool ModelDriver::take_physical(std::size_t bytes) {
  if (bytes > total_ || physical_ > total_ - bytes) return false;
  physical_ += bytes;
  peak_physical_ = std::max(peak_physical_, physical_);
  return true;
}

ModelDriver::Regions::iterator ModelDriver::region_over(Address at) {
  auto region = regions_.upper_bound(at);
  if (region == regions_.begin()) return regions_.end();
  --region;
  return at - region->first < region->second.bytes ? region : regions_.end();
}

bool ModelDriver::any_region(Address at, std::size_t bytes) const {
  const auto next = regions_.lower_bound(at);
  if (next != regions_.end() && next->first - at < bytes) return true;
  return next != regions_.begin() && at - std::prev(next)->first < std::prev(next)->second.bytes;
}

bool ModelDriver::in_a_range(Address at, std::size_t bytes) const {
  auto range = ranges_.upper_bound(at);
  if (range == ranges_.begin()) return false;
  --range;
  const std::size_t offset = at - range->first;
  return offset < range->second && bytes <= range->second - offset;
}

bool ModelDriver::pending(const Region& region) const {
  return std::any_of(region.uses.begin(), region.uses.end(), [this](const Use& u) { return !timeline_.done(u.point); });
}

Status ModelDriver::reserve(std::size_t bytes, Address& base) {
  const std::lock_guard lock(mutex_);
  if (const Status s = begin(Call::reserve, 0, 1); s != Status::ok) return s;
  if (!config_.virtual_memory) return refuse(Status::unsupported, "reserve: no virtual memory");
  if (!whole(bytes)) return violation("reserve: %llu bytes are not a multiple of the granularity", n(bytes));
  if (bytes > config_.address_space - reserved_) {
    return refuse(Status::out_of_memory, "reserve: no %llu bytes of address space are left", n(bytes));
  }
  const Address at = take_model_addresses(bytes, config_.granularity);
  if (at == 0) return refuse(Status::out_of_memory, "reserve: no %llu bytes of address space are left", n(bytes));
  ranges_.emplace(at, bytes);
  reserved_ += bytes;
  base = at;
  return Status::ok;
}

Status ModelDriver::unreserve(Address base, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (const Status s = begin(Call::unreserve, 0, 1); s != Status::ok) return s;
  const auto range = ranges_.find(base);
  if (range == ranges_.end()) return violation("unreserve: no range starts at %#llx", n(base));
  if (range->second != bytes) return violation("unreserve: the range has %llu bytes", n(range->second));
  if (any_region(base, bytes)) return violation("unreserve: something is mapped in the range at %#llx", n(base));
  ranges_.erase(range);
  reserved_ -= bytes;
  give_model_addresses(base);
  return Status::ok;
}

Status ModelDriver::create(std::size_t bytes, Physical& out) {
  const std::lock_guard lock(mutex_);
  if (const Status s = begin(Call::create, config_.prices.create, 1); s != Status::ok) return s;
  if (!config_.virtual_memory) return refuse(Status::unsupported, "create: no virtual memory");
  if (!whole(bytes)) return violation("create: %llu bytes are not a multiple of the granularity", n(bytes));
  if (!take_physical(bytes))
    return refuse(Status::out_of_memory, "create: the device has no %llu bytes left", n(bytes));
  pieces_[next_piece_].bytes = bytes;
  out = Physical{next_piece_++};
  return Status::ok;
}

Status ModelDriver::destroy(Physical piece) {
  const std::lock_guard lock(mutex_);
  if (const Status s = begin(Call::destroy, config_.prices.release, 1); s != Status::ok) return s;
  const auto found = pieces_.find(static_cast<std::uint64_t>(piece));
  if (found == pieces_.end()) return violation("destroy: there is no piece %llu", n(static_cast<std::uint64_t>(piece)));
  if (!found->second.shown_at.empty()) return violation("destroy: piece %llu is mapped", n(found->first));
  physical_ -= found->second.bytes;
  pieces_.erase(found);
  return Status::ok;
}

Status ModelDriver::map(Address at, Physical piece, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  // The vendor's map and the vendor's set-access.
  if (const Status s = begin(Call::map, config_.prices.map + config_.prices.set_access, 2); s != Status::ok) return s;
  const auto found = pieces_.find(static_cast<std::uint64_t>(piece));
  if (found == pieces_.end()) return violation("map: there is no piece %llu", n(static_cast<std::uint64_t>(piece)));
  if (found->second.bytes != bytes)
    return violation("map: piece %llu has %llu bytes", n(found->first), n(found->second.bytes));
  if (at % config_.granularity != 0) return violation("map: %#llx is not at a multiple of the granularity", n(at));
  if (!in_a_range(at, bytes)) return violation("map: %#llx is not in a reserved range", n(at));
  if (any_region(at, bytes)) return violation("map: something is mapped at %#llx", n(at));
  if (!config_.double_mapping && !found->second.shown_at.empty()) {
    return violation("map: piece %llu is mapped already", n(found->first));
  }
  Region& region = regions_[at];
  region.bytes = bytes;
  region.piece = found->first;
  found->second.shown_at.push_back(at);
  return Status::ok;
}

Status ModelDriver::unmap(Address at, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (const Status s = begin(Call::unmap, config_.prices.unmap, 1); s != Status::ok) return s;
  const auto region = regions_.find(at);
  if (region == regions_.end() || region->second.kind != Kind::mapping) {
    return violation("unmap: no mapping starts at %#llx", n(at));
  }
  if (region->second.bytes != bytes) return violation("unmap: the mapping has %llu bytes", n(region->second.bytes));
  if (pending(region->second)) return violation("unmap: work that uses %#llx is pending: the kernel dies", n(at));
  std::erase(pieces_.find(region->second.piece)->second.shown_at, at);
  regions_.erase(region);
  return Status::ok;
}

Status ModelDriver::create_segment(std::size_t bytes, Segment& out) {
  const std::lock_guard lock(mutex_);
  if (const Status s = begin(Call::create_segment, config_.prices.create, 1); s != Status::ok) return s;
  if (config_.virtual_memory) return refuse(Status::unsupported, "create_segment: this device has virtual memory");
  if (!whole(bytes)) return violation("create_segment: %llu bytes are not a multiple of the granularity", n(bytes));
  if (bytes > config_.max_buffer) return refuse(Status::failed, "create_segment: %llu bytes are too many", n(bytes));
  if (segments_ + objects_.size() >= config_.max_objects) {
    return refuse(Status::out_of_memory, "create_segment: the device has no more than %llu objects",
                  n(config_.max_objects));
  }
  const Address at = take_model_addresses(bytes, config_.granularity);
  if (at == 0) return refuse(Status::out_of_memory, "create_segment: no addresses are left");
  if (!take_physical(bytes)) {
    give_model_addresses(at);
    return refuse(Status::out_of_memory, "create_segment: the device has no %llu bytes left", n(bytes));
  }
  Region& region = regions_[at];
  region.bytes = bytes;
  region.kind = Kind::segment;
  ++segments_;
  out = {reinterpret_cast<void*>(static_cast<std::uintptr_t>(at)), at, bytes};
  return Status::ok;
}

Status ModelDriver::destroy_segment(const Segment& segment) {
  const std::lock_guard lock(mutex_);
  if (const Status s = begin(Call::destroy_segment, config_.prices.release, 1); s != Status::ok) return s;
  const auto region = regions_.find(segment.base);
  if (region == regions_.end() || region->second.kind != Kind::segment || region->second.bytes != segment.bytes) {
    return violation("destroy_segment: no segment of this size is at %#llx", n(segment.base));
  }
  if (region->second.objects != 0)
    return violation("destroy_segment: %llu objects are left", n(region->second.objects));
  if (pending(region->second)) {
    return violation("destroy_segment: work that uses %#llx is pending: the kernel dies", n(segment.base));
  }
  physical_ -= segment.bytes;
  --segments_;
  regions_.erase(region);
  give_model_addresses(segment.base);
  return Status::ok;
}

Status ModelDriver::create_object(const Segment& segment, std::size_t offset, std::size_t bytes, void*& object) {
  const std::lock_guard lock(mutex_);
  if (const Status s = begin(Call::create_object, 0, 1); s != Status::ok) return s;
  if (!capabilities_.block_objects) return refuse(Status::unsupported, "create_object: this device has no objects");
  const auto region = regions_.find(segment.base);
  if (region == regions_.end() || region->second.kind != Kind::segment) {
    return violation("create_object: no segment is at %#llx", n(segment.base));
  }
  if (bytes == 0 || offset > region->second.bytes || bytes > region->second.bytes - offset) {
    return violation("create_object: %llu bytes at %llu are not in the segment", n(bytes), n(offset));
  }
  if (offset % config_.alignment != 0) return violation("create_object: offset %llu is not aligned", n(offset));
  if (segments_ + objects_.size() >= config_.max_objects) {
    return refuse(Status::out_of_memory, "create_object: the device has no more than %llu objects",
                  n(config_.max_objects));
  }
  object = reinterpret_cast<void*>(static_cast<std::uintptr_t>(16 * next_object_++));
  objects_.emplace(object, segment.base);
  ++region->second.objects;
  return Status::ok;
}

void ModelDriver::destroy_object(void* object) {
  const std::lock_guard lock(mutex_);
  count_call();
  const auto found = objects_.find(object);
  if (found == objects_.end()) {
    violation("destroy_object: there is no object %p", object);
    return;
  }
  --regions_.find(found->second)->second.objects;
  objects_.erase(found);
}

void ModelDriver::block_layout(std::size_t bytes, std::size_t& size, std::size_t& alignment) const {
  const std::size_t low = config_.alignment - 1;
  size = bytes > SIZE_MAX - low ? SIZE_MAX & ~low : (bytes + low) & ~low;
  alignment = config_.alignment;
}

Status ModelDriver::allocate_host(HostKind, std::size_t bytes, void*& out) {
  const std::lock_guard lock(mutex_);
  if (const Status s = begin(Call::allocate_host, 0, 1); s != Status::ok) return s;
  const std::size_t size = std::max<std::size_t>(bytes, 1);  // An empty buffer has an address of its own, too.
  if (!take_physical(size)) return refuse(Status::out_of_memory, "allocate_host: no %llu bytes are left", n(bytes));
  void* const memory = aligned_calloc(size, kHostAlignment);
  if (memory == nullptr) {
    physical_ -= size;
    return refuse(Status::out_of_memory, "allocate_host: the host has no %llu bytes left", n(bytes));
  }
  Region& region = regions_[address_of(memory)];
  region.bytes = size;
  region.kind = Kind::host;
  out = memory;
  return Status::ok;
}

Status ModelDriver::free_host(HostKind, void* ptr, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (const Status s = begin(Call::free_host, 0, 1); s != Status::ok) return s;
  const auto region = regions_.find(address_of(ptr));
  if (region == regions_.end() || region->second.kind != Kind::host) {
    return violation("free_host: there is no host buffer %p", ptr);
  }
  const std::size_t size = std::max<std::size_t>(bytes, 1);
  if (region->second.bytes != size) return violation("free_host: the buffer has %llu bytes", n(region->second.bytes));
  if (pending(region->second)) return violation("free_host: work that uses %p is pending: the kernel dies", ptr);
  physical_ -= size;
  regions_.erase(region);
  aligned_free(ptr);
  return Status::ok;
}

Status ModelDriver::wrap(void* ptr, std::size_t bytes, void*& object) {
  const std::lock_guard lock(mutex_);
  if (const Status s = begin(Call::wrap, 0, 1); s != Status::ok) return s;
  if (ptr == nullptr || bytes == 0) return refuse(Status::failed, "wrap: there is no memory to wrap");
  wraps_.emplace(address_of(ptr), bytes);
  object = ptr;
  return Status::ok;
}

void ModelDriver::unwrap(void* object) {
  const std::lock_guard lock(mutex_);
  count_call();
  const auto found = wraps_.find(address_of(object));
  if (found == wraps_.end()) {
    violation("unwrap: %p is not wrapped", object);
    return;
  }
  wraps_.erase(found);
}

Status ModelDriver::memory_info(std::size_t& free, std::size_t& total) {
  const std::lock_guard lock(mutex_);
  if (const Status s = begin(Call::memory_info, 0, 1); s != Status::ok) return s;
  free = total_ > physical_ ? total_ - physical_ : 0;
  total = total_;
  return Status::ok;
}

std::unique_ptr<ModelDriver> make_model_driver(ModelConfig config) {
  return std::make_unique<ModelDriver>(std::move(config));
}

}  // namespace cistern::drivers
