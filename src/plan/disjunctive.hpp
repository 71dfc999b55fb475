// Exact search for strips with gaps: decides, pair by pair of boxes that collide, which lies higher (or in which window
// of the other it lies), and lets difference constraints push the boxes up. Handles everything a strip can hold, but
// infers little: for small strips. Internal to src/plan. One object a thread.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/control.hpp"
#include "plan/exact.hpp"
#include "plan/strip.hpp"

namespace cistern::planner {

class DisjunctiveSearch {
 public:
  explicit DisjunctiveSearch(const Strip& strip);
  static constexpr std::int32_t kMostBoxes = 1024;

  // As ExactSearch::run.
  Verdict run(Bytes capacity, std::uint64_t nodes, const Control& control, Cancel cancel = {});
  const std::vector<Bytes>& offsets() const { return low_; }  // after Verdict::fits
  std::uint64_t nodes() const { return nodes_; }

 private:
  struct Range {  // taken: offset(second) - offset(first) strictly between
    Bytes above = 0;
    Bytes below = 0;
  };
  struct Pair {
    std::int32_t first = 0;
    std::int32_t second = 0;
    std::uint32_t from = 0;  // its ranges, in ranges_
    std::uint32_t to = 0;
    Bytes least = INT64_MIN;  // decided so far: offset(second) - offset(first) >= least
    Bytes most = INT64_MAX;   // and <= most
  };
  struct Undo {
    enum class Kind : std::uint8_t { low, least, most } kind = Kind::low;
    std::int32_t index = 0;
    Bytes old = 0;
  };
  struct Frame {
    std::int32_t pair = 0;
    Bytes below = 0;  // the second branch: difference >= below
    bool second = false;
    std::uint32_t trail = 0;
  };
  bool raise(std::int32_t box, Bytes low);
  bool propagate();
  bool limit(std::int32_t pair, bool least, Bytes value);
  void undo(std::uint32_t mark);
  std::int32_t collision(Range& range) const;

  const Strip& strip_;
  Bytes capacity_ = 0;
  std::uint64_t nodes_ = 0;
  std::uint64_t pushes_ = 0;
  std::uint64_t most_pushes_ = 0;  // a cycle of differences may push by one unit a time: do not wait for its end
  std::vector<Range> ranges_;
  std::vector<Pair> pairs_;
  std::vector<std::uint32_t> of_start_;  // pairs of each box, in of_
  std::vector<std::int32_t> of_;
  std::vector<Bytes> low_;  // least offset of each box under the decisions so far
  std::vector<Bytes> high_;
  std::vector<std::int32_t> queue_;
  std::vector<char> queued_;
  std::vector<Undo> trail_;
  std::vector<Frame> frames_;
};

}  // namespace cistern::planner
