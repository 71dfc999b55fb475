// The HTML page: what is in it, that names from files cannot break it, and how a real browser shows it.
#include "report/report.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "report/recorded.hpp"
#include "trace/replay.hpp"

namespace cistern::report {
namespace {

namespace fs = std::filesystem;

const char* const kHostile = "</script><script>alert(1)</script>\"'&\xFF";

// A trace with structure: layers that stack up, fall, and a few blocks that stay.
Trace sample_trace(const std::string& name) {
  Trace trace;
  trace.name = name;
  std::uint64_t time = 0;
  std::vector<TraceEvent> stack;
  const auto allocate = [&](std::uint64_t size) {
    TraceEvent event{size, time += 7, trace.allocations++, 0, TraceEventKind::allocate};
    trace.events.push_back(event);
    stack.push_back(event);
  };
  const auto release = [&] {
    TraceEvent event = stack.back();
    stack.pop_back();
    event.kind = TraceEventKind::free;
    event.time_us = time += 5;
    trace.events.push_back(event);
  };
  allocate(48 << 20);
  for (int step = 0; step < 12; ++step) {
    for (std::uint64_t layer = 1; layer <= 40; ++layer) allocate((layer % 7 + 1) << (12 + layer % 9));
    for (int layer = 0; layer < 40; ++layer) release();
  }
  return trace;
}

Document sample_document(const std::string& name) {
  Document document;
  const trace::Program program = trace::compile(sample_trace(name), name + ".csv");
  trace::ReplayOptions options;
  options.device = Device::model();
  options.repeat = 2;
  options.curves = true;
  trace::ReplayResult result = trace::replay(program, options);
  document.title = "Cistern: " + name;
  document.subtitle = name;
  document.command = "cistern replay " + name;
  document.pictures.push_back(make_picture(program, *result.curves));
  document.results.push_back(result);
  document.recorded[result.trace] = {{1.5, 400, 300}, {1.2, 500, 310}, {1.1, 900, 800}};
  return document;
}

std::size_t count_of(const std::string& text, const std::string& what) {
  std::size_t count = 0;
  for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

nlohmann::json data_of(const std::string& page) {
  const std::string open = "id=\"data\">";
  const auto from = page.find(open) + open.size();
  return nlohmann::json::parse(page.substr(from, page.find("</script>", from) - from));
}

TEST(Report, HasTheFiguresAndTheData) {
  const Document document = sample_document("sample");
  const std::string page = render(document);
  EXPECT_NE(page.find("<!doctype html>"), std::string::npos);
  EXPECT_NE(page.find("PyTorch expandable"), std::string::npos);
  EXPECT_NE(page.find("1.500"), std::string::npos);
  const nlohmann::json data = data_of(page);
  EXPECT_EQ(data["pictures"].size(), 1U);
  EXPECT_EQ(data["pictures"][0]["curve"]["x"].size(), data["pictures"][0]["curve"]["live"].size());
  EXPECT_EQ(data["ratios"]["sets"].size(), 4U);
}

TEST(Report, LoadsNothing) {
  const std::string page = render(sample_document("sample"));
  EXPECT_EQ(count_of(page, "src="), 0U);
  EXPECT_EQ(count_of(page, "@import"), 0U);
  EXPECT_EQ(count_of(page, "<link"), 1U);  // The empty icon.
  EXPECT_EQ(count_of(page, "href=\"http"), 0U);
}

TEST(Report, NamesFromFilesAreEscaped) {
  const std::string page = render(sample_document(kHostile));
  EXPECT_EQ(page.find("<script>alert(1)"), std::string::npos);
  const std::string safe = render(sample_document("sample"));
  EXPECT_EQ(count_of(page, "</script>"), count_of(safe, "</script>"));
  EXPECT_EQ(data_of(page)["pictures"].size(), 1U);
}

TEST(Report, AFailureIsMarked) {
  Document document = sample_document("sample");
  document.results[0].failed = 3;
  EXPECT_NE(render(document).find("3 failed"), std::string::npos);
}

TEST(Report, NothingReplayedIsAPageToo) {
  Document document;
  document.title = "Empty";
  EXPECT_EQ(data_of(render(document))["pictures"].size(), 0U);
}

TEST(Report, SizeDoesNotGrowWithTheTrace) {
  Trace trace;
  trace.name = "long";
  for (std::uint32_t i = 0; i < 200000; ++i) {
    trace.events.push_back({(i % 97 + 1) * 512, std::uint64_t{i} * 3, i, 0, TraceEventKind::allocate});
    trace.events.push_back({(i % 97 + 1) * 512, std::uint64_t{i} * 3 + 1, i, 0, TraceEventKind::free});
  }
  trace.allocations = 200000;
  const trace::Program program = trace::compile(trace, "long.csv");
  trace::ReplayOptions options;
  options.device = Device::model();
  options.curves = true;
  trace::ReplayResult result = trace::replay(program, options);
  Document document;
  document.pictures.push_back(make_picture(program, *result.curves));
  document.results.push_back(result);
  EXPECT_LT(render(document).size(), 700U << 10);
}

// Shows a page in a browser and looks at it; everything about the look is in browser_check.py.
void expect_good_looks(const std::string& page) {
  const fs::path folder = fs::temp_directory_path() / ("cistern-report-" + std::to_string(::getpid()));
  fs::create_directories(folder);
  const fs::path file = folder / "report.html";
  std::ofstream(file) << page;
  const std::string script = std::string(CISTERN_SOURCE_DIR) + "/tests/report/browser_check.py";
  const int status = std::system(("python3 '" + script + "' --canvases 5 '" + file.string() + "'").c_str());
  fs::remove_all(folder);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "no browser";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(Report, BrowserShowsItOnPhoneAndDeskLightAndDark) {
  expect_good_looks(render(sample_document("sample <&> \xFF")));
}

// What a build without Chart.js writes.
TEST(Report, BrowserShowsItWithoutTheChartLibrary) {
  std::string page = render(sample_document("sample"));
  const auto from = page.find("<script>/*!");
  if (from != std::string::npos) {
    const std::string end = "</script>";
    page.erase(from, page.find(end, from) + end.size() - from);
  }
  ASSERT_EQ(page.find("Chart.js v"), std::string::npos);
  expect_good_looks(page);
}

TEST(Recorded, ReadsWhatIsBesideTheTraces) {
  const fs::path folder = fs::temp_directory_path() / ("cistern-recorded-" + std::to_string(::getpid()));
  fs::create_directories(folder);
  const std::string trace = (folder / "t.csv").string();
  std::string problem;
  EXPECT_TRUE(load_recorded(trace, problem).empty());
  EXPECT_EQ(problem, "");
  std::ofstream(folder / "native.json") << R"({"t": {"native": {"ratio": 1.5, "ns_first": 9}, "async": 3}, "u": 7})";
  const auto good = load_recorded(trace, problem);
  EXPECT_EQ(problem, "");
  ASSERT_EQ(good.size(), 1U);
  EXPECT_EQ(good.at("t").native.ratio, 1.5);
  EXPECT_EQ(good.at("t").async.ratio, 0);
  std::ofstream(folder / "native.json") << "[1, 2";
  EXPECT_TRUE(load_recorded(trace, problem).empty());
  EXPECT_NE(problem.find("native.json"), std::string::npos);
  fs::remove_all(folder);
}

}  // namespace
}  // namespace cistern::report
