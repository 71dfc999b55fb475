// What the generators of synthetic traces are written with: a random source that is the same everywhere, a clock, and
// blocks that are allocated and freed by hand. Internal to generate*.cpp. One thread; no locking.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cistern/trace.hpp"
#include "trace/builder.hpp"

namespace cistern::trace {

// splitmix64. The standard library's distributions differ between implementations, so the few needed are here.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  // From low to high, both included.
  std::uint64_t between(std::uint64_t low, std::uint64_t high) { return low + next() % (high - low + 1); }
  bool one_in(std::uint64_t n) { return next() % n == 0; }

  // Every size class is as likely as the others: 2^low_bit to 2^high_bit.
  std::uint64_t log_uniform(unsigned low_bit, unsigned high_bit) {
    const std::uint64_t base = std::uint64_t{1} << between(low_bit, high_bit - 1);
    return base + next() % base;
  }

 private:
  std::uint64_t state_;
};

class Script {
 public:
  using Id = std::uint32_t;
  static constexpr Id kNone = UINT32_MAX;

  Script(std::string_view name, std::uint64_t seed)
      : random(seed ^ 0x5eed5eed5eed5eedu), name_(name), builder_(name_, TraceBuilder::Clock::strict) {}

  Id alloc(std::uint64_t bytes, std::uint64_t stream = 0) {
    tick(random.between(2, 12));
    return builder_.allocate(bytes, builder_.stream(stream), time_us_);
  }
  void free(Id& id) {
    tick(1);
    builder_.free(id, builder_.stream_of(id), time_us_);
    id = kNone;
  }
  void free_all(std::vector<Id>& ids) {
    for (Id& id : ids) free(id);
    ids.clear();
  }
  // Last allocated, first freed.
  void free_reverse(std::vector<Id>& ids) {
    for (std::size_t i = ids.size(); i-- > 0;) free(ids[i]);
    ids.clear();
  }
  // A concatenation: the new block exists before the old one goes.
  void replace(Id& id, std::uint64_t bytes, std::uint64_t stream = 0) {
    const Id grown = alloc(bytes, stream);
    if (id != kNone) free(id);
    id = grown;
  }
  // A temporary that dies at once.
  void scratch(std::uint64_t bytes, std::uint64_t stream = 0) {
    Id id = alloc(bytes, stream);
    free(id);
  }
  void tick(std::uint64_t us) { time_us_ += us; }

  Trace finish() { return builder_.finish(name_); }

  Random random;

 private:
  std::string name_;
  TraceBuilder builder_;
  std::uint64_t time_us_ = 0;
};

// The generators proper; `count` is tokens, steps or requests.
Trace generate_decode(std::string_view name, std::uint64_t seed, std::uint64_t count);
Trace generate_train(std::string_view name, std::uint64_t seed, std::uint64_t count);
Trace generate_graph(std::string_view name, std::uint64_t seed, std::uint64_t count);
Trace generate_serving(std::string_view name, std::uint64_t seed, std::uint64_t count);
Trace generate_diffusion(std::string_view name, std::uint64_t seed, std::uint64_t count);
Trace generate_moe(std::string_view name, std::uint64_t seed, std::uint64_t count);
Trace generate_two_streams(std::string_view name, std::uint64_t seed, std::uint64_t count);
Trace generate_random(std::string_view name, std::uint64_t seed, std::uint64_t count);

}  // namespace cistern::trace
