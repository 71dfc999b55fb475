// Which generator makes which workload; see generate.hpp.
#include "trace/generate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "cistern/error.hpp"
#include "trace/generate_script.hpp"

namespace cistern::trace {
namespace {

struct Kind {
  std::string_view name;
  Trace (*make)(std::string_view, std::uint64_t, std::uint64_t);
  double count;  // At scale 1.
};

// In the order of Workload.
constexpr std::array<Kind, 8> kKinds{{
    {"synthetic_decode", generate_decode, 48},
    {"synthetic_train", generate_train, 40},
    {"synthetic_graph", generate_graph, 400},
    {"synthetic_serving", generate_serving, 60},
    {"synthetic_diffusion", generate_diffusion, 60},
    {"synthetic_moe", generate_moe, 32},
    {"synthetic_two_streams", generate_two_streams, 600},
    {"synthetic_random", generate_random, 20000},
}};

constexpr std::array<Workload, 8> kAll{Workload::decode,    Workload::train, Workload::graph,       Workload::serving,
                                       Workload::diffusion, Workload::moe,   Workload::two_streams, Workload::random};

const Kind& kind_of(Workload workload) { return kKinds.at(static_cast<std::size_t>(workload)); }

}  // namespace

std::span<const Workload> all_workloads() { return kAll; }

std::string_view name_of(Workload workload) { return kind_of(workload).name; }

Trace generate(Workload workload, const GenerateOptions& options) {
  constexpr double kLargest = 1000;  // Keeps every kind below the number of events that a trace can hold.
  if (!(options.scale > 0) || options.scale > kLargest) {
    throw invalid_argument(
        fmt::format("the scale of a synthetic trace must be above 0 and at most {}, not {}", kLargest, options.scale));
  }
  const Kind& kind = kind_of(workload);
  const auto count = static_cast<std::uint64_t>(std::max(1.0, kind.count * options.scale));
  return kind.make(kind.name, options.seed, count);
}

}  // namespace cistern::trace
