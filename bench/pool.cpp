// The arena pool: a decode loop's 1,750 buffers a token in steady state, with dtype and shape, dropped as the token
// goes on or kept to its end; beside the reference pool and a driver call a buffer.
#include <sys/mman.h>

#include <algorithm>
#include <cistern/buffer_pool.hpp>
#include <cistern/planned_arena.hpp>
#include <cstdlib>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "reference/reference_cache.hpp"
#include "suite.hpp"

namespace cistern::bench {
namespace {

constexpr std::size_t kBuffers = 1750;

struct Request {
  std::size_t rows, columns, byte_len;
};

// Sizes of one token's scratch: mostly hidden-state rows, some heads, some expert buffers.
const std::vector<Request>& requests() {
  static const std::vector<Request> all = [] {
    std::mt19937 random(1750);
    const std::size_t columns[] = {128, 256, 1024, 1024, 1024, 2048, 3072, 4096};
    std::vector<Request> made;
    for (std::size_t i = 0; i < kBuffers; ++i) {
      const std::size_t rows = random() % 4 == 0 ? 8 : 1;
      const std::size_t width = columns[random() % 8];
      made.push_back({rows, width, rows * width * 4});
    }
    return made;
  }();
  return all;
}

// A buffer asked of the system: a mapping made and ended.
class MappedBuffer {
 public:
  MappedBuffer() = default;
  explicit MappedBuffer(std::size_t bytes)
      : bytes_(bytes), at_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {}
  MappedBuffer(const MappedBuffer& other) = delete;
  MappedBuffer& operator=(MappedBuffer&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    std::swap(at_, other.at_);
    return *this;
  }
  ~MappedBuffer() {
    if (at_ != nullptr) munmap(at_, bytes_);
  }

 private:
  std::size_t bytes_ = 0;
  void* at_ = nullptr;
};

template <class Handle, class Take, class Reset>
void tokens(benchmark::State& state, bool keep, Take take, Reset reset) {
  std::vector<Handle> kept(keep ? kBuffers : 8);
  // Inlined, so that no variant pays for reaching the others' variables.
  const auto token = [&]() __attribute__((always_inline)) {
    std::size_t i = 0;
    for (const Request& r : requests()) {
      kept[keep ? i : i % 8] = take(r);
      ++i;
    }
    for (Handle& h : kept) h = Handle{};
    reset();
  };
  // Steady state: memory is there, the loop recorded and planned.
  for (int i = 0; i < 4; ++i) token();
  for (auto _ : state) token();
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(kBuffers));
}

void pool_tokens(benchmark::State& state, bool keep) {
  BufferPool pool(Device::cpu());
  tokens<TypedBuffer>(
      state, keep,
      [&](const Request& r) {
        return pool.alloc(r.byte_len, DType::f32, {r.rows, r.columns});
      },
      [&] { pool.reset(); });
}

}  // namespace

void add_pool(Suite& suite) {
  for (bool keep : {false, true}) {
    const std::string group = keep ? "pool/kept-to-the-end" : "pool/dropped-as-it-goes";
    suite.add({group, "cistern", "buffer", [keep](benchmark::State& state) { pool_tokens(state, keep); }});
    suite.add({group, "reference-pool", "buffer", [keep](benchmark::State& state) {
                 reference::ReferencePool pool([](std::size_t n) {
                   return std::shared_ptr<void>(std::aligned_alloc(64, std::max<std::size_t>(n, 64)), &std::free);
                 });
                 tokens<reference::PooledBuffer>(
                     state, keep,
                     [&](const Request& r) {
                       return pool.alloc(r.byte_len, 0, {r.rows, r.columns});
                     },
                     [&] { pool.reset(); });
               }});
    suite.add({group, "driver", "buffer", [keep](benchmark::State& state) {
                 tokens<MappedBuffer>(
                     state, keep, [](const Request& r) { return MappedBuffer(r.byte_len); }, [] {});
               }});
  }
  for (bool keep : {false, true}) {
    const std::string group = keep ? "planned/kept-to-the-end" : "planned/dropped-as-it-goes";
    suite.add({group, "cistern-planned", "buffer", [keep](benchmark::State& state) {
                 ArenaOptions options;
                 options.background = false;
                 PlannedArena arena(Device::cpu(), options);
                 tokens<PlannedBuffer>(
                     state, keep,
                     [&](const Request& r) {
                       return arena.alloc(r.byte_len, DType::f32, {r.rows, r.columns});
                     },
                     [&] { arena.end_cycle(); });
               }});
    suite.add({group, "cistern-pool", "buffer", [keep](benchmark::State& state) { pool_tokens(state, keep); }});
  }
}

}  // namespace cistern::bench
