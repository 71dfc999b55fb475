// A full device, a fragmented one, and two streams that hand buffers to each other.
#include <random>

#include "cistern/error.hpp"
#include "round.hpp"

namespace cistern::gpu {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

// Blocks of random sizes until there is no memory.
std::vector<Buffer> until_full(allocation::DeviceAllocator& a, const Stream& stream, std::mt19937_64& random,
                               std::size_t most) {
  std::vector<Buffer> live;
  for (std::size_t bytes = most; bytes >= 64 << 10;) {
    try {
      live.push_back(a.malloc(bytes / 2 + random() % (bytes / 2), stream));
    } catch (const out_of_memory&) {
      bytes /= 2;
    }
  }
  return live;
}

// The part of `free` that one block may have, in steps of half a percent; 0.5 when it is not more.
double largest_of(allocation::DeviceAllocator& a, const Stream& stream, std::size_t free) {
  for (std::size_t permille = 995; permille > 500; permille -= 5) {
    try {
      a.free(a.malloc(free / 1000 * permille, stream));
      return static_cast<double>(permille) / 1000;
    } catch (const out_of_memory& e) {
      std::fprintf(stderr, "fill: %s\n", e.what());
    }
  }
  return 0.5;
}

// An allocator that may have all of the device that is free, and a stream.
struct WholeDevice {
  WholeDevice() { a->set_memory_limit(free_at_start); }
  ~WholeDevice() {
    a->stream_destroyed(stream);
    a.reset();
    Device::get().destroy_stream(native);
  }
  WholeDevice(const WholeDevice&) = delete;
  WholeDevice& operator=(const WholeDevice&) = delete;

  const NativeStream native = Device::get().make_stream();
  std::unique_ptr<allocation::DeviceAllocator> a = fresh_allocator();
  const Stream stream = a->stream(native);
  const std::size_t free_at_start = Device::get().free_memory();
};

// A device full of equal blocks, of which every second one goes.
void stripes(std::size_t bytes) {
  const WholeDevice device;
  const auto& a = device.a;
  std::vector<Buffer> live;
  try {
    for (;;) live.push_back(a->malloc(bytes, device.stream));
  } catch (const out_of_memory&) {
    // It is full.
  }
  for (std::size_t i = 0; i < live.size(); i += 2) a->free(live[i]);
  const std::size_t free = device.free_at_start - a->stats().active;
  report("stripes", std::to_string(bytes / kMiB) + " MiB", "largest", largest_of(*a, device.stream, free));
  for (std::size_t i = 1; i < live.size(); i += 2) a->free(live[i]);
}

}  // namespace

void fill() {
  for (const unsigned mib : {4u, 8u, 24u, 33u, 97u}) stripes(mib * kMiB);
  Device& gpu = Device::get();
  const WholeDevice device;
  const auto& a = device.a;
  std::mt19937_64 random(1);
  std::vector<Buffer> live = until_full(*a, device.stream, random, 2048 * kMiB);
  const std::size_t first = a->stats().active;
  report("fill", "device", "first", static_cast<double>(first) / static_cast<double>(device.free_at_start));
  for (const Buffer& b : live) gpu.fill(device.native, reinterpret_cast<std::uintptr_t>(b.ptr()), b.size(), 7);
  for (const Buffer& b : live) gpu.check(device.native, reinterpret_cast<std::uintptr_t>(b.ptr()), b.size(), 7);
  for (const Buffer& b : live) a->free(b);
  live = until_full(*a, device.stream, random, 512 * kMiB);
  report("fill", "device", "again", static_cast<double>(a->stats().active) / static_cast<double>(first));
  report("fill", "device", "mismatches", static_cast<double>(gpu.mismatches()));
  // One in sixteen stays, anywhere.
  std::vector<Buffer> kept;
  for (std::size_t i = 0; i < live.size(); ++i) {
    if (i % 16 == 5) {
      kept.push_back(live[i]);
    } else {
      a->free(live[i]);
    }
  }
  const std::size_t free_now = device.free_at_start - a->stats().active;
  report("fill", "device", "kept_share", 1 - static_cast<double>(free_now) / static_cast<double>(device.free_at_start));
  const std::uint64_t start = now_ns();
  report("fill", "device", "largest", largest_of(*a, device.stream, free_now));
  report("fill", "device", "seconds", static_cast<double>(now_ns() - start) * 1e-9);
  const Stats stats = a->stats();
  std::fprintf(stderr, "fill: %zu handles, %zu moved\n", stats.handles, stats.handles_moved);
  for (const Buffer& b : kept) a->free(b);
  double faults = 0;
  for (const std::string& message : a->check_invariants()) {
    std::fprintf(stderr, "fill: %s\n", message.c_str());
    ++faults;
  }
  report("fill", "device", "faults", faults);
}

void hand_over(unsigned long count) {
  Device& gpu = Device::get();
  const NativeStream natives[2] = {gpu.make_stream(), gpu.make_stream()};
  {
    const auto a = fresh_allocator();
    const Stream streams[2] = {a->stream(natives[0]), a->stream(natives[1])};
    std::mt19937_64 random(3);
    const std::uint64_t mismatches = gpu.mismatches(), start = now_ns();
    for (unsigned long i = 0; i < count; ++i) {
      const std::size_t from = i / 64 % 2, to = 1 - from;
      const std::size_t bytes = std::size_t{4096} << random() % 7;
      const Buffer b = a->malloc(bytes, streams[from]);
      const auto at = reinterpret_cast<std::uintptr_t>(b.ptr());
      gpu.fill(natives[from], at, bytes, i);
      gpu.order(natives[from], natives[to]);
      gpu.check(natives[to], at, bytes, i);
      if (i % 2 == 0) {
        a->record_use(b, streams[to]);
        a->free(b);
      } else {
        a->free(b, streams[to]);
      }
    }
    const double seconds = static_cast<double>(now_ns() - start) * 1e-9;
    const Stats stats = a->stats();
    report("hand_over", "two streams", "count", static_cast<double>(count));
    report("hand_over", "two streams", "mismatches", static_cast<double>(gpu.mismatches() - mismatches));
    report("hand_over", "two streams", "host_waits", static_cast<double>(stats.host_waits));
    report("hand_over", "two streams", "us_each", seconds * 1e6 / static_cast<double>(count));
    report("hand_over", "two streams", "reserved_MiB", static_cast<double>(stats.peak_reserved) / kMiB);
    for (const Stream& stream : streams) a->stream_destroyed(stream);
  }
  for (const NativeStream native : natives) gpu.destroy_stream(native);
}

}  // namespace cistern::gpu
