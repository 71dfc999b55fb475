// Selectors, each looked up once, and the messages.
#include "drivers/metal/metal_api.hpp"

#include <chrono>
#include <thread>

namespace cistern::drivers::metal {
namespace {

#define CISTERN_METAL_SELECTORS(X)                                              \
  X(add_allocation, "addAllocation:")                                           \
  X(add_residency_set, "addResidencySet:")                                      \
  X(alloc, "alloc")                                                             \
  X(blit_command_encoder, "blitCommandEncoder")                                 \
  X(command_buffer, "commandBuffer")                                            \
  X(commit, "commit")                                                           \
  X(contents, "contents")                                                       \
  X(copy, "copyFromBuffer:sourceOffset:toBuffer:destinationOffset:size:")       \
  X(current_allocated_size, "currentAllocatedSize")                             \
  X(device, "device")                                                           \
  X(encode_signal, "encodeSignalEvent:value:")                                  \
  X(encode_wait, "encodeWaitForEvent:value:")                                   \
  X(end_encoding, "endEncoding")                                                \
  X(end_residency, "endResidency")                                              \
  X(fill, "fillBuffer:range:value:")                                            \
  X(has_unified_memory, "hasUnifiedMemory")                                     \
  X(init, "init")                                                               \
  X(max_buffer_length, "maxBufferLength")                                       \
  X(name, "name")                                                               \
  X(new_buffer, "newBufferWithLength:options:")                                 \
  X(new_buffer_at, "newBufferWithLength:options:offset:")                       \
  X(new_buffer_no_copy, "newBufferWithBytesNoCopy:length:options:deallocator:") \
  X(new_command_queue, "newCommandQueue")                                       \
  X(new_heap, "newHeapWithDescriptor:")                                         \
  X(new_residency_set, "newResidencySetWithDescriptor:error:")                  \
  X(new_shared_event, "newSharedEvent")                                         \
  X(new_sparse_buffer, "newBufferWithLength:options:placementSparsePageSize:")  \
  X(recommended_working_set, "recommendedMaxWorkingSetSize")                    \
  X(remove_allocation, "removeAllocation:")                                     \
  X(remove_residency_set, "removeResidencySet:")                                \
  X(request_residency, "requestResidency")                                      \
  X(responds, "respondsToSelector:")                                            \
  X(set_hazard, "setHazardTrackingMode:")                                       \
  X(set_size, "setSize:")                                                       \
  X(set_storage, "setStorageMode:")                                             \
  X(set_type, "setType:")                                                       \
  X(signaled_value, "signaledValue")                                            \
  X(size_and_align, "heapBufferSizeAndAlignWithLength:options:")                \
  X(supports_placement_sparse, "supportsPlacementSparse")                       \
  X(utf8, "UTF8String")                                                         \
  X(wait_until_signaled, "waitUntilSignaledValue:timeoutMS:")

struct Selectors {
#define CISTERN_METAL_SELECTOR(member, text) Sel member = objc::runtime().register_name(text);
  CISTERN_METAL_SELECTORS(CISTERN_METAL_SELECTOR)
#undef CISTERN_METAL_SELECTOR
};

const Selectors& sel() {
  static const Selectors selectors;
  return selectors;
}

// [[NAME alloc] init]; null where there is no such class.
Ref<objc::Object> new_object(const char* class_name) {
  objc::Class* const found = objc::runtime().look_up_class(class_name);
  if (found == nullptr) return {};
  return Ref<objc::Object>::adopt(send<void*>(send<void*>(found, sel().alloc), sel().init));
}

}  // namespace

std::string name(Device* device) {
  const char* const text = send<const char*>(send<void*>(device, sel().name), sel().utf8);
  return text != nullptr ? text : "Metal device";
}

bool responds(const void* object, const char* selector) {
  return send<Bool, Sel>(object, sel().responds, objc::runtime().register_name(selector)) != 0;
}

bool has_unified_memory(Device* device) {
  // Every device of the systems that do not have this property yet (before macOS 10.15) is taken for a discrete one.
  return responds(device, "hasUnifiedMemory") && send<Bool>(device, sel().has_unified_memory) != 0;
}

std::size_t recommended_working_set(Device* device) {
  return static_cast<std::size_t>(send<unsigned long long>(device, sel().recommended_working_set));
}

std::size_t max_buffer_length(Device* device) { return send<UInt>(device, sel().max_buffer_length); }
std::size_t current_allocated_size(Device* device) { return send<UInt>(device, sel().current_allocated_size); }

SizeAndAlign heap_buffer_size_and_align(Device* device, std::size_t bytes, UInt options) {
  return send<SizeAndAlign, UInt, UInt>(device, sel().size_and_align, bytes, options);
}

Ref<Heap> new_placement_heap(Device* device, std::size_t bytes, Storage storage, Hazard hazard) {
  const Ref<objc::Object> descriptor = new_object("MTLHeapDescriptor");
  if (!descriptor || !responds(descriptor.get(), "setType:")) return {};
  send<void, Int>(descriptor.get(), sel().set_type, kHeapTypePlacement);
  send<void, UInt>(descriptor.get(), sel().set_storage, static_cast<UInt>(storage));
  send<void, UInt>(descriptor.get(), sel().set_hazard, static_cast<UInt>(hazard));
  send<void, UInt>(descriptor.get(), sel().set_size, bytes);
  return Ref<Heap>::adopt(send<void*, void*>(device, sel().new_heap, descriptor.get()));
}

Ref<Buffer> new_buffer(Device* device, std::size_t bytes, UInt options) {
  return Ref<Buffer>::adopt(send<void*, UInt, UInt>(device, sel().new_buffer, bytes, options));
}

Ref<Buffer> new_buffer_no_copy(Device* device, void* memory, std::size_t bytes, UInt options) {
  return Ref<Buffer>::adopt(
      send<void*, void*, UInt, UInt, void*>(device, sel().new_buffer_no_copy, memory, bytes, options, nullptr));
}

Ref<Queue> new_queue(Device* device) { return Ref<Queue>::adopt(send<void*>(device, sel().new_command_queue)); }
Ref<SharedEvent> new_shared_event(Device* device) {
  return Ref<SharedEvent>::adopt(send<void*>(device, sel().new_shared_event));
}

Ref<ResidencySet> new_residency_set(Device* device) {
  const Ref<objc::Object> descriptor = new_object("MTLResidencySetDescriptor");
  if (!descriptor || !responds(device, "newResidencySetWithDescriptor:error:")) return {};
  void* error = nullptr;
  return Ref<ResidencySet>::adopt(
      send<void*, void*, void**>(device, sel().new_residency_set, descriptor.get(), &error));
}

bool says_placement_sparse(Device* device) {
  if (!responds(device, "newBufferWithLength:options:placementSparsePageSize:")) return false;
  if (!responds(device, "newMTL4CommandQueue")) return false;
  // The property is younger (26.4) than the method (26.0); without it only an attempt tells.
  return !responds(device, "supportsPlacementSparse") || send<Bool>(device, sel().supports_placement_sparse) != 0;
}

Ref<Buffer> new_sparse_buffer(Device* device, std::size_t bytes, UInt options) {
  return Ref<Buffer>::adopt(
      send<void*, UInt, UInt, Int>(device, sel().new_sparse_buffer, bytes, options, kSparsePageSize16));
}

Ref<Buffer> new_buffer_in(Heap* heap, std::size_t bytes, UInt options, std::size_t offset) {
  return Ref<Buffer>::adopt(send<void*, UInt, UInt, UInt>(heap, sel().new_buffer_at, bytes, options, offset));
}

void* contents(Buffer* buffer) { return send<void*>(buffer, sel().contents); }

Device* device_of(Queue* queue) { return send<Device*>(queue, sel().device); }
CommandBuffer* command_buffer(Queue* queue) { return send<CommandBuffer*>(queue, sel().command_buffer); }

void encode_signal(CommandBuffer* commands, SharedEvent* event, std::uint64_t value) {
  send<void, void*, unsigned long long>(commands, sel().encode_signal, event, value);
}
void encode_wait(CommandBuffer* commands, SharedEvent* event, std::uint64_t value) {
  send<void, void*, unsigned long long>(commands, sel().encode_wait, event, value);
}

void encode_copy(CommandBuffer* commands, Buffer* from, std::size_t from_offset, Buffer* to, std::size_t to_offset,
                 std::size_t bytes) {
  void* const encoder = send<void*>(commands, sel().blit_command_encoder);
  send<void, void*, UInt, void*, UInt, UInt>(encoder, sel().copy, from, from_offset, to, to_offset, bytes);
  send<void>(encoder, sel().end_encoding);
}

void encode_fill(CommandBuffer* commands, Buffer* buffer, std::size_t offset, std::size_t bytes, std::uint8_t value) {
  void* const encoder = send<void*>(commands, sel().blit_command_encoder);
  send<void, void*, Range, std::uint8_t>(encoder, sel().fill, buffer, Range{offset, bytes}, value);
  send<void>(encoder, sel().end_encoding);
}

void commit(CommandBuffer* commands) { send<void>(commands, sel().commit); }

std::uint64_t signaled_value(SharedEvent* event) { return send<unsigned long long>(event, sel().signaled_value); }

bool wait_until_signaled(SharedEvent* event, std::uint64_t value, std::uint64_t milliseconds) {
  if (responds(event, "waitUntilSignaledValue:timeoutMS:")) {
    return send<Bool, unsigned long long, unsigned long long>(event, sel().wait_until_signaled, value, milliseconds) !=
           0;
  }
  // Before macOS 12 nothing waits for a shared event but a listener; asking again is simpler, and such systems are
  // rare.
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(milliseconds);
  while (signaled_value(event) < value) {
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return true;
}

void add_allocation(ResidencySet* set, void* allocation) { send<void, void*>(set, sel().add_allocation, allocation); }
void remove_allocation(ResidencySet* set, void* allocation) {
  send<void, void*>(set, sel().remove_allocation, allocation);
}
void commit(ResidencySet* set) { send<void>(set, sel().commit); }
void request_residency(ResidencySet* set) { send<void>(set, sel().request_residency); }
void end_residency(ResidencySet* set) { send<void>(set, sel().end_residency); }
void add_residency_set(Queue* queue, ResidencySet* set) { send<void, void*>(queue, sel().add_residency_set, set); }
void remove_residency_set(Queue* queue, ResidencySet* set) {
  send<void, void*>(queue, sel().remove_residency_set, set);
}
bool has_residency_sets(Queue* queue) { return responds(queue, "addResidencySet:"); }

}  // namespace cistern::drivers::metal
