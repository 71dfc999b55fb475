// A decode loop with all its scratch memory from a BufferPool: 40 layers of a Qwen-like model, three with linear
// attention for each with full attention, every one with a mixture of experts. The shapes are small, the arithmetic is
// real: the same model runs once with plain vectors, and all logits must agree.
//
// Prints the buffers a token takes, the pool's bytes, what a buffer costs, and the driver calls of the steady state.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "cistern/buffer_pool.hpp"

namespace {

using cistern::DType;
using cistern::Shape;
using cistern::TypedBuffer;

constexpr std::size_t kLayers = 40;
constexpr std::size_t kHidden = 48;
constexpr std::size_t kHeads = 4;
constexpr std::size_t kKeyHeads = 2;
constexpr std::size_t kHeadDim = 12;
constexpr std::size_t kExperts = 16;
constexpr std::size_t kChosen = 2;  // Experts a token.
constexpr std::size_t kExpertDim = 20;
constexpr std::size_t kVocabulary = 96;
constexpr std::size_t kTokens = 64;

bool full_attention(std::size_t layer) { return layer % 4 == 3; }

// --- Where scratch memory comes from: the pool, or plain vectors
// ------------------------------------------------------

struct PoolMemory {
  using Tensor = TypedBuffer;
  static std::span<float> f32(const Tensor& tensor) { return tensor.as_span<float>(); }
  static std::span<std::int32_t> i32(const Tensor& tensor) { return tensor.as_span<std::int32_t>(); }
  static Tensor part(const Tensor& tensor, std::size_t first, std::size_t count) {
    return tensor.slice_view(first * sizeof(float), count);
  }

  Tensor get(DType dtype, const Shape& shape) {
    if (requests != nullptr) requests->push_back({shape.element_count() * size_of(dtype), dtype, shape});
    return pool.alloc(dtype, shape);
  }
  // Memory that stays from token to token, zero at first.
  Tensor keep(const Shape& shape) {
    cistern::UniqueBuffer buffer = cistern::make_unique_buffer(shape.element_count() * sizeof(float), pool.device());
    Tensor tensor = pool.register_existing(std::move(buffer), DType::f32, shape);
    std::fill(f32(tensor).begin(), f32(tensor).end(), 0.0f);
    return tensor;
  }
  void end_token() { pool.reset(); }

  cistern::BufferPool pool;
  std::vector<cistern::BufferRequest>* requests = nullptr;  // Where they are written down, if anywhere.
};

struct PlainMemory {
  struct Tensor {
    std::shared_ptr<std::vector<float>> floats;
    std::shared_ptr<std::vector<std::int32_t>> integers;
    std::size_t first = 0;
    std::size_t count = 0;
  };
  static std::span<float> f32(const Tensor& tensor) {
    return std::span<float>(*tensor.floats).subspan(tensor.first, tensor.count);
  }
  static std::span<std::int32_t> i32(const Tensor& tensor) { return *tensor.integers; }
  static Tensor part(const Tensor& tensor, std::size_t first, std::size_t count) {
    return {tensor.floats, nullptr, tensor.first + first, count};
  }

  static Tensor get(DType dtype, const Shape& shape) {
    const std::size_t count = shape.element_count();
    if (dtype == DType::i32) return {nullptr, std::make_shared<std::vector<std::int32_t>>(count), 0, count};
    return {std::make_shared<std::vector<float>>(count), nullptr, 0, count};
  }
  static Tensor keep(const Shape& shape) { return get(DType::f32, shape); }
  static void end_token() {}
};

// --- Weights
// ----------------------------------------------------------------------------------------------------------

using Matrix = std::vector<float>;  // By rows: outputs x inputs.

struct Layer {
  Matrix query, key, value, gate, output;                   // Full attention.
  Matrix mixed, beta, decay, convolution;                   // Linear attention; `gate` and `output` serve both.
  Matrix router, shared_gate;                               // Mixture of experts.
  std::vector<Matrix> expert_gate, expert_up, expert_down;  // The last one is the shared expert.
};

struct Weights {
  Matrix embedding, head;
  std::vector<Layer> layers{kLayers};

