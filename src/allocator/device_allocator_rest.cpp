// Views, moves to the host, streams, limits, figures and options of one device's allocator.
#include <algorithm>

#include "allocator/device_allocator.hpp"
#include "allocator/stream_factory.hpp"
#include "allocator/tags.hpp"

namespace cistern::allocation {

using core::Block;

// --- Views ----------------------------------------------------------------------------------------------------------

Buffer DeviceAllocator::make_buffer(void* ptr, std::size_t bytes) {
  if (bytes > core::kMaxRequest)
    throw invalid_argument("cistern: make_buffer: no memory has " + std::to_string(bytes) + " bytes");
  if (ptr == nullptr) {
    if (bytes == 0) return {};
    throw invalid_argument("cistern: make_buffer: a null pointer cannot have " + std::to_string(bytes) + " bytes");
  }
  if (bytes > UINTPTR_MAX - reinterpret_cast<std::uintptr_t>(ptr)) {
    throw invalid_argument("cistern: make_buffer: " + std::to_string(bytes) + " bytes from this address on pass the " +
                           "end of the address space");
  }
  Block* block = nullptr;
  {
    const Central::Lock lock(central_);
    block = central_.take_view(lock, ptr, bytes);
  }
  if (block == nullptr) return {};
  block->tag = thread_state.tag;
  if (block->tag != 0) tag_figures_.add(block->tag, bytes);
  block->owner.store(core::central_owner_value(), std::memory_order_relaxed);
  const Buffer buffer = make_live(block);
  central_.figures().add_shared(static_cast<std::int64_t>(bytes), 1);
  return buffer;
}

void DeviceAllocator::release(Buffer buffer) {
  if (buffer.block() == nullptr) return;
  Block* block = checked(buffer, "release");
  if ((block->flags & core::kBlockView) == 0) {
    throw invalid_argument("cistern: release: buffer " + describe(block) + " is not a view; give it back with free()");
  }
  check_not_kept(block, "release");
  std::uint64_t expected = buffer.serial();
  if (!block->serial.compare_exchange_strong(expected, expected + 1, std::memory_order_acq_rel))
    throw_misuse(buffer, "release");
  if (block->tag != 0) tag_figures_.subtract(std::exchange(block->tag, std::uint16_t{0}), block->capacity);
  central_.figures().add_shared(-static_cast<std::int64_t>(block->capacity), -1);
  const Central::Lock lock(central_);
  central_.give_view(lock, block);
}

void* DeviceAllocator::host_pointer(Buffer buffer) {
  Block* block = checked(buffer, "raw_ptr");
  if (central_.capabilities().host_accessible) return reinterpret_cast<void*>(address_of(block));
  std::string what;
  {
    const Central::Lock lock(central_);
    checked(buffer, "raw_ptr");
    const bool reachable = (block->flags & (core::kBlockHost | core::kBlockView)) != 0;
    if (reachable || central_.move_to_host(lock, block)) return reinterpret_cast<void*>(address_of(block));
    if (!central_.capabilities().can_copy || central_.fixed(block)) {
      throw invalid_argument("cistern: raw_ptr: the host cannot reach buffer " + describe(block) +
                             (central_.fixed(block) ? ", and graph memory does not move" : ""));
    }
    if (const std::string failure = central_.work().take_failure(); !failure.empty()) {
      throw driver_error("cistern: raw_ptr: buffer " + describe(block) + " cannot be moved to the host: " + failure);
    }
    what = "raw_ptr: no room to move buffer " + describe(block) + " to memory that the host reaches: ";
  }
  throw_out_of_memory(buffer.size(), {}, what);
}

// --- Streams --------------------------------------------------------------------------------------------------------

Stream DeviceAllocator::stream(void* native) {
  if (native == nullptr) return StreamFactory::make(device_, *streams_.at(0));
  const Central::Lock lock(central_);
  return StreamFactory::make(device_, central_.stream(lock, native));
}

void DeviceAllocator::stream_destroyed(const Stream& stream) {
  StreamEntry* entry = streams_.at(stream.slot());
  check_stream_entry(entry, stream, "stream_destroyed");
  const Central::Lock lock(central_);
  check_stream_entry(entry, stream, "stream_destroyed");
  central_.stream_destroyed(lock, *entry);
}

// --- Limits and figures ---------------------------------------------------------------------------------------------

Stats DeviceAllocator::stats() const {
  const auto get = [](const std::atomic<std::uint64_t>& from) { return from.load(std::memory_order_relaxed); };
  const Published& published = central_.published();
  Stats s;
  s.active = central_.figures().active();
  s.peak_active = std::max<std::size_t>(central_.figures().peak(), s.active);
  s.views = central_.view_bytes();
  s.reserved = get(published.reserved);
  s.peak_reserved = get(published.peak_reserved);
  const std::uint64_t owned = s.active - std::min(s.active, s.views);
  s.cached = s.reserved - std::min<std::size_t>(s.reserved, owned);
  s.memory_limit = central_.limits().memory();
  s.cache_limit = central_.limits().cache();
  s.wired_limit = central_.limits().wired();
  s.total_memory = central_.capabilities().total_memory;
  s.live_buffers = central_.figures().live_buffers();
  s.handles = get(published.handles);
  s.handles_created = get(published.created);
  s.handles_moved = get(published.moved);
  s.handles_released = get(published.released);
  s.objects = central_.driver().objects();
  s.driver_calls = central_.driver().calls();
  s.host_waits = get(published.host_waits);
  s.late_double_frees = get(published.late_double_frees);
  return s;
}

void DeviceAllocator::reset_peaks() {
  const Central::Lock lock(central_);
  central_.figures().reset_peak();
  central_.reset_peak_reserved(lock);
  tag_figures_.reset_peaks();
}

std::size_t DeviceAllocator::set_memory_limit(std::size_t bytes) {
  const Central::Lock lock(central_);
  const std::size_t before = central_.limits().memory();
  central_.set_memory_limit(lock, bytes, thread_state.record);
  return before;
}

std::size_t DeviceAllocator::set_cache_limit(std::size_t bytes) {
  const Central::Lock lock(central_);
  const std::size_t before = central_.limits().cache();
  central_.set_cache_limit(lock, bytes, thread_state.record);
  return before;
}

std::size_t DeviceAllocator::set_wired_limit(std::size_t bytes) {
  const Central::Lock lock(central_);
  // Where nothing can be wired the number is kept and has no effect.
  if (central_.capabilities().residency && central_.driver().set_wired_limit(bytes) != drivers::Status::ok) {
    throw invalid_argument("cistern: set_wired_limit: " + to_string(device_) + " refused " + std::to_string(bytes) +
                           " bytes: " + central_.driver().error_text());
  }
  const std::size_t before = central_.limits().set_wired(bytes);
  central_.settle_residency(lock, false);
  return before;
}

void DeviceAllocator::before_submit() {
  if (!central_.capabilities().residency) return;
  const Central::Lock lock(central_);
  central_.settle_residency(lock, true);
}

void DeviceAllocator::clear_cache() {
  const Central::Lock lock(central_);
  central_.give_all_back(lock, thread_state.record, true);
  central_.trim(lock, 0, true);
  if (central_.group() != nullptr) central_.group()->forget_peak_live();
  central_.settle_residency(lock, false);
}

void DeviceAllocator::flush_thread_caches() {
  const Central::Lock lock(central_);
  central_.flush_all_caches(lock);
}

// --- Options and tags -----------------------------------------------------------------------------------------------

MemoryOptions DeviceAllocator::options() const {
  const std::uint8_t bits = options_.load(std::memory_order_relaxed);
  return {(bits & kZeroOnAlloc) != 0, (bits & kZeroOnReuse) != 0, (bits & kPoisonOnFree) != 0};
}

MemoryOptions DeviceAllocator::set_options(MemoryOptions options) {
  const MemoryOptions before = this->options();
  options_.store(static_cast<std::uint8_t>((options.zero_on_alloc ? kZeroOnAlloc : 0) |
                                           (options.zero_on_reuse ? kZeroOnReuse : 0) |
                                           (options.poison_on_free ? kPoisonOnFree : 0)),
                 std::memory_order_relaxed);
  central_.set_poison(options.poison_on_free);
  refresh_all_threads();
  return before;
}

std::vector<TagStats> DeviceAllocator::tags() const {
  std::vector<TagStats> result;
  for (const auto& entry : tag_figures_.entries()) result.push_back({tag_name(entry.tag), entry.active, entry.peak});
  return result;
}

// --- Threads and processes ------------------------------------------------------------------------------------------

void DeviceAllocator::abandon(core::ThreadCache& cache) {
  const Central::Lock lock(central_);
  central_.abandon(lock, cache);
}

void DeviceAllocator::lock_for_fork() {
  central_.mutex().lock_for_fork();
  central_.figures().mutex().lock();
  central_.uses().mutex().lock();
  central_.host().mutex().lock();
  central_.ordered().mutex().lock();
}

void DeviceAllocator::unlock_after_fork() {
  central_.ordered().mutex().unlock();
  central_.host().mutex().unlock();
  central_.uses().mutex().unlock();
  central_.figures().mutex().unlock();
  central_.mutex().unlock();
}

}  // namespace cistern::allocation
