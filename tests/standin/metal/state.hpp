// The device, memory, queues and sets of the stand-in. Internal to the stand-in; locking as objc.hpp says.
#pragma once

#include <chrono>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "standin/metal/objc.hpp"

namespace cistern::standin::metal {

using UInt = unsigned long;
using Int = long;

struct SizeAndAlign {
  UInt size, align;
};
struct Range {
  UInt location, length;
};

inline constexpr UInt kShared = 0, kPrivate = 2;     // Storage modes.
inline constexpr UInt kUntracked = 1, kTracked = 2;  // Hazard tracking modes; 0 is the default one.
inline constexpr UInt storage_of(UInt options) { return options >> 4 & 15; }
inline constexpr UInt hazard_of(UInt options) { return options >> 8 & 3; }
inline constexpr std::size_t kSetsPerQueue = 32;

struct Settings {
  std::string name;
  std::size_t devices = 1, memory = 0, working_set = 0, max_buffer = 0, rsrc_limit = 0, page = 0, align = 0,
              large_align = 0;
  double lag_us = 0;
  bool manual = false, junk = false;
  std::set<std::string> without, with;
  std::string report;
};

struct String : Object {
  explicit String(std::string t);
  std::string text;
};

struct Array : Object {
  explicit Array(std::vector<Object*> objects);
  ~Array();
  std::vector<Object*> items;
};

struct Device : Object {
  Device();
  Strong<String> name;
  std::size_t allocated = 0;  // Bytes.
};

struct HeapDescriptor : Object {
  HeapDescriptor();
  UInt size = 0, storage = kPrivate, hazard = 0, cache_mode = 0;
  Int type = 0;
};

struct SetDescriptor : Object {
  SetDescriptor();
};

// Host memory behind a heap or a buffer.
struct Memory {
  Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory();
  bool take(Device* device, std::size_t bytes);
  std::byte* at = nullptr;
  std::size_t bytes = 0;
  void* mapped = nullptr;
  std::size_t mapped_bytes = 0;
  Device* device = nullptr;
};

struct Heap : Object {
  Heap(Device* d, const HeapDescriptor& how);
  Strong<Device> device;
  UInt size, storage, hazard, cache_mode;
  Int type;
  Memory memory;
};

struct Buffer : Object {
  Buffer(Device* d, std::size_t n, UInt o);
  Strong<Device> device;
  Strong<Heap> heap;
  std::size_t length;
  UInt options;
  Memory memory;               // Of its own, if it has some.
  std::byte* bytes = nullptr;  // Null: placement sparse.
};

struct Event : Object {
  explicit Event(Device* d);
  Strong<Device> device;
  std::uint64_t value = 0;
};

// One step of a command buffer.
struct Operation {
  enum Kind { signal, wait, copy, fill, write_pattern, check_pattern } kind = signal;
  Strong<Event> event;
  std::uint64_t value = 0;  // Or the seed of a pattern, or the byte to fill with.
  Strong<Buffer> buffer, source;
  Buffer* unretained = nullptr;
  std::size_t offset = 0, source_offset = 0, bytes = 0;
};

struct Queue;

struct CommandBuffer : Object {
  explicit CommandBuffer(Queue* q);
  ~CommandBuffer();
  Strong<Queue> queue;
  std::vector<Operation> operations;
  std::size_t next = 0;  // Operation to be done.
  bool committed = false, encoding = false, released = false;
  std::chrono::steady_clock::time_point when;
};

struct Encoder : Object {
  explicit Encoder(CommandBuffer* c);
  ~Encoder();
  Strong<CommandBuffer> commands;
  bool ended = false;
};

struct ResidencySet : Object {
  explicit ResidencySet(Device* d);
  Strong<Device> device;
  std::map<Object*, Strong<Object>> committed;
  std::map<Object*, Strong<Object>> added;
  std::set<Object*> removed;
  bool requested = false;
  std::size_t queues = 0;
};

struct Queue : Object {
  explicit Queue(Device* d);
  ~Queue();
  Strong<Device> device;
  std::deque<Strong<CommandBuffer>> pending;
  std::vector<Strong<ResidencySet>> sets;
};

struct State {
  Settings settings;
  std::vector<Device*> devices;  // Owned.
  std::vector<Queue*> queues;    // Those that live.
  std::set<ResidencySet*> residency;
  std::uint64_t mismatches = 0;
};
State& state();
void read_settings();
void add_memory_classes();
void add_work_classes();
void add_residency_classes();

// Work (work.cpp).
void pump();
void force(Event* event, std::uint64_t value);
void complete(Queue* queue);
void enqueue(CommandBuffer* commands);
std::size_t allocation_size(const Object* allocation);

// All objects understand these.
std::vector<MethodSpec> with_common(std::vector<MethodSpec> methods);

}  // namespace cistern::standin::metal
