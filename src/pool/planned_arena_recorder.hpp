// Recorder: what a cycle of a loop asks for and how long it keeps it. Recording: the shape of a cycle, merged from the
// cycles alike that were seen, and turned into a planning problem.
//
// A dropped handle tells nobody, so the recorder looks at the live buffers' slots at every request: the time of a death
// is the first request that found it. That is as exact as a plan can use.
//
// Locking: none; one thread at a time. Slots are never unmapped, so looking at one is always safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cistern/plan.hpp"
#include "cistern/typed_buffer.hpp"

namespace cistern::pooling {

// One request of a cycle.
struct RecordedStep {
  std::size_t least = 0;  // Bytes asked for: the range seen, rounded up where it varies.
  std::size_t most = 0;
  std::uint32_t dead_at =
      0;                   // First request of the cycle that may have the bytes; the cycle's length: lives to its end.
  std::uint32_t wrap = 0;  // The same in the next cycle, for those that live to the end of theirs.
  bool pool_only = false;  // Lives longer than a cycle, or is used on other streams: cannot have planned bytes.
};
using Recording = std::vector<RecordedStep>;

// Same length, and at least half of the sizes agree.
bool alike(const Recording& a, const Recording& b) noexcept;
// `into` covers `cycle` too. pre: alike.
void merge(Recording& into, const Recording& cycle);

// Sizes and times in units of `alignment` bytes and requests. `steps` gets the step of each buffer.
PlanProblem problem_of(const Recording& recording, std::size_t alignment, std::vector<std::uint32_t>& steps);

class Recorder {
 public:
  // Begins a recording; the one before it is forgotten unless it was of the cycle just before.
  void begin_cycle(bool follows_recorded_cycle);
  // Before each request is served.
  void look();
  void add(std::size_t bytes, const detail::Slot* slot);
  // The slot's memory may be handed out again within the cycle (release to a pool).
  void released(const detail::Slot* slot);
  // Ends the recording. cycle() is what was recorded; previous() is the cycle before it, now with its wraps known.
  void end_cycle();

  Recording& cycle() noexcept { return cycle_; }
  Recording& previous() noexcept { return previous_; }

 private:
  struct Watched {
    const detail::Slot* slot = nullptr;
    std::uint32_t step = 0;
  };

  Recording cycle_;
  Recording previous_;
  std::vector<Watched> live_;   // Of this cycle.
  std::vector<Watched> older_;  // Of the one before.
};

}  // namespace cistern::pooling
