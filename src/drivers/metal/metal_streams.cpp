// Queues, events, and work that the driver submits itself. Each queue has one shared event whose value grows with every
// point that is recorded: a point has passed when the event has reached its value.
#include <new>

#include "drivers/metal/metal_device.hpp"

namespace cistern::drivers::metal {
namespace {

constexpr std::uint64_t kMetalIds = std::uint64_t{1} << 62;  // Ids of other drivers have this bit clear or bit 63 set.
constexpr unsigned kValueBits = 40;                          // An event is the queue's index and, below it, the value.
constexpr std::uint64_t kValueMask = (std::uint64_t{1} << kValueBits) - 1;
constexpr std::uint64_t kWaitMilliseconds = 1000;  // Of one call; a wait is a loop of them.

std::atomic<std::uint64_t> next_id{1};

std::uint64_t value_of(Event event) { return static_cast<std::uint64_t>(event) & kValueMask; }

}  // namespace

// --- Queues ---------------------------------------------------------------------------------------------------------

MetalDriver::QueueRecord* MetalDriver::add_queue(void* native, Ref<Queue> queue) {
  QueueRecord record;
  record.event = new_shared_event(device_.get());
  count_call();
  if (!queue || !record.event) {
    text().set("metal: no queue, or no shared event for one");
    return nullptr;
  }
  record.index = next_queue_++;
  record.id = kMetalIds | next_id.fetch_add(1, std::memory_order_relaxed);
  record.queue = std::move(queue);
  Queue* const raw = record.queue.get();
  const std::uint64_t index = record.index;
  try {
    queue_indexes_.emplace(native, index);
    queues_.emplace(index, std::move(record));
  } catch (const std::bad_alloc&) {
    queue_indexes_.erase(native);
    text().set("metal: no host memory for the record of a queue");
    return nullptr;
  }
  if (capabilities_.residency) with_residency([&](Residency& r) { r.attach(raw); });
  return &queues_.at(index);
}

MetalDriver::QueueRecord* MetalDriver::queue_of(void* native) {
  if (!usable()) return nullptr;
  if (const auto known = queue_indexes_.find(native); known != queue_indexes_.end()) return &queues_.at(known->second);
  const objc::AutoreleasePool pool;
  if (native == nullptr) {
    count_call();
    return add_queue(nullptr, new_queue(device_.get()));
  }
  if (device_of(static_cast<Queue*>(native)) != device_.get()) {
    text().set("metal: the queue is another device's");
    return nullptr;
  }
  return add_queue(native, Ref<Queue>::retain(native));
}

std::uint64_t MetalDriver::stream_id(void* native) {
  const std::lock_guard lock(queues_mutex_);
  const QueueRecord* const record = queue_of(native);
  return record == nullptr ? 0 : record->id;
}

void MetalDriver::drop_if_done(QueueRecord& record) {
  if (!record.forgotten || record.events != 0) return;
  const objc::AutoreleasePool pool;
  queues_.erase(record.index);
}

void MetalDriver::forget_stream(void* native, std::uint64_t id) {
  const std::lock_guard lock(queues_mutex_);
  const auto known = queue_indexes_.find(native);
  if (known == queue_indexes_.end() || !usable()) return;
  QueueRecord& record = queues_.at(known->second);
  if (record.id != id) return;
  const objc::AutoreleasePool pool;
  with_residency([&](Residency& r) { r.detach(record.queue.get()); });
  queue_indexes_.erase(known);
  record.queue.reset();
  record.forgotten = true;
  drop_if_done(record);
}

void* MetalDriver::make_stream() {
  if (!usable()) return nullptr;
  const objc::AutoreleasePool pool;
  count_call();
  return new_queue(device_.get()).leave();
}

void MetalDriver::drop_stream(void* native) {
  if (!usable()) return;
  const objc::AutoreleasePool pool;
  objc::runtime().release(native);
}

// --- Events ---------------------------------------------------------------------------------------------------------

// Commits a command buffer that ends by giving the queue's event its next value.
template <class Encode>
Status MetalDriver::submit(QueueRecord& record, std::uint64_t& value, Encode encode) {
  const objc::AutoreleasePool pool;
  commit_residency();
  CommandBuffer* const commands = command_buffer(record.queue.get());
  count_call(2);
  if (commands == nullptr) {
    text().set("metal: commandBuffer: the queue gave none");
    return Status::out_of_memory;
  }
  encode(commands);
  value = ++record.last;
  encode_signal(commands, record.event.get(), value);
  metal::commit(commands);
  return Status::ok;
}

Status MetalDriver::record(void* stream, Event& out) {
  const std::lock_guard lock(queues_mutex_);
  QueueRecord* const record = queue_of(stream);
  if (record == nullptr) return Status::failed;
  std::uint64_t value = 0;
  if (const Status s = submit(*record, value, [](CommandBuffer*) {}); s != Status::ok) return s;
  ++record->events;
  out = Event{record->index << kValueBits | value};
  return Status::ok;
}

MetalDriver::QueueRecord* MetalDriver::find(Event event) {
  const auto found = queues_.find(static_cast<std::uint64_t>(event) >> kValueBits);
  if (found != queues_.end()) return &found->second;
  text().set("metal: there is no event %#llx", static_cast<unsigned long long>(event));
  return nullptr;
}

bool MetalDriver::reached(QueueRecord& record, std::uint64_t value) {
  if (record.seen >= value) return true;
  count_call();
  record.seen = signaled_value(record.event.get());
  return record.seen >= value;
}

Status MetalDriver::wait(void* stream, Event event) {
  if (event == Event::none) return Status::ok;
  const std::lock_guard lock(queues_mutex_);
  QueueRecord* const waits = queue_of(stream);
  QueueRecord* const signals = waits == nullptr ? nullptr : find(event);
  if (signals == nullptr) return Status::failed;
  if (waits == signals || reached(*signals, value_of(event))) return Status::ok;
  const objc::AutoreleasePool pool;
  CommandBuffer* const commands = command_buffer(waits->queue.get());
  count_call(2);
  if (commands == nullptr) {
    text().set("metal: commandBuffer: the queue gave none");
    return Status::out_of_memory;
  }
  encode_wait(commands, signals->event.get(), value_of(event));
  metal::commit(commands);
  return Status::ok;
}

bool MetalDriver::passed(Event event) {
  if (event == Event::none) return true;
  const std::lock_guard lock(queues_mutex_);
  QueueRecord* const record = find(event);
  return record != nullptr && usable() && reached(*record, value_of(event));
}

Status MetalDriver::synchronize(Event event) {
  if (event == Event::none) return Status::ok;
  Ref<SharedEvent> shared;
  {
    const std::lock_guard lock(queues_mutex_);
    QueueRecord* const record = find(event);
    if (record == nullptr || !usable()) return Status::failed;
    if (reached(*record, value_of(event))) return Status::ok;
    shared = Ref<SharedEvent>::retain(record->event.get());
  }
  const objc::AutoreleasePool pool;
  count_call();
  while (!wait_until_signaled(shared.get(), value_of(event), kWaitMilliseconds)) {
  }
  return Status::ok;
}

Status MetalDriver::synchronize_device() {
  if (!usable()) return Status::failed;
  std::vector<Event> points;
  Status status = Status::ok;
  {
    const std::lock_guard lock(queues_mutex_);
    try {
      points.reserve(queues_.size());
    } catch (const std::bad_alloc&) {
      text().set("metal: no host memory to wait for all queues");
      return Status::out_of_memory;
    }
    for (auto& [index, record] : queues_) {
      std::uint64_t value = record.last;
      if (!record.forgotten) {
        if (const Status s = submit(record, value, [](CommandBuffer*) {}); s != Status::ok) {
          status = s;
          continue;
        }
      }
      if (value != 0) points.push_back(Event{index << kValueBits | value});
    }
  }
  for (const Event point : points) {
    if (const Status s = synchronize(point); s != Status::ok) status = s;
  }
  return status;
}

void MetalDriver::release(Event event) {
  if (event == Event::none) return;
  const std::lock_guard lock(queues_mutex_);
  QueueRecord* const record = find(event);
  if (record == nullptr || record->events == 0 || !usable()) return;
  --record->events;
  drop_if_done(*record);
}

// --- Bytes ----------------------------------------------------------------------------------------------------------

// Hazards are not tracked, so the work is put between points of its own: what was submitted before is done before it
// starts, and what comes after waits for its end where it waits for a later point.
template <class Encode>
Status MetalDriver::blit(void* stream, Encode encode) {
  const std::lock_guard lock(queues_mutex_);
  QueueRecord* const record = queue_of(stream);
  if (record == nullptr) return Status::failed;
  std::uint64_t value = 0;
  const Status status = submit(*record, value, [&](CommandBuffer* commands) {
    const std::uint64_t before = ++record->last;
    encode_signal(commands, record->event.get(), before);
    encode_wait(commands, record->event.get(), before);
    encode(commands);
  });
  if (status == Status::ok) count_call();
  return status;
}

Status MetalDriver::copy(Address to, Address from, std::size_t bytes, void* stream) {
  if (bytes == 0) return Status::ok;
  const auto source = locate(from, bytes);
  const auto target = locate(to, bytes);
  if (!source || !target || (source->offset | target->offset | bytes) % 4 != 0) {
    text().set("metal: copy of %zu bytes from %#llx to %#llx: both must be memory of this device, in units of 4 bytes",
               bytes, static_cast<unsigned long long>(from), static_cast<unsigned long long>(to));
    return Status::failed;
  }
  return blit(stream, [&](CommandBuffer* commands) {
    encode_copy(commands, source->buffer, source->offset, target->buffer, target->offset, bytes);
  });
}

Status MetalDriver::fill(Address at, std::uint8_t value, std::size_t bytes, void* stream) {
  if (bytes == 0) return Status::ok;
  const auto target = locate(at, bytes);
  if (!target || (target->offset | bytes) % 4 != 0) {
    text().set("metal: fill of %zu bytes at %#llx: it must be memory of this device, in units of 4 bytes", bytes,
               static_cast<unsigned long long>(at));
    return Status::failed;
  }
  return blit(stream,
              [&](CommandBuffer* commands) { encode_fill(commands, target->buffer, target->offset, bytes, value); });
}

}  // namespace cistern::drivers::metal