  Weights() {
    std::mt19937 random(20);
    const auto make = [&random](std::size_t rows, std::size_t columns) {
      Matrix matrix(rows * columns);
      const float scale = 1.5f / std::sqrt(static_cast<float>(columns));
      for (float& w : matrix) w = scale * (static_cast<float>(random() % 2001) / 1000.0f - 1.0f);
      return matrix;
    };
    embedding = make(kVocabulary, kHidden);
    head = make(kVocabulary, kHidden);
    for (Layer& layer : layers) {
      layer.query = make(kHeads * kHeadDim, kHidden);
      layer.key = make(kKeyHeads * kHeadDim, kHidden);
      layer.value = make(kKeyHeads * kHeadDim, kHidden);
      layer.gate = make(kHeads * kHeadDim, kHidden);
      layer.output = make(kHidden, kHeads * kHeadDim);
      layer.mixed = make(3 * kHeads * kHeadDim, kHidden);
      layer.beta = make(kHeads, kHidden);
      layer.decay = make(kHeads, kHidden);
      layer.convolution = make(3 * kHeads * kHeadDim, 4);
      layer.router = make(kExperts, kHidden);
      layer.shared_gate = make(1, kHidden);
      for (std::size_t e = 0; e <= kExperts; ++e) {
        layer.expert_gate.push_back(make(kExpertDim, kHidden));
        layer.expert_up.push_back(make(kExpertDim, kHidden));
        layer.expert_down.push_back(make(kHidden, kExpertDim));
      }
    }
  }
};

float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }
float silu(float x) { return x * sigmoid(x); }

