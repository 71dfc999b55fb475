// StreamUses: which other streams used a block, and therefore must be waited for (in the stream, never on the host)
// before its memory serves again. A free block with uses is "pending" until the device's lock holder has ordered them.
//
//   live, no uses  --record_use-->  live, used  --free-->  pending  --ordered under the lock-->  free
//
// Knows streams as numbers; records no event and makes no call. Locking: one leaf lock inside; empty() needs none.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "core/units.hpp"

namespace cistern::core {

struct Block;

class StreamUses {
 public:
  StreamUses() = default;
  StreamUses(const StreamUses&) = delete;
  StreamUses& operator=(const StreamUses&) = delete;

  // May throw std::bad_alloc; nothing has changed then.
  void add(const Block* block, std::uint32_t stream);
  bool contains(const Block* block) const { return !empty() && has(block); }
  // Takes the streams of a block out of the table; empty when it has none. And undoes that, without the host's memory.
  using Taken = std::unordered_map<const Block*, std::vector<std::uint32_t>>::node_type;
  Taken take(const Block* block);
  void put_back(Taken taken);
  // A stream is gone and `heir` comes after all its work.
  void replace_stream(std::uint32_t gone, std::uint32_t heir);
  bool empty() const { return count_.load(std::memory_order_acquire) == 0; }
  std::size_t size() const { return count_.load(std::memory_order_acquire); }

  std::mutex& mutex() { return mutex_; }

 private:
  bool has(const Block* block) const;

  std::atomic<std::size_t> count_{0};
  mutable std::mutex mutex_;
  std::unordered_map<const Block*, std::vector<std::uint32_t>> uses_;
};

// Bytes of a heap's range; all of it by default.
struct Stretch {
  std::uint64_t begin = 0;
  std::uint64_t end = UINT64_MAX;
};

// In whose order free memory is: the streams that freed parts of it, when each did so last, on the ledger's clock, and
// between which addresses these parts lie, so that who takes another part need not wait for them.
class Freed {
 public:
  Freed() = default;
  Freed(StreamIndex stream, std::uint64_t when, Stretch where)
      : parts_{Part{pack(raw(stream), when), unit_of(where.begin), unit_after(where.end)}} {}

  // Both stretches become one.
  void join(const Freed& other) {
    const Part& first = other.parts_[0];
    if (first.mark == 0) return;
    if (other.parts_[1].mark == 0 && stream_of(parts_[0].mark) == stream_of(first.mark)) {
      parts_[0].join(first);  // The usual case: the same stream.
      return;
    }
    for (const Part& part : other.parts_) {
      if (part.mark != 0) add(part);
    }
  }
  // The memory ends at these bounds from now on.
  void clip(Stretch bounds);
  // The memory is shown at another place, all of it.
  void move_to(Stretch place);
  // For checks: whether the parts lie within these bounds. Not those of number 0, which are not clipped while it is
  // alone, and those that stand for all.
  bool within(Stretch bounds) const;

 private:
  friend class OrderLedger;
  // More streams than this, which is rare, become one that stands for all.
  static constexpr std::size_t kMost = 3;
  static constexpr std::uint64_t kAll = UINT16_MAX;
  static constexpr unsigned kClockBits = 48;
  static constexpr unsigned kUnitBits = 16;  // Extents are in 64 KiB, rounded to more.

  struct Part {
    std::uint64_t mark = 0;  // Stream and clock; 0 is none, since the clock starts at 1.
    std::uint32_t first = UINT32_MAX, last = 0;

    void join(const Part& other) {
      mark = std::max(mark, other.mark);
      first = std::min(first, other.first);
      last = std::max(last, other.last);
    }
  };

  static constexpr std::uint64_t pack(std::uint64_t stream, std::uint64_t when) { return stream << kClockBits | when; }
  static constexpr std::uint64_t stream_of(std::uint64_t mark) { return mark >> kClockBits; }
  static constexpr std::uint64_t when_of(std::uint64_t mark) { return mark & ((std::uint64_t{1} << kClockBits) - 1); }
  static constexpr std::uint32_t unit_of(std::uint64_t offset) {
    return static_cast<std::uint32_t>(std::min<std::uint64_t>(offset >> kUnitBits, UINT32_MAX - 1));
  }
  static constexpr std::uint32_t unit_after(std::uint64_t end) { return unit_of(end - 1) + 1; }
  void add(const Part& part);

