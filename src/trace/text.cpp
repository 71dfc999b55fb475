// Small helpers for text formats; see text.hpp.
#include "trace/text.hpp"

#include <algorithm>

namespace cistern::trace {

Parse parse_hex(std::string_view text, std::uint64_t& out) {
  if (text.size() > 2 && text[0] == '0' && (text[1] == 'x' || text[1] == 'X')) text.remove_prefix(2);
  if (text.empty()) return Parse::empty;
  if (text.front() == '-') return Parse::negative;
  std::uint64_t v = 0;
  bool big = false;
  for (const char c : text) {
    unsigned digit = 0;
    if (c >= '0' && c <= '9') {
      digit = static_cast<unsigned>(c - '0');
    } else if (c >= 'a' && c <= 'f') {
      digit = static_cast<unsigned>(c - 'a') + 10;
    } else if (c >= 'A' && c <= 'F') {
      digit = static_cast<unsigned>(c - 'A') + 10;
    } else {
      return Parse::not_a_number;
    }
    if (v >> 60) big = true;
    v = (v << 4) | digit;
  }
  if (big) return Parse::too_big;
  out = v;
  return Parse::ok;
}

std::string quoted(std::string_view text, std::size_t limit) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out = "\"";
  for (const char c : text.substr(0, std::min(text.size(), limit))) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte >= 0x7f) {
      out += "\\x";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    } else {
      if (c == '"') out += '\\';
      out += c;
    }
  }
  out += '"';
  if (text.size() > limit) out += "...";
  return out;
}

std::string_view describe(Parse fault) {
  switch (fault) {
    case Parse::ok:
      return "a number";
    case Parse::empty:
      return "nothing";
    case Parse::negative:
      return "a negative number";
    case Parse::not_a_number:
      return "no whole number";
    case Parse::too_big:
      return "too large a number";
  }
  return "no number";
}

}  // namespace cistern::trace
