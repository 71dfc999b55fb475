// Snapshots out; see memory_viz.hpp. Only opcodes that the page's own unpickler knows are written.
#include "trace/memory_viz.hpp"

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "trace/pickle_opcodes.hpp"
#include "trace/placement.hpp"

namespace cistern::trace {
namespace {

using pickle::Op;

// Emits opcodes; gathers them in chunks for the sink.
class PickleWriter {
 public:
  explicit PickleWriter(ByteSink& sink) : sink_(sink) {
    op(Op::proto);
    byte(2);
  }

  void op(Op code) { byte(static_cast<std::uint8_t>(code)); }

  void integer(std::uint64_t v) {
    if (v < 256) {
      op(Op::binint1);
      little(v, 1);
    } else if (v < 65536) {
      op(Op::binint2);
      little(v, 2);
    } else if (v <= INT32_MAX) {
      op(Op::binint);
      little(v, 4);
    } else {
      // One byte more than the number has, where its top bit would read as a sign.
      const unsigned bytes = v >> 63 ? 9 : 8;
      op(Op::long1);
      byte(static_cast<std::uint8_t>(bytes));
      little(v, 8);
      if (bytes == 9) byte(0);
    }
  }

  // Written once, then named by its memo number. Only for literals: the map keeps views.
  void text(std::string_view literal) {
    const auto [it, fresh] = memo_.try_emplace(literal, memo_.size());
    if (!fresh) {
      op(it->second < 256 ? Op::binget : Op::long_binget);
      little(it->second, it->second < 256 ? 1 : 4);
      return;
    }
    op(Op::binunicode);
    little(literal.size(), 4);
    out_ += literal;
    op(it->second < 256 ? Op::binput : Op::long_binput);
    little(it->second, it->second < 256 ? 1 : 4);
  }

  void boolean(bool v) { op(v ? Op::newtrue : Op::newfalse); }
  void empty_list() { op(Op::empty_list); }

  void begin_dict() {
    op(Op::empty_dict);
    op(Op::mark);
  }
  void end_dict() { op(Op::setitems); }

  void field(std::string_view key, std::uint64_t v) {
    text(key);
    integer(v);
  }
  void field(std::string_view key, std::string_view v) {
    text(key);
    text(v);
  }

  void flush_if_large() {
    if (out_.size() >= ByteSink::kChunk) sink_.write(std::exchange(out_, {}));
  }
  void finish() {
    op(Op::stop);
    sink_.write(out_);
  }

 private:
  void byte(std::uint8_t v) { out_ += static_cast<char>(v); }
  void little(std::uint64_t v, unsigned bytes) {
    for (unsigned i = 0; i < bytes; ++i) byte(static_cast<std::uint8_t>(v >> (8 * i)));
  }

  ByteSink& sink_;
  std::string out_;
  std::unordered_map<std::string_view, std::uint64_t> memo_;
};

// A list whose items are appended in groups, as Python's own pickler does: the page's reader passes each group as
// arguments of one call, of which there may not be too many.
class ListWriter {
 public:
  explicit ListWriter(PickleWriter& out) : out_(out) { out_.empty_list(); }
  void item() {
    if (in_group_ == kGroup) end_group();
    if (in_group_++ == 0) out_.op(Op::mark);
    out_.flush_if_large();
  }
  void end() {
    if (in_group_ != 0) end_group();
  }

