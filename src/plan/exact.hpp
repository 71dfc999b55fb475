// Exact search: does a strip fit in a capacity? Bottom-up, complete, iterative; see docs/planner.md for the inferences
// and why they are sound. Handles alignment and fixed offsets, not gaps. Internal to src/plan. One object a thread.
//
// State of a box (bound_ = no lower offset is possible, floor_ = highest end of a placed box that overlaps it in time):
//   placed                      offset is bound_
//   open, bound_ == floor_      may be placed at bound_
//   open, bound_ > floor_       hangs in the air: something not yet placed must come to lie under it
// Open boxes become placed or get a higher bound_; both are undone in reverse order from the trail.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "plan/control.hpp"
#include "plan/strip.hpp"

namespace cistern::planner {

enum class Verdict : std::uint8_t { fits, never_fits, unknown };

// Where the next decision is made. All are complete; each is fast where others are not.
enum class Branching : std::uint8_t {
  lowest_box,        // the open box of the lowest bound
  lowest_section,    // the section whose lowest open box is lowest; of several, the one with least room to spare
  tightest_section,  // the section with least room to spare; of several, the one whose lowest open box is lowest
  fewest_boxes       // the section in which the fewest boxes can be the lowest; of several, the one that is lowest
};

// Says whether the work of a task is still wanted: not if a task before it succeeded.
struct Cancel {
  const std::atomic<std::size_t>* winner = nullptr;
  std::size_t task = 0;
  bool operator()() const noexcept { return winner != nullptr && winner->load(std::memory_order_relaxed) < task; }
};

class ExactSearch {
 public:
  // pre: handles(strip).
  explicit ExactSearch(const Strip& strip);
  // No gaps, and small enough: a search takes boxes^2 / 8 bytes, and 8 bytes a box and section.
  static bool handles(const Strip& strip);
  // Whether the inferences for full sections (their boxes sum to the capacity) are drawn.
  static bool mostly_full(std::int64_t full, std::int32_t sections) { return full > sections / 2; }

  // Searches until decided, or `nodes` decisions were made, or `control` or `cancel` stop it. `ranks`: which of several
  // boxes that may lie lowest is tried first. Deterministic but for the stops.
  Verdict run(Bytes capacity, Branching branching, const std::vector<std::int32_t>& ranks, std::uint64_t nodes,
              const Control& control, Cancel cancel = {});
  const std::vector<Bytes>& offsets() const { return bound_; }  // after Verdict::fits
  std::uint64_t nodes() const { return nodes_; }                // decisions of the last run

 private:
  using Word = std::uint64_t;
  struct Undo {
    std::int32_t box = 0;  // ~box: floor_, else bound_
    Bytes old = 0;
  };
  // A run of sections whose open boxes share no section with open boxes elsewhere.
  struct Part {
    std::int32_t from = 0;  // sections
    std::int32_t to = 0;
    std::int32_t parent = -1;  // the decision that made it
    std::int32_t next = -1;    // the part to solve after it, an index into parts_
  };
  // A decision: box at its bound (placed), or box above its bound (refused).
  struct Frame {
    std::int32_t box = 0;
    bool refused = false;
    std::int32_t parent = -1;  // the decision before it in the same part or the one that made the part
    Part part;
    std::uint32_t parts = 0;  // size of parts_
    std::uint32_t trail = 0;  // size of trail_
    std::uint64_t key[2] = {0, 0};
  };
  struct Candidate {  // a box that may lie at the level, and which sections of the run it covers
    std::int32_t box = 0;
    std::int32_t from = 0;
    std::int32_t to = 0;
  };
  struct Failed {
    std::uint64_t key[2] = {0, 0};
  };

