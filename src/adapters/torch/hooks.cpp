// What PyTorch calls through CUDAPluggableAllocator: allocate, free, and the hooks. Does not: keep memory itself. Any
// thread. The hooks with C++ types have the types of PyTorch's C++ interface, whose binary form is that of libstdc++.
#include <array>
#include <atomic>
#include <cstdio>
#include <optional>
#include <string>

#include "adapters/c_api.hpp"
#include "adapters/torch/books.hpp"
#include "allocator/registry.hpp"

namespace cistern::torch_adapter {
namespace {

std::atomic<cistern_torch_out_of_memory> out_of_memory_handler{nullptr};

struct KnownStream {
  std::uint64_t driver_id = 0;
  std::optional<Stream> value;
};

// The stream of a native handle. Handles are recycled, so the driver's id is asked for each time, except for the
// default stream; everything else of the last few streams is kept per thread.
Stream stream_of(allocation::DeviceAllocator& allocator, void* native) {
  if (native == nullptr) return allocator.stream(nullptr);
  constexpr std::size_t kKept = 8;
  thread_local std::array<KnownStream, kKept> known;
  const auto slot = (reinterpret_cast<std::uintptr_t>(native) >> 6) % kKept;
  KnownStream& entry = known[slot];
  const std::uint64_t id = allocator.driver().stream_id(native);
  if (entry.value && entry.value->device() == allocator.device() && entry.value->native() == native &&
      entry.driver_id == id) {
    // It may have been destroyed since.
    const allocation::StreamEntry* const live = allocator.central().streams().at(entry.value->slot());
    if (live->id.load(std::memory_order_relaxed) == entry.value->id()) return *entry.value;
  }
  const Stream stream = allocator.stream(native);
  entry = {id, stream};
  return stream;
}

allocation::DeviceAllocator& allocator_for(int device) {
  allocation::DeviceAllocator& allocator = allocation::device_allocator(checked_device(device));
  Books::get().used[static_cast<std::size_t>(device)].store(true, std::memory_order_relaxed);
  return allocator;
}

template <typename Visit>
void for_each_used(Visit visit) {
  for (int device = 0; device < kMaxDevices; ++device) {
    if (Books::get().is_used(device)) visit(device);
  }
}

// One that the allocator never saw is left alone.
void forget_stream(allocation::DeviceAllocator& allocator, void* native) {
  const std::uint64_t id = allocator.driver().stream_id(native);
  if (id != 0) {  // Else stream() says why.
    allocation::Central& central = allocator.central();
    const allocation::Central::Lock lock(central);
    if (central.streams().find(id) == nullptr) return allocator.driver().forget_stream(native, id);
  }
  allocator.stream_destroyed(allocator.stream(native));
}

// The live buffer around an address; null when there is none. Looks at the whole map where it is no buffer's start.
Buffer buffer_around(allocation::DeviceAllocator& allocator, const void* ptr) {
  if (const Buffer exact = allocator.find(ptr)) return exact;
  const auto address = reinterpret_cast<std::uintptr_t>(ptr);
  for (const MemorySegment& segment : allocator.map()) {
    if (address < segment.address || address - segment.address >= segment.bytes) continue;
    for (const MemoryRange& range : segment.ranges) {
      if (!range.live || address < range.address || address - range.address >= range.bytes) continue;
      const Buffer found = allocator.find(reinterpret_cast<const void*>(range.address));
      return found && address - range.address < found.size() ? found : Buffer{};
    }
  }
  return {};
}

[[noreturn]] void fail(const out_of_memory& error, int device, std::size_t bytes, void* stream) {
  Books& books = Books::get();
  figures_of(device).note_out_of_memory();
  if (books.history.on()) {
    std::size_t free = 0, total = 0;
    allocator_for(device).driver().memory_info(free, total);
    books.history.note(CISTERN_TORCH_OUT_OF_MEMORY, device, free, bytes, stream);
  }
  // Programs look for these words.
  const std::string text = "CUDA out of memory. " + std::string(error.what());
  if (const auto handler = out_of_memory_handler.load()) handler(text.c_str());
  throw out_of_memory(text, error.requested(), error.limit());
}

void* allocate(std::ptrdiff_t size, int device, void* stream) {
  if (size < 0) {
    throw invalid_argument("cistern: asked for " + std::to_string(size) + " bytes on cuda:" + std::to_string(device) +
                           ": expected 0 or more");
  }
  const auto bytes = static_cast<std::size_t>(size);
  allocation::DeviceAllocator& allocator = allocator_for(device);
  try {
    const Buffer buffer = allocator.malloc(bytes, stream_of(allocator, stream));
    void* const ptr = buffer.ptr();
    figures_of(device).add(bytes, buffer.size());
    History& history = Books::get().history;
    if (history.on()) {
      history.note(CISTERN_TORCH_ALLOC, device, reinterpret_cast<std::uintptr_t>(ptr), bytes, stream);
    }
    return ptr;
  } catch (const out_of_memory& error) {
    fail(error, device, bytes, stream);
  }
}

// Runs something for a caller that cannot take an exception.
template <typename Do>
void reported(Do&& something) noexcept {
  try {
    something();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
  } catch (...) {
    std::fprintf(stderr, "cistern: an exception of unknown type\n");
  }
}

}  // namespace
}  // namespace cistern::torch_adapter