float dot(std::span<const float> a, std::span<const float> b) {
  float sum = 0.0f;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// --- The model
// --------------------------------------------------------------------------------------------------------

template <typename Memory>
class Model {
 public:
  using Tensor = typename Memory::Tensor;

  Model(const Weights& weights, Memory& memory) : weights_(weights), memory_(memory) {
    for (std::size_t layer = 0; layer < kLayers; ++layer) {
      if (full_attention(layer)) {
        state_.push_back(memory_.keep({2, kTokens, kKeyHeads, kHeadDim}));
        history_.push_back({});
      } else {
        state_.push_back(memory_.keep({kHeads, kHeadDim, kHeadDim}));
        history_.push_back(memory_.keep({4, 3 * kHeads * kHeadDim}));
      }
    }
  }

  // Logits of the next token.
  Tensor step(std::size_t token, std::size_t position) {
    Tensor x = scratch({kHidden});
    std::copy_n(weights_.embedding.begin() + static_cast<std::ptrdiff_t>(token * kHidden), kHidden, f32(x).begin());
    for (std::size_t layer = 0; layer < kLayers; ++layer) {
      x = full_attention(layer) ? attention(layer, x, position) : linear_attention(layer, x, position);
      x = experts(weights_.layers[layer], x);
    }
    return project(weights_.head, normalized(x), kVocabulary);
  }

 private:
  static std::span<float> f32(const Tensor& tensor) { return Memory::f32(tensor); }
  Tensor scratch(const Shape& shape) { return memory_.get(DType::f32, shape); }

  Tensor project(const Matrix& matrix, const Tensor& x, std::size_t rows) {
    Tensor out = scratch({rows});
    const std::size_t columns = f32(x).size();
    for (std::size_t r = 0; r < rows; ++r) f32(out)[r] = dot(std::span(matrix).subspan(r * columns, columns), f32(x));
    return out;
  }

  // Divided by the root of the mean square, in groups.
  Tensor normalized(const Tensor& x, std::size_t groups = 1) {
    Tensor scale = scratch({groups});
    Tensor out = scratch({groups, f32(x).size() / groups});
    const std::size_t width = f32(x).size() / groups;
    for (std::size_t g = 0; g < groups; ++g) {
      const auto in = f32(x).subspan(g * width, width);
      f32(scale)[g] = 1.0f / std::sqrt(dot(in, in) / static_cast<float>(width) + 1e-6f);
      for (std::size_t i = 0; i < width; ++i) f32(out)[g * width + i] = in[i] * f32(scale)[g];
    }
    return out;
  }

  // Rotates pairs of components by the position.
  Tensor rotated(const Tensor& x, std::size_t heads, std::size_t position) {
    Tensor out = scratch({heads, kHeadDim});
    for (std::size_t i = 0; i < heads * kHeadDim; i += 2) {
      const float angle = static_cast<float>(position) / std::pow(100.0f, static_cast<float>(i % kHeadDim) / kHeadDim);
      f32(out)[i] = f32(x)[i] * std::cos(angle) - f32(x)[i + 1] * std::sin(angle);
      f32(out)[i + 1] = f32(x)[i] * std::sin(angle) + f32(x)[i + 1] * std::cos(angle);
    }
    return out;
  }

  Tensor sum(const Tensor& a, const Tensor& b) {
    Tensor out = scratch({kHidden});
    for (std::size_t i = 0; i < kHidden; ++i) f32(out)[i] = f32(a)[i] + f32(b)[i];
    return out;
  }

  Tensor softmax(const Tensor& x) {
    const auto in = f32(x);
    Tensor out = scratch({in.size()});
    const float highest = *std::max_element(in.begin(), in.end());
    float total = 0.0f;
    for (std::size_t i = 0; i < in.size(); ++i) total += f32(out)[i] = std::exp(in[i] - highest);
    for (float& p : f32(out)) p /= total;
    return out;
  }

  Tensor gated_output(const Layer& weights, const Tensor& context, const Tensor& gate) {
    Tensor gated = scratch({kHeads, kHeadDim});
    for (std::size_t i = 0; i < kHeads * kHeadDim; ++i) f32(gated)[i] = f32(context)[i] * sigmoid(f32(gate)[i]);
    return project(weights.output, gated, kHidden);
  }

  Tensor attention(std::size_t layer, const Tensor& x, std::size_t position) {
    const Layer& weights = weights_.layers[layer];
    const Tensor in = normalized(x);
    const Tensor gate = project(weights.gate, in, kHeads * kHeadDim);
    const Tensor query = rotated(normalized(project(weights.query, in, kHeads * kHeadDim), kHeads), kHeads, position);
    const Tensor key =
        rotated(normalized(project(weights.key, in, kKeyHeads * kHeadDim), kKeyHeads), kKeyHeads, position);
    const Tensor value = project(weights.value, in, kKeyHeads * kHeadDim);
    constexpr std::size_t kRow = kKeyHeads * kHeadDim;
    const Tensor keys = Memory::part(state_[layer], 0, kTokens * kRow);
    const Tensor values = Memory::part(state_[layer], kTokens * kRow, kTokens * kRow);
    std::copy_n(f32(key).begin(), kRow, f32(keys).subspan(position * kRow).begin());
    std::copy_n(f32(value).begin(), kRow, f32(values).subspan(position * kRow).begin());

    const Tensor context = scratch({kHeads, kHeadDim});
    for (std::size_t h = 0; h < kHeads; ++h) {
      const std::size_t at = h / (kHeads / kKeyHeads) * kHeadDim;
      const Tensor scores = scratch({position + 1});
      for (std::size_t t = 0; t <= position; ++t) {
        f32(scores)[t] = dot(f32(query).subspan(h * kHeadDim, kHeadDim), f32(keys).subspan(t * kRow + at, kHeadDim)) /
                         std::sqrt(static_cast<float>(kHeadDim));
      }
      const Tensor weight = softmax(scores);
      const auto out = f32(context).subspan(h * kHeadDim, kHeadDim);
      std::fill(out.begin(), out.end(), 0.0f);
      for (std::size_t t = 0; t <= position; ++t) {
        for (std::size_t i = 0; i < kHeadDim; ++i) out[i] += f32(weight)[t] * f32(values)[t * kRow + at + i];
      }
    }
    return sum(x, gated_output(weights, context, gate));
  }

  // The delta rule with decay: a matrix a head takes the place of the cache.
  Tensor linear_attention(std::size_t layer, const Tensor& x, std::size_t position) {
    constexpr std::size_t kPart = kHeads * kHeadDim;
    const Layer& weights = weights_.layers[layer];
    const Tensor in = normalized(x);
    const Tensor gate = project(weights.gate, in, kPart);
    const Tensor mixed = project(weights.mixed, in, 3 * kPart);
    const Tensor beta = project(weights.beta, in, kHeads);
    const Tensor decay = project(weights.decay, in, kHeads);

    // A short convolution over the last four tokens.
    std::copy_n(f32(mixed).begin(), 3 * kPart, f32(history_[layer]).subspan(position % 4 * 3 * kPart).begin());
    const Tensor convolved = scratch({3, kHeads, kHeadDim});
    for (std::size_t i = 0; i < 3 * kPart; ++i) {
      float total = 0.0f;
      for (std::size_t t = 0; t < 4; ++t) {
        total += weights.convolution[i * 4 + t] * f32(history_[layer])[(position + 4 - t) % 4 * 3 * kPart + i];
      }
      f32(convolved)[i] = silu(total);
    }
    const Tensor query = normalized(Memory::part(convolved, 0, kPart), kHeads);
    const Tensor key = normalized(Memory::part(convolved, kPart, kPart), kHeads);
    const Tensor value = Memory::part(convolved, 2 * kPart, kPart);

    const Tensor context = scratch({kHeads, kHeadDim});
    for (std::size_t h = 0; h < kHeads; ++h) {
      const auto state = f32(state_[layer]).subspan(h * kHeadDim * kHeadDim, kHeadDim * kHeadDim);
      const float keep = sigmoid(f32(decay)[h]);
      const Tensor remembered = scratch({kHeadDim});
      const Tensor change = scratch({kHeadDim});
      for (std::size_t v = 0; v < kHeadDim; ++v) {
        const auto row = state.subspan(v * kHeadDim, kHeadDim);
        for (float& s : row) s *= keep;
        f32(remembered)[v] = dot(row, f32(key).subspan(h * kHeadDim, kHeadDim)) / kHeadDim;
        f32(change)[v] = (f32(value)[h * kHeadDim + v] - f32(remembered)[v]) * sigmoid(f32(beta)[h]);
        for (std::size_t k = 0; k < kHeadDim; ++k) row[k] += f32(change)[v] * f32(key)[h * kHeadDim + k];
        f32(context)[h * kHeadDim + v] = dot(row, f32(query).subspan(h * kHeadDim, kHeadDim)) / kHeadDim;
      }
    }
    return sum(x, gated_output(weights, normalized(context, kHeads), gate));
  }

  Tensor expert(const Layer& weights, std::size_t e, const Tensor& x) {
    const Tensor gate = project(weights.expert_gate[e], x, kExpertDim);
    const Tensor up = project(weights.expert_up[e], x, kExpertDim);
    const Tensor inner = scratch({kExpertDim});
    for (std::size_t i = 0; i < kExpertDim; ++i) f32(inner)[i] = silu(f32(gate)[i]) * f32(up)[i];
    return project(weights.expert_down[e], inner, kHidden);
  }

  Tensor experts(const Layer& weights, const Tensor& x) {
    const Tensor in = normalized(x);
    const Tensor share = softmax(project(weights.router, in, kExperts));
    const Tensor order = memory_.get(DType::i32, {kExperts});
    const auto chosen = Memory::i32(order);
    for (std::size_t e = 0; e < kExperts; ++e) chosen[e] = static_cast<std::int32_t>(e);
    const auto share_of = [&](std::int32_t e) { return f32(share)[static_cast<std::size_t>(e)]; };
    std::stable_sort(chosen.begin(), chosen.end(), [&](auto a, auto b) { return share_of(a) > share_of(b); });

    float total = 0.0f;
    for (std::size_t i = 0; i < kChosen; ++i) total += share_of(chosen[i]);
    const Tensor shared = expert(weights, kExperts, in);
    const Tensor openness = project(weights.shared_gate, in, 1);
    const Tensor mix = scratch({kHidden});
    for (std::size_t i = 0; i < kHidden; ++i) f32(mix)[i] = f32(shared)[i] * sigmoid(f32(openness)[0]);
    for (std::size_t c = 0; c < kChosen; ++c) {
      const Tensor out = expert(weights, static_cast<std::size_t>(chosen[c]), in);
      for (std::size_t i = 0; i < kHidden; ++i) f32(mix)[i] += f32(out)[i] * share_of(chosen[c]) / total;
    }
    return sum(x, mix);
  }

  const Weights& weights_;
  Memory& memory_;
  std::vector<Tensor> state_;    // Keys and values, or the matrices of the delta rule.
  std::vector<Tensor> history_;  // For the convolution; empty where there is none.
};

// Feeds a fixed text and returns the logits of all steps. `each` is called after each token.
template <typename Memory, typename Each>
std::vector<float> decode(const Weights& weights, Memory& memory, Each each) {
  Model<Memory> model(weights, memory);
  std::vector<float> all;
  for (std::size_t position = 0; position < kTokens; ++position) {
    const typename Memory::Tensor logits = model.step((position * 31 + 7) % kVocabulary, position);
    // The handle is still held: the logits escape this reset and stay readable.
    memory.end_token();
    const auto values = Memory::f32(logits);
    all.insert(all.end(), values.begin(), values.end());
    each(position);
  }
  return all;
}

// Nanoseconds of one buffer: alloc(), the handle's end, and its share of reset(). The best of many tokens.
double cost_of_a_buffer(cistern::BufferPool& pool, const std::vector<cistern::BufferRequest>& requests) {
  using Clock = std::chrono::steady_clock;
  double best = 1e30;
  for (int round = 0; round < 2000; ++round) {
    const auto start = Clock::now();
    for (const cistern::BufferRequest& request : requests) {
      (void)pool.alloc(request.byte_len, request.dtype, request.shape);
    }
    pool.reset();
    best = std::min(best, std::chrono::duration<double, std::nano>(Clock::now() - start).count());
  }
  return best / static_cast<double>(requests.size());
}

}  // namespace

