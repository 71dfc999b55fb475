// The class behind make_cuda_driver(). Internal to the CUDA driver; its members are in cuda_driver.cpp (start, end,
// streams, bytes), cuda_virtual_memory.cpp and cuda_buffers.cpp (segments, host memory, the device's pool).
//
// It keeps the books of ranges, pieces and mappings itself: the vendor's misuse is undefined behaviour, ours is
// Status::failed; and a new peer needs access to all that is mapped.
//   range    reserved   holds mappings          unreserve() when it holds none
//   piece    created    mapped 0 or more times  destroy() when mapped 0 times
//   mapping  one piece, whole                   unmap() of exactly that range
// Locking: the books are under the device's lock (driver.hpp); events_, streams_ and wraps_ have mutex_.
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "drivers/cuda/cuda_api.hpp"
#include "drivers/cuda/cuda_call.hpp"
#include "drivers/cuda/cuda_driver.hpp"

namespace cistern::drivers::cuda {

class CudaDriver final : public Driver {
 public:
  CudaDriver(const CudaApi& api, int index, const CudaConfig& config);
  ~CudaDriver() override;
  CudaDriver(const CudaDriver&) = delete;
  CudaDriver& operator=(const CudaDriver&) = delete;

  // Takes the primary context and asks the device what it can do. False, with the thread's error text: do not use it.
  bool start();

  const Capabilities& capabilities() const noexcept override { return capabilities_; }
  std::string error_text() const override { return last_error(); }

  Status reserve(std::size_t bytes, Address& base) override;
  Status unreserve(Address base, std::size_t bytes) override;
  Status create(std::size_t bytes, Physical& out) override;
  Status destroy(Physical piece) override;
  Status map(Address at, Physical piece, std::size_t bytes) override;
  Status unmap(Address at, std::size_t bytes) override;
  Status enable_peer(int index) override;
  Status export_piece(Physical piece, int& handle) override;
  Status import_piece(int handle, std::size_t bytes, Physical& out) override;

  Status create_segment(std::size_t bytes, Segment& out) override;
  Status destroy_segment(const Segment& segment) override;
  Status create_object(const Segment& segment, std::size_t offset, std::size_t bytes, void*& object) override;
  void destroy_object(void* object) override { static_cast<void>(object); }
  void block_layout(std::size_t bytes, std::size_t& size, std::size_t& alignment) const override;

  Status allocate_host(HostKind kind, std::size_t bytes, void*& out) override;
  Status free_host(HostKind kind, void* ptr, std::size_t bytes) override;
  Status wrap(void* ptr, std::size_t bytes, void*& object) override;
  void unwrap(void* object) override;
  Status allocate_ordered(std::size_t bytes, void* stream, Address& out) override;
  Status free_ordered(Address at, void* stream) override;
  Status pool_figures(PoolFigures& out) override;
  Status trim_pool(std::size_t keep) override;
  Status memory_info(std::size_t& free, std::size_t& total) override;

  std::uint64_t stream_id(void* native) override;
  void forget_stream(void* native, std::uint64_t id) override;
  void* make_stream() override;
  void drop_stream(void* native) override;
  bool shared_handle(void* native) const override;
  bool blocking(void* native) override;
  void begin_capture() override { captures().fetch_add(1, std::memory_order_relaxed); }
  void end_capture() override { captures().fetch_sub(1, std::memory_order_relaxed); }
  Status record(void* stream, Event& out) override;
  Status wait(void* stream, Event event) override;
  Status order(void* earlier, void* later) override;
  bool passed(Event event) override;
  Status synchronize(Event event) override;
  Status synchronize_device() override;
  void release(Event event) override;

  Status copy(Address to, Address from, std::size_t bytes, void* stream) override;
  Status fill(Address at, std::uint8_t value, std::size_t bytes, void* stream) override;
  Status set_wired_limit(std::size_t bytes) override;