  std::array<Part, kMost> parts_{};  // Used ones first.
};

// Knows how far each stream of a device has waited for each other one: a vector clock a stream, over one clock that
// counts frees. Who takes memory that others freed waits for them once, whatever it takes afterwards that was freed
// before. Under the device's lock.
class OrderLedger {
 public:
  // The stream may free memory from now on. May throw std::bad_alloc.
  void know(StreamIndex stream) {
    if (raw(stream) >= streams_.size()) streams_.resize(raw(stream) + std::size_t{1});
  }
  // Memory was freed in the stream's order. pre: the stream is known.
  Freed free(StreamIndex stream, Stretch where) noexcept {
    Stream& freeing = streams_[raw(stream)];
    if (!freeing.frees) freeing.frees = true, ++sharing_;
    freeing.freed = ++clock_;
    return {stream, clock_, where};
  }
  // Whether more than one stream has freed memory since its number came to mean it.
  bool shared() const { return sharing_ > 1; }
  // Whether streams other than number 0 are known.
  bool several() const { return streams_.size() > 1; }
  // Whether the stream may use the memory, as far as it lies in the stretch, without waiting for another one.
  bool ready(StreamIndex stream, const Freed& freed, Stretch where = {}) const {
    const std::uint64_t first = freed.parts_[0].mark;
    const bool own = first == 0 || (Freed::stream_of(first) == raw(stream) && freed.parts_[1].mark == 0);
    return own || !any_ahead(stream, freed, where);
  }
  // Calls wait(other) for each stream that `stream` must wait for; false as soon as one of these calls says so. What
  // has been waited for is remembered. May throw std::bad_alloc; then nothing is.
  template <class Wait>
  bool order(StreamIndex stream, const Freed& freed, Stretch where, Wait wait) {
    know(stream);
    for (const Freed::Part& part : freed.parts_) {
      if (part.mark == 0) break;
      if (!touches(part, where)) continue;
      const bool all = Freed::stream_of(part.mark) == Freed::kAll;
      const std::uint64_t from = all ? 0 : Freed::stream_of(part.mark), to = all ? streams_.size() : from + 1;
      for (std::uint64_t other = from; other < to; ++other) {
        if (!ahead(stream, other, Freed::when_of(part.mark))) continue;
        streams_[raw(stream)].seen.resize(streams_.size());
        if (!wait(static_cast<StreamIndex>(other))) return false;
        come_after(stream, static_cast<StreamIndex>(other));
      }
    }
    return true;
  }
  // `stream` comes after all that `other` was given so far, and after what that one came after.
  void come_after(StreamIndex stream, StreamIndex other);
  // The number means another stream from now on, which has waited for none.
  void forget(StreamIndex stream);
  // The host has waited for all that streams were given so far.
  void all_done() { done_ = clock_; }

 private:
  struct Stream {
    std::uint64_t freed = 0;          // The clock when it freed last, or the stream that had its number before.
    bool frees = false;               // Since it has the number.
    std::vector<std::uint64_t> seen;  // By other stream: the clock when this one waited for it last.
  };

  // Whether the other stream may have used memory, at that time, that this one has not waited for.
  bool ahead(StreamIndex stream, std::uint64_t other, std::uint64_t when) const {
    if (other == raw(stream)) return false;
    when = std::min(when, streams_[other].freed);
    if (when <= done_) return false;
    if (raw(stream) >= streams_.size() || other >= streams_[raw(stream)].seen.size()) return true;
    return streams_[raw(stream)].seen[other] < when;
  }
  bool any_ahead(StreamIndex stream, const Freed& freed, Stretch where) const;
  static bool touches(const Freed::Part& part, Stretch where) {
    return part.first < Freed::unit_after(where.end) && Freed::unit_of(where.begin) < part.last;
  }

  std::uint64_t clock_ = 0;
  std::uint64_t done_ = 0;
  std::size_t sharing_ = 0;  // Streams that free.
  std::vector<Stream> streams_;
};

}  // namespace cistern::core