  bool start(Bytes capacity);
  bool raise(std::int32_t box, Bytes bound);
  void lift_floor(std::int32_t box, Bytes floor);
  bool place(std::int32_t box);
  void unplace(std::int32_t box);
  bool refuse(std::int32_t box);
  void undo(std::uint32_t mark);
  bool propagate();
  bool check_section(std::int32_t section);
  bool check_support(std::int32_t box, bool& raised);
  void find_full();
  void touch(std::int32_t box) {
    touched_from_ = std::min(touched_from_, strip_.first[static_cast<std::size_t>(box)]);
    touched_to_ = std::max(touched_to_, strip_.last[static_cast<std::size_t>(box)]);
  }
  void touch_nothing() {
    touched_from_ = m_;
    touched_to_ = 0;
  }
  bool check_full(bool& raised);
  bool check_level(std::int32_t from, std::int32_t to, bool& raised);
  bool check_edge(std::int32_t edge, bool& raised);
  std::int32_t choose(const Part& part, std::uint64_t key[2]) const;
  std::int32_t critical_section(const Part& part, Bytes least) const;
  std::int32_t lowest_in(std::int32_t section) const;
  bool before(std::int32_t x, std::int32_t y) const;
  void mark_if_tight(std::int32_t section, Bytes bound);
  Part split(std::int32_t box, const Part& part, std::int32_t frame);
  bool known_failure(const std::uint64_t key[2]) const;
  void note_failure(const std::uint64_t key[2]);

  bool open(std::int32_t i) const { return (open_[static_cast<std::size_t>(i) / 64] >> (i % 64) & 1) != 0; }
  template <class F>
  bool each_open_neighbour(std::int32_t box, F&& visit) const;

  const Strip& strip_;
  std::int32_t n_;
  std::int32_t m_;
  std::size_t words_;
  Bytes capacity_ = 0;
  std::uint64_t nodes_ = 0;
  std::uint64_t runs_ = 0;
  const std::vector<std::int32_t>* ranks_ = nullptr;
  Branching branching_ = Branching::lowest_box;

  // Fixed by the strip.
  std::vector<Word> neighbour_;              // bit matrix: boxes that overlap in time
  std::vector<std::int32_t> next_twin_;      // the next box with the same span, size and alignment; -1
  std::vector<std::int32_t> first_box_;      // of each section: the first box that begins there or later
  std::vector<std::uint32_t> member_start_;  // of each section, in member_
  std::vector<std::uint32_t> slot_start_;    // of each box, in slot_
  std::vector<std::int32_t> by_last_;        // boxes by the section they end before
  std::vector<std::int32_t> last_start_;     // of each section, in by_last_

  std::vector<Bytes> bound_;
  std::vector<Bytes> floor_;
  std::vector<Bytes> ceiling_;  // no higher offset is possible
  std::vector<Word> open_;
  std::vector<Word> hanging_;               // open boxes with bound_ > floor_
  std::vector<std::int32_t> support_;       // of a hanging box: one that may come to lie under it
  std::vector<std::int32_t> member_;        // boxes of each section, the open ones first
  std::vector<std::int32_t> members_open_;  // how many are open
  std::vector<std::uint32_t> slot_;         // where a box stands in member_ of each of its sections
  std::vector<Bytes> total_;                // size of the open boxes of each section
  std::vector<Bytes> highest_bound_;        // of each section: no open box of it has a higher bound
  std::vector<std::int32_t> crossing_;      // open boxes that live in a section and in the next
  std::vector<Word> dirty_;                 // sections to check: some box in it may be too high to be the lowest
  bool any_full_ = false;                   // enough sections are full for check_full to pay
  std::vector<char> full_;                  // of each section: its boxes sum to the capacity, nothing may be wasted
  std::int32_t touched_from_ = 0;           // sections in which something changed since check_full
  std::int32_t touched_to_ = 0;
  std::vector<char> from_left_;   // check_level: the boxes before this section can end here
  std::vector<char> to_right_;    // and those from here on can fill the rest
  std::vector<Bytes> least_end_;  // of each section
  std::vector<Candidate> candidates_;
  std::vector<Word> left_sums_;
  std::vector<Word> right_sums_;
  std::vector<Undo> trail_;
  std::vector<Frame> frames_;
  std::vector<Part> parts_;
  std::vector<Failed> failed_;
};

}  // namespace cistern::planner
