// Settings of drivers from environment variables. A value that is not known is refused by name, never ignored. Used by
// the drivers' factories. No lock: reads the environment only.
#pragma once

#include <charconv>
#include <cstdlib>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

namespace cistern::drivers {

inline std::string_view environment(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr ? value : "";
}

// `out` becomes what the variable's value stands for and stays as it is where the variable is empty or not set. Any
// other value is named in `refused`.
template <typename T>
void read_choice(const char* name, std::initializer_list<std::pair<std::string_view, T>> choices, T& out,
                 std::string& refused) {
  const std::string_view value = environment(name);
  if (value.empty()) return;
  std::string expected;
  for (const auto& [word, meaning] : choices) {
    if (word == value) {
      out = meaning;
      return;
    }
    (expected += expected.empty() ? "" : ", ") += word;
  }
  refused = std::string(name) + "=" + std::string(value) + ": expected one of " + expected;
}

template <typename T>
void read_number(const char* name, T& out, std::string& refused) {
  const std::string_view value = environment(name);
  if (value.empty()) return;
  const char* const end = value.data() + value.size();
  const auto [stop, error] = std::from_chars(value.data(), end, out);
  if (error != std::errc() || stop != end)
    refused = std::string(name) + "=" + std::string(value) + ": expected a number";
}

}  // namespace cistern::drivers
