// Queues, command buffers and events: work is done some time after it was committed, in the order of its queue.
#include <algorithm>
#include <cstring>

#include "standin/metal/state.hpp"

namespace cistern::standin::metal {
namespace {

using Clock = std::chrono::steady_clock;

std::byte pattern(std::uint64_t seed, std::uint64_t i) {
  return static_cast<std::byte>((seed + i) * 0x9E3779B97F4A7C15ULL >> 56);
}

// Does the operation; false when it must wait.
bool perform(Operation& op) {
  Buffer* const buffer = op.unretained != nullptr ? op.unretained : op.buffer.get();
  if (op.unretained != nullptr && !alive(op.unretained)) {
    violation("work ran on a buffer that was released before");
    return true;
  }
  switch (op.kind) {
    case Operation::signal:
      if (op.value < op.event->value) violation("an event was signalled with a value below its own");
      op.event->value = std::max(op.event->value, op.value);
      return true;
    case Operation::wait:
      return op.event->value >= op.value;
    case Operation::copy:
      std::memmove(buffer->bytes + op.offset, op.source->bytes + op.source_offset, op.bytes);
      return true;
    case Operation::fill:
      std::memset(buffer->bytes + op.offset, static_cast<int>(op.value), op.bytes);
      return true;
    case Operation::write_pattern:
      for (std::size_t i = 0; i < op.bytes; ++i) buffer->bytes[op.offset + i] = pattern(op.value, i);
      return true;
    case Operation::check_pattern:
      for (std::size_t i = 0; i < op.bytes; ++i) {
        if (buffer->bytes[op.offset + i] != pattern(op.value, i)) ++state().mismatches;
      }
      return true;
  }
  return true;
}

// Does what the oldest command buffer has left; true when it is done.
bool advance(Queue* queue) {
  const Strong<CommandBuffer> commands = queue->pending.front();
  while (commands->next < commands->operations.size()) {
    if (!perform(commands->operations[commands->next])) return false;
    ++commands->next;
  }
  commands->operations.clear();
  commands->next = 0;
  queue->pending.pop_front();
  return true;
}

template <class Ready>
void run_while(Ready ready) {
  for (bool progress = true; progress;) {
    progress = false;
    for (std::size_t i = 0; i < state().queues.size(); ++i) {
      Queue* const queue = state().queues[i];
      const Strong<Queue> kept(queue);
      while (!queue->pending.empty() && ready(*queue->pending.front().get())) {
        const std::size_t before = queue->pending.front()->next;
        const CommandBuffer* const front = queue->pending.front().get();
        if (advance(queue)) {
          progress = true;
        } else {
          progress = progress || front->next != before;
          break;
        }
      }
    }
  }
}

// Runs a queue until `last`, the things that it waits for first.
void force_queue(Queue* queue, const CommandBuffer* last, int depth) {
  const Strong<Queue> kept(queue);
  while (!queue->pending.empty()) {
    const Strong<CommandBuffer> front = queue->pending.front();
    if (!advance(queue)) {
      const Operation& op = front->operations[front->next];
      const Strong<Event> event = op.event;
      const std::uint64_t value = op.value;
      if (depth < 200) {
        for (std::size_t i = 0; i < state().queues.size() && event->value < value; ++i) {
          Queue* const other = state().queues[i];
          const CommandBuffer* found = nullptr;
          for (const Strong<CommandBuffer>& pending : other->pending) {
            for (const Operation& step : pending->operations) {
              if (step.kind == Operation::signal && step.event.get() == event.get() && step.value >= value)
                found = pending.get();
            }
            if (found != nullptr) break;
          }
          if (found != nullptr && other != queue) force_queue(other, found, depth + 1);
        }
      }
      if (event->value < value) return;
      continue;
    }
    if (front.get() == last) return;
  }
}

// --- Methods --------------------------------------------------------------------------------------------------------

Queue* device_new_queue(Device* self, Sel) {
  const Guard guard;
  return make<Queue>(self);
}
Event* device_new_event(Device* self, Sel) {
  const Guard guard;
  return make<Event>(self);
}

Device* queue_device(Queue* self, Sel) { return self->device.get(); }

CommandBuffer* queue_command_buffer(Queue* self, Sel) {
  const Guard guard;
  return autorelease(make<CommandBuffer>(self));
}

bool may_encode(const CommandBuffer* commands, const char* what) {
  if (commands->committed) violation("%s: the command buffer was committed", what);
  if (commands->encoding) violation("%s: an encoder of the command buffer has not ended", what);
  return !commands->committed && !commands->encoding;
}

void commands_signal(CommandBuffer* self, Sel, Event* event, unsigned long long value) {
  const Guard guard;
  if (!may_encode(self, "encodeSignalEvent")) return;
  Operation op;
  op.kind = Operation::signal;
  op.event = Strong<Event>(event);
  op.value = value;
  self->operations.push_back(std::move(op));
}

void commands_wait(CommandBuffer* self, Sel, Event* event, unsigned long long value) {
  const Guard guard;
  if (!may_encode(self, "encodeWaitForEvent")) return;
  Operation op;
  op.kind = Operation::wait;
  op.event = Strong<Event>(event);
  op.value = value;
  self->operations.push_back(std::move(op));
}

Encoder* commands_blit(CommandBuffer* self, Sel) {
  const Guard guard;
  if (!may_encode(self, "blitCommandEncoder")) return nullptr;
  self->encoding = true;
  return autorelease(make<Encoder>(self));
}

void commands_commit(CommandBuffer* self, Sel) {
  const Guard guard;
  if (!may_encode(self, "commit")) return;
  enqueue(self);
}

void commands_wait_until_completed(CommandBuffer* self, Sel) {
  const Guard guard;
  if (!self->committed) return violation("waitUntilCompleted: the command buffer was not committed");
  force_queue(self->queue.get(), self, 0);
}

bool in_range(const char* method, const Buffer* buffer, std::size_t offset, std::size_t bytes) {
  if (bytes == 0) violation("%s: 0 bytes", method);
  if (offset > buffer->length || bytes > buffer->length - offset) violation("%s: outside of the buffer", method);
  if ((offset | bytes) % 4 != 0) violation("%s: offset and size must be multiples of 4", method);
  return bytes != 0 && offset <= buffer->length && bytes <= buffer->length - offset && buffer->bytes != nullptr;
}

void encoder_copy(Encoder* self, Sel, Buffer* source, UInt source_offset, Buffer* target, UInt offset, UInt bytes) {
  const Guard guard;
  if (self->ended) return violation("copyFromBuffer: the encoder has ended");
  if (!in_range("copyFromBuffer", source, source_offset, bytes) || !in_range("copyFromBuffer", target, offset, bytes))
    return;
  Operation op;
  op.kind = Operation::copy;
  op.source = Strong<Buffer>(source);
  op.buffer = Strong<Buffer>(target);
  op.source_offset = source_offset;
  op.offset = offset;
  op.bytes = bytes;
  self->commands->operations.push_back(std::move(op));
}

void encoder_fill(Encoder* self, Sel, Buffer* buffer, Range range, std::uint8_t value) {
  const Guard guard;
  if (self->ended) return violation("fillBuffer: the encoder has ended");
  if (!in_range("fillBuffer", buffer, range.location, range.length)) return;
  Operation op;
  op.kind = Operation::fill;
  op.buffer = Strong<Buffer>(buffer);
  op.offset = range.location;
  op.bytes = range.length;
  op.value = value;
  self->commands->operations.push_back(std::move(op));
}

void encoder_end(Encoder* self, Sel) {
  const Guard guard;
  if (self->ended) return violation("endEncoding: the encoder has ended");
  self->ended = true;
  self->commands->encoding = false;
}

unsigned long long event_value(Event* self, Sel) {
  const Guard guard;
  pump();
  return self->value;
}

bool event_wait(Event* self, Sel, unsigned long long value, unsigned long long) {
  const Guard guard;
  pump();
  force(self, value);
  return self->value >= value;
}

}  // namespace

void enqueue(CommandBuffer* commands) {
  commands->committed = true;
  commands->when = Clock::now();
  commands->queue->pending.push_back(Strong<CommandBuffer>(commands));
  if (!state().settings.manual && state().settings.lag_us <= 0) pump();
}

void pump() {
  const Settings& s = state().settings;
  const auto lag = std::chrono::nanoseconds(static_cast<std::int64_t>(s.lag_us * 1e3));
  const auto now = Clock::now();
  run_while([&](const CommandBuffer& c) { return s.manual ? c.released : c.released || now - c.when >= lag; });
}

void force(Event* event, std::uint64_t value) {
  for (std::size_t i = 0; i < state().queues.size() && event->value < value; ++i) {
    Queue* const queue = state().queues[i];
    const CommandBuffer* last = nullptr;
    for (const Strong<CommandBuffer>& pending : queue->pending) {
      for (const Operation& op : pending->operations) {
        if (op.kind == Operation::signal && op.event.get() == event && op.value >= value) last = pending.get();
      }
      if (last != nullptr) break;
    }
    if (last != nullptr) force_queue(queue, last, 0);
  }
}

void complete(Queue* queue) {
  for (Queue* const each : state().queues) {
    if (queue != nullptr && each != queue) continue;
    for (const Strong<CommandBuffer>& pending : each->pending) pending->released = true;
  }
  pump();
}

Event::Event(Device* d) : Object(find_class("MTLSharedEvent")), device(d) {}
CommandBuffer::CommandBuffer(Queue* q) : Object(find_class("MTLCommandBuffer")), queue(q) {}
CommandBuffer::~CommandBuffer() {
  if (!committed && !operations.empty())
    violation("a command buffer was dropped with work in it that was never committed");
}
Encoder::Encoder(CommandBuffer* c) : Object(find_class("MTLBlitCommandEncoder")), commands(c) {}
Encoder::~Encoder() {
  if (!ended) violation("a command encoder was released before endEncoding");
}
Queue::Queue(Device* d) : Object(find_class("MTLCommandQueue")), device(d) { state().queues.push_back(this); }
Queue::~Queue() {
  std::erase(state().queues, this);
  for (const Strong<ResidencySet>& set : sets) --set->queues;
}

void add_work_classes() {
  Class* const device = find_class("MTLDevice");
  device->methods[intern("newCommandQueue")] = {imp(&device_new_queue), true};
  device->methods[intern("newMTL4CommandQueue")] = {imp(&device_new_queue), true};
  device->methods[intern("newSharedEvent")] = {imp(&device_new_event), true};
  add_class("MTLCommandQueue", &destroy<Queue>,
            with_common({{"device", imp(&queue_device)}, {"commandBuffer", imp(&queue_command_buffer), true}}));
  add_class("MTLCommandBuffer", &destroy<CommandBuffer>,
            with_common({{"encodeSignalEvent:value:", imp(&commands_signal)},
                         {"encodeWaitForEvent:value:", imp(&commands_wait)},
                         {"blitCommandEncoder", imp(&commands_blit)},
                         {"commit", imp(&commands_commit)},
                         {"waitUntilCompleted", imp(&commands_wait_until_completed)}}));
  add_class("MTLBlitCommandEncoder", &destroy<Encoder>,
            with_common({{"copyFromBuffer:sourceOffset:toBuffer:destinationOffset:size:", imp(&encoder_copy)},
                         {"fillBuffer:range:value:", imp(&encoder_fill)},
                         {"endEncoding", imp(&encoder_end)}}));
  add_class(
      "MTLSharedEvent", &destroy<Event>,
      with_common({{"signaledValue", imp(&event_value)}, {"waitUntilSignaledValue:timeoutMS:", imp(&event_wait)}}));
}

}  // namespace cistern::standin::metal
