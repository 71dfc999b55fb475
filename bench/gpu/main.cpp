// The program of a round on a GPU: runs the named parts, one figure a line on the standard output.
//   cistern_gpu_round PART... -- TRACE...      PART: pairs behind events turns verify fill hand_over
// Exit status: 0, 1 when something failed, 2 for a command line that says nothing to do.
// `turns` waits for a line on the standard input before each turn of `events`, until there is none, and answers with an
// empty line when all of the turn is over.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <iostream>
#include <string_view>
#include <thread>
#include <vector>

#include "cistern/trace.hpp"
#include "round.hpp"

int main(int argc, char** argv) try {
  using namespace cistern;
  std::vector<std::string> parts;
  std::vector<trace::Program> programs;
  bool after = false;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--") == 0) {
      after = true;
    } else if (after) {
      programs.push_back(trace::compile(read_trace(argv[i]), argv[i]));
    } else {
      parts.emplace_back(argv[i]);
    }
  }
  const char* const count = std::getenv("CISTERN_HAND_OVERS");
  struct Part {
    std::string_view name;
    bool replays;  // Traces.
    std::function<void()> run;
  };
  const std::array<Part, 7> all{{
      {"pairs", false, [] { gpu::pairs(std::min(16u, std::max(1u, std::thread::hardware_concurrency()))); }},
      {"behind", true, [&] { gpu::behind(programs, 10); }},
      {"events", true, [&] { gpu::events(programs); }},
      {"turns", true,
       [&] {
         for (std::string line; std::getline(std::cin, line);) {
           gpu::events(programs);
           std::cout << std::endl;
         }
       }},
      {"verify", true, [&] { gpu::verify(programs); }},
      {"fill", false, [] { gpu::fill(); }},
      {"hand_over", false, [&] { gpu::hand_over(count != nullptr ? std::strtoul(count, nullptr, 10) : 1'000'000); }},
  }};
  std::vector<const Part*> asked;
  for (const std::string& name : parts) {
    const auto* const part = std::ranges::find(all, name, &Part::name);
    if (part != all.end() && (!part->replays || !programs.empty())) asked.push_back(part);
  }
  if (parts.empty() || asked.size() != parts.size()) {
    std::fprintf(stderr,
                 "usage: cistern_gpu_round PART... [-- TRACE...]; PART: pairs fill hand_over, and of at least "
                 "one trace behind events turns verify\n");
    return 2;
  }
  gpu::Device::get();  // Says why there is none.
  for (const Part* part : asked) part->run();
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
