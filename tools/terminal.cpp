// Progress, tables, sizes. See terminal.hpp.
#include "terminal.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>

#include "cli.hpp"
#include "report/text.hpp"
#include "values.hpp"

namespace cistern::tools {
namespace {

using namespace std::chrono_literals;

constexpr auto kQuiet = 1s;        // Shorter work shows nothing.
constexpr auto kInterval = 100ms;  // Between two updates.
constexpr int kBarCells = 28;
constexpr double kMostFactor = 1e6;

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

namespace {

// `other`: what the option takes besides, for the message.
std::uint64_t parse_size(std::string_view text, std::string_view option, std::string_view other) {
  const auto refuse = [&]() -> std::uint64_t {
    throw UsageError(fmt::format("{}: \"{}\" is not a size; expected bytes, or a number with KiB, MiB, GiB or TiB{}",
                                 option, text, other));
  };
  constexpr std::uint64_t most = INT64_MAX;
  const auto out_of_range = [&]() -> std::uint64_t {
    throw UsageError(fmt::format("{}: \"{}\" is out of range; expected 1 to {} bytes", option, text, most));
  };
  std::string_view unit_text = text;
  unit_text.remove_prefix(std::min(text.find_first_not_of("0123456789."), text.size()));
  std::string unit(unit_text);
  std::transform(unit.begin(), unit.end(), unit.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  unsigned shift = 0;
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
  const std::string_view number = text.substr(0, text.size() - unit_text.size());
  if (number.empty()) return refuse();
  if (number.find('.') == std::string_view::npos) {  // To the byte, which a double is not.
    std::uint64_t whole = 0;
    return !read_number(number, whole) || whole == 0 || whole > most >> shift ? out_of_range() : whole << shift;
  }
  double value = 0;
  if (shift == 0 || !read_number(number, value)) return refuse();
  const double bytes = std::ldexp(value, static_cast<int>(shift));
  return bytes >= 1 && bytes < static_cast<double>(most) ? static_cast<std::uint64_t>(bytes) : out_of_range();
}

}  // namespace

std::uint64_t parse_bytes(std::string_view text, std::string_view option) { return parse_size(text, option, ""); }

trace::MemoryLimit parse_limit(std::string_view text, std::string_view option) {
  if (text.empty() || (text.back() != 'x' && text.back() != 'X')) {
    return {parse_size(text, option, ", or a multiple of the peak, as in 1.05x"), 0};
  }
  double factor = 0;
  if (!read_number(text.substr(0, text.size() - 1), factor)) {
    throw UsageError(fmt::format("{}: \"{}\" is not a factor; expected a number and x, as in 1.05x", option, text));
  }
  if (!(factor > 0 && factor < kMostFactor)) {
    throw UsageError(fmt::format("{}: \"{}\" is out of range; expected more than 0x and less than {:.0f}x", option,
                                 text, kMostFactor));
  }
  return {0, factor};
}

}  // namespace cistern::tools
