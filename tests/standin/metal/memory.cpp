// Devices, heaps, buffers, and what the system says of itself.
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "standin/metal/state.hpp"

namespace cistern::standin::metal {
namespace {

constexpr std::size_t kMapFrom = std::size_t{64} << 10;   // Smaller memory comes from the C library.
constexpr std::size_t kLargeFrom = std::size_t{1} << 20;  // Sizes with the large alignment.

std::string setting(const char* name, const char* fallback) {
  const char* const value = std::getenv((std::string("CISTERN_METAL_STANDIN_") + name).c_str());
  return value != nullptr && *value != '\0' ? value : fallback;
}

std::size_t number(const char* name, std::size_t fallback) {
  const std::string text = setting(name, "");
  return text.empty() ? fallback : std::strtoull(text.c_str(), nullptr, 0);
}

std::set<std::string> list(const char* name) {
  std::istringstream words(setting(name, ""));
  std::set<std::string> out;
  for (std::string word; words >> word;) out.insert(word);
  return out;
}

std::size_t round_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

std::size_t alignment_for(std::size_t length) {
  const Settings& s = state().settings;
  return length >= kLargeFrom ? s.large_align : s.align;
}

bool good_length(const char* method, UInt length) {
  if (length == 0) violation("%s: the length is 0", method);
  if (length > state().settings.max_buffer) violation("%s: %lu bytes are more than maxBufferLength", method, length);
  return length != 0 && length <= state().settings.max_buffer;
}

// --- Methods --------------------------------------------------------------------------------------------------------

bool object_responds(Object* self, Sel, Sel asked) {
  const Guard guard;
  return responds(self, asked);
}
Object* object_init(Object* self, Sel) { return self; }
Object* object_autorelease(Object* self, Sel) { return autorelease(self); }

const char* string_utf8(String* self, Sel) { return self->text.c_str(); }

UInt array_count(Array* self, Sel) { return self->items.size(); }
Object* array_at(Array* self, Sel, UInt i) {
  if (i >= self->items.size()) return violation("objectAtIndex: there are fewer than %lu", i + 1), nullptr;
  return self->items[i];
}

Object* device_name(Device* self, Sel) {
  const Guard guard;
  return autorelease(retain(self->name.get()));
}
bool device_unified(Device*, Sel) { return !state().settings.without.contains("unified"); }
unsigned long long device_working_set(Device*, Sel) { return state().settings.working_set; }
UInt device_max_buffer(Device*, Sel) { return state().settings.max_buffer; }
UInt device_allocated(Device* self, Sel) {
  const Guard guard;
  return self->allocated;
}

SizeAndAlign device_size_and_align(Device*, Sel, UInt length, UInt) {
  const Guard guard;
  if (length == 0) violation("heapBufferSizeAndAlignWithLength: the length is 0");
  const std::size_t align = alignment_for(length);
  return {round_up(length, align), align};
}

Heap* device_new_heap(Device* self, Sel, HeapDescriptor* how) {
  const Guard guard;
  if (how->size == 0) return violation("newHeapWithDescriptor: the size is 0"), nullptr;
  const Settings& s = state().settings;
  if (s.without.contains("heaps") || (how->storage == kShared && s.without.contains("shared_heaps"))) return nullptr;
  auto* const heap = make<Heap>(self, *how);
  if (!heap->memory.take(self, round_up(how->size, s.page))) {
    release(heap);
    return nullptr;
  }
  return heap;
}

Buffer* device_new_buffer(Device* self, Sel, UInt length, UInt options) {
  const Guard guard;
  if (!good_length("newBufferWithLength:options:", length)) return nullptr;
  auto* const buffer = make<Buffer>(self, length, options);
  if (!buffer->memory.take(self, length)) {
    release(buffer);
    return nullptr;
  }
  buffer->bytes = buffer->memory.at;
  return buffer;
}

Buffer* device_new_no_copy(Device* self, Sel, void* memory, UInt length, UInt options, void* deallocator) {
  const Guard guard;
  const std::size_t page = state().settings.page;
  if (reinterpret_cast<std::uintptr_t>(memory) % page != 0 || length % page != 0) {
    return violation("newBufferWithBytesNoCopy: %p, %lu bytes: not whole pages", memory, length), nullptr;
  }
  if (deallocator != nullptr) return violation("newBufferWithBytesNoCopy: this stand-in runs no blocks"), nullptr;
  if (storage_of(options) == kPrivate) return violation("newBufferWithBytesNoCopy: private storage"), nullptr;
  if (!good_length("newBufferWithBytesNoCopy:", length)) return nullptr;
  if (state().settings.without.contains("no_copy")) return nullptr;
  auto* const buffer = make<Buffer>(self, length, options);
  buffer->bytes = static_cast<std::byte*>(memory);
  return buffer;
}

Buffer* device_new_sparse(Device* self, Sel, UInt length, UInt options, Int page_size) {
  const Guard guard;
  if (page_size < 101 || page_size > 103) return violation("placementSparsePageSize: %ld is none", page_size), nullptr;
  if (storage_of(options) != kPrivate) return violation("a placement sparse buffer must be private"), nullptr;
  if (!good_length("newBufferWithLength:options:placementSparsePageSize:", length)) return nullptr;
  return make<Buffer>(self, length, options);
}

HeapDescriptor* heap_descriptor_alloc(Class*, Sel) {
  const Guard guard;
  return make<HeapDescriptor>();
}
void descriptor_size(HeapDescriptor* self, Sel, UInt value) { self->size = value; }
void descriptor_storage(HeapDescriptor* self, Sel, UInt value) { self->storage = value; }
void descriptor_hazard(HeapDescriptor* self, Sel, UInt value) { self->hazard = value; }
void descriptor_type(HeapDescriptor* self, Sel, Int value) { self->type = value; }

UInt heap_size(Heap* self, Sel) { return self->size; }

Buffer* heap_new_buffer_at(Heap* self, Sel, UInt length, UInt options, UInt offset) {
  const Guard guard;
  const char* const method = "newBufferWithLength:options:offset:";
  if (self->type != 1) return violation("%s: the heap is not of the placement type", method), nullptr;
  // Heaps do not track hazards unless told to; a buffer with the default has the heap's mode.
  const UInt heap_hazard = self->hazard == 0 ? kUntracked : self->hazard;
  if (storage_of(options) != self->storage || (options & 15) != self->cache_mode ||
      (hazard_of(options) != 0 && hazard_of(options) != heap_hazard)) {
    return violation("%s: options %#lx do not match the heap's", method, options), nullptr;
  }
  if (!good_length(method, length)) return nullptr;
  const std::size_t align = alignment_for(length);
  if (offset % align != 0) return violation("%s: offset %lu is no multiple of %zu", method, offset, align), nullptr;
  if (offset > self->size || round_up(length, align) > self->size - offset) {
    // The last bytes of a heap whose size is no multiple of the alignment cannot be used, as on real devices.
    return violation("%s: %lu bytes at %lu reach beyond the heap's %lu", method, length, offset, self->size), nullptr;
  }
  auto* const buffer = make<Buffer>(self->device.get(), length, options);
  buffer->heap = Strong<Heap>(self);
  buffer->bytes = self->memory.at + offset;
  if (offset != 0 && state().settings.without.contains("linear_heaps")) buffer->bytes += align;
  return buffer;
}

void* buffer_contents(Buffer* self, Sel) {
  const Guard guard;
  return storage_of(self->options) == kPrivate ? nullptr : self->bytes;
}
UInt buffer_length(Buffer* self, Sel) { return self->length; }
UInt allocated_size(Object* self, Sel) {
  const Guard guard;
  return allocation_size(self);
}

}  // namespace

std::vector<MethodSpec> with_common(std::vector<MethodSpec> methods) {
  methods.push_back({"respondsToSelector:", imp(&object_responds)});
  methods.push_back({"init", imp(&object_init)});
  methods.push_back({"autorelease", imp(&object_autorelease)});
  return methods;
}

State& state() {
  static State* const instance = new State;
  return *instance;
}

bool hidden(const std::string& name) {
  const Settings& s = state().settings;
  static const std::map<std::string, std::string> feature_of{
      {"setType:", "placement"},
      {"MTLResidencySetDescriptor", "residency"},
      {"newResidencySetWithDescriptor:error:", "residency"},
      {"addResidencySet:", "residency"},
      {"waitUntilSignaledValue:timeoutMS:", "shared_wait"},
  };
  static const std::set<std::string> sparse{
      "newBufferWithLength:options:placementSparsePageSize:", "newMTL4CommandQueue", "supportsPlacementSparse"};
  if (sparse.contains(name)) return !s.with.contains("sparse");
  const auto found = feature_of.find(name);
  return found != feature_of.end() && s.without.contains(found->second);
}

void read_settings() {
  State& st = state();
  Settings& s = st.settings;
  s = {};
  s.name = setting("NAME", "Apple M0 (stand-in)");
  s.devices = number("DEVICES", 1);
  s.memory = number("MEMORY", std::size_t{64} << 30);
  s.working_set = number("WORKING_SET", s.memory / 4 * 3);
  s.max_buffer = number("MAX_BUFFER", s.memory / 2);
  s.rsrc_limit = number("RSRC_LIMIT", 0);
  s.page = number("PAGE", 16384);
  s.align = number("ALIGN", 256);
  s.large_align = number("LARGE_ALIGN", s.align);
  s.lag_us = static_cast<double>(number("LAG_US", 100));
  s.manual = setting("MANUAL", "0") == "1";
  s.junk = setting("JUNK", "0") == "1";
  s.without = list("WITHOUT");
  s.with = list("WITH");
  s.report = setting("REPORT", "");
  for (Device* const device : st.devices) release(device);
  st.devices.clear();
  for (std::size_t i = 0; i < s.devices; ++i) st.devices.push_back(make<Device>());
  Books& b = books();
  b = {};
  st.mismatches = 0;
  if (const std::string plan = setting("FAIL", ""); !plan.empty()) {
    std::istringstream parts(plan);
    std::string selector, nth, times;
    std::getline(parts, selector, ':');
    std::getline(parts, nth, ':');
    std::getline(parts, times, ':');
    std::replace(selector.begin(), selector.end(), '.', ':');
    b.fail_selector = selector == "*" ? nullptr : intern(selector.c_str());
    b.fail_skip = std::max<std::uint64_t>(std::strtoull(nth.c_str(), nullptr, 10), 1) - 1;
    b.fail_left = times.empty() ? 1 : std::strtoull(times.c_str(), nullptr, 10);
  }
}

String::String(std::string t) : Object(find_class("NSString")), text(std::move(t)) {}
Array::Array(std::vector<Object*> objects) : Object(find_class("NSArray")), items(std::move(objects)) {
  for (Object* const item : items) retain(item);
}
Array::~Array() {
  for (Object* const item : items) release(item);
}
Device::Device() : Object(find_class("MTLDevice")) {
  auto* const text = make<String>(state().settings.name);
  name = Strong<String>(text);
  release(text);
}
HeapDescriptor::HeapDescriptor() : Object(find_class("MTLHeapDescriptor")) {}
Heap::Heap(Device* d, const HeapDescriptor& how)
    : Object(find_class("MTLHeap")),
      device(d),
      size(how.size),
      storage(how.storage),
      hazard(how.hazard),
      cache_mode(how.cache_mode),
      type(how.type) {}
Buffer::Buffer(Device* d, std::size_t n, UInt o) : Object(find_class("MTLBuffer")), device(d), length(n), options(o) {}

bool Memory::take(Device* of, std::size_t wanted) {
  const Settings& s = state().settings;
  if (wanted > s.memory - std::min(s.memory, of->allocated)) return false;
  if (wanted >= kMapFrom) {
    // Page alignment and no more, so that nobody comes to rely on more: the start is a page past a multiple of 64 KiB.
    mapped_bytes = wanted + (std::size_t{64} << 10) + s.page;
    void* const found =
        mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (found == MAP_FAILED) return false;
    mapped = found;
    at =
        reinterpret_cast<std::byte*>(round_up(reinterpret_cast<std::uintptr_t>(found), std::size_t{64} << 10) + s.page);
  } else {
    at = static_cast<std::byte*>(std::aligned_alloc(s.page, round_up(wanted, s.page)));
    if (at == nullptr) return false;
    std::memset(at, 0, wanted);
  }
  if (s.junk) std::memset(at, 0xA5, wanted);
  bytes = wanted;
  device = of;
  of->allocated += wanted;
  return true;
}

Memory::~Memory() {
  if (at == nullptr) return;
  device->allocated -= bytes;
  if (mapped != nullptr) {
    munmap(mapped, mapped_bytes);
  } else {
    std::free(at);
  }
}

std::size_t allocation_size(const Object* allocation) {
  if (allocation->isa == find_class("MTLHeap")) return static_cast<const Heap*>(allocation)->size;
  if (allocation->isa == find_class("MTLBuffer")) return static_cast<const Buffer*>(allocation)->length;
  violation("a %s is no MTLAllocation", allocation->isa->name);
  return 0;
}

void add_memory_classes() {
  add_class("NSString", &destroy<String>, with_common({{"UTF8String", imp(&string_utf8)}}));
  add_class("NSArray", &destroy<Array>,
            with_common({{"count", imp(&array_count)}, {"objectAtIndex:", imp(&array_at)}}));
  add_class("MTLHeapDescriptor", &destroy<HeapDescriptor>,
            with_common({{"setSize:", imp(&descriptor_size)},
                         {"setStorageMode:", imp(&descriptor_storage)},
                         {"setHazardTrackingMode:", imp(&descriptor_hazard)},
                         {"setType:", imp(&descriptor_type)}}),
            {{"alloc", imp(&heap_descriptor_alloc)}});
  add_class("MTLHeap", &destroy<Heap>,
            with_common({{"size", imp(&heap_size)},
                         {"allocatedSize", imp(&allocated_size)},
                         {"newBufferWithLength:options:offset:", imp(&heap_new_buffer_at), true}}));
  add_class("MTLBuffer", &destroy<Buffer>,
            with_common({{"contents", imp(&buffer_contents)},
                         {"length", imp(&buffer_length)},
                         {"allocatedSize", imp(&allocated_size)}}));
  Class* const device =
      add_class("MTLDevice", &destroy<Device>,
                with_common({{"name", imp(&device_name)},
                             {"hasUnifiedMemory", imp(&device_unified)},
                             {"supportsPlacementSparse", imp(&object_responds)},
                             {"recommendedMaxWorkingSetSize", imp(&device_working_set)},
                             {"maxBufferLength", imp(&device_max_buffer)},
                             {"currentAllocatedSize", imp(&device_allocated)},
                             {"heapBufferSizeAndAlignWithLength:options:", imp(&device_size_and_align)},
                             {"newHeapWithDescriptor:", imp(&device_new_heap), true},
                             {"newBufferWithLength:options:", imp(&device_new_buffer), true},
                             {"newBufferWithBytesNoCopy:length:options:deallocator:", imp(&device_new_no_copy), true},
                             {"newBufferWithLength:options:placementSparsePageSize:", imp(&device_new_sparse), true}}));
  device->methods[intern("supportsPlacementSparse")] = {imp(+[](Device*, Sel) { return true; }), false};
}

}  // namespace cistern::standin::metal

using namespace cistern::standin::metal;

CISTERN_METAL_ENTRY void* MTLCreateSystemDefaultDevice() {
  const Guard guard;
  return state().devices.empty() ? nullptr : retain(state().devices.front());
}

CISTERN_METAL_ENTRY void* MTLCopyAllDevices() {
  const Guard guard;
  return make<Array>(std::vector<Object*>(state().devices.begin(), state().devices.end()));
}

CISTERN_METAL_ENTRY int sysctlbyname(const char* name, void* out, std::size_t* size, void*, std::size_t) {
  const Guard guard;
  const Settings& s = state().settings;
  const std::map<std::string, std::size_t> values{
      {"hw.memsize", s.memory}, {"hw.pagesize", s.page}, {"iogpu.rsrc_limit", s.rsrc_limit}};
  const auto found = values.find(name);
  if (found == values.end() || *size < sizeof found->second) return -1;
  std::memcpy(out, &found->second, sizeof found->second);
  *size = sizeof found->second;
  return 0;
}
