// The model's streams, the work on them, its figures and its books.
#include <algorithm>
#include <cstdio>

#include "drivers/model/model_driver.hpp"

namespace cistern::drivers {
namespace {

unsigned long long n(std::uint64_t v) { return v; }
std::uint64_t raw(Event event) { return static_cast<std::uint64_t>(event); }

}  // namespace

std::uint64_t ModelDriver::stream_id(void* native) {
  const std::lock_guard lock(mutex_);
  return timeline_.id(native);
}

void ModelDriver::forget_stream(void* native, std::uint64_t id) {
  const std::lock_guard lock(mutex_);
  // The handle may name a younger stream by now.
  if (timeline_.id(native) == id) timeline_.destroy_stream(native);
}

Status ModelDriver::record(void* stream, Event& out) {
  const std::lock_guard lock(mutex_);
  stream_us_ += config_.prices.record;
  if (const Status s = begin(Call::record, 0, 1); s != Status::ok) return s;
  out = Event{timeline_.record(timeline_.stream(stream))};
  return Status::ok;
}

Status ModelDriver::wait(void* stream, Event event) {
  const std::lock_guard lock(mutex_);
  stream_us_ += config_.prices.wait;
  if (const Status s = begin(Call::wait, 0, 1); s != Status::ok) return s;
  if (event == Event::none) return Status::ok;
  if (!timeline_.wait(timeline_.stream(stream), raw(event)))
    return violation("wait: there is no event %llu", n(raw(event)));
  return Status::ok;
}

bool ModelDriver::passed(Event event) {
  const std::lock_guard lock(mutex_);
  if (event == Event::none) return true;
  count_call();
  stream_us_ += config_.prices.query;
  if (!timeline_.known(raw(event))) violation("passed: there is no event %llu", n(raw(event)));
  return timeline_.passed(raw(event));
}

Status ModelDriver::synchronize(Event event) {
  const std::lock_guard lock(mutex_);
  if (const Status s = begin(Call::synchronize, 0, 1); s != Status::ok) return s;
  if (event == Event::none) return Status::ok;
  if (!timeline_.known(raw(event))) return violation("synchronize: there is no event %llu", n(raw(event)));
  if (timeline_.passed(raw(event))) return Status::ok;
  ++host_waits_;
  wait_us_ += timeline_.force(raw(event));
  return Status::ok;
}

Status ModelDriver::synchronize_device() {
  const std::lock_guard lock(mutex_);
  if (const Status s = begin(Call::synchronize_device, 0, 1); s != Status::ok) return s;
  if (timeline_.idle()) return Status::ok;
  ++host_waits_;
  wait_us_ += timeline_.force_all();
  return Status::ok;
}

void ModelDriver::release(Event event) {
  const std::lock_guard lock(mutex_);
  if (event == Event::none) return;
  if (!timeline_.release(raw(event))) violation("release: there is no event %llu", n(raw(event)));
}

bool ModelDriver::wrapped(Address at, std::size_t bytes) const {
  return std::any_of(wraps_.begin(), wraps_.end(), [&](const auto& wrap) {
    return at >= wrap.first && at - wrap.first < wrap.second && bytes <= wrap.second - (at - wrap.first);
  });
}

// Whether pending work of another stream, not ordered before this, is on the same physical bytes of the region.
bool ModelDriver::conflicts(const Region& region, std::uint32_t stream, std::size_t offset, std::size_t bytes,
                            bool writes) const {
  return std::any_of(region.uses.begin(), region.uses.end(), [&](const Use& use) {
    const bool apart = use.offset + use.bytes <= offset || offset + bytes <= use.offset;
    return !apart && (writes || use.writes) && !timeline_.ordered(use.point, stream);
  });
}

// Whether work submitted to `stream` now may use [at, at + bytes). `any_host_memory` lets addresses pass that no device
// range has: copies reach memory that the program got elsewhere.
Status ModelDriver::check_use(std::uint32_t stream, Address at, std::size_t bytes, bool writes, bool any_host_memory) {
  if (bytes > UINT64_MAX - at) return violation("use: %llu bytes at %#llx end beyond all addresses", n(bytes), n(at));
  const Address end = at + bytes;
  while (at != end) {
    const auto found = region_over(at);
    if (found == regions_.end()) {
      if (wrapped(at, end - at)) return Status::ok;
      if (any_host_memory && !in_a_range(at, 1)) return Status::ok;
      return violation("use: %#llx is not mapped", n(at));
    }
    const Region& region = found->second;
    const std::size_t offset = at - found->first;
    const std::size_t here = std::min<std::size_t>(region.bytes - offset, end - at);
    if (config_.check_order) {
      bool conflict = false;
      if (region.kind == Kind::mapping) {
        // A piece that moved is the same memory at its old address.
        for (const Address shown : pieces_.find(region.piece)->second.shown_at) {
          conflict |= conflicts(regions_.find(shown)->second, stream, offset, here, writes);
        }
      } else {
        conflict = conflicts(region, stream, offset, here, writes);
      }
      if (conflict)
        return violation("use: another stream's work on the bytes at %#llx is pending and not ordered", n(at));
    }
    at += here;
  }
  return Status::ok;
}

// pre: check_use() said ok.
void ModelDriver::add_use(WorkPoint point, Address at, std::size_t bytes, bool writes) {
  if (timeline_.done(point)) return;
  const Address end = at + bytes;
  while (at != end) {
    const auto found = region_over(at);
    if (found == regions_.end()) return;
    Region& region = found->second;
    if (region.uses.size() >= region.checked) {
      std::erase_if(region.uses, [this](const Use& use) { return timeline_.done(use.point); });
      region.checked = std::max<std::size_t>(16, 2 * region.uses.size());
    }
    const std::size_t offset = at - found->first;
    const std::size_t here = std::min<std::size_t>(region.bytes - offset, end - at);
    region.uses.push_back({point, offset, here, writes});
    at += here;
  }
}

Status ModelDriver::copy(Address to, Address from, std::size_t bytes, void* stream) {
  const std::lock_guard lock(mutex_);
  if (const Status s = begin(Call::copy, 0, 1); s != Status::ok) return s;
  const std::uint32_t index = timeline_.stream(stream);
  if (const Status s = check_use(index, from, bytes, false, true); s != Status::ok) return s;
  if (const Status s = check_use(index, to, bytes, true, true); s != Status::ok) return s;
  const WorkPoint point = timeline_.submit(index);
  add_use(point, from, bytes, false);
  add_use(point, to, bytes, true);
  return Status::ok;
}

Status ModelDriver::fill(Address at, std::uint8_t, std::size_t bytes, void* stream) {
  const std::lock_guard lock(mutex_);
  if (const Status s = begin(Call::fill, 0, 1); s != Status::ok) return s;
  const std::uint32_t index = timeline_.stream(stream);
  if (const Status s = check_use(index, at, bytes, true, false); s != Status::ok) return s;
  add_use(timeline_.submit(index), at, bytes, true);
  return Status::ok;
}

Status ModelDriver::set_wired_limit(std::size_t) {
  const std::lock_guard lock(mutex_);
  if (const Status s = begin(Call::set_wired_limit, 0, 1); s != Status::ok) return s;
  return refuse(Status::unsupported, "set_wired_limit: this device wires nothing");
}

void ModelDriver::advance_to(double time_us) {
  const std::lock_guard lock(mutex_);
  if (time_us < timeline_.clock_us()) violation("advance_to: the clock cannot go back to %.3f us", time_us);
  timeline_.advance_to(time_us);
}

double ModelDriver::clock_us() const {
  const std::lock_guard lock(mutex_);
  return timeline_.clock_us();
}

void ModelDriver::complete(void* stream) {
  const std::lock_guard lock(mutex_);
  timeline_.complete(timeline_.stream(stream));
}

void ModelDriver::complete_all() {
  const std::lock_guard lock(mutex_);
  timeline_.complete_all();
}

bool ModelDriver::touch(void* stream, Address address, std::size_t bytes, bool writes) {
  const std::lock_guard lock(mutex_);
  const std::uint32_t index = timeline_.stream(stream);
  if (check_use(index, address, bytes, writes, false) != Status::ok) return false;
  add_use(timeline_.submit(index), address, bytes, writes);
  return true;
}

void ModelDriver::set_lag(void* stream, double lag_us) {
  const std::lock_guard lock(mutex_);
  timeline_.set_lag(timeline_.stream(stream), lag_us);
}

void ModelDriver::destroy_stream(void* stream) {
  const std::lock_guard lock(mutex_);
  timeline_.destroy_stream(stream);
}

void ModelDriver::set_total_memory(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  total_ = bytes;
}

void ModelDriver::fail(Call call, std::uint64_t nth, Status status, std::uint64_t times) {
  const std::lock_guard lock(mutex_);
  faults_.fail(call, nth, status, times);
}

void ModelDriver::clear_faults() {
  const std::lock_guard lock(mutex_);
  faults_.clear();
}

std::uint64_t ModelDriver::injected_faults() const {
  const std::lock_guard lock(mutex_);
  return faults_.injected();
}

std::uint64_t ModelDriver::count(Call call) const {
  const std::lock_guard lock(mutex_);
  return faults_.count(call);
}

double ModelDriver::handle_seconds() const {
  const std::lock_guard lock(mutex_);
  return handle_us_ * 1e-6;
}

double ModelDriver::stream_seconds() const {
  const std::lock_guard lock(mutex_);
  return stream_us_ * 1e-6;
}

std::uint64_t ModelDriver::host_waits() const {
  const std::lock_guard lock(mutex_);
  return host_waits_;
}

double ModelDriver::wait_seconds() const {
  const std::lock_guard lock(mutex_);
  return wait_us_ * 1e-6;
}

std::size_t ModelDriver::physical_bytes() const {
  const std::lock_guard lock(mutex_);
  return physical_;
}

std::size_t ModelDriver::peak_physical_bytes() const {
  const std::lock_guard lock(mutex_);
  return peak_physical_;
}

std::vector<std::string> ModelDriver::violations() const {
  const std::lock_guard lock(mutex_);
  return violations_;
}

std::uint64_t ModelDriver::violation_count() const {
  const std::lock_guard lock(mutex_);
  return violation_count_;
}

void ModelDriver::clear_violations() {
  const std::lock_guard lock(mutex_);
  violations_.clear();
  violation_count_ = 0;
}

std::vector<std::string> ModelDriver::leaks() const {
  const std::lock_guard lock(mutex_);
  return leaks_locked();
}

std::vector<std::string> ModelDriver::leaks_locked() const {
  std::vector<std::string> leaks;
  const auto add = [&leaks](const char* what, std::uint64_t id, std::uint64_t bytes) {
    char text[128];
    std::snprintf(text, sizeof text, "%s %#llx of %llu bytes was not given back", what, n(id), n(bytes));
    leaks.emplace_back(text);
  };
  for (const auto& [id, piece] : pieces_) add("piece", id, piece.bytes);
  for (const auto& [at, region] : regions_) {
    add(region.kind == Kind::mapping   ? "mapping"
        : region.kind == Kind::segment ? "segment"
                                       : "host buffer",
        at, region.bytes);
  }
  for (const auto& [base, bytes] : ranges_) add("range", base, bytes);
  for (const auto& [at, bytes] : wraps_) add("wrapped memory", at, bytes);
  if (!objects_.empty()) leaks.push_back(std::to_string(objects_.size()) + " objects were not destroyed");
  if (timeline_.live_events() != 0) {
    leaks.push_back(std::to_string(timeline_.live_events()) + " events were not released");
  }
  return leaks;
}

std::vector<std::string> ModelDriver::check_invariants() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> broken;
  const auto rule = [&broken](bool holds, const char* text) {
    if (!holds) broken.emplace_back(text);
  };
  std::size_t physical = 0, reserved = 0, segments = 0, objects = 0, shown = 0, mappings = 0;
  for (const auto& [id, piece] : pieces_) {
    physical += piece.bytes;
    shown += piece.shown_at.size();
    for (const Address at : piece.shown_at) {
      const auto region = regions_.find(at);
      rule(region != regions_.end() && region->second.piece == id && region->second.bytes == piece.bytes,
           "a piece is shown where no mapping of it is");
    }
  }
  Address end = 0;
  for (const auto& [at, region] : regions_) {
    rule(at >= end, "regions overlap");
    end = at + region.bytes;
    if (region.kind != Kind::mapping) physical += region.bytes;
    mappings += region.kind == Kind::mapping;
    segments += region.kind == Kind::segment;
    objects += region.objects;
    rule(region.kind != Kind::mapping || in_a_range(at, region.bytes), "a mapping is outside of every range");
  }
  for (const auto& [base, bytes] : ranges_) reserved += bytes;
  rule(physical == physical_, "the physical bytes are not the sum of pieces, segments and host buffers");
  rule(reserved == reserved_, "the reserved bytes are not the sum of the ranges");
  rule(shown == mappings, "mappings and pieces disagree");
  rule(segments == segments_, "the count of segments is wrong");
  rule(objects == objects_.size(), "the objects of the segments are not all objects");
  rule(peak_physical_ >= physical_, "the peak is below the present");
  return broken;
}

}  // namespace cistern::drivers
