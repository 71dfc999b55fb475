// What Cistern uses of Metal: the classes as opaque types, the numbers of its enumerations, and one function a method.
// Does not: decide anything, check anything, count anything. `new_...` returns an object that the caller owns; what
// other functions return lives until the thread's autorelease pool ends. Called by the Metal driver, with a loaded
// runtime and an open pool. As thread-safe as Metal: devices, queues and heaps may be used by any thread, command
// buffers by one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "drivers/metal/objc_runtime.hpp"

namespace cistern::drivers::metal {

using objc::Bool;
using objc::Int;
using objc::Ref;
using objc::Sel;
using objc::send;
using objc::UInt;

struct Device;
struct Heap;
struct Buffer;
struct Queue;
struct CommandBuffer;
struct SharedEvent;
struct ResidencySet;

// MTLResourceOptions: the cache mode in bits 0-3, the storage mode in 4-7, the hazard tracking mode in 8-9.
enum class Storage : UInt { shared = 0, managed = 1, private_ = 2 };
enum class Hazard : UInt { by_default = 0, untracked = 1, tracked = 2 };
constexpr UInt resource_options(Storage storage, Hazard hazard) {
  return static_cast<UInt>(storage) << 4 | static_cast<UInt>(hazard) << 8;
}

inline constexpr Int kHeapTypePlacement = 1;        // MTLHeapTypePlacement
inline constexpr Int kSparsePageSize16 = 101;       // MTLSparsePageSize16: pages of 16 KiB
inline constexpr UInt kResidencySetsPerQueue = 32;  // More are refused by Metal.

struct SizeAndAlign {
  UInt size = 0;
  UInt align = 0;
};
struct Range {
  UInt location = 0;
  UInt length = 0;
};

// --- Device
std::string name(Device* device);
bool has_unified_memory(Device* device);
std::size_t recommended_working_set(Device* device);
std::size_t max_buffer_length(Device* device);
std::size_t current_allocated_size(Device* device);
bool responds(const void* object, const char* selector);
SizeAndAlign heap_buffer_size_and_align(Device* device, std::size_t bytes, UInt options);
Ref<Heap> new_placement_heap(Device* device, std::size_t bytes, Storage storage, Hazard hazard);
Ref<Buffer> new_buffer(Device* device, std::size_t bytes, UInt options);
Ref<Buffer> new_buffer_no_copy(Device* device, void* memory, std::size_t bytes, UInt options);
Ref<Queue> new_queue(Device* device);
Ref<SharedEvent> new_shared_event(Device* device);
// Null where the system has no residency sets.
Ref<ResidencySet> new_residency_set(Device* device);
// Whether buffers can be mapped page by page after they were made (macOS 26), as far as the device says.
bool says_placement_sparse(Device* device);
Ref<Buffer> new_sparse_buffer(Device* device, std::size_t bytes, UInt options);

// --- Memory
Ref<Buffer> new_buffer_in(Heap* heap, std::size_t bytes, UInt options, std::size_t offset);
void* contents(Buffer* buffer);

// --- Work
Device* device_of(Queue* queue);
CommandBuffer* command_buffer(Queue* queue);
void encode_signal(CommandBuffer* commands, SharedEvent* event, std::uint64_t value);
void encode_wait(CommandBuffer* commands, SharedEvent* event, std::uint64_t value);
// Each is an encoder of its own.
void encode_copy(CommandBuffer* commands, Buffer* from, std::size_t from_offset, Buffer* to, std::size_t to_offset,
                 std::size_t bytes);
void encode_fill(CommandBuffer* commands, Buffer* buffer, std::size_t offset, std::size_t bytes, std::uint8_t value);
void commit(CommandBuffer* commands);
std::uint64_t signaled_value(SharedEvent* event);
// Waits at most so long; false when the value was not reached by then, or the system cannot wait.
bool wait_until_signaled(SharedEvent* event, std::uint64_t value, std::uint64_t milliseconds);

// --- Residency
void add_allocation(ResidencySet* set, void* allocation);
void remove_allocation(ResidencySet* set, void* allocation);
void commit(ResidencySet* set);
void request_residency(ResidencySet* set);
void end_residency(ResidencySet* set);
void add_residency_set(Queue* queue, ResidencySet* set);
void remove_residency_set(Queue* queue, ResidencySet* set);
bool has_residency_sets(Queue* queue);

}  // namespace cistern::drivers::metal
