// The command line `cistern`: parsing, dispatch, exit status. A library, so that tests can call it.
// Exit status: 0 all well; 1 something asked for failed (an event not served, a fault found, no plan in the capacity);
// 2 bad input or usage, with nothing printed as a result.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace CLI {
class App;
}

namespace cistern::tools {

inline constexpr int kOk = 0;
inline constexpr int kFailed = 1;
inline constexpr int kBadInput = 2;

// What main() does. Never throws.
int run(int argc, const char* const* argv);

// Wrong usage or input found after parsing; the text is printed, the exit status is 2.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A message of the library without the name in front, which the program puts there itself.
std::string_view without_name(std::string_view text);

// Each adds its subcommand; the subcommand's callback stores the exit status in `status`.
void add_replay(CLI::App& app, int& status);
void add_plan(CLI::App& app, int& status);
void add_convert(CLI::App& app, int& status);
void add_info(CLI::App& app, int& status);
void add_bench(CLI::App& app, int& status);

}  // namespace cistern::tools
