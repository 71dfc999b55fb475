// Draws plans as SVG. No state, no locking; any code may call it.
#include <algorithm>
#include <cmath>
#include <iomanip>
#include <ostream>
#include <sstream>

#include "cistern/error.hpp"
#include "cistern/plan.hpp"
#include "plan/output_file.hpp"

namespace cistern {
namespace {

constexpr int kMargin = 60;          // pixels on each side of the drawing
constexpr double kSmallest = 1.0;    // pixels: what is narrower or lower goes to the grid of shades
constexpr int kCell = 2;             // pixels: side of a cell of the grid
constexpr std::size_t kShades = 16;  // of the grid
constexpr int kLeastSide = 100;      // pixels
constexpr int kMostSide = 20000;     // pixels: 50 million cells of the grid

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        if (static_cast<unsigned char>(c) >= 0x20) out += c;
    }
  }
  return out;
}

// A colour that differs from that of the neighbours in number.
std::string colour(std::size_t i) {
  const std::size_t hue = i * 137 % 360;
  return "hsl(" + std::to_string(hue) + ",60%," + std::to_string(62 + i % 4 * 5) + "%)";
}

class Drawing {
 public:
  Drawing(std::ostream& out, const PlanProblem& problem, const std::vector<std::int64_t>& offsets,
          const PlanSvgOptions& options)
      : out_(out), problem_(problem), offsets_(offsets), options_(options) {
    width_ = options.width;
    height_ = options.height;
    begin_ = problem.buffers.empty() ? 0 : INT64_MAX;
    for (std::size_t i = 0; i < offsets.size(); ++i) {
      const PlanBuffer& b = problem.buffers[i];
      begin_ = std::min(begin_, b.lower);
      end_ = std::max(end_, b.upper);
      peak_ = std::max(peak_, offsets[i] + b.size);
    }
    columns_ = static_cast<std::size_t>(width_ / kCell) + 1;
    rows_ = static_cast<std::size_t>(height_ / kCell) + 1;
    filled_.assign(columns_ * rows_, 0.0F);
  }

  void draw() {
    out_ << std::fixed << std::setprecision(1);
    out_ << "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" << width_ + 2 * kMargin << "\" height=\""
         << height_ + 2 * kMargin << "\" font-family=\"sans-serif\" font-size=\"13\">\n"
         << "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<g transform=\"translate(" << kMargin << ','
         << kMargin << ")\">\n<rect width=\"" << width_ << "\" height=\"" << height_
         << "\" fill=\"#f4f4f4\" stroke=\"black\"/>\n";
    std::ostringstream large;
    large << std::fixed << std::setprecision(1);
    for (std::size_t i = 0; i < offsets_.size(); ++i) box(i, large);
    grid();
    out_ << "<g stroke=\"black\" stroke-width=\"0.3\">\n" << large.str() << "</g>\n</g>\n";
    const std::string title =
        options_.title.empty() ? std::to_string(offsets_.size()) + " buffers, peak " + std::to_string(peak_) + " bytes"
                               : options_.title;
    text(kMargin, kMargin - 20, title, "start");
    text(kMargin, height_ + kMargin + 20, "time " + std::to_string(begin_), "start");
    text(width_ + kMargin, height_ + kMargin + 20, std::to_string(end_), "end");
    text(kMargin - 6, height_ + kMargin, "0", "end");
    text(kMargin, kMargin - 4, std::to_string(peak_) + " bytes", "start");
    out_ << "</svg>\n";
  }

 private:
  double x(std::int64_t time) const {
    return static_cast<double>(time - begin_) / static_cast<double>(std::max<std::int64_t>(1, end_ - begin_)) * width_;
  }
  double y(std::int64_t offset) const {  // up from the bottom
    return height_ - static_cast<double>(offset) / static_cast<double>(std::max<std::int64_t>(1, peak_)) * height_;
  }

  void box(std::size_t i, std::ostream& large) {
    const PlanBuffer& b = problem_.buffers[i];
    const std::int64_t o = offsets_[i];
    const double left = x(b.lower);
    const double right = x(b.upper);
    const double top = y(o + b.size);
    const double bottom = y(o);
    if (right - left < kSmallest || bottom - top < kSmallest) {
      shade(left, top, right, bottom);
      return;
    }
    large << "<rect x=\"" << left << "\" y=\"" << top << "\" width=\"" << right - left << "\" height=\"" << bottom - top
          << "\" fill=\"" << colour(i) << "\"><title>"
          << escaped(problem_.ids.empty() ? std::to_string(i) : problem_.ids[i]) << ": " << b.size << " bytes at " << o
          << ", time " << b.lower << " to " << b.upper << "</title></rect>\n";
    for (const PlanGap& g : b.gaps) {
      const double gap_top = y(o + g.window_upper);
      large << "<rect x=\"" << x(g.lower) << "\" y=\"" << gap_top << "\" width=\"" << x(g.upper) - x(g.lower)
            << "\" height=\"" << y(o + g.window_lower) - gap_top
            << "\" fill=\"white\" fill-opacity=\"0.7\" stroke-dasharray=\"2\"/>\n";
    }
  }

