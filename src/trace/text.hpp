// Small helpers for text formats: numbers, quoting of what was found. Pure functions; any file of the trace layer may
// use them. No locking needed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace cistern::trace {

// Sizes and byte sums stay below 2^63, so that differences fit a signed number.
inline constexpr std::uint64_t kMaxSize = (std::uint64_t{1} << 63) - 1;

enum class Parse : std::uint8_t { ok, empty, negative, not_a_number, too_big };

// Decimal digits only: no sign, no blank, no separator. `out` is set only on ok.
inline Parse parse_u64(std::string_view text, std::uint64_t& out) {
  if (text.empty()) return Parse::empty;
  if (text.front() == '-') return text.size() > 1 ? Parse::negative : Parse::not_a_number;
  std::uint64_t v = 0;
  bool big = false;
  for (const char c : text) {
    const unsigned digit = static_cast<unsigned char>(c) - unsigned{'0'};
    if (digit > 9) return Parse::not_a_number;
    if (v > (UINT64_MAX - digit) / 10) big = true;
    v = v * 10 + digit;
  }
  if (big) return Parse::too_big;
  out = v;
  return Parse::ok;
}

// Hexadecimal digits, with or without "0x".
Parse parse_hex(std::string_view text, std::uint64_t& out);

// In double quotes, shortened, with unprintable bytes as \xNN: safe to print whatever the file holds.
std::string quoted(std::string_view text, std::size_t limit = 80);

// "a negative number", "not a number", ...
std::string_view describe(Parse fault);

}  // namespace cistern::trace
