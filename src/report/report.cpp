// The HTML page: text and tables; its data are made in report_data.cpp, its drawings by page.js. See report.hpp.
#include "report/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "report/report_data.hpp"
#include "report/text.hpp"

namespace cistern::report {

// Made at build time (cmake/embed.cmake); chart_script is empty where Chart.js was not found.
extern const std::string_view page_style;
extern const std::string_view page_script;
extern const std::string_view chart_script;

namespace {

constexpr std::size_t kPeakRows = 12;

struct Tile {
  std::string label, value, note;
};

std::string tiles(const std::vector<Tile>& list) {
  std::string out = "<dl class=\"tiles\">\n";
  for (const Tile& tile : list) {
    out += fmt::format("<div><dt>{}</dt><dd>{}</dd><dd class=\"note\">{}</dd></div>\n", escape_html(tile.label),
                       escape_html(tile.value), escape_html(tile.note));
  }
  return out + "</dl>\n";
}

std::string ratio_text(double ratio) { return ratio > 0 ? fmt::format("{:.3f}", ratio) : std::string("-"); }
std::string ns_text(double ns) { return ns > 0 ? fmt::format("{:.{}f}", ns, ns < 100 ? 1 : 0) : std::string("-"); }

// "1,234.5 ms" or "event 1,234".
std::string moment(const Picture& picture, double x) {
  return picture.by_time ? (x < 10000 ? fmt::format("{:.1f} ms", x) : fmt::format("{:.2f} s", x / 1000))
                         : fmt::format("event {:.0f}", x);
}

std::string first_allocator(const Document& document) {
  return document.results.empty() ? std::string() : document.results.front().allocator;
}

std::string summary(const Document& document) {
  const std::string allocator = first_allocator(document);
  std::vector<double> ratios, first, later, native;
  std::uint64_t events = 0, failed = 0;
  double saved = 0;
  const trace::ReplayResult* worst = nullptr;
  for (const auto& result : document.results) {
    if (result.allocator != allocator) continue;
    events += result.events * result.passes.size();
    failed += result.failed;
    if (result.ratio > 0) ratios.push_back(result.ratio);
    if (result.first_ns_per_event() > 0) first.push_back(result.first_ns_per_event());
    if (result.later_ns_per_event() > 0) later.push_back(result.later_ns_per_event());
    if (worst == nullptr || result.ratio > worst->ratio) worst = &result;
    const auto it = document.recorded.find(result.trace);
    if (it != document.recorded.end() && it->second.native.ratio > 0) {
      native.push_back(it->second.native.ratio);
      saved +=
          it->second.native.ratio * static_cast<double>(result.peak_live) - static_cast<double>(result.peak_reserved);
    }
  }
  std::vector<Tile> list;
  list.push_back({"Reserved / live", ratio_text(geomean(ratios)), "geometric mean of the traces"});
  if (worst != nullptr && ratios.size() > 1)
    list.push_back({"Worst trace", ratio_text(worst->ratio), clean_utf8(worst->trace)});
  if (saved > 0) {
    list.push_back({"Saved against PyTorch", format_bytes(static_cast<std::uint64_t>(saved)),
                    fmt::format("whose ratio is {:.2f}", geomean(native))});
  }
  list.push_back(
      {"Time an event", fmt::format("{} ns", ns_text(geomean(later.empty() ? first : later))),
       later.empty() ? "first pass" : fmt::format("later passes; {} ns on the first", ns_text(geomean(first)))});
  list.push_back(
      {"Events replayed", format_count(events), failed == 0 ? "all served" : format_count(failed) + " failed"});
  return tiles(list);
}

std::string comparison(const Document& document) {
  std::string out =
      "<section id=\"comparison\">\n<h2>Comparison</h2>\n"
      "<p>Peak of reserved memory over peak of live bytes: 1.000 would waste nothing.</p>\n"
      "<figure><div class=\"chart tall\"><canvas id=\"ratios\" role=\"img\" aria-label=\"Reserved over live, each "
      "trace and "
      "allocator\"></canvas></div></figure>\n"
      "<div class=\"scroll\"><table class=\"compare\">\n<thead><tr><th>Allocator</th><th class=\"n\">Ratio</th>"
      "<th class=\"n\">Peak reserved</th><th class=\"n\">ns/event</th><th class=\"n\">later</th>"
      "<th class=\"n\">Handle operations</th><th class=\"n\">later</th><th "
      "class=\"n\">Failed</th></tr></thead>\n<tbody>\n";
  std::string previous;
  const auto recorded_row = [&](const char* label, const RecordedFigure& figure, std::uint64_t live) {
    if (figure.ratio <= 0) return;
    out += fmt::format(
        "<tr class=\"recorded\"><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>"
        "<td class=\"n\">{}</td><td></td><td></td><td></td></tr>\n",
        label, ratio_text(figure.ratio),
        format_bytes(static_cast<std::uint64_t>(figure.ratio * static_cast<double>(live))), ns_text(figure.ns_first),
        ns_text(figure.ns_second));
  };
  for (std::size_t i = 0; i < document.results.size(); ++i) {
    const trace::ReplayResult& r = document.results[i];
    if (i == 0 || r.trace != previous) {
      out += fmt::format(
          "<tr class=\"first\"><th colspan=\"8\" scope=\"rowgroup\">{} <span>{} events, {} live at the "
          "peak</span></th></tr>\n",
          escape_html(r.trace), format_count(r.events), format_bytes(r.peak_live));
    }
    previous = r.trace;
    out += fmt::format(
        "<tr><td>{}</td><td class=\"n strong\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td "
        "class=\"n\">{}</td>"
        "<td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n{}\">{}</td></tr>\n",
        escape_html(r.allocator), ratio_text(r.ratio), format_bytes(r.peak_reserved), ns_text(r.first_ns_per_event()),
        ns_text(r.later_ns_per_event()), format_count(r.passes.empty() ? 0 : r.passes.front().handle_ops),
        r.passes.size() > 1 ? format_count(r.later_handle_ops()) : "-", r.failed > 0 ? " bad" : "",
        format_count(r.failed));
    if (i + 1 < document.results.size() && document.results[i + 1].trace == r.trace) continue;
    const auto it = document.recorded.find(r.trace);
    if (it == document.recorded.end()) continue;
    recorded_row("PyTorch", it->second.native, r.peak_live);
    recorded_row("PyTorch expandable", it->second.expandable, r.peak_live);
    recorded_row("cudaMallocAsync", it->second.async, r.peak_live);
  }
  out += "</tbody>\n</table></div>\n";
  if (!document.recorded.empty()) {
    out +=
        "<p class=\"note\">PyTorch's and cudaMallocAsync's figures were recorded on the GPU where the traces were "
        "made; "
        "their times include the device's driver and compare in kind, not in degree.</p>\n";
  }
  return out + "</section>\n";
}

std::string peak_table(const Picture& picture) {
  std::string out = fmt::format(
      "<h3>Biggest at the peak</h3>\n<p class=\"note\">Blocks alive at {}, equal sizes together.</p>\n"
      "<div class=\"scroll\"><table class=\"peak\">\n<thead><tr><th class=\"n\">Size</th><th class=\"n\">Count</th>"
      "<th class=\"n\">Together</th><th>Share</th><th class=\"n\">First id</th><th class=\"n\">Oldest "
      "since</th></tr></thead>\n"
      "<tbody>\n",
      moment(picture, picture.peak_x));
  std::uint64_t rest_count = 0, rest_bytes = 0;
  const auto share = [&](std::uint64_t bytes) {
    return picture.peak_live == 0 ? 0.0 : 100.0 * static_cast<double>(bytes) / static_cast<double>(picture.peak_live);
  };
  const auto bar = [&](std::uint64_t bytes) {
    return fmt::format(
        "<td class=\"share\"><span class=\"bar\" style=\"width:{:.1f}%\"></span><span>{:.1f} %</span></td>",
        share(bytes), share(bytes));
  };
  for (std::size_t i = 0; i < picture.peak.size(); ++i) {
    const PeakGroup& group = picture.peak[i];
    if (i >= kPeakRows) {
      rest_count += group.count;
      rest_bytes += group.bytes * group.count;
      continue;
    }
    out += fmt::format(
        "<tr><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n strong\">{}</td>{}<td class=\"n\">{}</td>"
        "<td class=\"n\">{}</td></tr>\n",
        format_bytes(group.bytes), format_count(group.count), format_bytes(group.bytes * group.count),
        bar(group.bytes * group.count), group.first_id, moment(picture, group.oldest));
  }
  if (rest_count > 0) {
    out += fmt::format(
        "<tr><td class=\"n\">others</td><td class=\"n\">{}</td><td class=\"n "
        "strong\">{}</td>{}<td></td><td></td></tr>\n",
        format_count(rest_count), format_bytes(rest_bytes), bar(rest_bytes));
  }
  return out + "</tbody></table></div>\n";
}

std::string trace_section(const Picture& picture, std::size_t index) {
  std::string out =
      fmt::format("<section class=\"trace\" id=\"trace-{}\">\n<h2>{}</h2>\n", index, escape_html(picture.name));
  const double ratio =
      picture.peak_live == 0 ? 0 : static_cast<double>(picture.peak_reserved) / static_cast<double>(picture.peak_live);
  out += tiles({{"Peak live", format_bytes(picture.peak_live), "at " + moment(picture, picture.peak_x)},
                {"Peak reserved", format_bytes(picture.peak_reserved), "ratio " + ratio_text(ratio)},
                {"Blocks", format_count(picture.blocks), format_count(picture.events) + " events"},
                {"Largest block", format_bytes(picture.largest),
                 fmt::format("{} stream{}", picture.streams, picture.streams == 1 ? "" : "s")}});
  const char* axis = picture.by_time ? "time" : "events";
  out += fmt::format(
      "<figure><figcaption><h3>Memory over {}</h3></figcaption><div class=\"chart\"><canvas id=\"curve-{}\" "
      "role=\"img\" "
      "aria-label=\"Live, reserved and cached bytes\"></canvas></div></figure>\n",
      axis, index);
  out += fmt::format(
      "<figure><figcaption><h3>Address space over {}</h3><p class=\"note\">Each block a rectangle: as wide as its "
      "life, as "
      "tall as its bytes.<span class=\"screen\"> Point at one to see it.</span></p><ul class=\"legend\">",
      axis);
  for (std::size_t c = 0; c < kClassEnds.size(); ++c)
    out += fmt::format("<li class=\"c{}\">{}</li>", c, kClassLabels[c]);
  out += fmt::format(
      "</ul></figcaption><div class=\"chart map\"><canvas id=\"map-{}\" role=\"img\" aria-label=\"Address space over "
      "{}\" "
      "tabindex=\"0\"></canvas><div class=\"tip\" hidden></div></div></figure>\n",
      index, axis);
  out += fmt::format(
      "<div class=\"pair\"><figure><figcaption><h3>Blocks by size</h3></figcaption><div class=\"chart small\"><canvas "
      "id=\"count-{0}\" role=\"img\" aria-label=\"Number of blocks by size\"></canvas></div></figure>\n"
      "<figure><figcaption><h3>Live bytes at the peak by size</h3></figcaption><div class=\"chart small\"><canvas "
      "id=\"bytes-{0}\" role=\"img\" aria-label=\"Live bytes at the peak by size\"></canvas></div></figure></div>\n",
      index);
  return out + peak_table(picture) + "</section>\n";
}

}  // namespace

std::string render(const Document& document) {
  std::string out = "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n";
  out += "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n";
  out += "<meta name=\"color-scheme\" content=\"light dark\">\n";
  out += "<link rel=\"icon\" href=\"data:,\">\n";
  out +=
      fmt::format("<title>{}</title>\n<style>\n{}</style>\n</head>\n<body>\n", escape_html(document.title), page_style);
  out += fmt::format("<header><h1>{}</h1><p>{}</p>", escape_html(document.title), escape_html(document.subtitle));
  if (!document.command.empty()) out += fmt::format("<p><code>{}</code></p>", escape_html(document.command));
  out += "</header>\n<noscript><p class=\"note\">Charts need scripts; the tables do not.</p></noscript>\n<main>\n";
  out += summary(document);
  out += comparison(document);
  if (document.pictures.size() > 1) {
    out += "<nav aria-label=\"Traces\"><a href=\"#comparison\">Comparison</a>";
    for (std::size_t i = 0; i < document.pictures.size(); ++i) {
      out += fmt::format("<a href=\"#trace-{}\">{}</a>", i, escape_html(document.pictures[i].name));
    }
    out += "</nav>\n";
  }
  for (std::size_t i = 0; i < document.pictures.size(); ++i) out += trace_section(document.pictures[i], i);
  out += "</main>\n<footer>Made by Cistern. This page loads nothing from a network.</footer>\n";
  out += "<script type=\"application/json\" id=\"data\">" + page_data(document) + "</script>\n";
  if (!chart_script.empty()) out += fmt::format("<script>{}</script>\n", chart_script);
  out += fmt::format("<script>\n{}</script>\n</body>\n</html>\n", page_script);
  return out;
}

}  // namespace cistern::report
