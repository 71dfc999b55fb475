// From the heap of pages to a driver: cells become addresses, pieces become physical handles or segments, tickets
// become events on every stream. One DriverBacking serves one range of addresses; DeviceWork is shared by those of a
// device. Does not: decide anything. What a driver fails to give back is kept here and tried again, so that a failure
// leaves no hole in the books. Locking: everything under the device's lock.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "allocator/kept_mappings.hpp"
#include "allocator/stream_table.hpp"
#include "core/backing.hpp"
#include "core/units.hpp"
#include "drivers/driver.hpp"

namespace cistern::allocation {

// Points in the work of all streams of a device, the order between two of them, and what the driver owes.
class DeviceWork {
 public:
  DeviceWork(drivers::Driver& driver, const StreamTable& streams) : driver_(driver), streams_(streams) {}
  ~DeviceWork();
  DeviceWork(const DeviceWork&) = delete;
  DeviceWork& operator=(const DeviceWork&) = delete;

  // Frees that came in since the last mark() need a new one.
  void new_frees() { current_ = core::Ticket::none; }
  core::Ticket mark();
  // A capture on the stream is about to begin: what was submitted before is marked now, since nothing can be recorded
  // on it until the capture has ended. Whether the same goes for the default stream. And the end; null for a stream
  // that was destroyed since.
  bool begin_capture(StreamEntry& entry);
  void end_capture(StreamEntry* entry, bool blocking);
  // Whether a capture was announced that forbids to submit to the stream.
  bool captured(void* native) const;
  // Whether some stream is being captured whose earlier work no mark covers: what leaves now would leave late.
  bool hidden();
  bool passed(core::Ticket ticket);
  // False when the driver failed, or a capture forbids it.
  bool wait(core::Ticket ticket);
  // The host waits for what was submitted to one stream.
  bool wait_for(void* native);
  // Work submitted to `later` from now on comes after what was submitted to `earlier`.
  bool order(void* earlier, void* later);
  // The same by numbers of streams.
  bool order(core::StreamIndex earlier, core::StreamIndex later) {
    return order(*natives_.at(core::raw(earlier)), *natives_.at(core::raw(later)));
  }
  // Of the stream with the next number; `native` may change and must outlive this.
  void add_stream(void* const& native) { natives_.push_back(&native); }
  // The host waits for what was submitted to all streams. False when the driver failed, or a stream is being captured
  // whose earlier work cannot be waited for.
  bool wait_for_all();
  // For work on streams that are not known, too. Ends a capture that was not announced; refused during one that was.
  bool wait_for_device();
  std::uint64_t host_waits() const { return host_waits_; }

  // False when the driver, or the host for the books, has no memory. All else needs none of the host's: what a driver
  // refuses to give back is kept and tried again. A mapping may outlast unmap(), see Mappings.
  bool create(std::size_t bytes, drivers::Physical& piece);
  bool map(drivers::Address at, std::size_t bytes, drivers::Physical piece);
  void unmap(drivers::Address at, std::size_t bytes);
  void destroy(drivers::Physical piece);
  void retry_leftovers();

  // Keeps what a driver says about a failure that is no lack of memory, for the error that the caller may throw.
  bool ok(drivers::Status status);
  // The same for a lack of memory or of something else, which makes the text of out_of_memory say more.
  void note_shortage(std::string text) { shortage_ = std::move(text); }
  void note_shortage() { note_shortage(driver_.error_text()); }
  void note_failure(std::string text) { failure_ = std::move(text); }
  // Before a request: what went wrong in an earlier one says nothing of it.
  void forget_errors() { shortage_.clear(), failure_.clear(); }
  std::string take_shortage() { return std::exchange(shortage_, {}); }
  std::string take_failure() { return std::exchange(failure_, {}); }

  // The segments of all heaps, by piece (devices without virtual memory). Null where there is no such piece.
  const drivers::Segment* segment_of(core::Piece piece) const {
    const auto found = segments_.find(static_cast<std::uint64_t>(piece));
    return found == segments_.end() ? nullptr : &found->second;
  }
  // False when the host has no memory for the record.
  bool add_segment(const drivers::Segment& segment, core::Piece& piece);
  void erase_segment(core::Piece piece) { segments_.erase(static_cast<std::uint64_t>(piece)); }

