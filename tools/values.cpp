// Checks of option values. See values.hpp.
#include "values.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <string>
#include <utility>

#include "cistern/error.hpp"
#include "cli.hpp"
#include "report/text.hpp"

namespace cistern::tools {
namespace {

std::string shown(std::string_view text) {
  return text.empty() ? "the value is empty" : fmt::format("found \"{}\"", report::clean_utf8(text));
}

}  // namespace

bool read_number(std::string_view text, std::uint64_t& value) {
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && at == end;
}

bool read_number(std::string_view text, double& value) {
  // strtod() takes more than is wanted: signs, spaces, hexadecimal, exponents, "inf".
  if (text.empty() || text.find_first_not_of("0123456789.") != std::string_view::npos) return false;
  const std::string copy(text);
  char* end = nullptr;
  value = std::strtod(copy.c_str(), &end);
  return end == copy.c_str() + copy.size() && std::isfinite(value);
}

Device read_device(const std::string& text) {
  try {
    return parse_device(text);
  } catch (const invalid_argument& error) {
    throw UsageError(fmt::format("--device: {}", without_name(error.what())));
  }
}

CLI::Validator whole(std::uint64_t least, std::uint64_t most) {
  return {[=](std::string& text) -> std::string {
            std::uint64_t value = 0;
            if (!read_number(text, value) || value < least || value > most) {
              return fmt::format("{}; expected a whole number from {} to {}", shown(text), least, most);
            }
            text = fmt::format("{}", value);  // Without zeros in front, which would make it octal.
            return "";
          },
          most <= INT32_MAX ? fmt::format("{} to {}", least, most) : ""};
}

CLI::Validator seconds(double least, double most) {
  return {[=](std::string& text) -> std::string {
            double value = 0;
            if (!read_number(text, value) || value < least || value > most) {
              return fmt::format("{}; expected seconds, from {} to {}", shown(text), least, most);
            }
            return "";
          },
          fmt::format("{} to {}", least, most)};
}

CLI::Validator one_of(std::vector<std::string> words) {
  return {[words = std::move(words)](std::string& text) -> std::string {
            if (std::find(words.begin(), words.end(), text) != words.end()) return "";
            return fmt::format("{}; expected {}", shown(text), fmt::join(words, ", "));
          },
          ""};
}

CLI::Validator some(std::string_view what) {
  return {[expected = std::string(what)](std::string& text) -> std::string {
            return text.empty() ? fmt::format("the value is empty; expected {}", expected) : "";
          },
          ""};
}

}  // namespace cistern::tools
