// The JSON behind the drawings of the page. See report_data.hpp.
#include "report/report_data.hpp"

#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <new>
#include <nlohmann/json.hpp>
#include <span>

#include "report/text.hpp"

namespace cistern::report {
namespace {

using nlohmann::json;

// zlib's format, which every browser inflates.
std::string pack(std::span<const std::uint8_t> bytes) {
  uLongf size = compressBound(static_cast<uLong>(bytes.size()));
  std::vector<unsigned char> out(size);
  if (compress2(out.data(), &size, bytes.data(), static_cast<uLong>(bytes.size()), 9) != Z_OK) throw std::bad_alloc();
  return base64({out.data(), size});
}

// Three decimals are finer than a pixel.
double rounded(double value) { return std::round(value * 1000) / 1000; }

json curve_data(const Curve& curve) {
  json x = json::array();
  for (const double value : curve.x) x.push_back(rounded(value));
  return {{"x", std::move(x)}, {"live", curve.live}, {"reserved", curve.reserved}, {"cached", curve.cached}};
}

json map_data(const Picture& picture) {
  json regions = json::array();
  for (const Region& region : picture.regions) {
    regions.push_back({{"bytes", region.bytes}, {"row", region.first_row}, {"rows", region.rows}});
  }
  json blocks = json::array();
  for (const Outline& o : picture.outlines) {
    const auto edge = [](float value) { return std::round(static_cast<double>(value) * 10) / 10; };
    blocks.push_back({edge(o.left), edge(o.right), edge(o.bottom), edge(o.top), rounded(o.born), rounded(o.died),
                      o.bytes, o.id, o.stream, size_class(o.bytes)});
  }
  return {{"columns", picture.columns},
          {"rows", picture.rows},
          {"raster", pack(picture.raster)},
          {"regions", std::move(regions)},
          {"blocks", std::move(blocks)}};
}

// "4 KiB": no digits after the point, as none are needed.
std::string power_of_two(std::uint64_t bytes) {
  std::string text = format_bytes(bytes);
  const auto point = text.find('.');
  return point == std::string::npos ? text : text.erase(point, text.find(' ') - point);
}

json size_data(const Picture& picture) {
  json labels = json::array(), counts = json::array(), bytes = json::array(), classes = json::array();
  for (const SizeBar& bar : picture.sizes) {
    labels.push_back(power_of_two(bar.from));
    counts.push_back(bar.count);
    bytes.push_back(bar.peak_bytes);
    classes.push_back(size_class(bar.from));
  }
  return {{"labels", std::move(labels)},
          {"counts", std::move(counts)},
          {"peak", std::move(bytes)},
          {"classes", std::move(classes)}};
}

// Overhead of each allocator on each trace: bars of the comparison chart.
json ratio_data(const Document& document) {
  std::vector<std::string> traces, allocators;
  const auto index_of = [](std::vector<std::string>& names, const std::string& name) {
    const auto it = std::find(names.begin(), names.end(), name);
    if (it != names.end()) return static_cast<std::size_t>(it - names.begin());
    names.push_back(name);
    return names.size() - 1;
  };
  for (const auto& result : document.results) {
    index_of(traces, result.trace);
    index_of(allocators, result.allocator);
  }
  std::vector<std::vector<json>> values(allocators.size(), std::vector<json>(traces.size(), nullptr));
  for (const auto& result : document.results) {
    values[index_of(allocators, result.allocator)][index_of(traces, result.trace)] = rounded(result.ratio);
  }
  json sets = json::array();
  for (std::size_t i = 0; i < allocators.size(); ++i) {
    sets.push_back({{"label", clean_utf8(allocators[i])}, {"values", values[i]}, {"recorded", false}});
  }
  const auto recorded = [&](const char* label, RecordedFigure Recorded::*figure) {
    json row = json::array();
    bool any = false;
    for (const std::string& trace : traces) {
      const auto it = document.recorded.find(trace);
      const bool known = it != document.recorded.end() && (it->second.*figure).ratio > 0;
      any |= known;
      row.push_back(known ? json((it->second.*figure).ratio) : json(nullptr));
    }
    if (any) sets.push_back({{"label", label}, {"values", std::move(row)}, {"recorded", true}});
  };
  recorded("PyTorch", &Recorded::native);
  recorded("PyTorch expandable", &Recorded::expandable);
  recorded("cudaMallocAsync", &Recorded::async);
  json labels = json::array();
  for (const std::string& trace : traces) labels.push_back(clean_utf8(trace));
  return {{"traces", std::move(labels)}, {"sets", std::move(sets)}};
}

}  // namespace

const char* const kClassLabels[kClassEnds.size()] = {"below 64 KiB", "64 KiB to 1 MiB", "1 to 16 MiB", "16 to 128 MiB",
                                                     "128 MiB and more"};

std::string page_data(const Document& document) {
  json pictures = json::array();
  for (const Picture& picture : document.pictures) {
    pictures.push_back({{"name", clean_utf8(picture.name)},
                        {"byTime", picture.by_time},
                        {"end", rounded(picture.end)},
                        {"peakX", rounded(picture.peak_x)},
                        {"curve", curve_data(picture.curve)},
                        {"map", map_data(picture)},
                        {"sizes", size_data(picture)}});
  }
  json labels = json::array();
  for (const char* label : kClassLabels) labels.push_back(label);
  const json data = {
      {"ratios", ratio_data(document)}, {"pictures", std::move(pictures)}, {"classes", std::move(labels)}};
  return script_safe(data.dump());
}

}  // namespace cistern::report
