// Picture: one replayed trace reduced to what a page can show, whatever its length: curves of a fixed number of points,
// a raster of address space over time, the blocks large enough to be seen on it, sizes, and what was alive at the peak.
// Does not: write HTML. Called by the report and its tests. Plain values; no lock.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "trace/replay_program.hpp"

namespace cistern::report {

// Blocks are coloured by size. Bytes below which a block belongs to the class.
inline constexpr std::array<std::uint64_t, 5> kClassEnds = {
    std::uint64_t{64} << 10, std::uint64_t{1} << 20, std::uint64_t{16} << 20, std::uint64_t{128} << 20, UINT64_MAX};
unsigned size_class(std::uint64_t bytes);

struct PictureSize {
  std::uint32_t points = 700;   // Of the curves.
  std::uint32_t columns = 900;  // Of the raster.
  std::uint32_t rows = 400;
  std::uint32_t blocks = 1500;  // Outlined at most.
};

struct Curve {
  std::vector<double> x;
  std::vector<std::uint64_t> live, reserved, cached;  // The most within each step of x.
};

// A stretch of address space that was used, and its rows. Stretches never used are cut out.
struct Region {
  std::uint64_t start = 0;
  std::uint64_t bytes = 0;
  std::uint32_t first_row = 0;
  std::uint32_t rows = 0;
};

// In raster units; row 0 is the lowest address.
struct Outline {
  float left = 0, right = 0, bottom = 0, top = 0;
  double born = 0, died = 0;  // On the x axis.
  std::uint64_t bytes = 0, id = 0, stream = 0;
};

struct SizeBar {
  std::uint64_t from = 0;  // A power of two (or 0); the bar holds [from, 2 * from).
  std::uint64_t count = 0;
  std::uint64_t peak_bytes = 0;  // Of blocks alive at the peak.
};

// Blocks of one size that were alive at the peak.
struct PeakGroup {
  std::uint64_t bytes = 0;
  std::uint64_t count = 0;
  std::uint64_t first_id = 0;
  double oldest = 0;  // On the x axis.
};

struct Picture {
  std::string name;
  bool by_time = true;  // x is milliseconds; otherwise the number of the event (the trace has no useful times).
  double end = 0;       // Of the x axis.
  double peak_x = 0;
  std::uint64_t events = 0, blocks = 0, largest = 0, streams = 0, peak_live = 0, peak_reserved = 0;
  Curve curve;
  std::uint32_t columns = 0, rows = 0;
  std::vector<std::uint8_t> raster;  // Row by row: 0, or class + 1 in the upper three bits and occupancy 1-31 below.
  std::vector<Region> regions;
  std::vector<Outline> outlines;
  std::vector<SizeBar> sizes;
  std::vector<PeakGroup> peak;  // By bytes of the group, largest first.
};

Picture make_picture(const trace::Program& program, const trace::Curves& curves, const PictureSize& size = {});

}  // namespace cistern::report
