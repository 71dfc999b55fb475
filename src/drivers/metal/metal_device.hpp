// The class behind make_metal_driver(); see metal_driver.hpp. Internal to the Metal driver.
// Locking: the device's lock guards the books of memory; `queues_mutex_`, a leaf beside the residency's, guards the
// books of queues and events, which any thread may ask.
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "drivers/error_text.hpp"
#include "drivers/metal/metal_api.hpp"
#include "drivers/metal/metal_driver.hpp"
#include "drivers/metal/residency.hpp"

namespace cistern::drivers::metal {

class MetalDriver final : public Driver {
 public:
  MetalDriver(Ref<Device> device, const MetalConfig& config);
  ~MetalDriver() override;

  // False, and why, when the device cannot do what the configuration asks. Once, before anything else.
  bool start(std::string& why);

  const Capabilities& capabilities() const noexcept override { return capabilities_; }
  std::string error_text() const override;

  Status reserve(std::size_t, Address&) override { return no("virtual memory"); }
  Status unreserve(Address, std::size_t) override { return no("virtual memory"); }
  Status create(std::size_t, Physical&) override { return no("virtual memory"); }
  Status destroy(Physical) override { return no("virtual memory"); }
  Status map(Address, Physical, std::size_t) override { return no("virtual memory"); }
  Status unmap(Address, std::size_t) override { return no("virtual memory"); }

  // metal_memory.cpp
  Status create_segment(std::size_t bytes, Segment& out) override;
  Status destroy_segment(const Segment& segment) override;
  Status create_object(const Segment& segment, std::size_t offset, std::size_t bytes, void*& object) override;
  void destroy_object(void* object) override;
  void block_layout(std::size_t bytes, std::size_t& size, std::size_t& alignment) const override;
  Status allocate_host(HostKind kind, std::size_t bytes, void*& out) override;
  Status free_host(HostKind kind, void* ptr, std::size_t bytes) override;
  void* host_object(void* ptr) override;
  Status wrap(void* ptr, std::size_t bytes, void*& object) override;
  void unwrap(void* object) override;
  Status memory_info(std::size_t& free, std::size_t& total) override;

  // metal_streams.cpp
  std::uint64_t stream_id(void* native) override;
  void forget_stream(void* native, std::uint64_t id) override;
  void* make_stream() override;
  void drop_stream(void* native) override;
  Status record(void* stream, Event& out) override;
  Status wait(void* stream, Event event) override;
  bool passed(Event event) override;
  Status synchronize(Event event) override;
  Status synchronize_device() override;
  void release(Event event) override;
  Status copy(Address to, Address from, std::size_t bytes, void* stream) override;
  Status fill(Address at, std::uint8_t value, std::size_t bytes, void* stream) override;

  // metal_driver.cpp
  Status set_wired_limit(std::size_t bytes) override;
  void segment_used(const Segment& segment, bool used) override;
  Status commit_residency() override;
  std::uint64_t objects() const override { return objects_live_.load(std::memory_order_relaxed); }
  MetalFigures figures() const;
  std::vector<std::string> check_invariants() const;

 private:
  struct SegmentRecord {
    Ref<Heap> heap;
    Ref<Buffer> buffer;    // Over the segment.
    std::size_t lead = 0;  // Bytes of the heap before the segment's start.
    std::size_t bytes = 0;
    std::size_t objects = 0;  // Block objects over it.
  };
  struct BufferRecord {
    Ref<Buffer> buffer;
    std::size_t bytes = 0;
  };
  struct QueueRecord {
    Ref<Queue> queue;
    Ref<SharedEvent> event;
    std::uint64_t id = 0;
    std::uint64_t index = 0;
    std::uint64_t last = 0;    // Value of the last signal that was committed.
    std::uint64_t seen = 0;    // The event has had this value.
    std::uint64_t events = 0;  // Recorded and not released.
    bool forgotten = false;
  };
  struct Layout {
    std::size_t alignment = 0;
    std::size_t unit = 0;  // Sizes are multiples.
  };
  struct Place {
    Buffer* buffer = nullptr;
    std::size_t offset = 0;
  };

  static ErrorText& text();
  Status no(const char* what);
  // Whether this process may use the device: not a forked child.
  bool usable();
  Status check_object_count();
  void made_object() noexcept;
  void dropped_object() noexcept;
  // Runs something on the residency's books; its calls to Metal count as the driver's.
  template <class Do>
  void with_residency(Do something) {
    const std::uint64_t before = residency_->figures().calls;
    something(*residency_);
    count_call(residency_->figures().calls - before);
  }
  Address take_address(std::size_t bytes);
  void give_address(Address at, std::size_t bytes);
  bool try_heaps(Storage storage);
  std::size_t ask_layouts();
  std::optional<Place> locate(Address at, std::size_t bytes) const;

  // pre: queues_mutex_ is held.
  QueueRecord* queue_of(void* native);
  QueueRecord* add_queue(void* native, Ref<Queue> queue);
  QueueRecord* find(Event event);
  bool reached(QueueRecord& record, std::uint64_t value);
  void drop_if_done(QueueRecord& record);
  template <class Encode>
  Status submit(QueueRecord& record, std::uint64_t& value, Encode encode);
  template <class Encode>
  Status blit(void* stream, Encode encode);

  const MetalConfig config_;
  const long process_;
  Ref<Device> device_;
  Capabilities capabilities_;
  Storage storage_ = Storage::shared;
  std::size_t page_ = 0;
  std::size_t pad_ = 0;               // Bytes more than asked for in every heap, so that its start can be aligned.
  std::array<Layout, 64> layouts_{};  // By bit width of size - 1.
  std::optional<Residency> residency_;
  std::size_t removed_bytes_ = 0;  // Of wired segments, not yet committed.

  std::map<Address, SegmentRecord> segments_;
  std::map<Address, BufferRecord> hosts_;
  std::multimap<Address, BufferRecord> wraps_;
  std::unordered_map<void*, Address> block_objects_;  // The segment of each.
  std::atomic<std::uint64_t> objects_live_{0};
  std::atomic<std::uint64_t> objects_made_{0};

  mutable std::mutex queues_mutex_;
  std::map<std::uint64_t, QueueRecord> queues_;             // By index; never reused.
  std::unordered_map<void*, std::uint64_t> queue_indexes_;  // Those not forgotten; null is the driver's own.
  std::uint64_t next_queue_ = 1;
};

}  // namespace cistern::drivers::metal