using namespace cistern;
using namespace cistern::torch_adapter;

extern "C" {

void* cistern_torch_alloc(ptrdiff_t size, int device, void* stream) { return allocate(size, device, stream); }

void* cistern_torch_try_alloc(ptrdiff_t size, int device, void* stream) {
  void* ptr = nullptr;
  c::guarded([&] { ptr = allocate(size, device, stream); });
  return ptr;
}

void cistern_torch_free(void* ptr, ptrdiff_t size, int device, void* stream) {
  if (ptr == nullptr) return;
  reported([&] {
    allocation::DeviceAllocator& allocator = allocator_for(device);
    const Buffer buffer = allocator.find(ptr);
    if (!buffer) {
      allocator.free_raw(ptr);  // Says what is wrong.
      return;
    }
    const std::size_t capacity = buffer.size();
    if (size < 0 || static_cast<std::size_t>(size) > capacity) {
      throw invalid_argument("cistern: free: buffer " + allocator.describe(buffer.block()) + " is freed with size " +
                             std::to_string(size) + ": expected 0 to " + std::to_string(capacity));
    }
    // Before the address can be handed out again.
    History& history = Books::get().history;
    if (history.on()) {
      history.note(CISTERN_TORCH_FREE, device, reinterpret_cast<std::uintptr_t>(ptr), static_cast<std::size_t>(size),
                   stream);
    }
    allocator.free(buffer);
    figures_of(device).subtract(static_cast<std::size_t>(size), capacity);
  });
}

void cistern_torch_init(int) {}

void cistern_torch_reset(void) {
  for_each_used([](int device) { clear_cache(Device::cuda(device)); });
}

void cistern_torch_memory_fraction(double fraction, int device) {
  const Device which = checked_device(device);
  if (!(fraction >= 0 && fraction <= 1)) {
    throw invalid_argument("cistern: memory fraction " + std::to_string(fraction) + ": expected 0 to 1");
  }
  set_memory_limit(static_cast<std::size_t>(fraction * static_cast<double>(stats(which).total_memory)), which);
}

void* cistern_torch_base_allocation(void* ptr, size_t* size) {
  Buffer found;
  if (ptr != nullptr) {
    for_each_used([&](int device) {
      if (!found) found = buffer_around(allocator_for(device), ptr);
    });
  }
  if (size != nullptr) *size = found.size();
  return found ? found.ptr() : ptr;
}

void cistern_torch_record_stream(void* ptr, void* stream) {
  if (ptr == nullptr) return;
  bool found = false;
  for_each_used([&](int device) {
    allocation::DeviceAllocator& allocator = allocator_for(device);
    const Buffer buffer = allocator.find(ptr);
    if (found || !buffer) return;
    found = true;
    allocator.record_use(buffer, stream_of(allocator, stream));
  });
}

cistern_status cistern_torch_stream_destroyed(int device, void* stream) {
  return c::guarded([&] {
    present_device(device);
    if (stream != nullptr && Books::get().is_used(device)) forget_stream(allocator_for(device), stream);
  });
}

void cistern_torch_set_out_of_memory_handler(cistern_torch_out_of_memory handler) {
  out_of_memory_handler.store(handler);
}

uint64_t cistern_torch_newest_begin(void) { return Pools::newest_begin(); }

int cistern_torch_abort_begin(uint64_t number) {
  int aborted = 0;
  reported([&] { aborted = Books::get().pools.abort_begin(number); });
  return aborted;
}

int cistern_torch_abort_pools(int device) {
  int aborted = 0;
  reported([&] { aborted = Books::get().pools.abort(device); });
  return aborted;
}

// PyTorch's own types, in the words of the C++ library.
void cistern_torch_begin_pool(int device, PoolId id, PoolFilter filter) {
  Books::get().pools.begin(device, id, std::move(filter));
}
void cistern_torch_end_pool(int device, PoolId id) {
  reported([&] { Books::get().pools.end(device, id); });
}
void cistern_torch_release_pool(int device, PoolId id) {
  reported([&] { Books::get().pools.release(device, id); });
}

}  // extern "C"
