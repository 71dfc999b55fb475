// The model device: a driver with no memory behind it. It keeps the books of a real device, has its prices and its
// streams, and enforces its rules: a call that breaks one changes nothing, returns Status::failed and is listed under
// violations(). It is how the core is tested and how memory ratios and handle operations are judged.
//
// Device addresses are numbers that must not be followed. Host buffers (allocate_host) are real memory.
// What it checks: sizes, granularity and alignment; map over mapped; unmap of a part; unmap, destroy_segment or
// free_host under pending work ("the kernel dies"); destroy or unreserve while mapped; unknown or stale handles; work
// on unmapped addresses; two streams on the same physical bytes without an order between them; events used after
// release; what was never given back (leaks()).
//
// Called by the allocator layer, tests and `cistern replay --device model`. Every member locks inside: any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "drivers/driver.hpp"
#include "drivers/fault_plan.hpp"
#include "drivers/model/timeline.hpp"

namespace cistern::drivers {

// Microseconds a call takes on an H200: measured, the middle where a span was seen (docs/drivers.md).
struct ModelPrices {
  double create = 11;
  double map = 1;
  double set_access = 33.5;  // 23-44.
  double unmap = 18;         // 15-21.
  double release = 84.5;     // 9-160.
  double record = 0.26;
  double wait = 0.23;
  double query = 1.6;
};

// What a driver leaves behind when it is destroyed, for tests that no longer own it by then.
struct ModelReport {
  std::vector<std::string> violations;
  std::vector<std::string> leaks;
};

struct ModelConfig {
  std::size_t total_memory = std::size_t{140} << 30;  // Bytes; an H200 has about 139 GiB free.
  std::size_t granularity = std::size_t{2} << 20;     // Bytes.
  std::size_t alignment = 512;                        // Bytes, at least 64.
  std::size_t address_space = std::size_t{64} << 40;  // Bytes that all reserved ranges together may have.
  std::size_t max_objects = std::numeric_limits<std::size_t>::max();  // Count of segments and objects.
  std::size_t max_buffer = std::size_t{140} << 30;                    // Bytes of a segment.
  double lag_us = 0;                                                  // How far streams run behind the host.
  bool manual = false;         // Work is done only when complete() or complete_all() says so.
  bool virtual_memory = true;  // false: segments.
  bool double_mapping = true;  // false: a second mapping of a piece is a violation.
  bool block_objects = false;  // With segments: buffers are objects, as on Metal.
  bool check_order = true;     // Unordered use of the same bytes by two streams is a violation.
  ModelPrices prices{};
  std::shared_ptr<ModelReport> report{};  // Filled in by the destructor.
};

class ModelDriver final : public Driver {
 public:
  explicit ModelDriver(ModelConfig config);
  ~ModelDriver() override;

  const Capabilities& capabilities() const noexcept override { return capabilities_; }
  std::string error_text() const override;

  Status reserve(std::size_t bytes, Address& base) override;
  Status unreserve(Address base, std::size_t bytes) override;
  Status create(std::size_t bytes, Physical& out) override;
  Status destroy(Physical piece) override;
  Status map(Address at, Physical piece, std::size_t bytes) override;
  Status unmap(Address at, std::size_t bytes) override;

  Status create_segment(std::size_t bytes, Segment& out) override;
  Status destroy_segment(const Segment& segment) override;
  Status create_object(const Segment& segment, std::size_t offset, std::size_t bytes, void*& object) override;
  void destroy_object(void* object) override;
  void block_layout(std::size_t bytes, std::size_t& size, std::size_t& alignment) const override;

  Status allocate_host(HostKind kind, std::size_t bytes, void*& out) override;
  Status free_host(HostKind kind, void* ptr, std::size_t bytes) override;
  Status wrap(void* ptr, std::size_t bytes, void*& object) override;
  void unwrap(void* object) override;

  Status memory_info(std::size_t& free, std::size_t& total) override;

  std::uint64_t stream_id(void* native) override;
  void forget_stream(void* native, std::uint64_t id) override;
  Status record(void* stream, Event& out) override;
  Status wait(void* stream, Event event) override;
  bool passed(Event event) override;
  Status synchronize(Event event) override;
  Status synchronize_device() override;
  void release(Event event) override;

  Status copy(Address to, Address from, std::size_t bytes, void* stream) override;
  Status fill(Address at, std::uint8_t value, std::size_t bytes, void* stream) override;
  Status set_wired_limit(std::size_t bytes) override;

