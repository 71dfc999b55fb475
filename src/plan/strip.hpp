// The geometry the planner works on: a strip of time, cut into sections, in which boxes of given span and height must
// be stacked without overlap. Built from a problem by compression of time and division by the greatest common unit; the
// searches know nothing else. Internal to src/plan. Plain data: no locking, one writer.
#pragma once

#include <cstdint>
#include <vector>

#include "cistern/plan.hpp"

namespace cistern::planner {

using Bytes = std::int64_t;  // in units (see Strip::unit), except where said otherwise

constexpr Bytes kNoBytes = -1;

constexpr Bytes align_up(Bytes v, Bytes alignment) {
  return alignment == 1 ? v : (v + alignment - 1) / alignment * alignment;
}

// A part of a box with gaps: during the sections [first, last) it uses [lower, upper) above its offset.
struct Piece {
  std::int32_t first = 0;
  std::int32_t last = 0;
  Bytes lower = 0;
  Bytes upper = 0;
};

// Boxes are ordered by first section, then by last: the boxes of a range of sections that no other box crosses are a
// range of indices.
struct Strip {
  std::int32_t sections = 0;
  std::vector<std::int32_t> first;  // the box lives in sections [first, last)
  std::vector<std::int32_t> last;
  std::vector<Bytes> size;
  std::vector<Bytes> alignment;
  std::vector<Bytes> fixed;          // kNoBytes: free
  std::vector<Bytes> hint;           // kNoBytes: none
  std::vector<std::int64_t> width;   // length of life in the problem's time, for priorities
  std::vector<std::int32_t> source;  // index of the buffer in the problem
  std::vector<std::uint32_t>
      piece_start;  // empty: no box has gaps. Else pieces of box i: [piece_start[i], piece_start[i + 1])
  std::vector<Piece> pieces;
  bool any_alignment = false;
  bool any_fixed = false;
  bool any_hint = false;
  bool any_gap = false;

  std::int32_t boxes() const { return static_cast<std::int32_t>(size.size()); }
  Bytes end(std::int32_t i, Bytes offset) const { return offset + size[static_cast<std::size_t>(i)]; }
};

// A problem in parts that share no time, each compressed, all in the same unit.
struct Decomposition {
  Bytes unit = 1;  // bytes: divides every size, window and fixed offset; alignments are multiples of it or divide it
  std::vector<Strip> parts;
  std::vector<std::int32_t> singles;  // buffers that overlap no other in time
};

// pre: check_problem(problem) found no fault.
Decomposition decompose(const PlanProblem& problem);

// The sections [from, to) of `strip` with the boxes listed in `boxes` (increasing; all live in that time), cut to it.
// Box boxes[k] is fixed at offsets[boxes[k]] unless free[k]. `source` are indices into `strip`. pre: !strip.any_gap.
Strip window_of(const Strip& strip, std::int32_t from, std::int32_t to, const std::vector<std::int32_t>& boxes,
                const std::vector<char>& free, const std::vector<Bytes>& offsets);

// The strip with time running backwards and without its gaps; `source` are indices into `strip`.
Strip mirrored(const Strip& strip);

// Bytes in use in each section.
std::vector<Bytes> section_totals(const Strip& strip);

// No plan of the strip has a lower peak. See docs/planner.md.
Bytes lower_bound(const Strip& strip);

// Highest end.
Bytes peak_of(const Strip& strip, const std::vector<Bytes>& offsets);

}  // namespace cistern::planner
