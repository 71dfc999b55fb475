// Reading and writing problems: what is accepted, every refusal with file and line, and a mutation fuzz.
#include <gtest/gtest.h>

#include <climits>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "cistern/error.hpp"
#include "cistern/plan.hpp"
#include "plan_generators.hpp"

namespace cistern {
namespace {

using test::pick;

std::string message(const std::string& text) {
  try {
    parse_plan_csv(text, "f.csv");
  } catch (const invalid_argument& e) {
    return e.what();
  }
  return "";
}

TEST(PlanCsv, ReadsEveryColumn) {
  const PlanProblem p = parse_plan_csv(
      "size,upper,lower,id,alignment,hint,offset,gaps\n"
      "8,10,0,a,4,16,,2-5 5-6@2:6 6-7!1:3\n"
      "3,9,4,\"b,\"\"c\"\"\nd\",1,,12,\n");
  ASSERT_EQ(p.buffers.size(), 2u);
  EXPECT_EQ(p.ids[0], "a");
  EXPECT_EQ(p.ids[1], "b,\"c\"\nd");
  EXPECT_EQ(p.buffers[0].lower, 0);
  EXPECT_EQ(p.buffers[0].upper, 10);
  EXPECT_EQ(p.buffers[0].size, 8);
  EXPECT_EQ(p.buffers[0].alignment, 4);
  EXPECT_EQ(p.buffers[0].hint, 16);
  EXPECT_FALSE(p.buffers[0].offset);
  const std::vector<PlanGap> gaps{{2, 5, 0, 8}, {5, 6, 0, 2}, {5, 6, 6, 8}, {6, 7, 1, 3}};
  EXPECT_EQ(p.buffers[0].gaps, gaps);
  EXPECT_EQ(p.buffers[1].offset, 12);
  EXPECT_FALSE(p.buffers[1].hint);
}

TEST(PlanCsv, ReadsOtherNamesLineEndsAndABlankLine) {
  const PlanProblem p = parse_plan_csv(
      "\xEF\xBB\xBF"
      "buffer_id,start,end,size,gaps\r\nx,3,7,5,4-5\r\n\r\ny,1,1,2,");
  ASSERT_EQ(p.buffers.size(), 2u);
  EXPECT_EQ(p.buffers[0].upper, 8);  // "end" is inclusive
  EXPECT_EQ(p.buffers[0].gaps[0].upper, 6);
  EXPECT_EQ(p.buffers[1].upper, 2);
  EXPECT_TRUE(parse_plan_csv("id,lower,upper,size\n").buffers.empty());
}

TEST(PlanCsv, RefusesBadInputWithItsLine) {
  const std::string h = "id,lower,upper,size\n";
  const struct {
    std::string text;
    const char* expected;
  } cases[] = {
      {"", "f.csv:1: expected a header"},
      {"id,lower,size\n", "f.csv:1: expected a column 'upper'"},
      {"id,lower,upper,size,size\n", "f.csv:1: expected one column for 'size', found 'size' and 'size'"},
      {"id,lower,upper,end,size\n", "f.csv:1: expected one column for 'upper', found 'upper' and 'end'"},
      {"id,lower,upper,begin,size\n", "f.csv:1: expected one column for 'lower', found 'lower' and 'begin'"},
      {"id,begin,end,size\na,x,4,3\n", "f.csv:2: expected an integer for begin, found 'x'"},
      {"id,lower,upper,size,colour\n", "f.csv:1: unknown column 'colour'; expected id, "},
      {h + "a,0,5\n", "f.csv:2: expected 4 fields"},
      {h + "a,0,5,3,9\n", "f.csv:2: expected 4 fields"},
      {h + "a,0,5,3\nb,5,5,3\n", "f.csv:3: buffer 'b': upper 5 must be above lower 5"},
      {h + "a,0,5,3\nb,7,5,3\n", "f.csv:3: buffer 'b': upper 5 must be above lower 7"},
      {h + "a,-3,5,3\n", "f.csv:2: buffer 'a': lower -3 is below zero"},
      {h + "a,0,5,0\n", "f.csv:2: buffer 'a': size 0 must be at least 1"},
      {h + "a,0,5,-4\n", "f.csv:2: buffer 'a': size -4 must be at least 1"},
      {h + "a,0,5,9223372036854775807\n", "f.csv:2: buffer 'a': size 9223372036854775807 is above 2^62"},
      {h + "a,0,5,9223372036854775808\n", "f.csv:2: expected size below 2^63"},
      {h + "a,0,5,4611686018427387904\nb,9,10,1\n", "f.csv:3: buffer 'b': sizes and alignments sum up beyond 2^62"},
      {h + "a,0,5,3.5\n", "f.csv:2: expected an integer for size, found '3.5'"},
      {h + "a,0,x,3\n", "f.csv:2: expected an integer for upper, found 'x'"},
      {h + "a,,5,3\n", "f.csv:2: expected an integer for lower, found ''"},
      {h + "a,0,5,3\nb,0,5,3\na,6,7,3\n", "f.csv:4: expected an id of its own, found 'a' as on line 2"},
      {h + "\"a,0,5,3\n", "f.csv:2: expected a closing quote"},
      {h + "\"a\"b,0,5,3\n", "f.csv:2: expected a comma or the end of the line after a closing quote"},
      {h + "a\"b,0,5,3\n", "f.csv:2: expected no quote inside an unquoted field"},
      {h + "a,0,5,3\rb,0,5,3", "f.csv:2: expected a line feed"},
      {"id,lower,upper,size,offset\na,0,5,3,0\nb,4,6,3,2\n",
       "f.csv:3: buffer 'b': fixed offset 2: shares bytes with buffer 'a'"},
      {"id,lower,upper,size,offset\na,0,5,3,-1\n", "f.csv:2: buffer 'a': fixed offset -1 is below zero"},
      {"id,lower,upper,size,alignment\na,0,5,3,0\n", "f.csv:2: buffer 'a': alignment 0 must be at least 1"},
      {"id,lower,upper,size,gaps\na,0,5,3,1\n", "f.csv:2: expected a gap"},
      {"id,lower,upper,size,gaps\na,0,5,3,1-2@3\n", "f.csv:2: expected a gap"},
      {"id,lower,upper,size,gaps\na,0,5,3,1-2@0:4\n", "f.csv:2: expected a window inside the size 3"},
      {"id,lower,upper,size,gaps\na,0,5,3,1-9\n", "f.csv:2: buffer 'a': gap 1-9 must be a part of the life 0-5"},
      {"id,lower,end,size\na,0,9223372036854775807,3\n", "f.csv:2: expected end below 2^63 - 1"},
      {h + "\"x\ny\",0,5,3\nb,0,0,1\n", "f.csv:4: buffer 'b': upper 0"},  // an id of two lines
  };
  for (const auto& c : cases) {
    const std::string got = message(c.text);
    EXPECT_EQ(got.rfind(c.expected, 0), 0u) << c.text << "\n  gave: " << got << "\n  expected: " << c.expected;
  }
  EXPECT_THROW(read_plan_csv("/nonexistent/file.csv"), invalid_argument);
  EXPECT_THROW(read_plan_csv("."), invalid_argument);
}

TEST(PlanCsv, WritesWhatItReads) {
  PlanProblem p = parse_plan_csv(
      "id,lower,upper,size,alignment,hint,gaps\n"
      "\"a,\"\"b\"\"\",0,10,8,4,16,2-5 5-6@2:6 6-7!1:3 8-9@0:2 9-10@7:8\nc,2,4,3,1,,\n");
  const PlanResult r = plan(p);
  std::ostringstream out;
  write_plan_csv(out, p, r.offsets);
  const PlanProblem again = parse_plan_csv(out.str());
  ASSERT_EQ(again.buffers.size(), p.buffers.size());
  EXPECT_EQ(again.ids, p.ids);
  for (std::size_t i = 0; i < p.buffers.size(); ++i) {
    p.buffers[i].offset = r.offsets[i];
    EXPECT_EQ(again.buffers[i], p.buffers[i]) << i;
  }
  std::ostringstream plain;
  write_plan_csv(plain, {{test::buffer(0, 2, 3)}, {}}, {0});
  EXPECT_EQ(plain.str(), "id,lower,upper,size,offset\n0,0,2,3,0\n");
  EXPECT_THROW(write_plan_csv(plain, p, {}), invalid_argument);
  // What could not be read back: two buffers on the same bytes, an offset below zero.
  const PlanProblem two{{test::buffer(0, 2, 3), test::buffer(1, 3, 3)}, {}};
  EXPECT_THROW(write_plan_csv(plain, two, {0, 2}), invalid_argument);
  EXPECT_THROW(write_plan_csv(plain, two, {-3, 0}), invalid_argument);
  const auto refused = [&](const char* path, const char* why) {
    const std::string expected = std::string(path) + ": " + why;
    for (const bool svg : {false, true}) {
      try {
        svg ? write_plan_svg(path, p, r.offsets) : write_plan_csv(path, p, r.offsets);
        ADD_FAILURE() << path << " was written";
      } catch (const invalid_argument& error) {
        EXPECT_EQ(std::string(error.what()).rfind(expected, 0), 0u) << error.what();
      }
    }
  };
  refused("/nonexistent/file.csv", "cannot be opened (No such file or directory)");
  if (std::filesystem::exists("/dev/full")) refused("/dev/full", "writing failed (No space left on device)");
  const std::string path = (std::filesystem::temp_directory_path() / "cistern_plan_csv_test.csv").string();
  write_plan_csv(path, p, r.offsets);
  EXPECT_EQ(read_plan_csv(path).ids, p.ids);
  std::filesystem::remove(path);
}

// Mutates good text: whatever comes of it is read, or refused by invalid_argument with the name of the file.
TEST(PlanCsv, SurvivesMutation) {
  const std::string good =
      "id,lower,upper,size,alignment,hint,gaps,offset\n"
      "a,0,10,8,4,16,2-5 5-6@2:6,\n\"b,\"\"c\",3,12,4,1,,,64\nd,1,9223372036854775807,7,2,,4-8!1:2,\n";
  const std::string alphabet = ",\"\n\r-@!:0123456789ab .\0\xff";
  int accepted = 0;
  for (std::uint64_t seed = 1; seed <= 20000; ++seed) {
    std::mt19937_64 random(seed);
    std::string text = good;
    for (std::int64_t k = pick(random, 1, 6); k > 0 && !text.empty(); --k) {
      const std::size_t at = random() % text.size();
      switch (random() % 5) {
        case 0:
          text.erase(at, 1 + random() % 4);
          break;
        case 1:
          text.insert(at, 1, alphabet[random() % alphabet.size()]);
          break;
        case 2:
          text[at] = alphabet[random() % alphabet.size()];
          break;
        case 3:
          text.insert(at, text.substr(random() % text.size(), random() % 30));
          break;
        default:
          text.resize(at);
          break;
      }
    }
    try {
      const PlanProblem p = parse_plan_csv(text, "f.csv");
      EXPECT_FALSE(check_problem(p)) << seed;
      ++accepted;
    } catch (const invalid_argument& e) {
      EXPECT_EQ(std::string(e.what()).rfind("f.csv:", 0), 0u) << "seed " << seed << ": " << e.what();
    }
  }
  EXPECT_GT(accepted, 100);
}

TEST(TraceProblem, TakesLivesFromTheOrderOfEvents) {
  const PlanProblem p =
      problem_from_trace({{true, 7, 100}, {true, 8, 50}, {false, 7, 0}, {true, 9, 0}, {true, 7, 30}, {false, 9, 0}});
  ASSERT_EQ(p.buffers.size(), 3u);
  EXPECT_EQ(p.buffers[0], test::buffer(0, 2, 100));
  EXPECT_EQ(p.buffers[1], test::buffer(1, 6, 50));
  EXPECT_EQ(p.buffers[2], test::buffer(4, 6, 30));
  EXPECT_THROW(problem_from_trace({{true, 1, 5}, {true, 1, 5}}), invalid_argument);
  EXPECT_THROW(problem_from_trace({{false, 1, 5}}), invalid_argument);
  EXPECT_THROW(problem_from_trace({{true, 1, -5}}), invalid_argument);
}

TEST(PlanSvg, DrawsEveryBufferOrItsShade) {
  PlanProblem p{{test::buffer(0, 500, 500), test::buffer(500, 1000, 500)}, {"<a&\">", "b"}};
  std::ostringstream out;
  write_plan_svg(out, p, {0, 0});
  EXPECT_NE(out.str().find("&lt;a&amp;&quot;&gt;"), std::string::npos);
  EXPECT_NE(out.str().find("2 buffers, peak 500 bytes"), std::string::npos);
  EXPECT_THROW(write_plan_svg(out, p, {0}), invalid_argument);
  // A hundred thousand specks stay a small file.
  PlanProblem many;
  for (std::int64_t i = 0; i < 100000; ++i) many.buffers.push_back(test::buffer(i, i + 1, 1 + i % 1000));
  std::ostringstream small;
  write_plan_svg(small, many, std::vector<std::int64_t>(many.buffers.size(), 0));
  EXPECT_GT(small.str().size(), 1000u);
  EXPECT_LT(small.str().size(), 20000000u);
  std::ostringstream none;
  write_plan_svg(none, {}, {});
  EXPECT_NE(none.str().find("</svg>"), std::string::npos);
}

TEST(PlanSvg, SidesOutOfRangeAreRefusedBeforeTheFileIsTouched) {
  const PlanProblem p{{test::buffer(0, 500, 500)}, {}};
  for (const int side : {-1, 0, 99, 20001, INT_MIN, INT_MAX}) {
    std::ostringstream out;
    try {
      write_plan_svg(out, p, {0}, {side, 900, ""});
      ADD_FAILURE() << side;
    } catch (const invalid_argument& e) {
      EXPECT_NE(std::string(e.what()).find("width must be from 100 to 20000 pixels, got " + std::to_string(side)),
                std::string::npos)
          << e.what();
    }
    EXPECT_THROW(write_plan_svg(out, p, {0}, {1600, side, ""}), invalid_argument);
    EXPECT_TRUE(out.str().empty());
  }
  const std::string path = ::testing::TempDir() + "untouched.svg";
  std::remove(path.c_str());
  EXPECT_THROW(write_plan_svg(path, p, {0}, {-1, 900, ""}), invalid_argument);
  EXPECT_FALSE(std::ifstream(path).good());
  std::ostringstream small;
  write_plan_svg(small, p, {0}, {100, 100, ""});
  EXPECT_NE(small.str().find("</svg>"), std::string::npos);
}

// As docs/planner.md says.
TEST(PlanCsv, HeaderAloneIsAProblemWithAnEmptyOptimalPlan) {
  const PlanProblem p = parse_plan_csv("id,lower,upper,size\n");
  EXPECT_TRUE(p.buffers.empty());
  const PlanResult result = plan(p);
  EXPECT_EQ(result.status, PlanStatus::optimal);
  EXPECT_EQ(result.peak, 0);
  EXPECT_TRUE(result.offsets.empty());
  std::ostringstream out;
  write_plan_csv(out, p, result.offsets);
  EXPECT_TRUE(parse_plan_csv(out.str()).buffers.empty());
  EXPECT_THROW(parse_plan_csv(""), invalid_argument);
}

// What cannot be printed is escaped; binary data is called so, with its line.
TEST(PlanCsv, MessagesAreReadableWhateverTheFileHolds) {
  const auto message = [](std::string_view text) -> std::string {
    try {
      parse_plan_csv(text, "f");
    } catch (const invalid_argument& e) {
      return e.what();
    }
    return "accepted";
  };
  const std::string header = "id,lower,upper,size\n";
  EXPECT_EQ(message(header + "a,\xff\x01\x7f,2,3\n"), "f:2: expected an integer for lower, found '\\xff\\x01\\x7f'");
  EXPECT_EQ(message(header + "a,\xc3\xa9\xc2\x85\xc3,2,3\n"),
            "f:2: expected an integer for lower, found '\xc3\xa9\\xc2\\x85\\xc3'");
  EXPECT_EQ(message(header + "a,1,2,3\nb,1,2\xf0\x9f,3\n"), "f:3: expected an integer for upper, found '2\\xf0\\x9f'");
  EXPECT_NE(message("\x80\x04,lower\n").find("f:1: unknown column '\\x80\\x04'"), std::string::npos);
  using std::string_view_literals::operator""sv;
  EXPECT_NE(message("\x7f"
                    "ELF\x02\n\0\0,\xff"sv)
                .find("f:2: expected csv text (id,lower,upper,size), found binary data: byte 6 is \\x00"),
            std::string::npos);
  EXPECT_NE(message("\x1f\x8b\x08").find("f:1: expected csv text, found gzip data"), std::string::npos);
}

// As docs/planner.md says.
TEST(PlanCsv, BlankLinesAreSkippedAndCommentsRefused) {
  const std::string header = "id,lower,upper,size\n";
  EXPECT_EQ(parse_plan_csv("\xEF\xBB\xBF" + header + "\n\r\na, 1 ,2, 3\r\n\n").buffers.size(), 1u);
  EXPECT_THROW(parse_plan_csv(header + "# text\na,1,2,3\n"), invalid_argument);
  EXPECT_THROW(parse_plan_csv(header + "  \na,1,2,3\n"), invalid_argument);
  PlanProblem problem{{test::buffer(0, 1, 1)}, {}};
  problem.buffers[0].hint = -1;
  EXPECT_THROW(plan(problem), invalid_argument);
}

}  // namespace
}  // namespace cistern
