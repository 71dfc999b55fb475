// Synthetic traces of programs that train or feed: transformer training, graph sampling, two streams; and requests
// without pattern. See generate.hpp.
#include <algorithm>
#include <vector>

#include "trace/generate_script.hpp"

namespace cistern::trace {
namespace {

using Id = Script::Id;

constexpr std::uint64_t kFloat = 4;  // Bytes.
constexpr std::uint64_t kLong = 8;

}  // namespace

Trace generate_train(std::string_view name, std::uint64_t seed, std::uint64_t count) {
  constexpr std::uint64_t kLayers = 12, kHidden = 768, kHeads = 12, kVocabulary = 50257;
  constexpr std::uint64_t kPerLayer[] = {kHidden * 3 * kHidden, kHidden * kHidden, kHidden * 4 * kHidden,
                                         4 * kHidden * kHidden};
  Script s(name, seed);
  std::vector<std::uint64_t> parameters{kVocabulary * kHidden};
  for (std::uint64_t i = 0; i < kLayers; ++i)
    parameters.insert(parameters.end(), std::begin(kPerLayer), std::end(kPerLayer));
  for (const std::uint64_t n : parameters) s.alloc(n * kFloat);
  bool optimizer_ready = false;

  struct Saved {
    std::uint64_t bytes;
    Id id;
  };
  for (std::uint64_t step = 0; step < count; ++step) {
    const std::uint64_t batch = s.random.between(2, 12);
    const std::uint64_t length = s.random.between(8, 128) * 8;
    const std::uint64_t rows = batch * length;
    std::vector<Saved> saved;
    const auto save = [&](std::uint64_t numbers) { saved.push_back({numbers * kFloat, s.alloc(numbers * kFloat)}); };

    Id tokens = s.alloc(rows * kLong);
    save(rows * kHidden);
    for (std::uint64_t layer = 0; layer < kLayers; ++layer) {
      save(rows * kHidden);      // Norm.
      save(rows * 3 * kHidden);  // Query, key, value.
      s.scratch(batch * kHeads * length * length * kFloat);
      save(rows * kHidden);
      save(batch * kHeads * length * kFloat / kFloat);
      save(rows * kHidden);
      save(rows * 4 * kHidden);
      s.scratch(rows * 4 * kHidden * kFloat);
      save(rows * 4 * kHidden);
      save(rows * kHidden);
    }
    Id logits = s.alloc(rows * kVocabulary * kFloat);
    Id probabilities = s.alloc(rows * kVocabulary * kFloat);
    Id loss = s.alloc(kFloat);

    std::vector<Id> gradients;
    Id upstream = s.alloc(rows * kVocabulary * kFloat);
    s.free(probabilities);
    s.free(logits);
    s.replace(upstream, rows * kHidden * kFloat);
    std::size_t parameter = parameters.size();
    while (!saved.empty()) {
      Saved last = saved.back();
      saved.pop_back();
      s.replace(upstream, last.bytes);
      if (saved.size() % 2 == 0 && parameter > 1) gradients.push_back(s.alloc(parameters[--parameter] * kFloat));
      s.free(last.id);
    }
    while (parameter > 0) gradients.push_back(s.alloc(parameters[--parameter] * kFloat));
    s.free(upstream);
    s.free(tokens);

    if (!optimizer_ready) {
      for (const std::uint64_t n : parameters) {
        s.alloc(n * kFloat);
        s.alloc(n * kFloat);
      }
      optimizer_ready = true;
    }
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      Id denominator = s.alloc(parameters[i] * kFloat);
      s.replace(denominator, parameters[i] * kFloat);
      s.free(denominator);
    }
    s.free_all(gradients);
    s.free(loss);
    s.tick(50'000);
  }
  return s.finish();
}

Trace generate_graph(std::string_view name, std::uint64_t seed, std::uint64_t count) {
  constexpr std::uint64_t kFeatures = 602, kHidden = 256, kClasses = 41;
  constexpr std::uint64_t kFanOut[] = {15, 10, 5};
  constexpr std::size_t kAhead = 3;  // Batches in flight.
  struct Batch {
    std::vector<Id> blocks;
    std::vector<std::uint64_t> nodes;  // Per layer, seeds first.
    Id features = Script::kNone;
  };
  Script s(name, seed);
  for (int i = 0; i < 3; ++i) s.alloc(2 * kFeatures * kHidden * kFloat);

  const auto sample = [&] {
    Batch batch;
    std::uint64_t nodes = s.random.between(200, 1024);
    batch.blocks.push_back(s.alloc(nodes * kLong));
    batch.nodes.push_back(nodes);
    for (const std::uint64_t fan_out : kFanOut) {
      // Degrees are skewed, and nodes repeat: both counts are irregular.
      const std::uint64_t edges = nodes * s.random.between(fan_out * 40, fan_out * 100) / 100 + 1;
      Id raw = s.alloc(edges * 2 * kLong);
      Id unique = s.alloc((edges + nodes) * kLong);
      nodes += edges * s.random.between(30, 80) / 100;
      batch.blocks.push_back(s.alloc(edges * kLong));
      batch.blocks.push_back(s.alloc((nodes + 1) * kLong));
      batch.blocks.push_back(s.alloc(nodes * kLong));
      s.free(unique);
      s.free(raw);
      batch.nodes.push_back(nodes);
    }
    batch.features = s.alloc(nodes * kFeatures * kFloat);
    return batch;
  };
  std::vector<Batch> ahead;
  for (std::uint64_t step = 0; step < count; ++step) {
    while (ahead.size() < kAhead) ahead.push_back(sample());
    // Workers finish out of order.
    const std::size_t pick = s.random.between(0, ahead.size() - 1);
    Batch batch = std::move(ahead[pick]);
    ahead.erase(ahead.begin() + static_cast<std::ptrdiff_t>(pick));

    std::vector<Id> saved;
    for (std::size_t layer = batch.nodes.size() - 1; layer-- > 0;) {
      const std::uint64_t n = batch.nodes[layer];
      saved.push_back(s.alloc(n * (layer + 2 == batch.nodes.size() ? kFeatures : kHidden) * kFloat));  // Aggregated.
      saved.push_back(s.alloc(n * kHidden * kFloat));
      s.scratch(n * kHidden * kFloat);
      saved.push_back(s.alloc(n * kHidden));  // Dropout mask, one byte each.
    }
    Id logits = s.alloc(batch.nodes.front() * kClasses * kFloat);
    Id gradient = s.alloc(batch.nodes.front() * kClasses * kFloat);
    s.free(logits);
    for (std::size_t layer = 1; layer < batch.nodes.size(); ++layer) {
      s.replace(gradient, batch.nodes[layer] * kHidden * kFloat);
    }
    s.free(gradient);
    s.free_reverse(saved);
    s.free(batch.features);
    s.free_all(batch.blocks);
    s.tick(4'000);
  }
  for (Batch& batch : ahead) {
    s.free(batch.features);
    s.free_all(batch.blocks);
  }
  return s.finish();
}

Trace generate_two_streams(std::string_view name, std::uint64_t seed, std::uint64_t count) {
  constexpr std::uint64_t kSide = 1;  // Native value of the side stream.
  Script s(name, seed);
  s.alloc(64u << 20);
  std::vector<Id> ready;
  for (std::uint64_t step = 0; step < count; ++step) {
    while (ready.size() < 3) {
      const std::uint64_t bytes = s.random.between(16, 256) * 3 * 224 * 224 / 4;
      Id decoded = s.alloc(bytes, kSide);
      s.scratch(bytes / 3 + 64, kSide);
      ready.push_back(s.alloc(bytes * kFloat, kSide));
      s.free(decoded);
    }
    Id input = ready.front();
    ready.erase(ready.begin());
    std::vector<Id> saved;
    const std::uint64_t rows = s.random.between(256, 4096);
    for (int layer = 0; layer < 6; ++layer) {
      saved.push_back(s.alloc(rows * 1024 * kFloat));
      s.scratch(rows * 4096 * kFloat);
    }
    s.free(input);
    s.free_reverse(saved);
    s.tick(2'000);
  }
  s.free_all(ready);
  return s.finish();
}

Trace generate_random(std::string_view name, std::uint64_t seed, std::uint64_t count) {
  constexpr std::uint64_t kLive = 2000;  // About so many at a time.
  Script s(name, seed);
  std::vector<Id> live;
  for (std::uint64_t i = 0; i < count; ++i) {
    // In two statements: compilers order the arguments of a call differently.
    const std::uint64_t bytes = s.random.log_uniform(4, 24);
    live.push_back(s.alloc(bytes, s.random.one_in(8) ? 7 : 0));
    while (live.size() > kLive || (!live.empty() && s.random.one_in(3))) {
      std::swap(live[s.random.between(0, live.size() - 1)], live.back());
      s.free(live.back());
      live.pop_back();
    }
    if (s.random.one_in(64)) s.tick(s.random.log_uniform(4, 14));
  }
  s.free_all(live);
  return s.finish();
}

}  // namespace cistern::trace
