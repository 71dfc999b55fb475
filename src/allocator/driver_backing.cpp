// Cells, pieces and tickets over a driver.
#include "allocator/driver_backing.hpp"

#include <algorithm>
#include <exception>
#include <new>

#include "allocator/block_objects.hpp"

namespace cistern::allocation {

using core::Cell;
using core::Piece;
using core::Ticket;
using drivers::Event;
using drivers::Status;

bool DeviceWork::ok(Status status) {
  if (status == Status::failed) failure_ = driver_.error_text();
  if (status == Status::out_of_memory) note_shortage();
  return status == Status::ok;
}

bool DeviceWork::destroy_now(drivers::Physical piece) {
  if (!mappings_.end_all_of(piece, end_mapping()) || driver_.destroy(piece) != Status::ok) return false;
  mappings_.remove_piece(piece);
  return true;
}

void DeviceWork::retry_leftovers() {
  std::erase_if(undestroyed_, [&](drivers::Physical piece) { return destroy_now(piece); });
}

bool DeviceWork::create(std::size_t bytes, drivers::Physical& piece) {
  // So that destroy() cannot fail.
  const std::size_t pieces = mappings_.pieces();
  try {
    if (undestroyed_.capacity() <= pieces) undestroyed_.reserve(2 * pieces + 16);
  } catch (const std::bad_alloc&) {
    return false;
  }
  if (!ok(driver_.create(bytes, piece))) return false;
  try {
    mappings_.add_piece(piece);
  } catch (const std::bad_alloc&) {
    driver_.destroy(piece);
    return false;
  }
  return true;
}

void DeviceWork::destroy(drivers::Physical piece) {
  if (!destroy_now(piece)) undestroyed_.push_back(piece);
}

bool DeviceWork::map(drivers::Address at, std::size_t bytes, drivers::Physical piece) {
  if (keeps() && mappings_.use_again(at, piece)) return true;
  if (!mappings_.end_overlapping(at, bytes, end_mapping())) return false;
  try {
    mappings_.add(at, bytes, piece);
  } catch (const std::bad_alloc&) {
    return false;
  }
  if (ok(driver_.map(at, piece, bytes))) return true;
  mappings_.remove(at);
  return false;
}

void DeviceWork::unmap(drivers::Address at, std::size_t bytes) {
  mappings_.put_aside(at);
  if (!keeps()) mappings_.end_overlapping(at, bytes, end_mapping());
}

bool DeviceWork::add_segment(const drivers::Segment& segment, Piece& piece) {
  try {
    segments_.emplace(next_segment_, segment);
  } catch (const std::bad_alloc&) {
    return false;
  }
  piece = static_cast<Piece>(next_segment_++);
  return true;
}

DeviceWork::~DeviceWork() {
  for (const Point& point : points_) {
    for (const Event event : point.events) driver_.release(event);
  }
}

Ticket DeviceWork::mark() {
  if (!driver_.capabilities().asynchronous) return Ticket::none;
  // No memory was freed since the last mark, so nothing that it covers can have got new work.
  if (current_ != Ticket::none) return current_;
  Point point;
  point.ticket = last_ + 1;
  try {
    streams_.for_each_live([&](const StreamEntry& entry) { record(entry, point); });
    points_.push_back(point);
  } catch (const std::exception&) {
    for (const Event event : point.events) driver_.release(event);
    if (wait_for_all()) return Ticket::none;
    return static_cast<Ticket>(eventless_ = ++last_);
  }
  ++last_;
  return current_ = static_cast<Ticket>(point.ticket);
}

// Nothing is recorded on a stream that is being captured: a later event covers what was submitted before as well. One
// whose capture was announced is not even asked, since that might begin at this moment.
void DeviceWork::record(const StreamEntry& entry, Point& point) {
  if (entry.captured != 0) return;
  point.events.push_back(Event::none);
  const Status status = driver_.record(entry.native, point.events.back());
  if (status == Status::ok) return;
  point.events.pop_back();
  if (status == Status::capturing) {
    point.late.emplace_back(entry.slot, entry.id.load(std::memory_order_relaxed));
  } else {
    point.complete = false;
  }
}

// False while one of the streams is still being captured.
bool DeviceWork::record_late(Point& point) {
  try {
    const auto late = std::exchange(point.late, {});
    for (const auto& [slot, id] : late) {
      const StreamEntry* entry = streams_.at(slot);
      // A stream that was destroyed since: the default stream came after its work.
      if (entry->id.load(std::memory_order_relaxed) != id) entry = streams_.at(0);
      if (entry->captured != 0) {
        point.late.emplace_back(slot, id);
      } else {
        record(*entry, point);
      }
    }
  } catch (const std::exception&) {
    point.complete = false;
  }
  return point.late.empty();
}

bool DeviceWork::begin_capture(StreamEntry& entry) {
  new_frees();
  mark();
  ++announced_;
  ++entry.captured;
  const bool blocking = entry.slot != 0 && driver_.blocking(entry.native);
  if (blocking) ++streams_.at(0)->captured;
  return blocking;
}

void DeviceWork::end_capture(StreamEntry* entry, bool blocking) {
  new_frees();
  --announced_;
  if (entry != nullptr) --entry->captured;
  if (blocking) --streams_.at(0)->captured;
}

bool DeviceWork::captured(void* native) const {
  if (announced_ == 0) return false;
  bool found = false;
  streams_.for_each_live(
      [&](const StreamEntry& entry) { found = found || (entry.captured != 0 && entry.native == native); });
  return found;
}

bool DeviceWork::hidden() {
  mark();
  return !points_.empty() && !points_.back().late.empty();
}

void DeviceWork::settle(std::uint64_t ticket) {
  while (!points_.empty() && points_.front().ticket <= ticket) {
    for (const Event event : points_.front().events) driver_.release(event);
    points_.pop_front();
  }
  passed_ = std::max(passed_, ticket);
}

bool DeviceWork::passed(Ticket ticket) {
  const auto wanted = static_cast<std::uint64_t>(ticket);
  // A later ticket that has passed covers the earlier ones; the oldest first, since most often it has not.
  while (passed_ < wanted && !points_.empty()) {
    Point& point = points_.front();
    // One without events may be the last that covers a stream which is captured since.
    if (passed_ < eventless_ && eventless_ < point.ticket) return false;
    if (!point.late.empty() && !record_late(point)) return false;
    auto& events = point.events;
    while (!events.empty() && driver_.passed(events.back())) {
      driver_.release(events.back());
      events.pop_back();
    }
    if (!events.empty() || !point.complete) return false;
    settle(point.ticket);
  }
  return passed_ >= wanted;
}

// Whether all that the point covers is done now; not where a stream of it is still being captured.
bool DeviceWork::wait_at(Point& point) {
  bool done = point.late.empty() || record_late(point);
  for (const Event event : point.events) done = driver_.synchronize(event) == Status::ok && done;
  return done && point.complete;
}

bool DeviceWork::wait(Ticket ticket) {
  const auto wanted = static_cast<std::uint64_t>(ticket);
  if (passed(ticket)) return true;
  bool done = eventless_ <= passed_;  // There may be earlier ones than the last.
  for (Point& point : points_) {
    if (point.ticket > wanted) break;
    done = wait_at(point) && done;
  }
  if (!done) return wait_for_all();
  ++host_waits_;
  settle(wanted);
  return true;
}

bool DeviceWork::wait_for(void* native) {
  if (!driver_.capabilities().asynchronous) return true;
  Event event = Event::none;
  if (captured(native) || driver_.record(native, event) != Status::ok) return false;
  ++host_waits_;
  const bool done = driver_.synchronize(event) == Status::ok;
  driver_.release(event);
  return done;
}

// By events: a wait for the device as a whole ends any capture, also one that nobody announced.
bool DeviceWork::wait_for_all() {
  if (!driver_.capabilities().asynchronous) return true;
  if (announced_ != 0) return false;
  Point now;
  bool done = eventless_ <= passed_;
  try {
    streams_.for_each_live([&](const StreamEntry& entry) { record(entry, now); });
  } catch (const std::exception&) {
    done = false;
  }
  bool captured = false;
  const auto wait_for_point = [&](Point& point) {
    done = wait_at(point) && done;
    captured = captured || !point.late.empty();
  };
  std::for_each(points_.begin(), points_.end(), wait_for_point);
  wait_for_point(now);
  for (const Event event : now.events) driver_.release(event);
  if (captured) return false;
  if (!done) return wait_for_device();
  all_passed();
  return true;
}

bool DeviceWork::wait_for_device() {
  if (!driver_.capabilities().asynchronous) return true;
  if (driver_.synchronize_device() != Status::ok) return false;
  all_passed();
  return true;
}

void DeviceWork::all_passed() {
  ++host_waits_;
  settle(last_);
  current_ = Ticket::none;
}

bool DeviceWork::order(void* earlier, void* later) {
  const bool same = earlier == later && !driver_.shared_handle(earlier);
  if (same || !driver_.capabilities().asynchronous) return true;
  return !captured(earlier) && !captured(later) && driver_.order(earlier, later) == Status::ok;
}

drivers::Address DriverBacking::address_in_segment(std::uint64_t offset) const {
  std::uint64_t inside = 0;
  const drivers::Segment* segment = segment_of(offset, inside);
  return segment != nullptr ? segment->base + inside : base_ + offset;
}

const drivers::Segment* DriverBacking::segment_of(std::uint64_t offset, std::uint64_t& offset_in_segment) const {
  if (shown_.empty()) return nullptr;
  const std::uint64_t granularity = driver_.capabilities().granularity;
  auto found = shown_.upper_bound(static_cast<std::uint32_t>(offset / granularity));
  if (found == shown_.begin()) return nullptr;
  --found;
  offset_in_segment = offset - bytes(found->first);
  return work_.segment_of(found->second);
}

bool DriverBacking::create(std::uint32_t cells, Piece& piece) {
  work_.retry_leftovers();
  std::erase_if(undestroyed_, [&](Piece left) { return destroy_now(left); });
  if (driver_.capabilities().virtual_memory) {
    drivers::Physical physical = drivers::Physical::none;
    if (!work_.create(bytes(cells), physical)) return false;
    piece = static_cast<Piece>(physical);
    return true;
  }
  drivers::Segment segment;
  try {
    undestroyed_.reserve(undestroyed_.size() + shown_.size() + 1);  // So that destroy() cannot fail.
  } catch (const std::bad_alloc&) {
    return false;
  }
  if (!work_.ok(driver_.create_segment(bytes(cells), segment))) return false;
  if (work_.add_segment(segment, piece)) return true;
  driver_.destroy_segment(segment);
  return false;
}

bool DriverBacking::destroy_now(Piece piece) {
  const drivers::Segment& segment = *work_.segment_of(piece);
  objects_.forget(segment.base, segment.bytes);
  if (driver_.destroy_segment(segment) != Status::ok) return false;
  work_.erase_segment(piece);
  return true;
}

void DriverBacking::destroy(Piece piece, std::uint32_t) {
  if (driver_.capabilities().virtual_memory) {
    work_.destroy(static_cast<drivers::Physical>(piece));
  } else if (!destroy_now(piece)) {
    undestroyed_.push_back(piece);
  }
}

bool DriverBacking::map(Cell at, Piece piece, std::uint32_t cells) {
  if (!driver_.capabilities().virtual_memory) {
    try {
      shown_.emplace(core::raw(at), piece);
    } catch (const std::bad_alloc&) {
      return false;
    }
    return true;
  }
  return work_.map(address(at), bytes(cells), static_cast<drivers::Physical>(piece));
}

void DriverBacking::unmap(Cell at, Piece, std::uint32_t cells) {
  if (driver_.capabilities().virtual_memory) {
    work_.unmap(address(at), bytes(cells));
  } else {
    shown_.erase(core::raw(at));
  }
}

}  // namespace cistern::allocation
