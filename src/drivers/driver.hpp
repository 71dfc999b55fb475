// The interface to one device's memory: the only place that talks to an operating system or a vendor's library.
// A driver has no policy: it does what it is told and counts its calls. Called by the allocator layer (under the
// device's lock unless a member says otherwise). Members never throw; they return a Status and, on failure, have
// changed nothing.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "cistern/device.hpp"

namespace cistern::drivers {

enum class Status : std::uint8_t {
  ok,
  out_of_memory,  // The device has no more; giving something back may help.
  unsupported,    // This device cannot do it at all.
  failed,         // The call failed for another reason: error_text() has it.
  capturing,      // A graph is being captured and the call would end that. Nothing was done; it works afterwards.
};

using Address = std::uint64_t;  // In the device's address space; also the host's where host_accessible.

enum class Physical : std::uint64_t { none = 0 };  // A piece of physical memory that can be mapped.
enum class Event : std::uint64_t { none = 0 };     // A point in a stream; `none` has always passed.

// A wholly committed range, for devices without virtual memory. `object` is the device's heap or buffer object.
struct Segment {
  void* object = nullptr;
  Address base = 0;
  std::size_t bytes = 0;
};

struct Capabilities {
  std::string name;                         // "CPU", "NVIDIA H200", ...
  std::size_t total_memory = 0;             // Bytes; a cgroup's limit counts.
  std::size_t granularity = 2u << 20;       // Bytes of the smallest physical piece.
  std::size_t alignment = 64;               // Bytes, at least 64; start of every block, and its size is a multiple.
  std::size_t max_buffer = SIZE_MAX;        // Bytes of the largest single block.
  std::size_t max_objects = SIZE_MAX;       // Count of live objects (segments, block objects).
  std::size_t recommended_working_set = 0;  // Bytes; 0 where the device names none.
  bool virtual_memory = true;               // reserve/create/map work; otherwise segments do.
  bool double_mapping = true;      // A Physical may be mapped at two addresses for a time (a move needs no wait).
  bool host_accessible = true;     // The host can use device addresses as pointers.
  bool asynchronous = false;       // Streams run behind the host; otherwise every event has passed.
  bool commit_on_touch = false;    // A piece costs nothing before its pages are written.
  bool fresh_is_zero = false;      // New physical memory and new host buffers read zero.
  bool bytes_follow_piece = true;  // A Physical keeps its bytes wherever it is mapped; otherwise a map() shows zeros.
  bool whole_buffers = false;      // Neither virtual memory nor segments: each buffer is one allocate_host().
  bool block_objects = false;  // ptr() of a buffer is an object made by create_object(); of a whole one, host_object().
  bool segment_objects = false;  // ptr() of a buffer is its segment's object, and offset() says where in it.
  bool can_copy = false;         // copy() works on any two mapped addresses.
  bool residency = false;        // Segments can be wired.
  bool ordered_buffers = false;  // With whole_buffers: device memory comes from allocate_ordered().
  bool exportable = false;       // export_piece() works.
  bool rdma = false;             // Pieces can be registered with a network card.
  bool unified_memory = false;   // The device works in the host's memory.
  bool sparse_buffers = false;   // Buffers could be mapped page by page (Metal); not used yet.
  std::size_t page_size = 0;     // Bytes; what wrap() takes whole. 0 where it takes anything.
};

// What the device's own pool holds (ordered_buffers). Bytes.
struct PoolFigures {
  std::size_t reserved = 0;
  std::size_t used = 0;
};

// What the host can reach besides ordinary device memory.
enum class HostKind : std::uint8_t {
  unified,  // One address for host and device.
  pinned,   // Host memory that the device can read without a copy.
};

class Driver {
 public:
  virtual ~Driver() = default;

  virtual const Capabilities& capabilities() const noexcept = 0;
  // Text of the last failure on this thread. Any thread.
  virtual std::string error_text() const = 0;
  // Calls made to the system or the vendor since the start. Any thread.
  std::uint64_t calls() const noexcept { return calls_.load(std::memory_order_relaxed); }

  // --- Virtual memory
  // pre: bytes is a multiple of granularity. post: [base, base + bytes) is set aside, nothing mapped.
  virtual Status reserve(std::size_t bytes, Address& base) = 0;
  // pre: nothing is mapped in the range, which is one whole reserve().
  virtual Status unreserve(Address base, std::size_t bytes) = 0;
  // pre: bytes is a multiple of granularity. post: out names memory that no address shows yet.
  virtual Status create(std::size_t bytes, Physical& out) = 0;
  // pre: mapped nowhere. May wait for the device.
  virtual Status destroy(Physical piece) = 0;
  // pre: [at, at + bytes) lies in a reserved range and is unmapped; bytes is the size of `piece`.
  // post: the range shows `piece`, access granted to the device (and enabled peers).
  virtual Status map(Address at, Physical piece, std::size_t bytes) = 0;
  // pre: [at, at + bytes) is one whole map(); no submitted work can touch it any more.
  virtual Status unmap(Address at, std::size_t bytes) = 0;

  // --- Sharing
  // Lets the device of the same kind with this index use the memory of this one, what is mapped already included.
  virtual Status enable_peer(int index) { return static_cast<void>(index), Status::unsupported; }
  // post: `handle` is an operating system's handle (a file descriptor) for the piece. The caller closes it.
  virtual Status export_piece(Physical piece, int& handle) {
    return static_cast<void>(piece), static_cast<void>(handle), Status::unsupported;
  }
  // The opposite, most often in another process. The handle can be closed afterwards.
  virtual Status import_piece(int handle, std::size_t bytes, Physical& out) {
    return static_cast<void>(handle), static_cast<void>(bytes), static_cast<void>(out), Status::unsupported;
  }

