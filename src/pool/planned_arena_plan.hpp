// ArenaPlan: a plan in service. It owns the slab and the slots of its steps, knows which bytes are still in use, and
// lives on after the arena let go of it until the last handle into the slab is dropped.
//
// Steps whose lives follow each other share a slot. A buffer is looked at once in a cycle: at a step after its planned
// death, and not later than the first that needs some of its bytes. That step takes its slot where it can, so that one
// look at a step's own slot is mostly all. Who uses a slot is the last of its steps passed in this cycle and served.
//
// What keeps a live buffer's bytes from being handed out: either the buffer is on the list of held ones, which is
// looked through at each request while it is not empty, or no step that needs its bytes has been passed since it was
// served. In the second case a step up to the first that does looks at its slot. A step that is passed without being
// served (skip) looks as well. At the end of a cycle all live buffers are put on the list.
//
// Locking: none; one thread at a time, except retire() and record_use(), which any thread may call.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cistern/planned_arena.hpp"
#include "pool/planned_arena_recorder.hpp"

namespace cistern::pooling {

// NOLINTNEXTLINE(cppcoreguidelines-virtual-class-destructor): nobody but itself ends it; see close().
class ArenaPlan final : public detail::SlotOwner {
 public:
  // `offsets` of `steps`, and `peak`, in units of `alignment` bytes. Throws out_of_memory and std::bad_alloc.
  ArenaPlan(Allocator& allocator, const Stream& stream, std::uint64_t arena_id, const Recording& recording,
            const std::vector<std::uint32_t>& steps, const std::vector<std::int64_t>& offsets, std::int64_t peak,
            std::size_t alignment);

  std::uint32_t size() const noexcept { return static_cast<std::uint32_t>(infos_.size()); }
  std::size_t slab_bytes() const noexcept { return slab_bytes_; }
  // The handle of a step as it was given out last; of step size(): one that no request agrees with.
  detail::HandleCell* cell(std::uint32_t index) noexcept { return &cells_[index]; }
  std::uint32_t index_of(const detail::HandleCell* cell) const noexcept {
    return static_cast<std::uint32_t>(cell - cells_.data());
  }
  bool owns(const detail::HandleCell* cell) const noexcept { return cell >= cells_.data() && cell <= &cells_.back(); }

  bool pool_only(std::uint32_t index) const noexcept { return infos_[index].pool_only; }
  bool matches(std::uint32_t index, std::size_t bytes) const noexcept {
    return index < infos_.size() && bytes >= infos_[index].least && bytes <= infos_[index].most;
  }
  // Whether the first `count` steps of both could be those of one cycle.
  bool same_prefix(const ArenaPlan& other, std::uint32_t count) const noexcept;

  // A cycle takes up the plan at this step.
  void begin(std::uint32_t first) noexcept { first_ = first; }
  // Whether nobody uses the bytes of the step, which is the next one. What is found in use is held from now on.
  bool is_free(std::uint32_t index);
  // The same without a change, for a step whose handle is written and while nothing is held.
  bool others_are_free(std::uint32_t index) const noexcept;
  // Serves the step. pre: is_free().
  PlannedBuffer serve(std::uint32_t index, std::size_t bytes, DType dtype, const Shape& shape) noexcept;
  // The same as last time. pre: others_are_free().
  PlannedBuffer serve_again(std::uint32_t index) noexcept {
    slot_of(index).primary.store(1, std::memory_order_relaxed);
    return detail::PlannedAccess::make(cells_[index].handle);
  }
  // The step is passed without being served. pre: it is the next one.
  void skip(std::uint32_t index);
  // The cycle ends before step `passed`.
  void finish(std::uint32_t passed);
  // A handle of the slot was released and others exist: it is watched until they are gone. pre: a slot of this.
  void hold_slot(const detail::Slot& slot, std::uint32_t passed);
  bool holds() const noexcept { return !held_.empty(); }
  std::size_t held_count() const noexcept { return held_.size(); }
  // Marks the steps whose buffers were used on other streams.
  void note_pool_only(Recording& recording) const;

  // The arena does not take its buffers back any more.
  void forget() noexcept { forgotten_ = true; }
  bool forgotten() const noexcept { return forgotten_; }
  // The arena is done with this: the slab is freed when the last handle goes, then this.
  void close() noexcept;

  // `passed`: of the cycle going on; 0 when it follows another plan.
  void check(std::uint32_t passed, std::vector<std::string>& broken) const;

  void retire(detail::Slot& slot) noexcept override;
  void record_use(detail::Slot& slot, const Stream& stream) override;

 private:
  static constexpr std::uint32_t kNone = UINT32_MAX;
  struct Info {
    std::size_t least = 0;
    std::size_t most = 0;
    std::size_t lower = 0;  // Its bytes in the slab.
    std::size_t upper = 0;
    std::size_t earlier_at = 0;  // In `earlier_`: slots of others that have to be looked at before it is served.
    std::uint32_t earlier_count = 0;
    std::uint32_t track = kNone;  // Of its slot.
    std::uint64_t missed_in = 0;  // Cycle in which it was passed and not served.
    bool pool_only = false;
    bool held = false;
  };
  // A slot, and the steps that use it one after the other.
  struct Track {
    detail::Slot* slot = nullptr;
    std::vector<std::uint32_t> steps;
  };

  ~ArenaPlan() = default;

  std::vector<std::uint32_t> first_reuses() const;
  std::vector<std::uint32_t> when_to_look(const Recording& recording, const std::vector<std::uint32_t>& due) const;
  void share_slots(const Recording& recording);
  std::vector<detail::Slot*> slots_by_address() const;
  void take_slots_for_tracks();
  std::uint32_t user_of(const Track& track, std::uint32_t passed) const noexcept;
  void hold(std::uint32_t index);
  void hold_earlier(std::uint32_t index);
  detail::Slot& slot_of(std::uint32_t index) const noexcept { return *tracks_[infos_[index].track].slot; }
  void give_slots_back() noexcept;
  void free_slab() noexcept;
  void let_go() noexcept;

  Allocator& allocator_;
  const Stream stream_;
  Buffer slab_;
  bool slab_kept_ = false;  // The allocator takes no other free of it.
  std::size_t slab_bytes_ = 0;
  bool forgotten_ = false;
  std::uint32_t first_ = 0;
  std::uint64_t cycle_ = 1;
  std::vector<detail::HandleCell> cells_;  // And one that no request agrees with.
  std::vector<Info> infos_;
  std::vector<Track> tracks_;
  std::vector<std::span<const detail::Slot>> runs_;  // Their slots: pieces of memory without gaps.
  std::vector<std::uint32_t> earlier_tracks_;        // Of all steps, one after the other.
  std::vector<detail::Slot*> earlier_;               // The slots of these.
  std::vector<std::uint32_t> held_;        // Steps whose buffers outlived their plan or cycle. Has room for all.
  std::atomic<std::size_t> remaining_{0};  // After close(): slots with handles, and 1 for close() itself.
};

}  // namespace cistern::pooling
