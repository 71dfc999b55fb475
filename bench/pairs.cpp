// Hot pairs: one buffer allocated and freed again, nothing else; then with every page of it written.
#include <cistern/allocator.hpp>
#include <string>

#include "foreign.hpp"
#include "suite.hpp"

namespace cistern::bench {
namespace {

constexpr std::size_t kPage = 4096;

template <bool kTouch, class Take, class Give, class Pointer>
void pairs(benchmark::State& state, std::size_t bytes, Take take, Give give, Pointer pointer) {
  for (auto _ : state) {
    auto block = take(bytes);
    benchmark::DoNotOptimize(block);
    if constexpr (kTouch) {
      auto* p = static_cast<volatile char*>(pointer(block));
      for (std::size_t i = 0; i < bytes; i += kPage) p[i] = 1;
    }
    give(block);
  }
  state.SetItemsProcessed(state.iterations());
}

template <bool kTouch>
void add_group(Suite& suite, const std::string& group, std::size_t bytes) {
  suite.add({group, "cistern", "pair", [bytes](benchmark::State& state) {
               Allocator& a = allocator(Device::cpu());
               pairs<kTouch>(
                   state, bytes, [&](std::size_t n) { return a.malloc(n); }, [&](Buffer b) { a.free(b); },
                   [](const Buffer& b) { return b.ptr(); });
             }});
  for (const ForeignAllocator& f : foreign_allocators()) {
    suite.add({group, f.name, "pair", [bytes, f](benchmark::State& state) {
                 pairs<kTouch>(state, bytes, f.malloc, f.free, [](void* p) { return p; });
               }});
  }
}

std::string bytes_text(std::size_t bytes) {
  if (bytes >= (1U << 20)) return std::to_string(bytes >> 20) + "MiB";
  if (bytes >= (1U << 10)) return std::to_string(bytes >> 10) + "KiB";
  return std::to_string(bytes) + "B";
}

}  // namespace

void add_pairs(Suite& suite) {
  for (std::size_t bytes : {16U, 64U, 256U, 1024U, 64U << 10, 1U << 20, 16U << 20}) {
    add_group<false>(suite, "pair/" + bytes_text(bytes), bytes);
  }
}

void add_touch(Suite& suite) {
  for (std::size_t kib : {4U, 8U, 16U, 32U, 64U, 256U, 1024U, 4096U, 16384U, 32768U, 65536U}) {
    add_group<true>(suite, "touch/" + bytes_text(kib << 10), kib << 10);
  }
}

}  // namespace cistern::bench
