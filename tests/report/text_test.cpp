// report/text: figures for people, escapes, the geometric mean.
#include "report/text.hpp"

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace cistern::report {
namespace {

TEST(Text, Bytes) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1.00 KiB");
  EXPECT_EQ(format_bytes(std::uint64_t{3} << 29), "1.50 GiB");
  EXPECT_EQ(format_bytes(std::uint64_t{62} << 20), "62.0 MiB");
  EXPECT_EQ(format_bytes(std::uint64_t{640} << 20), "640 MiB");
  EXPECT_EQ(format_bytes((std::uint64_t{1} << 20) - 1), "1.00 MiB");  // Never "1024 KiB".
  EXPECT_EQ(format_bytes(UINT64_MAX), "16.0 EiB");
}

TEST(Text, Counts) {
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(1000), "1,000");
  EXPECT_EQ(format_count(365110), "365,110");
  EXPECT_EQ(format_count(1234567), "1,234,567");
}

TEST(Text, Seconds) {
  EXPECT_EQ(format_seconds(12.3e-9), "12.3 ns");
  EXPECT_EQ(format_seconds(4.56e-3), "4.56 ms");
  EXPECT_EQ(format_seconds(1.2), "1.20 s");
}

TEST(Text, EscapesEverythingThatCouldEndAnElement) {
  EXPECT_EQ(escape_html("<script>alert('x') & \"y\"</script>"),
            "&lt;script&gt;alert(&#39;x&#39;) &amp; &quot;y&quot;&lt;/script&gt;");
}

TEST(Text, ReplacesWhatIsNoUtf8) {
  const std::string mark = "\xEF\xBF\xBD";
  EXPECT_EQ(clean_utf8("gr\xC3\xBC\xC3\x9F"), "gr\xC3\xBC\xC3\x9F");
  EXPECT_EQ(clean_utf8("a\xFFz"), "a" + mark + "z");
  EXPECT_EQ(clean_utf8("\xC3"), mark);                                   // Cut.
  EXPECT_EQ(clean_utf8("\xC0\xAF"), mark + mark);                        // Overlong.
  EXPECT_EQ(clean_utf8("\xED\xA0\x80"), mark + mark + mark);             // A surrogate.
  EXPECT_EQ(clean_utf8("\xF4\x90\x80\x80"), mark + mark + mark + mark);  // Above U+10FFFF.
  EXPECT_EQ(clean_utf8("\x1B[31m"), mark + "[31m");                      // No escape sequence reaches a terminal.
  EXPECT_EQ(clean_utf8("\xF0\x9F\x92\xA7"), "\xF0\x9F\x92\xA7");
}

TEST(Text, ScriptSafeJsonHasNoTag) { EXPECT_EQ(script_safe(R"(["</script>"])"), R"(["\u003c/script>"])"); }

TEST(Text, Base64) {
  const auto of = [](std::string_view text) {
    return base64({reinterpret_cast<const unsigned char*>(text.data()), text.size()});
  };
  EXPECT_EQ(of(""), "");
  EXPECT_EQ(of("f"), "Zg==");
  EXPECT_EQ(of("fo"), "Zm8=");
  EXPECT_EQ(of("foo"), "Zm9v");
  EXPECT_EQ(of("foobar"), "Zm9vYmFy");
}

TEST(Text, Geomean) {
  EXPECT_EQ(geomean({}), 0);
  const std::array<double, 2> values = {1, 4};
  EXPECT_DOUBLE_EQ(geomean(values), 2);
}

}  // namespace
}  // namespace cistern::report
