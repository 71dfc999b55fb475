// Synthetic traces of programs that infer: decode loop, serving, mixture of experts, diffusion. Shapes are of real
// models; times are made up. See generate.hpp.
#include <algorithm>
#include <array>
#include <vector>

#include "trace/generate_script.hpp"

namespace cistern::trace {
namespace {

using Id = Script::Id;

constexpr std::uint64_t kHalf = 2;   // Bytes of a 16-bit float.
constexpr std::uint64_t kFloat = 4;  // Bytes of a 32-bit float.

struct Model {
  std::uint64_t layers, hidden, heads, kv_heads, head, inner, vocabulary;
};
constexpr Model kSmall{28, 1024, 16, 8, 128, 3072, 151936};

// Weights: allocated first, never freed.
void weights(Script& s, const Model& m) {
  s.alloc(m.vocabulary * m.hidden * kHalf);
  for (std::uint64_t layer = 0; layer < m.layers; ++layer) {
    s.alloc(m.hidden * m.heads * m.head * kHalf);
    s.alloc(m.hidden * m.kv_heads * m.head * kHalf);
    s.alloc(m.hidden * m.kv_heads * m.head * kHalf);
    s.alloc(m.heads * m.head * m.hidden * kHalf);
    for (int i = 0; i < 3; ++i) s.alloc(m.hidden * m.inner * kHalf);
    s.alloc(m.hidden * kHalf);
    s.alloc(m.hidden * kHalf);
  }
}

struct Cache {
  Id key = Script::kNone, value = Script::kNone;
};

void rms_norm(Script& s, const Model& m, std::uint64_t rows) {
  Id wide = s.alloc(rows * m.hidden * kFloat);
  s.scratch(rows * m.hidden * kFloat);
  Id mean = s.alloc(rows * kFloat);
  s.scratch(rows * kFloat);
  s.free(mean);
  s.free(wide);
}

// `rows` new tokens of one sequence against a cache of `length` tokens (new ones included).
void attention(Script& s, const Model& m, Cache& cache, std::uint64_t rows, std::uint64_t length) {
  Id query = s.alloc(rows * m.heads * m.head * kHalf);
  Id key = s.alloc(rows * m.kv_heads * m.head * kHalf);
  Id value = s.alloc(rows * m.kv_heads * m.head * kHalf);
  s.replace(query, rows * m.heads * m.head * kHalf);  // Rotary embedding.
  s.replace(key, rows * m.kv_heads * m.head * kHalf);
  s.replace(cache.key, length * m.kv_heads * m.head * kHalf);
  s.replace(cache.value, length * m.kv_heads * m.head * kHalf);
  s.free(key);
  s.free(value);
  Id wide_key = s.alloc(length * m.heads * m.head * kHalf);
  Id wide_value = s.alloc(length * m.heads * m.head * kHalf);
  Id scores = s.alloc(rows * m.heads * length * kHalf);
  s.replace(scores, rows * m.heads * length * kFloat);
  s.replace(scores, rows * m.heads * length * kHalf);
  Id mixed = s.alloc(rows * m.heads * m.head * kHalf);
  s.free(scores);
  s.free(wide_key);
  s.free(wide_value);
  s.free(query);
  s.replace(mixed, rows * m.hidden * kHalf);
  s.free(mixed);
}

void feed_forward(Script& s, const Model& m, std::uint64_t rows) {
  Id gate = s.alloc(rows * m.inner * kHalf);
  s.replace(gate, rows * m.inner * kHalf);
  Id up = s.alloc(rows * m.inner * kHalf);
  Id product = s.alloc(rows * m.inner * kHalf);
  s.free(gate);
  s.free(up);
  s.replace(product, rows * m.hidden * kHalf);
  s.free(product);
}

void layers(Script& s, const Model& m, std::vector<Cache>& caches, std::uint64_t rows, std::uint64_t length) {
  Id x = s.alloc(rows * m.hidden * kHalf);
  for (Cache& cache : caches) {
    rms_norm(s, m, rows);
    attention(s, m, cache, rows, length);
    s.replace(x, rows * m.hidden * kHalf);
    rms_norm(s, m, rows);
    feed_forward(s, m, rows);
    s.replace(x, rows * m.hidden * kHalf);
  }
  Id logits = s.alloc(m.vocabulary * kHalf);
  s.replace(logits, m.vocabulary * kFloat);
  s.scratch(8);
  s.free(logits);
  s.free(x);
}

void free_caches(Script& s, std::vector<Cache>& caches) {
  for (Cache& cache : caches) {
    s.free(cache.key);
    s.free(cache.value);
  }
}

}  // namespace

Trace generate_decode(std::string_view name, std::uint64_t seed, std::uint64_t count) {
  Script s(name, seed);
  weights(s, kSmall);
  std::vector<Cache> caches(kSmall.layers);
  std::uint64_t length = s.random.between(64, 512);
  layers(s, kSmall, caches, length, length);
  for (std::uint64_t token = 0; token < count; ++token) {
    layers(s, kSmall, caches, 1, ++length);
    s.tick(20'000);
  }
  free_caches(s, caches);
  return s.finish();
}

Trace generate_serving(std::string_view name, std::uint64_t seed, std::uint64_t count) {
  constexpr Model kTiny{8, 768, 12, 4, 64, 2048, 32000};
  struct Request {
    std::vector<Cache> caches;
    std::uint64_t length, left;
  };
  Script s(name, seed);
  weights(s, kTiny);
  std::vector<Request> running;
  std::uint64_t waiting = count;
  while (waiting != 0 || !running.empty()) {
    while (waiting != 0 && running.size() < 12 && (running.empty() || !s.random.one_in(3))) {
      --waiting;
      Request r{std::vector<Cache>(kTiny.layers), s.random.log_uniform(4, 10), s.random.between(4, 24)};
      layers(s, kTiny, r.caches, r.length, r.length);
      running.push_back(std::move(r));
    }
    // One step of the whole batch: shared activations, a cache for each request.
    Id batch = s.alloc(running.size() * kTiny.hidden * kHalf);
    for (Request& r : running) {
      ++r.length;
      --r.left;
      for (Cache& cache : r.caches) attention(s, kTiny, cache, 1, r.length);
    }
    Id logits = s.alloc(running.size() * kTiny.vocabulary * kFloat);
    s.free(batch);
    s.free(logits);
    s.tick(8'000);
    for (Request& r : running) {
      if (r.left == 0) free_caches(s, r.caches);
    }
    std::erase_if(running, [](const Request& r) { return r.left == 0; });
  }
  return s.finish();
}

Trace generate_moe(std::string_view name, std::uint64_t seed, std::uint64_t count) {
  constexpr Model kMoe{16, 2048, 16, 4, 128, 1024, 50304};
  constexpr std::uint64_t kExperts = 64;
  constexpr std::uint64_t kChosen = 8;  // Experts a token goes to.
  Script s(name, seed);
  for (std::uint64_t layer = 0; layer < kMoe.layers; ++layer) s.alloc(kExperts * 3 * kMoe.hidden * kMoe.inner * kHalf);
  std::vector<Cache> caches(kMoe.layers);
  std::uint64_t length = 0;
  for (std::uint64_t step = 0; step < count; ++step) {
    // Prompts of several lengths between single tokens.
    const std::uint64_t rows = step % 8 == 0 ? s.random.between(32, 700) : 1;
    length += rows;
    Id x = s.alloc(rows * kMoe.hidden * kHalf);
    for (Cache& cache : caches) {
      attention(s, kMoe, cache, rows, length);
      Id routing = s.alloc(rows * kExperts * kFloat);
      Id order = s.alloc(rows * kChosen * 8);
      Id sum = s.alloc(rows * kMoe.hidden * kHalf);
      std::array<std::uint64_t, kExperts> tokens{};
      for (std::uint64_t i = 0; i < rows * kChosen; ++i) {
        // Popular experts get more: the smaller of two draws.
        ++tokens[std::min(s.random.between(0, kExperts - 1), s.random.between(0, kExperts - 1))];
      }
      for (const std::uint64_t n : tokens) {
        if (n == 0) continue;
        Id gathered = s.alloc(n * kMoe.hidden * kHalf);
        feed_forward(s, kMoe, n);
        Id result = s.alloc(n * kMoe.hidden * kHalf);
        s.free(gathered);
        s.free(result);
      }
      s.free(order);
      s.free(routing);
      s.free(x);
      x = sum;
    }
    s.free(x);
    s.tick(30'000);
  }
  free_caches(s, caches);
  return s.finish();
}

Trace generate_diffusion(std::string_view name, std::uint64_t seed, std::uint64_t count) {
  constexpr std::array<std::uint64_t, 4> kChannels{320, 640, 1280, 1280};
  Script s(name, seed);
  for (const std::uint64_t channels : kChannels) {
    for (int i = 0; i < 12; ++i) s.alloc(channels * channels * 9 * kHalf);
  }
  const auto block = [&](Id& x, std::uint64_t batch, std::uint64_t side, std::uint64_t channels) {
    const std::uint64_t bytes = batch * channels * side * side * kHalf;
    s.scratch(batch * 32 * 2 * kFloat);  // Group norm statistics.
    s.replace(x, bytes);
    s.replace(x, bytes);
    Id residual = s.alloc(bytes);
    s.scratch(bytes * 9 / 4 + s.random.between(0, 1 << 20));  // Convolution workspace.
    s.replace(x, bytes);
    s.free(residual);
    if (side <= 32) {
      const std::uint64_t tokens = side * side;
      std::vector<Id> parts{s.alloc(bytes), s.alloc(bytes), s.alloc(bytes)};
      Id scores = s.alloc(batch * 8 * tokens * tokens * kHalf);
      s.replace(scores, batch * 8 * tokens * tokens * kHalf);
      s.replace(x, bytes);
      s.free(scores);
      s.free_all(parts);
    }
  };
  for (std::uint64_t step = 0; step < count; ++step) {
    const std::uint64_t batch = s.random.between(1, 3) * 2;
    const std::uint64_t full = 8 * s.random.between(6, 12);
    Id latent = s.alloc(batch * 4 * full * full * kHalf);
    Id x = s.alloc(batch * kChannels[0] * full * full * kHalf);
    std::vector<std::pair<Id, std::uint64_t>> skips;
    for (std::size_t level = 0; level < kChannels.size(); ++level) {
      const std::uint64_t side = full >> level;
      for (int i = 0; i < 2; ++i) {
        block(x, batch, side, kChannels[level]);
        const std::uint64_t bytes = batch * kChannels[level] * side * side * kHalf;
        skips.emplace_back(s.alloc(bytes), bytes);
      }
    }
    for (std::size_t level = kChannels.size(); level-- > 0;) {
      const std::uint64_t side = full >> level;
      for (int i = 0; i < 2; ++i) {
        auto [skip, bytes] = skips.back();
        skips.pop_back();
        s.replace(x, 2 * bytes);  // Concatenated with the skip connection.
        s.free(skip);
        block(x, batch, side, kChannels[level]);
      }
    }
    s.free(x);
    s.free(latent);
    s.tick(60'000);
  }
  return s.finish();
}

}  // namespace cistern::trace
