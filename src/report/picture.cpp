// Reduces a replayed trace to a picture: curve, raster, outlines, sizes. See picture.hpp.
#include "report/picture.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>

namespace cistern::report {
namespace {

using trace::Curves;
using trace::Life;
using trace::Program;

constexpr std::uint32_t kMaxRegions = 12;  // More cuts than this say nothing to a reader.
constexpr std::uint32_t kGapRows = 6;      // Between two regions.

// Position of an op on the x axis.
class Axis {
 public:
  explicit Axis(const Program& program) : program_(program) {
    std::size_t steps = 0;
    for (std::size_t i = 1; i < program.times_us.size(); ++i) steps += program.times_us[i] != program.times_us[i - 1];
    by_time_ = program.duration_us() > 0 && steps * 20 >= program.ops.size();
    end_ = by_time_ ? static_cast<double>(program.duration_us()) / 1000 : static_cast<double>(program.ops.size());
  }
  bool by_time() const { return by_time_; }
  double end() const { return end_; }
  double at(std::size_t op) const {
    if (op >= program_.ops.size()) return end_;
    return by_time_ ? static_cast<double>(program_.times_us[op]) / 1000 : static_cast<double>(op);
  }

 private:
  const Program& program_;
  bool by_time_ = true;
  double end_ = 0;
};

Curve make_curve(const Program& program, const Curves& curves, const Axis& axis, std::uint32_t points) {
  Curve curve;
  const double step = axis.end() / std::max<std::uint32_t>(points, 1);
  double next = -1;
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    const double x = axis.at(i);
    if (x >= next) {
      curve.x.push_back(x);
      curve.live.push_back(0);
      curve.reserved.push_back(0);
      curve.cached.push_back(0);
      next = step > 0 ? (std::floor(x / step) + 1) * step : x;
    }
    curve.live.back() = std::max(curve.live.back(), curves.live[i]);
    curve.reserved.back() = std::max(curve.reserved.back(), curves.reserved[i]);
    curve.cached.back() = std::max(curve.cached.back(), curves.cached[i]);
  }
  return curve;
}

// The stretches of address space in use at any time, joined over gaps that are small beside them.
std::vector<Region> find_regions(const std::vector<Life>& lives, std::uint32_t rows) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> spans;  // [start, end)
  for (const Life& life : lives) {
    if (life.bytes > 0) spans.emplace_back(life.address, life.address + life.bytes);
  }
  if (spans.empty()) return {};
  std::sort(spans.begin(), spans.end());
  const auto join = [](const auto& from, std::uint64_t gap) {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> out;
    for (const auto& span : from) {
      if (!out.empty() && span.first <= out.back().second + gap) {
        out.back().second = std::max(out.back().second, span.second);
      } else {
        out.push_back(span);
      }
    }
    return out;
  };
  spans = join(spans, 0);
  std::uint64_t used = 0;
  for (const auto& span : spans) used += span.second - span.first;
  for (std::uint64_t gap = std::max<std::uint64_t>(used / 16, 1); spans.size() > 1; gap *= 2) {
    spans = join(spans, gap);
    if (spans.size() <= kMaxRegions) break;
  }
  std::uint64_t shown = 0;
  for (const auto& span : spans) shown += span.second - span.first;

  std::vector<Region> regions;
  const auto count = static_cast<std::uint32_t>(spans.size());
  const std::uint32_t available = rows - std::min(rows / 2, kGapRows * (count - 1));
  std::uint32_t row = 0;
  for (const auto& span : spans) {
    Region region;
    region.start = span.first;
    region.bytes = span.second - span.first;
    const double share = static_cast<double>(region.bytes) / static_cast<double>(shown);
    region.rows = std::max<std::uint32_t>(2, static_cast<std::uint32_t>(share * available));
    region.rows = std::min(region.rows, rows - std::min(rows, row));
    region.first_row = row;
    row += region.rows + kGapRows;
    if (region.rows > 0) regions.push_back(region);
  }
  return regions;
}

// Adds up how much of each cell of the raster is covered, for each size class.
class Canvas {
 public:
  Canvas(std::uint32_t columns, std::uint32_t rows)
      : columns_(columns), rows_(rows), cover_(std::size_t{columns} * rows * kClassEnds.size()) {}

  void add(double left, double right, double bottom, double top, unsigned cls) {
    const auto first_column = static_cast<std::uint32_t>(left), first_row = static_cast<std::uint32_t>(bottom);
    for (std::uint32_t row = first_row; row < rows_ && row < top; ++row) {
      const double height = std::min<double>(row + 1, top) - std::max<double>(row, bottom);
      for (std::uint32_t column = first_column; column < columns_ && column < right; ++column) {
        const double width = std::min<double>(column + 1, right) - std::max<double>(column, left);
        cover_[(std::size_t{row} * columns_ + column) * kClassEnds.size() + cls] += static_cast<float>(width * height);
      }
    }
  }