 private:
  static constexpr int kGroup = 1000;
  void end_group() {
    out_.op(Op::appends);
    in_group_ = 0;
  }
  PickleWriter& out_;
  int in_group_ = 0;
};

void write_entry(PickleWriter& out, std::string_view action, std::uint64_t address, std::uint64_t size,
                 std::uint64_t stream, std::uint64_t time_us) {
  out.begin_dict();
  out.field("action", action);
  out.field("addr", address);
  out.field("size", size);
  out.field("stream", stream);
  out.field("time_us", time_us);
  out.text("frames");
  out.empty_list();
  out.end_dict();
}

struct LiveBlock {
  std::uint64_t address, size;
};

std::vector<LiveBlock> live_at_end(const Trace& trace, const Placement& placement) {
  std::vector<std::uint64_t> sizes(trace.allocations);
  std::vector<bool> live(trace.allocations);
  for (const TraceEvent& e : trace.events) {
    live[e.id] = e.kind == TraceEventKind::allocate;
    sizes[e.id] = e.size;
  }
  std::vector<LiveBlock> blocks;
  for (std::uint32_t id = 0; id < trace.allocations; ++id) {
    if (live[id]) blocks.push_back({placement.addresses[id], sizes[id]});
  }
  std::sort(blocks.begin(), blocks.end(), [](const LiveBlock& a, const LiveBlock& b) { return a.address < b.address; });
  return blocks;
}

void write_block(PickleWriter& out, ListWriter& list, std::uint64_t address, std::uint64_t size,
                 std::uint64_t requested, bool active) {
  list.item();
  out.begin_dict();
  out.field("address", address);
  out.field("size", size);
  out.field("requested_size", requested);
  out.field("state", active ? "active_allocated" : "inactive");
  out.text("frames");
  out.empty_list();
  out.end_dict();
}

// Blocks and the gaps between them, one behind the other over the whole range.
void write_blocks(PickleWriter& out, const Placement::Range& range, std::vector<LiveBlock>::const_iterator first,
                  std::vector<LiveBlock>::const_iterator last) {
  ListWriter list(out);
  std::uint64_t at = range.address;
  for (auto it = first; it != last; ++it) {
    if (it->address > at) write_block(out, list, at, it->address - at, 0, false);
    write_block(out, list, it->address, placed_size(it->size), it->size, true);
    at = it->address + placed_size(it->size);
  }
  const std::uint64_t end = range.address + range.size;
  if (at < end) write_block(out, list, at, end - at, 0, false);
  list.end();
}

void write_segment(PickleWriter& out, const Trace& trace, const Placement::Range& range,
                   const std::vector<LiveBlock>& live) {
  const auto from = [&](std::uint64_t address) {
    return std::lower_bound(live.begin(), live.end(), address,
                            [](const LiveBlock& b, std::uint64_t a) { return b.address < a; });
  };
  const auto first = from(range.address);
  const auto last = from(range.address + range.size);
  std::uint64_t placed = 0, requested = 0;
  for (auto it = first; it != last; ++it) {
    placed += placed_size(it->size);
    requested += it->size;
  }
  out.begin_dict();
  out.field("device", std::uint64_t{0});
  out.field("address", range.address);
  out.field("total_size", range.size);
  out.field("allocated_size", placed);
  out.field("active_size", placed);
  out.field("requested_size", requested);
  out.field("stream", trace.streams[range.stream]);
  out.field("segment_type", "large");
  out.text("segment_pool_id");
  out.integer(0);
  out.integer(0);
  out.op(Op::tuple2);
  out.text("is_expandable");
  out.boolean(false);
  out.text("frames");
  out.empty_list();
  out.text("blocks");
  write_blocks(out, range, first, last);
  out.end_dict();
}

}  // namespace

void write_memory_viz(ByteSink& sink, const Trace& trace, const std::string& path) {
  const Placement placement = place(trace, path);
  const std::vector<LiveBlock> live = live_at_end(trace, placement);
  PickleWriter out(sink);
  out.begin_dict();
  out.text("segments");
  ListWriter segments(out);
  for (const Placement::Range& range : placement.ranges) {
    segments.item();
    write_segment(out, trace, range, live);
  }
  segments.end();

  out.text("device_traces");
  ListWriter devices(out);
  devices.item();
  ListWriter entries(out);
  for (const Placement::Range& range : placement.ranges) {
    entries.item();
    write_entry(out, "segment_alloc", range.address, range.size, trace.streams[range.stream], 0);
  }
  for (const TraceEvent& e : trace.events) {
    const std::uint64_t address = placement.addresses[e.id];
    const std::uint64_t stream = trace.streams[e.stream];
    entries.item();
    if (e.kind == TraceEventKind::allocate) {
      write_entry(out, "alloc", address, e.size, stream, e.time_us);
    } else {
      write_entry(out, "free_requested", address, e.size, stream, e.time_us);
      entries.item();
      write_entry(out, "free_completed", address, e.size, stream, e.time_us);
    }
  }
  entries.end();
  devices.end();

  out.text("allocator_settings");
  out.begin_dict();
  out.end_dict();
  out.text("external_annotations");
  out.empty_list();
  out.end_dict();
  out.finish();
}

}  // namespace cistern::trace
