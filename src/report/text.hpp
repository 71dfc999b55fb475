// Text for people: bytes, counts, times, HTML escapes, and the mean that ratios need. Pure functions; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace cistern::report {

// "1.50 GiB", "512 B". Three digits, binary units.
std::string format_bytes(std::uint64_t bytes);
// "365,110".
std::string format_count(std::uint64_t count);
// "12.3 ns", "4.56 ms", "1.20 s".
std::string format_seconds(double seconds);
// Valid UTF-8 with &, <, >, " and ' replaced by entities; bytes that are no UTF-8 and control characters become U+FFFD.
std::string escape_html(std::string_view text);
// The same text as valid UTF-8, for JSON and terminals: no entities.
std::string clean_utf8(std::string_view text);
// JSON that may stand inside a <script> element: no '<' is left in it.
std::string script_safe(std::string json);
std::string base64(std::span<const unsigned char> bytes);

// The geometric mean of positive values; 0 when there are none.
double geomean(std::span<const double> values);

}  // namespace cistern::report