int main() {
  const Weights weights;
  PlainMemory plain;
  const std::vector<float> expected = decode(weights, plain, [](std::size_t) {});

  PoolMemory memory{cistern::BufferPool(cistern::Device::cpu())};
  std::vector<cistern::BufferRequest> requests;
  memory.requests = &requests;
  std::uint64_t calls = 0;
  std::size_t bytes = 0;
  // The scores of attention grow with the position; from half of the text on they stay in one bucket.
  constexpr std::size_t kWarm = kTokens / 2 + 1;
  const std::vector<float> logits = decode(weights, memory, [&](std::size_t position) {
    memory.requests = nullptr;
    if (position == kWarm) {
      calls = cistern::stats(memory.pool.device()).driver_calls;
      bytes = memory.pool.total_bytes();
    }
  });
  const std::uint64_t steady_calls = cistern::stats(memory.pool.device()).driver_calls - calls;
  const bool grew = memory.pool.total_bytes() != bytes;

  // Compilers may round differently in the two versions (fused multiply-add), so a little is allowed.
  float difference = 0.0f;
  float largest = 0.0f;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const float d = std::abs(logits[i] - expected[i]);
    difference = d <= difference ? difference : d;  // NaN is kept.
    largest = std::max(largest, std::abs(expected[i]));
  }
  const bool equal = logits.size() == expected.size() && difference <= 1e-3f * largest && largest > 0.0f;

  std::printf("buffers per token           %zu\n", requests.size());
  std::printf("bytes asked for per token   %zu\n", [&] {
    std::size_t total = 0;
    for (const auto& request : requests) total += request.byte_len;
    return total;
  }());
  std::printf("pool                        %zu buffers, %zu bytes\n", memory.pool.total_count(),
              memory.pool.total_bytes());
  std::printf("registered                  %zu buffers, %zu bytes\n", memory.pool.registered_count(),
              memory.pool.registered_bytes());
  std::printf("ns per buffer               %.1f\n", cost_of_a_buffer(memory.pool, requests));
  std::printf("driver calls, steady state  %llu\n", static_cast<unsigned long long>(steady_calls));
  std::printf("output                      %s (largest difference %g, largest logit %g)\n", equal ? "correct" : "WRONG",
              static_cast<double>(difference), static_cast<double>(largest));
  return equal && steady_calls == 0 && !grew ? 0 : 1;
}
