// The program of a round on a GPU: runs the named parts, one figure a line on the standard output.
//   cistern_gpu_round PART... -- TRACE...      PART: pairs behind events turns verify fill hand_over
// Exit status: 0, 1 when something failed, 2 for a command line that says nothing to do.
// `turns` waits for a line on the standard input before each turn of `events`, until there is none, and answers with an
// empty line when all of the turn is over.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <iostream>
#include <string_view>
#include <thread>

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
  constexpr std::string_view kNeedTraces[] = {"behind", "events", "turns", "verify"};
  constexpr std::string_view kOthers[] = {"pairs", "fill", "hand_over"};
  bool known = !parts.empty();
  for (const std::string& part : parts) {
    const bool replays = std::ranges::find(kNeedTraces, part) != std::end(kNeedTraces);
    known = known && (replays ? !programs.empty() : std::ranges::find(kOthers, part) != std::end(kOthers));
  }
  if (!known) {
    std::fprintf(stderr,
                 "usage: cistern_gpu_round PART... [-- TRACE...]; PART: pairs fill hand_over, and of at least "
                 "one trace behind events turns verify\n");
    return 2;
  }
  gpu::Device::get();  // Says why there is none.
  const char* const count = std::getenv("CISTERN_HAND_OVERS");
  for (const std::string& part : parts) {
    if (part == "pairs") gpu::pairs(std::min(16u, std::max(1u, std::thread::hardware_concurrency())));
    if (part == "behind") gpu::behind(programs, 10);
    if (part == "events") gpu::events(programs);
    if (part == "turns") {
      for (std::string line; std::getline(std::cin, line);) {
        gpu::events(programs);
        std::cout << std::endl;
      }
    }
    if (part == "verify") gpu::verify(programs);
    if (part == "fill") gpu::fill();
    if (part == "hand_over") gpu::hand_over(count != nullptr ? std::strtoul(count, nullptr, 10) : 1'000'000);
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