 private:
  struct Point {
    std::uint64_t ticket = 0;
    bool complete = true;  // Every stream has an event in it, or is in `late`.
    std::vector<drivers::Event> events;
    // Streams that were being captured: their events follow when the capture has ended. By slot and id.
    std::vector<std::pair<std::uint32_t, std::uint64_t>> late;
  };
  // Where pieces are committed by touching, two addresses would be memory of their own.
  bool keeps() const { return driver_.capabilities().double_mapping && !driver_.capabilities().commit_on_touch; }
  auto end_mapping() {
    return [this](drivers::Address at, std::size_t bytes) { return driver_.unmap(at, bytes) == drivers::Status::ok; };
  }
  bool destroy_now(drivers::Physical piece);
  void record(const StreamEntry& entry, Point& point);
  bool record_late(Point& point);
  bool wait_at(Point& point);
  void settle(std::uint64_t ticket);
  void all_passed();

  drivers::Driver& driver_;
  const StreamTable& streams_;
  std::vector<void* const*> natives_;  // By number.
  std::deque<Point> points_;           // Not yet known to have passed, oldest first.
  std::uint64_t last_ = 0;             // Tickets given out.
  std::uint64_t passed_ = 0;           // Tickets up to here have passed.
  std::uint64_t eventless_ = 0;  // The last ticket without events, for lack of host memory: only wait_for_all() helps.
  core::Ticket current_ = core::Ticket::none;
  std::uint64_t host_waits_ = 0;
  int announced_ = 0;  // Captures under way whose stream was named.
  Mappings mappings_;
  std::vector<drivers::Physical> undestroyed_;  // The driver refused to take these back, or to end their mappings.
  std::string failure_;
  std::string shortage_;
  std::map<std::uint64_t, drivers::Segment> segments_;
  std::uint64_t next_segment_ = 1;
};

class BlockObjects;

class DriverBacking final : public core::Backing {
 public:
  DriverBacking(drivers::Driver& driver, DeviceWork& work, BlockObjects& objects)
      : driver_(driver), work_(work), objects_(objects) {}

  // The range that cell 0 starts; not used without virtual memory.
  void set_base(drivers::Address base) { base_ = base; }
  drivers::Address base() const { return base_; }
  drivers::Address address_of(std::uint64_t offset) const {
    return shown_.empty() ? base_ + offset : address_in_segment(offset);
  }
  // The segment around an offset; null with virtual memory.
  const drivers::Segment* segment_of(std::uint64_t offset, std::uint64_t& offset_in_segment) const;
  // The segment behind a piece; null with virtual memory.
  const drivers::Segment* segment_of(core::Piece piece) const { return work_.segment_of(piece); }

  bool create(std::uint32_t cells, core::Piece& piece) override;
  void destroy(core::Piece piece, std::uint32_t cells) override;
  bool map(core::Cell at, core::Piece piece, std::uint32_t cells) override;
  void unmap(core::Cell at, core::Piece piece, std::uint32_t cells) override;
  core::Ticket mark() override { return work_.mark(); }
  bool passed(core::Ticket ticket) override { return work_.passed(ticket); }
  bool wait(core::Ticket ticket) override { return work_.wait(ticket); }
  bool order(core::StreamIndex earlier, core::StreamIndex later) override { return work_.order(earlier, later); }

 private:
  std::uint64_t bytes(std::uint64_t cells) const { return cells * driver_.capabilities().granularity; }
  drivers::Address address(core::Cell at) const { return base_ + bytes(core::raw(at)); }
  drivers::Address address_in_segment(std::uint64_t offset) const;
  bool destroy_now(core::Piece piece);

  drivers::Driver& driver_;
  DeviceWork& work_;
  BlockObjects& objects_;
  drivers::Address base_ = 0;
  std::map<std::uint32_t, core::Piece> shown_;  // Segments by their first cell.
  std::vector<core::Piece> undestroyed_;        // Segments that the driver refused to take back.
};

}  // namespace cistern::allocation
