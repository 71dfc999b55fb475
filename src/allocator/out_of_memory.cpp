// Out of memory: callbacks, and the text of the error.
#include "allocator/out_of_memory.hpp"

#include <algorithm>
#include <limits>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "allocator/device_allocator.hpp"
#include "allocator/tags.hpp"
#include "cistern/memory.hpp"

namespace cistern {
namespace allocation {
namespace {

using Entry = std::pair<std::uint64_t, std::shared_ptr<const OutOfMemoryCallback>>;

// Never destroyed, as allocators are not.
struct Callbacks {
  std::mutex mutex;
  std::vector<Entry> entries;
  std::uint64_t last_id = 0;

  static Callbacks& get() {
    alignas(Callbacks) static unsigned char storage[sizeof(Callbacks)];
    static Callbacks* callbacks = new (storage) Callbacks;
    return *callbacks;
  }
};

std::string with_unit(std::uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = bytes > UINT64_MAX / 10 ? 1 : 0;  // Ten times as much must be a number.
  std::uint64_t tenths = unit == 0 ? bytes * 10 : bytes / 1024 * 10;
  for (; tenths >= 10240 && unit + 1 < std::size(kUnits); ++unit) tenths /= 1024;
  std::string text = std::to_string(tenths / 10);
  if (unit != 0) text += '.' + std::to_string(tenths % 10);
  text += ' ';
  text += kUnits[unit];
  return unit == 0 ? text : text + " (" + std::to_string(bytes) + " B)";
}

}  // namespace

bool call_out_of_memory_callbacks(Device device, std::size_t bytes) {
  std::vector<Entry> entries;
  {
    const std::lock_guard lock(Callbacks::get().mutex);
    entries = Callbacks::get().entries;
  }
  bool again = false;
  for (const auto& [id, callback] : entries) again = (*callback)(device, bytes) || again;
  return again;
}

void lock_callbacks() { Callbacks::get().mutex.lock(); }
void unlock_callbacks() { Callbacks::get().mutex.unlock(); }

void DeviceAllocator::throw_out_of_memory(std::size_t bytes, const std::string& driver_failure,
                                          const std::string& what) {
  if (!driver_failure.empty()) {
    throw driver_error("cistern: " + to_string(device_) + ": cannot allocate " + with_unit(bytes) + ": " +
                       driver_failure);
  }
  std::uint64_t largest = 0;
  std::string shortage;
  {
    const Central::Lock lock(central_);
    shortage = central_.work().take_shortage();
    largest = central_.largest_free(lock);
  }
  const Stats s = stats();
  const bool limited = s.memory_limit != std::numeric_limits<std::size_t>::max();
  std::string text = "cistern: " + what + "out of memory on " + to_string(device_) + ": asked for " + with_unit(bytes) +
                     ", limit " + (limited ? with_unit(s.memory_limit) : "none") + ", active " + with_unit(s.active) +
                     (s.views > 0 ? " (" + with_unit(s.views) + " of it views)" : "") + ", cached " +
                     with_unit(s.cached) + ", reserved " + with_unit(s.reserved) + ", largest free range " +
                     with_unit(largest);
  const drivers::Capabilities& device = central_.capabilities();
  // By bytes alone there would be room: what is short is whole pieces.
  const std::uint64_t live = s.active - std::min(s.active, s.views);
  if (limited && device.virtual_memory && live <= s.memory_limit && bytes <= s.memory_limit - live) {
    text += "; memory is mapped in pieces of " + with_unit(device.granularity) + ", the limit has room for " +
            std::to_string(s.memory_limit / device.granularity) + " of them";
  }
  const auto entries = tag_figures_.entries();
  for (std::size_t i = 0; i < std::min<std::size_t>(entries.size(), 3) && entries[i].active != 0; ++i) {
    text += i == 0 ? "; biggest tags: " : ", ";
    text += tag_name(entries[i].tag) + ' ' + with_unit(entries[i].active);
  }
  if (!shortage.empty()) text += "; " + shortage;
  throw out_of_memory(std::move(text), bytes, s.memory_limit);
}

}  // namespace allocation

std::uint64_t add_out_of_memory_callback(OutOfMemoryCallback callback) {
  if (!callback) throw invalid_argument("cistern: add_out_of_memory_callback: the callback is empty");
  auto shared = std::make_shared<const OutOfMemoryCallback>(std::move(callback));
  auto& callbacks = allocation::Callbacks::get();
  const std::lock_guard lock(callbacks.mutex);
  callbacks.entries.emplace_back(callbacks.last_id + 1, std::move(shared));
  return ++callbacks.last_id;
}

void remove_out_of_memory_callback(std::uint64_t id) {
  auto& callbacks = allocation::Callbacks::get();
  const std::lock_guard lock(callbacks.mutex);
  std::erase_if(callbacks.entries, [id](const auto& entry) { return entry.first == id; });
}

}  // namespace cistern
