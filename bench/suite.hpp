// The benchmark suite: groups of variants that do the same work, measured side by side in one run. The first variant of
// a group is Cistern's; the table gives its median and how many times it is faster than each other one. Google
// Benchmark runs the variants, repetitions interleaved at random. Single-threaded; variants may start threads.
#pragma once

#include <benchmark/benchmark.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace cistern::bench {

struct Variant {
  std::string group;                            // "pair/64"
  std::string name;                             // "mimalloc"
  std::string unit;                             // What one item is: "pair", "event", "buffer".
  std::function<void(benchmark::State&)> body;  // Items done must be set by SetItemsProcessed().
  bool manual_time = false;                     // The body sets the iteration time (threads).
};

class Suite {
 public:
  void add(Variant variant) { variants_.push_back(std::move(variant)); }
  const std::vector<Variant>& variants() const { return variants_; }

 private:
  std::vector<Variant> variants_;
};

struct Options {
  std::vector<std::string> names;   // Groups whose name starts with one of these; all when empty.
  std::vector<std::string> traces;  // Files for the replay groups; those of the source tree when empty.
  unsigned repetitions = 9;
  double min_seconds = 0.1;  // Of each repetition.
  bool json = false;
};

// One variant's figures over the repetitions.
struct Figure {
  std::string group, name, unit;
  double median_ns = 0;  // An item.
  double low_ns = 0;     // Quartiles.
  double high_ns = 0;
  double ratio = 0;  // This variant's median / that of the group's first variant.
};

// Everything there is. Groups whose rival is not installed are left out.
Suite make_suite(const Options& options);
std::vector<Figure> run(const Suite& suite, const Options& options);
// A table, or one JSON object a line.
void print(const std::vector<Figure>& figures, bool json);

void add_pairs(Suite& suite);
void add_touch(Suite& suite);
void add_threads(Suite& suite);
void add_pool(Suite& suite);
void add_replay(Suite& suite, const std::vector<std::string>& traces);

}  // namespace cistern::bench