  std::vector<std::uint8_t> bytes() const {
    std::vector<std::uint8_t> out(std::size_t{columns_} * rows_);
    for (std::size_t i = 0; i < out.size(); ++i) {
      const auto* cell = &cover_[i * kClassEnds.size()];
      float sum = 0;
      unsigned best = 0;
      for (unsigned c = 0; c < kClassEnds.size(); ++c) {
        sum += cell[c];
        if (cell[c] > cell[best]) best = c;
      }
      if (sum < 1.0F / 256) continue;
      const auto level = static_cast<unsigned>(std::clamp(std::lround(sum * 31), 1L, 31L));
      out[i] = static_cast<std::uint8_t>(((best + 1) << 5) | level);
    }
    return out;
  }

 private:
  std::uint32_t columns_, rows_;
  std::vector<float> cover_;
};

void draw_map(Picture& picture, const Program& program, const Curves& curves, const Axis& axis,
              const PictureSize& size) {
  picture.columns = size.columns;
  picture.rows = size.rows;
  picture.regions = find_regions(curves.lives, size.rows);
  Canvas canvas(size.columns, size.rows);
  const double per_x = axis.end() > 0 ? size.columns / axis.end() : 0;
  for (const Life& life : curves.lives) {
    if (life.bytes == 0) continue;
    const auto region = std::prev(std::upper_bound(picture.regions.begin(), picture.regions.end(), life.address,
                                                   [](std::uint64_t a, const Region& r) { return a < r.start; }));
    const double per_byte = region->rows / static_cast<double>(region->bytes);
    Outline outline;
    outline.born = axis.at(life.born);
    outline.died = axis.at(life.died);
    const double left = outline.born * per_x, right = outline.died * per_x;
    const double bottom = region->first_row + static_cast<double>(life.address - region->start) * per_byte;
    const double top = bottom + static_cast<double>(life.bytes) * per_byte;
    canvas.add(left, right, bottom, top, size_class(life.bytes));
    if (right - left < 1.5 || top - bottom < 1.5) continue;
    outline.left = static_cast<float>(left);
    outline.right = static_cast<float>(right);
    outline.bottom = static_cast<float>(bottom);
    outline.top = static_cast<float>(top);
    outline.bytes = life.bytes;
    outline.id = life.id;
    outline.stream = program.streams[life.stream];
    picture.outlines.push_back(outline);
  }
  const auto area = [](const Outline& o) { return (o.right - o.left) * (o.top - o.bottom); };
  std::sort(picture.outlines.begin(), picture.outlines.end(),
            [&](const Outline& a, const Outline& b) { return area(a) > area(b); });
  if (picture.outlines.size() > size.blocks) picture.outlines.resize(size.blocks);
  picture.raster = canvas.bytes();
}

void count_sizes(Picture& picture, const Program& program, const Curves& curves, const Axis& axis) {
  std::map<std::uint64_t, SizeBar> bars;
  std::map<std::uint64_t, PeakGroup> groups;
  for (const Life& life : curves.lives) {
    SizeBar& bar = bars[std::bit_floor(life.bytes)];
    bar.from = std::bit_floor(life.bytes);
    ++bar.count;
    if (life.born > program.peak_op || life.died <= program.peak_op) continue;
    bar.peak_bytes += life.bytes;
    PeakGroup& group = groups[life.bytes];
    if (group.count++ == 0) {
      group.bytes = life.bytes;
      group.first_id = life.id;
      group.oldest = axis.at(life.born);
    }
  }
  if (!bars.empty()) {  // No holes between the bars.
    const std::uint64_t last = bars.rbegin()->first;
    for (std::uint64_t from = std::max<std::uint64_t>(bars.begin()->first, 1); from < last; from *= 2)
      bars[from].from = from;
  }
  for (const auto& [from, bar] : bars) picture.sizes.push_back(bar);
  for (const auto& [bytes, group] : groups) picture.peak.push_back(group);
  std::sort(picture.peak.begin(), picture.peak.end(),
            [](const PeakGroup& a, const PeakGroup& b) { return a.bytes * a.count > b.bytes * b.count; });
}

}  // namespace

unsigned size_class(std::uint64_t bytes) {
  unsigned cls = 0;
  while (cls + 1 < kClassEnds.size() && bytes >= kClassEnds[cls]) ++cls;
  return cls;
}

Picture make_picture(const Program& program, const Curves& curves, const PictureSize& size) {
  const Axis axis(program);
  Picture picture;
  picture.name = program.name;
  picture.by_time = axis.by_time();
  picture.end = axis.end();
  picture.events = program.ops.size();
  picture.blocks = curves.lives.size();
  picture.largest = program.largest;
  picture.streams = program.streams.size();
  picture.peak_live = program.peak_live;
  if (program.ops.empty()) return picture;
  picture.peak_x = axis.at(program.peak_op);
  picture.peak_reserved = *std::max_element(curves.reserved.begin(), curves.reserved.end());
  picture.curve = make_curve(program, curves, axis, size.points);
  draw_map(picture, program, curves, axis, size);
  count_sizes(picture, program, curves, axis);
  return picture;
}

}  // namespace cistern::report
