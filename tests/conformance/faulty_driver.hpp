// FaultyDriver: hands every call on to another driver, except those that a FaultPlan makes fail. So faults can be
// injected into any driver, also into one that has no such means itself. Test code only; as thread-safe as the driver
// below, while the plan is not being changed (calls that run without the device's lock do not ask it).
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "drivers/driver.hpp"
#include "drivers/fault_plan.hpp"

namespace cistern::conformance {

using namespace drivers;

class FaultyDriver final : public Driver {
 public:
  explicit FaultyDriver(std::unique_ptr<Driver> below) : below_(std::move(below)) {}

  FaultPlan& plan() { return plan_; }
  Driver& below() { return *below_; }

  const Capabilities& capabilities() const noexcept override { return below_->capabilities(); }
  std::string error_text() const override { return by_plan_ ? "fails by plan" : below_->error_text(); }

  Status reserve(std::size_t bytes, Address& base) override {
    return go(Call::reserve, [&] { return below_->reserve(bytes, base); });
  }
  Status unreserve(Address base, std::size_t bytes) override {
    return go(Call::unreserve, [&] { return below_->unreserve(base, bytes); });
  }
  Status create(std::size_t bytes, Physical& out) override {
    return go(Call::create, [&] { return below_->create(bytes, out); });
  }
  Status destroy(Physical piece) override {
    return go(Call::destroy, [&] { return below_->destroy(piece); });
  }
  Status map(Address at, Physical piece, std::size_t bytes) override {
    return go(Call::map, [&] { return below_->map(at, piece, bytes); });
  }
  Status unmap(Address at, std::size_t bytes) override {
    return go(Call::unmap, [&] { return below_->unmap(at, bytes); });
  }
  Status create_segment(std::size_t bytes, Segment& out) override {
    return go(Call::create_segment, [&] { return below_->create_segment(bytes, out); });
  }
  Status destroy_segment(const Segment& segment) override {
    return go(Call::destroy_segment, [&] { return below_->destroy_segment(segment); });
  }
  Status create_object(const Segment& segment, std::size_t offset, std::size_t bytes, void*& object) override {
    return go(Call::create_object, [&] { return below_->create_object(segment, offset, bytes, object); });
  }
  void destroy_object(void* object) override { below_->destroy_object(object); }
  void block_layout(std::size_t bytes, std::size_t& size, std::size_t& alignment) const override {
    below_->block_layout(bytes, size, alignment);
  }
  Status allocate_host(HostKind kind, std::size_t bytes, void*& out) override {
    return go(Call::allocate_host, [&] { return below_->allocate_host(kind, bytes, out); });
  }
  Status free_host(HostKind kind, void* ptr, std::size_t bytes) override {
    return go(Call::free_host, [&] { return below_->free_host(kind, ptr, bytes); });
  }
  void* host_object(void* ptr) override { return below_->host_object(ptr); }
  Status wrap(void* ptr, std::size_t bytes, void*& object) override {
    return go(Call::wrap, [&] { return below_->wrap(ptr, bytes, object); });
  }
  void unwrap(void* object) override { below_->unwrap(object); }
  Status enable_peer(int index) override {
    return go(Call::enable_peer, [&] { return below_->enable_peer(index); });
  }
  Status export_piece(Physical piece, int& handle) override {
    return go(Call::export_piece, [&] { return below_->export_piece(piece, handle); });
  }
  Status import_piece(int handle, std::size_t bytes, Physical& out) override {
    return go(Call::import_piece, [&] { return below_->import_piece(handle, bytes, out); });
  }
  Status allocate_ordered(std::size_t bytes, void* stream, Address& out) override {
    return go(Call::allocate_ordered, [&] { return below_->allocate_ordered(bytes, stream, out); });
  }
  Status free_ordered(Address at, void* stream) override {
    return go(Call::free_ordered, [&] { return below_->free_ordered(at, stream); });
  }
  Status pool_figures(PoolFigures& out) override {
    return go(Call::pool_figures, [&] { return below_->pool_figures(out); });
  }
  Status trim_pool(std::size_t keep) override {
    return go(Call::trim_pool, [&] { return below_->trim_pool(keep); });
  }
  Status memory_info(std::size_t& free, std::size_t& total) override {
    return go(Call::memory_info, [&] { return below_->memory_info(free, total); });
  }
  void forget_stream(void* native, std::uint64_t id) override { below_->forget_stream(native, id); }
  void* make_stream() override { return below_->make_stream(); }
  void drop_stream(void* native) override { below_->drop_stream(native); }
  void begin_capture() override { below_->begin_capture(); }
  bool shared_handle(void* native) const override { return below_->shared_handle(native); }
  bool blocking(void* native) override { return below_->blocking(native); }
  void end_capture() override { below_->end_capture(); }
  std::uint64_t stream_id(void* native) override { return below_->stream_id(native); }
  Status record(void* stream, Event& out) override {
    return go(Call::record, [&] { return below_->record(stream, out); });
  }
  Status wait(void* stream, Event event) override {
    return go(Call::wait, [&] { return below_->wait(stream, event); });
  }
  bool passed(Event event) override { return below_->passed(event); }
  Status synchronize(Event event) override {
    return go(Call::synchronize, [&] { return below_->synchronize(event); });
  }
  Status synchronize_device() override {
    return go(Call::synchronize_device, [&] { return below_->synchronize_device(); });
  }
  void release(Event event) override { below_->release(event); }
  Status copy(Address to, Address from, std::size_t bytes, void* stream) override {
    return go(Call::copy, [&] { return below_->copy(to, from, bytes, stream); });
  }
  Status fill(Address at, std::uint8_t value, std::size_t bytes, void* stream) override {
    return go(Call::fill, [&] { return below_->fill(at, value, bytes, stream); });
  }
  Status set_wired_limit(std::size_t bytes) override {
    return go(Call::set_wired_limit, [&] { return below_->set_wired_limit(bytes); });
  }
  void segment_used(const Segment& segment, bool used) override { below_->segment_used(segment, used); }
  Status commit_residency() override { return below_->commit_residency(); }
  std::uint64_t objects() const override { return below_->objects(); }

 private:
  template <class Forward>
  Status go(Call call, Forward forward) {
    count_call();
    const Status planned = plan_.next(call);
    by_plan_ = planned != Status::ok;
    return by_plan_ ? planned : forward();
  }

  std::unique_ptr<Driver> below_;
  FaultPlan plan_;
  bool by_plan_ = false;
};

}  // namespace cistern::conformance