  // Adds the area of a small box to the cells it touches.
  void shade(double left, double top, double right, double bottom) {
    const auto cell = [](double v, std::size_t count) {
      return std::min(count - 1, static_cast<std::size_t>(std::max(0.0, v / kCell)));
    };
    for (std::size_t row = cell(top, rows_); row <= cell(bottom, rows_); ++row) {
      const double up = std::max(top, static_cast<double>(row * kCell));
      const double down = std::min(bottom, static_cast<double>((row + 1) * kCell));
      for (std::size_t column = cell(left, columns_); column <= cell(right, columns_); ++column) {
        const double from = std::max(left, static_cast<double>(column * kCell));
        const double to = std::min(right, static_cast<double>((column + 1) * kCell));
        if (to > from && down > up) {
          filled_[row * columns_ + column] += static_cast<float>((to - from) * (down - up) / (kCell * kCell));
        }
      }
    }
  }

  std::size_t level(std::size_t row, std::size_t column) const {
    const double part = std::min(1.0, static_cast<double>(filled_[row * columns_ + column]));
    const auto shade = static_cast<std::size_t>(std::lround(part * static_cast<double>(kShades)));
    return shade == 0 && part > 0.01 ? 1 : shade;  // even a little is seen
  }

  // One rectangle for each run of cells of the same shade.
  void grid() {
    for (std::size_t row = 0; row < rows_; ++row) {
      for (std::size_t from = 0; from < columns_;) {
        const std::size_t shade = level(row, from);
        std::size_t to = from + 1;
        while (to < columns_ && level(row, to) == shade) ++to;
        if (shade > 0) {
          out_ << "<rect x=\"" << from * kCell << "\" y=\"" << row * kCell << "\" width=\"" << (to - from) * kCell
               << "\" height=\"" << kCell << "\" fill=\"#46a\" fill-opacity=\""
               << static_cast<double>(shade) / static_cast<double>(kShades) << "\"/>\n";
        }
        from = to;
      }
    }
  }

  void text(int at_x, int at_y, const std::string& what, const char* anchor) {
    out_ << "<text x=\"" << at_x << "\" y=\"" << at_y << "\" text-anchor=\"" << anchor << "\">" << escaped(what)
         << "</text>\n";
  }

  std::ostream& out_;
  const PlanProblem& problem_;
  const std::vector<std::int64_t>& offsets_;
  const PlanSvgOptions& options_;
  int width_ = 0;
  int height_ = 0;
  std::int64_t begin_ = 0;
  std::int64_t end_ = 0;
  std::int64_t peak_ = 0;
  std::size_t columns_ = 0;
  std::size_t rows_ = 0;
  std::vector<float> filled_;  // share of each cell that small boxes fill
};

}  // namespace

namespace {

void check_side(const char* name, int pixels) {
  if (pixels >= kLeastSide && pixels <= kMostSide) return;
  throw invalid_argument(std::string("write_plan_svg: ") + name + " must be from " + std::to_string(kLeastSide) +
                         " to " + std::to_string(kMostSide) + " pixels, got " + std::to_string(pixels));
}

void check(const PlanProblem& problem, const std::vector<std::int64_t>& offsets, const PlanSvgOptions& options) {
  check_side("width", options.width);
  check_side("height", options.height);
  if (const auto fault = validate_plan(problem, offsets)) throw invalid_argument("write_plan_svg: " + fault->text);
}

}  // namespace

void write_plan_svg(std::ostream& out, const PlanProblem& problem, const std::vector<std::int64_t>& offsets,
                    const PlanSvgOptions& options) {
  check(problem, offsets, options);
  Drawing(out, problem, offsets, options).draw();
}

void write_plan_svg(const std::string& path, const PlanProblem& problem, const std::vector<std::int64_t>& offsets,
                    const PlanSvgOptions& options) {
  check(problem, offsets, options);  // Before the file is touched.
  planner::write_file(path, [&](std::ostream& out) { Drawing(out, problem, offsets, options).draw(); });
}

}  // namespace cistern
