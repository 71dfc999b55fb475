// Synthetic traces: the allocation patterns of known kinds of programs, for tests and to try a policy on programs that
// nobody recorded. Deterministic: the same kind, seed and scale give the same trace on every platform and compiler.
// Used by tests, bench and tools. No state, no locking.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "cistern/trace.hpp"

namespace cistern::trace {

enum class Workload : std::uint8_t {
  decode,       // Language model, one token after the other; key/value caches grow by concatenation.
  train,        // Transformer training; batch and length vary every step; activations live until their backward.
  graph,        // GraphSAGE-like sampling: irregular sizes, batches prefetched and freed out of order.
  serving,      // Requests come and go; each has caches that grow by concatenation; batch sizes vary.
  diffusion,    // U-Net: skip connections, large workspaces, resolutions vary.
  moe,          // Mixture of experts: token counts per expert vary from layer to layer.
  two_streams,  // A side stream prepares inputs that a compute stream frees.
  random,       // Sizes over six decades and lifetimes without pattern: the worst case for every policy.
};

std::span<const Workload> all_workloads();
std::string_view name_of(Workload workload);

struct GenerateOptions {
  std::uint64_t seed = 1;
  double scale = 1.0;  // Length of the run (tokens, steps, requests); 1 is 10,000 to 60,000 events. Above 0.
};

// The trace's name is the workload's. Throws cistern::invalid_argument for a scale that is not above 0 (or too large).
Trace generate(Workload workload, const GenerateOptions& options = {});

}  // namespace cistern::trace
