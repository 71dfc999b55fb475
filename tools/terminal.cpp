// Progress, tables, sizes. See terminal.hpp.
#include "terminal.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "cli.hpp"
#include "report/text.hpp"

namespace cistern::tools {
namespace {

using namespace std::chrono_literals;

constexpr auto kQuiet = 1s;        // Shorter work shows nothing.
constexpr auto kInterval = 100ms;  // Between two updates.
constexpr int kBarCells = 28;

// Characters of a UTF-8 text, which is what a column is wide (good enough for names of traces).
std::size_t columns(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

}  // namespace

Progress::Progress() : terminal_(isatty(STDERR_FILENO) == 1), start_(Clock::now()), last_(start_) {}

Progress::~Progress() { clear(); }

void Progress::update(double fraction, std::string_view what) {
  if (!terminal_) return;
  const auto now = Clock::now();
  if (now - start_ < kQuiet || now - last_ < kInterval) return;
  last_ = now;
  shown_ = true;
  const double part = std::clamp(fraction, 0.0, 1.0);
  const int full = static_cast<int>(std::lround(part * kBarCells));
  std::string bar;
  for (int i = 0; i < kBarCells; ++i) bar += i < full ? "█" : "░";
  const double spent = std::chrono::duration<double>(now - start_).count();
  std::string left;
  if (part > 0.02 && part < 1) left = fmt::format(", {:.0f} s left", spent * (1 - part) / part);
  fmt::print(stderr, "\r\033[K{} {:3.0f} %  {}{}", bar, part * 100, report::clean_utf8(what), left);
  std::fflush(stderr);
}

void Progress::clear() {
  if (!shown_) return;
  shown_ = false;
  fmt::print(stderr, "\r\033[K");
  std::fflush(stderr);
}

std::string format_table(const std::vector<std::vector<std::string>>& rows, std::size_t left) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    if (row.size() > widths.size()) widths.resize(row.size());
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], columns(row[i]));
  }
  std::size_t total = widths.empty() ? 0 : 2 * (widths.size() - 1);
  for (const std::size_t width : widths) total += width;
  std::string out;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string pad(widths[i] - columns(row[i]), ' ');
      if (i > 0) line += "  ";
      line += i < left ? row[i] + pad : pad + row[i];
    }
    if (row.empty()) {
      for (std::size_t i = 0; i < total; ++i) line += "─";
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + '\n';
  }
  return out;
}

std::uint64_t parse_bytes(std::string_view text, std::string_view option) {
  const auto refuse = [&]() -> std::uint64_t {
    throw UsageError(
        fmt::format("{}: \"{}\" is not a size; expected bytes, or a number with KiB, MiB, GiB or TiB", option, text));
  };
  const std::string copy(text);
  char* end = nullptr;
  const double value = std::strtod(copy.c_str(), &end);
  if (end == copy.c_str() || !(value > 0) || copy.find_first_not_of("0123456789.") == 0) return refuse();
  std::string unit(end);
  std::transform(unit.begin(), unit.end(), unit.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  int shift = 0;
  if (unit == "k" || unit == "kib" || unit == "kb")
    shift = 10;
  else if (unit == "m" || unit == "mib" || unit == "mb")
    shift = 20;
  else if (unit == "g" || unit == "gib" || unit == "gb")
    shift = 30;
  else if (unit == "t" || unit == "tib" || unit == "tb")
    shift = 40;
  else if (!unit.empty() && unit != "b")
    return refuse();
  const double bytes = std::ldexp(value, shift);
  if (!(bytes < std::ldexp(1.0, 63)) || bytes < 1) return refuse();
  return static_cast<std::uint64_t>(bytes);
}

trace::MemoryLimit parse_limit(std::string_view text, std::string_view option) {
  if (text.empty() || (text.back() != 'x' && text.back() != 'X')) return {parse_bytes(text, option), 0};
  const std::string number(text.substr(0, text.size() - 1));
  char* end = nullptr;
  const double factor = std::strtod(number.c_str(), &end);
  if (number.empty() || end != number.c_str() + number.size() || !(factor > 0) || !(factor < 1e6)) {
    throw UsageError(
        fmt::format("{}: \"{}\" is not a factor; expected a positive number and x, as in 1.05x", option, text));
  }
  return {0, factor};
}

}  // namespace cistern::tools
