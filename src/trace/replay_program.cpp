// Compiles a trace. See replay_program.hpp.
#include "trace/replay_program.hpp"

#include <algorithm>

namespace cistern::trace {

Program compile(const Trace& trace, const std::string& path) {
  struct Live {
    std::uint32_t slot = 0;
    std::uint16_t stream = 0;
    bool alive = false;
  };
  Program program;
  program.name = trace.name;
  program.path = path;
  program.streams = trace.streams;
  program.allocations = trace.allocations;
  program.ops.reserve(trace.events.size());
  program.times_us.reserve(trace.events.size());
  program.ids.reserve(trace.events.size());
  std::vector<Live> blocks(trace.allocations);
  std::vector<std::uint32_t> idle;  // Slots to use again, the last freed first.
  std::uint64_t live = 0;
  for (const TraceEvent& event : trace.events) {
    Live& block = blocks[event.id];
    Op op;
    op.bytes = event.size;
    op.stream = event.stream;
    if (event.kind == TraceEventKind::allocate) {
      if (idle.empty()) idle.push_back(program.slots++);
      op.kind = OpKind::allocate;
      op.slot = idle.back();
      idle.pop_back();
      block = {op.slot, event.stream, true};
      live += event.size;
      program.largest = std::max(program.largest, event.size);
      if (live > program.peak_live) {
        program.peak_live = live;
        program.peak_op = program.ops.size();
      }
    } else {
      op.kind = event.stream == block.stream ? OpKind::free : OpKind::free_on;
      op.slot = block.slot;
      idle.push_back(block.slot);
      block.alive = false;
      live -= event.size;
    }
    program.ops.push_back(op);
    program.times_us.push_back(event.time_us);
    program.ids.push_back(trace.original_ids.empty() ? event.id : trace.original_ids[event.id]);
  }
  for (const Live& block : blocks) {
    if (block.alive)
      program.tail.push_back({.bytes = 0, .slot = block.slot, .stream = block.stream, .kind = OpKind::free});
  }
  return program;
}

}  // namespace cistern::trace