  // --- Segments (virtual_memory is false)
  virtual Status create_segment(std::size_t bytes, Segment& out) = 0;
  virtual Status destroy_segment(const Segment& segment) = 0;
  // An object over [offset, offset + bytes) of the segment (block_objects).
  virtual Status create_object(const Segment& segment, std::size_t offset, std::size_t bytes, void*& object) = 0;
  virtual void destroy_object(void* object) = 0;
  // Bytes that a block of `bytes` takes in a segment, and its alignment there. Any thread.
  virtual void block_layout(std::size_t bytes, std::size_t& size, std::size_t& alignment) const = 0;

  // --- Whole buffers
  virtual Status allocate_host(HostKind kind, std::size_t bytes, void*& out) = 0;
  virtual Status free_host(HostKind kind, void* ptr, std::size_t bytes) = 0;
  // What Buffer::ptr() returns for a buffer of allocate_host(): its object with block_objects, else the pointer itself.
  virtual void* host_object(void* ptr) { return ptr; }
  // Makes memory of somebody else usable on the device. `object` is what Buffer::ptr() returns.
  virtual Status wrap(void* ptr, std::size_t bytes, void*& object) = 0;
  virtual void unwrap(void* object) = 0;
  // Memory that `stream` may use from its next work on (ordered_buffers).
  virtual Status allocate_ordered(std::size_t bytes, void* stream, Address& out) {
    return static_cast<void>(bytes), static_cast<void>(stream), static_cast<void>(out), Status::unsupported;
  }
  // pre: work that uses it was submitted to `stream`, or comes before this point of it.
  virtual Status free_ordered(Address at, void* stream) {
    return static_cast<void>(at), static_cast<void>(stream), Status::unsupported;
  }
  virtual Status pool_figures(PoolFigures& out) { return static_cast<void>(out), Status::unsupported; }
  // Gives back what the pool keeps unused beyond `keep` bytes.
  virtual Status trim_pool(std::size_t keep) { return static_cast<void>(keep), Status::unsupported; }
  // What the device has and what nobody uses of it, other processes counted in.
  virtual Status memory_info(std::size_t& free, std::size_t& total) {
    return static_cast<void>(free), static_cast<void>(total), Status::unsupported;
  }

  // --- Streams
  // A number for a native stream, unique in the life of the process. Any thread.
  // 0 when it is a stream of another device: error_text() says so.
  virtual std::uint64_t stream_id(void* native) = 0;
  // The stream's owner destroyed it; `id` is what stream_id() said. Any thread.
  virtual void forget_stream(void* native, std::uint64_t id) { static_cast<void>(native), static_cast<void>(id); }
  // A stream for tools that have none of their own; null where any number is one. drop_stream() gives it back; memory
  // may still be ordered by it.
  virtual void* make_stream() { return nullptr; }
  virtual void drop_stream(void* native) { static_cast<void>(native); }
  // Somebody captures a graph on a stream of this device, from before its first call until after its last. Any thread.
  virtual void begin_capture() {}
  virtual void end_capture() {}
  // Whether the handle names another stream in each thread. What is submitted to it counts for the streams of all.
  virtual bool shared_handle(void* native) const { return static_cast<void>(native), false; }
  // Whether the stream and the default one wait for each other's work, so that a capture of the one forbids work on the
  // other.
  virtual bool blocking(void* native) { return static_cast<void>(native), false; }
  // post: `out` passes when all work submitted to `stream` so far is done.
  virtual Status record(void* stream, Event& out) = 0;
  // Work submitted to `stream` from now on starts after `event`. The host does not wait.
  virtual Status wait(void* stream, Event event) = 0;
  // Work submitted to `later` from now on starts after all that was submitted to `earlier` so far: record() and wait().
  virtual Status order(void* earlier, void* later);
  // Whether the event has passed. Never waits. Any thread.
  virtual bool passed(Event event) = 0;
  // The host waits.
  virtual Status synchronize(Event event) = 0;
  virtual Status synchronize_device() = 0;
  // The event is not used again; it may be recycled.
  virtual void release(Event event) = 0;

  // --- Bytes (in stream order)
  virtual Status copy(Address to, Address from, std::size_t bytes, void* stream) = 0;
  virtual Status fill(Address at, std::uint8_t value, std::size_t bytes, void* stream) = 0;

  // --- Residency
  virtual Status set_wired_limit(std::size_t bytes) = 0;
  // Whether somebody uses memory of the segment now: what nobody uses gives its wired place to others. Makes nothing
  // real before commit_residency().
  virtual void segment_used(const Segment& segment, bool used) { static_cast<void>(segment), static_cast<void>(used); }
  // What was wired or let go since the last time becomes real. Once per batch, before work that uses it is submitted.
  virtual Status commit_residency() { return Status::ok; }

  // Live objects that count against max_objects. Any thread.
  virtual std::uint64_t objects() const { return 0; }

 protected:
  void count_call(std::uint64_t n = 1) noexcept { calls_.fetch_add(n, std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> calls_{0};
};

inline Status Driver::order(void* earlier, void* later) {
  Event event = Event::none;
  if (const Status status = record(earlier, event); status != Status::ok) return status;
  const Status status = wait(later, event);
  release(event);
  return status;
}

}  // namespace cistern::drivers