  // --- The device's side: what a program and its kernels do
  // Moves the clock; work whose time has come is done. Going back is a violation.
  void advance_to(double time_us);
  double clock_us() const;
  // Lets the work of a stream, or of all, be done (manual mode; with a lag, the clock decides).
  void complete(void* stream);
  void complete_all();
  // Submits work that uses [address, address + bytes). False, and a violation, when it may not.
  bool touch(void* stream, Address address, std::size_t bytes, bool writes = true);
  void set_lag(void* stream, double lag_us);
  // The program destroys the stream, whether it tells Cistern or not: its handle may come back as another one.
  void destroy_stream(void* stream);
  // Another process takes or gives memory: what create() may still have.
  void set_total_memory(std::size_t bytes);

  // --- Faults
  // As FaultPlan::fail().
  void fail(Call call, std::uint64_t nth, Status status = Status::out_of_memory, std::uint64_t times = 1);
  void clear_faults();
  std::uint64_t injected_faults() const;

  // --- Figures
  std::uint64_t count(Call call) const;  // Calls of this kind, failed ones included.
  double handle_seconds() const;         // Modelled time of create, map, set access, unmap, release, segments.
  double stream_seconds() const;         // The same of record, wait and query.
  std::uint64_t host_waits() const;      // synchronize() calls that found work pending.
  double wait_seconds() const;           // How long those took on the model's clock.
  std::size_t physical_bytes() const;    // Bytes created and not destroyed, segments and host buffers included.
  std::size_t peak_physical_bytes() const;

  // What broke a rule so far, oldest first; the first 1,000 are kept.
  std::vector<std::string> violations() const;
  std::uint64_t violation_count() const;
  void clear_violations();
  // What has not been given back.
  std::vector<std::string> leaks() const;
  // One message a broken rule of the driver's own books.
  std::vector<std::string> check_invariants() const;

 private:
  // Work that may still run on a region.
  struct Use {
    WorkPoint point;
    std::size_t offset = 0;
    std::size_t bytes = 0;
    bool writes = false;
  };
  enum class Kind : std::uint8_t { mapping, segment, host };
  // A stretch of addresses with memory behind it.
  struct Region {
    std::size_t bytes = 0;
    std::uint64_t piece = 0;   // Mappings only.
    std::size_t objects = 0;   // Segments only: live objects over it.
    std::size_t checked = 16;  // Uses that set off the next sweep of those that are done.
    Kind kind = Kind::mapping;
    std::vector<Use> uses;
  };
  struct Piece {
    std::size_t bytes = 0;
    std::vector<Address> shown_at;
  };
  using Regions = std::map<Address, Region>;

  Status begin(Call call, double seconds_us, std::uint64_t vendor_calls);
  Status violation(const char* format, ...) __attribute__((format(printf, 2, 3)));
  Status refuse(Status status, const char* format, ...) __attribute__((format(printf, 3, 4)));
  bool whole(std::size_t bytes) const { return bytes != 0 && bytes % config_.granularity == 0; }
  bool take_physical(std::size_t bytes);
  Regions::iterator region_over(Address at);
  bool wrapped(Address at, std::size_t bytes) const;
  bool any_region(Address at, std::size_t bytes) const;
  bool in_a_range(Address at, std::size_t bytes) const;
  bool pending(const Region& region) const;
  bool conflicts(const Region& region, std::uint32_t stream, std::size_t offset, std::size_t bytes, bool writes) const;
  Status check_use(std::uint32_t stream, Address at, std::size_t bytes, bool writes, bool any_host_memory);
  void add_use(WorkPoint point, Address at, std::size_t bytes, bool writes);
  std::vector<std::string> leaks_locked() const;

  const ModelConfig config_;
  Capabilities capabilities_;
  mutable std::mutex mutex_;
  Timeline timeline_;
  FaultPlan faults_;
  std::map<Address, std::size_t> ranges_;
  Regions regions_;
  std::unordered_map<std::uint64_t, Piece> pieces_;
  std::unordered_map<void*, Address> objects_;  // Object to its segment.
  std::multimap<Address, std::size_t> wraps_;   // Bytes by address.
  std::uint64_t next_piece_ = 1;
  std::uint64_t next_object_ = 1;
  std::size_t segments_ = 0;
  std::size_t reserved_ = 0;
  std::size_t total_;
  std::size_t physical_ = 0;
  std::size_t peak_physical_ = 0;
  std::uint64_t host_waits_ = 0;
  double handle_us_ = 0;
  double stream_us_ = 0;
  double wait_us_ = 0;
  std::vector<std::string> violations_;
  std::uint64_t violation_count_ = 0;
};

std::unique_ptr<ModelDriver> make_model_driver(ModelConfig config = {});

}  // namespace cistern::drivers
