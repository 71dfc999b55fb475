// First fit: places boxes one by one, each at the lowest offset that those placed before leave free. Handles everything
// a strip can hold: gaps, alignment, fixed offsets. With bump-the-offender: the box that ends too high moves forward in
// the order, again and again. Internal to src/plan. One object a thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "plan/control.hpp"
#include "plan/orders.hpp"
#include "plan/strip.hpp"

namespace cistern::planner {

class FirstFit {
 public:
  explicit FirstFit(const Strip& strip);

  // Places all boxes, fixed ones first, the others in `order`. Always a valid plan; if `control` stops in the middle,
  // what is left goes on top of everything. Returns the peak.
  Bytes decode(const std::vector<std::int32_t>& order, const Control& control);
  const std::vector<Bytes>& offsets() const { return offsets_; }

  // Starts from `order`; moves the box that ends highest forward in the order until the peak is at most `target`, or
  // `steps` placements were made. Returns the best peak; `best` gets its offsets. `steps` becomes the placements made.
  Bytes bump(std::vector<std::int32_t> order, Bytes target, std::uint64_t& steps, Random& random,
             const Control& control, std::vector<Bytes>& best);

 private:
  struct Blocked {  // offsets strictly between are taken
    Bytes above = 0;
    Bytes below = 0;
  };
  void block(std::int32_t box, std::int32_t other);
  Bytes lowest_free(std::int32_t box);
  void set_placed(std::int32_t box, bool placed);
  void reset();

  const Strip& strip_;
  std::vector<Bytes> offsets_;
  std::vector<char> placed_;
  // Boxes that overlap in time, if few enough to be listed.
  bool listed_ = false;
  std::vector<std::uint32_t> list_start_;
  std::vector<std::int32_t> list_;
  // Otherwise a tree over box indices: the highest `last` of a placed box, 0 if none. Leaves begin at leaves_.
  std::size_t leaves_ = 1;
  std::vector<std::int32_t> tree_;
  std::vector<std::size_t> stack_;
  std::vector<Blocked> blocked_;
};

}  // namespace cistern::planner
