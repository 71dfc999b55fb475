// ArenaPlan: a plan in service. It owns the slab and a slot for each step, knows which bytes are still in use, and lives
// on after the arena let go of it until the last handle into the slab is dropped.
//
// What keeps a live buffer's bytes from being handed out: every live slot is either on the list of held ones, which is
// looked through at each request while it is not empty, or no step passed since it was served lies in its bytes. In the
// second case it is among the `earlier` slots of the first step that does, and that step looks. A step that is passed
// without being served (skip) looks as well. At the end of a cycle all live slots are put on the list.
//
// Locking: none; one thread at a time, except retire() and record_use(), which any thread may call.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cistern/planned_arena.hpp"
#include "pool/planned_arena_recorder.hpp"

namespace cistern::pooling {

class ArenaPlan final : public detail::SlotOwner {
 public:
  // `offsets` of `steps`, and `peak`, in units of `alignment` bytes. Throws out_of_memory and std::bad_alloc.
  ArenaPlan(Allocator& allocator, const Stream& stream, std::uint64_t arena_id, const Recording& recording,
            const std::vector<std::uint32_t>& steps, const std::vector<std::int64_t>& offsets, std::int64_t peak,
            std::size_t alignment);

  std::uint32_t size() const noexcept { return static_cast<std::uint32_t>(infos_.size()); }
  std::size_t slab_bytes() const noexcept { return slab_bytes_; }
  detail::ArenaStep* step(std::uint32_t index) noexcept { return &steps_[index]; }
  std::uint32_t index_of(const detail::ArenaStep* step) const noexcept {
    return static_cast<std::uint32_t>(step - steps_.data());
  }
  bool owns(const detail::ArenaStep* step) const noexcept { return step >= steps_.data() && step <= &steps_.back(); }

  bool pool_only(std::uint32_t index) const noexcept { return infos_[index].pool_only; }
  bool matches(std::uint32_t index, std::size_t bytes) const noexcept {
    return index < infos_.size() && bytes >= infos_[index].least && bytes <= infos_[index].most;
  }
  // Whether the first `count` steps of both could be those of one cycle.
  bool same_prefix(const ArenaPlan& other, std::uint32_t count) const noexcept;

  // Whether nobody uses the bytes of the step. What is found in use is held from now on.
  bool is_free(std::uint32_t index);
  void skip(std::uint32_t index) { (void)earlier_are_free(index); }
  // The cycle ends; steps from `first` to `passed` were passed in order.
  void finish(std::uint32_t first, std::uint32_t passed);
  bool holds() const noexcept { return !held_.empty(); }
  std::size_t held_count() const noexcept { return held_.size(); }
  // Marks the steps whose buffers were used on other streams.
  void note_pool_only(Recording& recording) const;

  // The arena is done with this: the slab is freed when the last handle goes, then this.
  void close() noexcept;

  void check(std::vector<std::string>& broken) const;

  void retire(detail::Slot& slot) noexcept override;
  void record_use(detail::Slot& slot, const Stream& stream) override;

 private:
  struct Info {
    std::size_t least = 0;
    std::size_t most = 0;
    std::size_t upper = 0;  // End of its bytes in the slab.
    bool pool_only = false;
    bool held = false;
  };

  ~ArenaPlan() = default;

  void take_slots_for_steps();
  void find_earlier();
  bool earlier_are_free(std::uint32_t index);
  void hold(std::uint32_t index);
  void give_slots_back() noexcept;
  void free_slab() noexcept;
  void let_go() noexcept;

  Allocator& allocator_;
  const Stream stream_;
  Buffer slab_;
  std::size_t slab_bytes_ = 0;
  std::vector<detail::ArenaStep> steps_;  // And one that no request matches.
  std::vector<Info> infos_;
  std::vector<detail::Slot*> earlier_;  // Of all steps, one after the other.
  std::vector<std::uint32_t> last_;     // Steps that lie on top at the end of a whole cycle.
  std::vector<std::uint32_t> held_;     // Steps whose buffers outlived their plan or cycle. Has room for all.
  std::atomic<std::size_t> remaining_{0};  // After close(): slots with handles, and 1 for close() itself.
};

}  // namespace cistern::pooling