 private:
  struct Piece {
    std::size_t bytes = 0;
    std::size_t maps = 0;  // Count of mappings that show it.
  };
  struct Mapping {
    std::size_t bytes = 0;
    PhysicalHandle piece = 0;
  };
  // Host memory of somebody else that we registered with the driver.
  struct Registered {
    std::size_t bytes = 0;
    std::size_t wraps = 0;  // Count of live wraps in it.
  };
  // Somebody else's memory that is usable here.
  struct Wrap {
    Address registered = 0;  // The start of the Registered around it; 0 when it was usable anyway.
    std::size_t count = 0;
  };

  // cuda_driver.cpp
  bool ask_attributes();
  bool start_virtual_memory();
  bool start_pool();
  void start_pinned();
  bool choose_unified();
  bool has(Attribute which, DeviceNumber device);
  Status call(Result result, const char* name);
  // For cleaning up after a failure: a call that fails is made once more, since nobody is left who could do it later.
  template <class Clean>
  void insist(Clean clean) {
    count_call();
    if (clean() == kSuccess) return;
    count_call();
    clean();
  }
  Status give_back(Result result, const char* name);
  Status check_capture(Stream stream);
  Status record_now(Stream stream, Event& out);
  Status order_now(Stream earlier, Stream later);
  Status gather_threads(void* native);
  bool check_device(Stream stream);
  std::atomic<int>& captures() const;
  std::uint64_t captured_id(void* native);

  // cuda_buffers.cpp
  std::map<Address, Registered>::iterator registered_around(Address at, std::size_t bytes);
  void end_wrap(Address registered);

  // cuda_virtual_memory.cpp
  bool whole(std::size_t bytes) const { return bytes != 0 && bytes % capabilities_.granularity == 0; }
  AllocationProperties properties() const;
  bool any_mapping(Address at, std::size_t bytes) const;
  bool in_a_range(Address at, std::size_t bytes) const;
  Status show(Address at, PhysicalHandle piece, std::size_t bytes);
  void hide(Address at, std::size_t bytes);
  bool settle_orphans(Address at, std::size_t bytes);
  Status open_peer(DeviceNumber peer);

  const CudaApi& api_;
  const int index_;
  const CudaConfig config_;
  DeviceNumber device_ = 0;
  Context context_ = nullptr;
  bool retained_ = false;
  Status asked_ = Status::ok;  // Whether the device answered what start() asked.
  bool managed_ = false;       // HostKind::unified is managed memory.
  Capabilities capabilities_;

  std::map<Address, std::size_t> ranges_;
  std::unordered_map<PhysicalHandle, Piece> pieces_;
  std::map<Address, Mapping> mappings_;
  std::map<Address, std::size_t> orphans_;  // Still mapped, though the books say otherwise: cleaning up failed.
  std::vector<AccessDescription> access_;   // This device, then its peers.
  std::vector<DeviceNumber> peers_;         // Whose primary contexts are held.
  std::unordered_set<Address> segments_;

  Pool pool_ = nullptr;
  std::uint64_t previous_threshold_ = 0;
  bool threshold_set_ = false;

  std::mutex mutex_;
  std::vector<EventHandle> events_;                             // Ready to be recorded.
  std::unordered_map<std::uint64_t, std::uint64_t> shown_ids_;  // By the driver's id, what stream_id() says; for
                                                                // streams whose device was checked.
  std::unordered_map<void*, std::uint64_t> last_ids_;           // What it said last, by handle.
  std::unordered_map<void*, std::uint64_t> numbers_;            // Ids of ours: where the driver has none, or not now.
  std::map<Address, Registered> registered_;
  std::unordered_map<void*, Wrap> wraps_;  // By what wrap() returned.
};

inline Address address_of(const void* ptr) { return static_cast<Address>(reinterpret_cast<std::uintptr_t>(ptr)); }
inline void* pointer(Address address) { return reinterpret_cast<void*>(static_cast<std::uintptr_t>(address)); }
inline bool is_per_thread(void* native) { return address_of(native) == kPerThreadStream; }
// The stream that what is submitted to `native` goes to. The legacy stream has two handles. The handle of the calling
// thread's default stream names another one in each thread; all of these wait for the legacy stream, which waits for
// them, so that it stands for any.
inline Stream stream_of(void* native) {
  return address_of(native) == kLegacyStream || is_per_thread(native) ? nullptr : static_cast<Stream>(native);
}

}  // namespace cistern::drivers::cuda
