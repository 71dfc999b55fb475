// PyTorch memory snapshots; see snapshot.hpp.
#include "trace/snapshot.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "trace/builder.hpp"
#include "trace/pickle.hpp"
#include "trace/text.hpp"

namespace cistern::trace {
namespace {

using pickle::Document;
using pickle::Kind;
using pickle::Value;

constexpr std::string_view kExpected = "a snapshot of torch.cuda.memory._snapshot() with recorded history";

enum class Action : std::uint8_t { allocate, free, other };

// One entry of device_traces.
struct Entry {
  Action action = Action::other;
  std::uint64_t address = 0, size = 0, stream = 0, time = 0;
};

struct Block {
  std::uint64_t address = 0, size = 0, stream = 0;
};

class SnapshotReader {
 public:
  SnapshotReader(Document document, const std::string& path, const TraceReadOptions& options)
      : document_(std::move(document)), path_(path), options_(options) {}

  Trace read() {
    const Value& root = document_.root();
    if (root.kind != Kind::dict) fail(fmt::format("{} as the snapshot", pickle::kind_name(root.kind)));
    const Value* traces = document_.find(root, "device_traces");
    if (traces == nullptr || !is_sequence(*traces)) fail("no list device_traces");
    const std::uint32_t device = choose_device(document_.items(*traces));
    read_entries(document_.items(*traces)[device], device);
    find_older_blocks();
    if (const Value* segments = document_.find(root, "segments"); segments != nullptr) {
      read_segments(*segments, device);
    }
    return build(device);
  }

 private:
  [[noreturn]] void fail(const std::string& found, std::string_view expected = kExpected) const {
    throw TraceError(path_, 0, found, std::string(expected));
  }

  static bool is_sequence(const Value& v) { return v.kind == Kind::list || v.kind == Kind::tuple; }

  // Lists may be shared inside a pickle, so that a small file can hold an endless walk; no real one has more entries
  // than bytes.
  void visit(std::uint64_t count) {
    if (count > document_.data_size() - visited_) fail("more entries than the file has bytes");
    visited_ += count;
  }

  std::uint32_t choose_device(std::span<const Value> traces) {
    visit(traces.size());
    std::vector<std::uint32_t> used;
    for (std::size_t i = 0; i < traces.size(); ++i) {
      if (!is_sequence(traces[i])) fail(fmt::format("{} as device_traces[{}]", pickle::kind_name(traces[i].kind), i));
      if (!document_.items(traces[i]).empty()) used.push_back(static_cast<std::uint32_t>(i));
    }
    const std::string have = used.empty() ? "none" : fmt::format("{}", fmt::join(used, ", "));
    if (options_.device.has_value()) {
      if (std::find(used.begin(), used.end(), *options_.device) == used.end()) {
        fail(fmt::format("no events of device {} (devices with events: {})", *options_.device, have),
             "a device with events");
      }
      return *options_.device;
    }
    if (used.empty()) fail("no events in device_traces");
    if (used.size() > 1) {
      fail(fmt::format("events of {} devices ({})", used.size(), have), "the choice of one of them (option device)");
    }
    return used.front();
  }

  std::uint64_t number(const Value& dict, std::string_view key, const std::string& where) const {
    const Value* v = document_.find(dict, key);
    if (v == nullptr) fail(fmt::format("no {} in {}", key, where));
    if (v->kind != Kind::integer || v->integer < 0) {
      const std::string what =
          v->kind == Kind::integer ? fmt::format("{}", v->integer) : std::string(pickle::kind_name(v->kind));
      fail(fmt::format("{} as {} in {}", what, key, where), fmt::format("a whole number from 0 to {}", kMaxSize));
    }
    return static_cast<std::uint64_t>(v->integer);
  }

  std::string_view text(const Value& dict, std::string_view key, const std::string& where) const {
    const Value* v = document_.find(dict, key);
    if (v == nullptr || v->kind != Kind::text) fail(fmt::format("no text {} in {}", key, where));
    return document_.text(*v);
  }

  void read_entries(const Value& trace, std::uint32_t device) {
    const std::span<const Value> entries = document_.items(trace);
    visit(entries.size());
    entries_.reserve(entries.size());
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if (entries[i].kind != Kind::dict) {
        fail(fmt::format("{} as entry {} of device_traces[{}]", pickle::kind_name(entries[i].kind), i, device));
      }
      entries_.push_back(read_entry(entries[i], i, device));
    }
  }

  Entry read_entry(const Value& dict, std::size_t i, std::uint32_t device) const {
    // Text for errors only; the common way does not build it.
    const auto where = [&] { return fmt::format("entry {} of device_traces[{}]", i, device); };
    const Value* action = document_.find(dict, "action");
    if (action == nullptr || action->kind != Kind::text) fail("no action in " + where());
    const std::string_view name = document_.text(*action);
    Entry entry;
    if (name == "alloc") {
      entry.action = Action::allocate;
    } else if (name == "free_requested" || name == "free") {
      entry.action = Action::free;
    } else if (name != "free_completed" && name != "segment_alloc" && name != "segment_free" && name != "segment_map" &&
               name != "segment_unmap" && name != "oom" && name != "snapshot" && name != "user_defined") {
      fail(fmt::format("the action {} in {}", quoted(name), where()), "an action of PyTorch's allocator");
    }
    // Snapshots of before PyTorch 2.1 have no times.
    if (const Value* time = document_.find(dict, "time_us"); time != nullptr) {
      if (time->kind != Kind::integer || time->integer < 0) fail("a bad time_us in " + where());
      entry.time = static_cast<std::uint64_t>(time->integer);
    }
    if (entry.action == Action::other) return entry;
    const auto field = [&](std::string_view key) {
      const Value* v = document_.find(dict, key);
      // number() says what is wrong.
      return v != nullptr && v->kind == Kind::integer && v->integer >= 0 ? static_cast<std::uint64_t>(v->integer)
                                                                         : number(dict, key, where());
    };
    entry.address = field("addr");
    entry.size = field("size");
    entry.stream = field("stream");
    return entry;
  }

  // Blocks whose free is in the window but not their allocation.
  void find_older_blocks() {
    for (const Entry& e : entries_) {
      if (e.action == Action::allocate) {
        live_[e.address] = true;
      } else if (e.action == Action::free) {
        const auto [it, fresh] = live_.try_emplace(e.address, false);
        if (fresh) older_.push_back({e.address, e.size, e.stream});
        it->second = false;
      }
    }
  }

  // Blocks that were alive before the window and still are: only the list of segments knows them.
  void read_segments(const Value& segments, std::uint32_t device) {
    if (!is_sequence(segments)) fail(fmt::format("{} as segments", pickle::kind_name(segments.kind)));
    const std::span<const Value> all = document_.items(segments);
    visit(all.size());
    for (std::size_t i = 0; i < all.size(); ++i) {
      const std::string where = fmt::format("segments[{}]", i);
      if (all[i].kind != Kind::dict) fail(fmt::format("{} as {}", pickle::kind_name(all[i].kind), where));
      if (document_.find(all[i], "device") != nullptr && number(all[i], "device", where) != device) continue;
      const Value* blocks = document_.find(all[i], "blocks");
      if (blocks == nullptr || !is_sequence(*blocks)) fail("no list blocks in " + where);
      read_blocks(document_.items(*blocks), number(all[i], "address", where), number(all[i], "stream", where), where);
    }
  }

  void read_blocks(std::span<const Value> blocks, std::uint64_t address, std::uint64_t stream,
                   const std::string& where) {
    visit(blocks.size());
    for (const Value& block : blocks) {
      if (block.kind != Kind::dict) fail(fmt::format("{} as a block of {}", pickle::kind_name(block.kind), where));
      const std::uint64_t size = number(block, "size", where);
      // An address that the window has seen is either live there, or was used by others since.
      if (text(block, "state", where) == "active_allocated" && live_.try_emplace(address, true).second) {
        const bool requested = document_.find(block, "requested_size") != nullptr;
        const std::uint64_t bytes = requested ? number(block, "requested_size", where) : size;
        if (options_.older_blocks) {
          older_.push_back({address, bytes, stream});
        } else if (bytes <= kMaxSize - left_out_) {
          left_out_ += bytes;
        }
      }
      address += size;
    }
  }

  Trace build(std::uint32_t device) {
    const std::uint64_t start = entries_.front().time;
    TraceBuilder builder(path_, TraceBuilder::Clock::clamp, TraceBuilder::Place::entry,
                         fmt::format("device_traces[{}]", device));
    std::unordered_map<std::uint64_t, std::uint32_t> ids;
    std::sort(older_.begin(), older_.end(), [](const Block& a, const Block& b) { return a.address < b.address; });
    for (const Block& block : older_) {
      ids.emplace(block.address, builder.allocate(block.size, builder.stream(block.stream), 0));
    }
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      const Entry& e = entries_[i];
      if (e.action == Action::other) continue;
      builder.at(i);
      const std::uint64_t time = e.time > start ? e.time - start : 0;
      const auto it = ids.find(e.address);
      if (e.action == Action::allocate) {
        if (it != ids.end()) {
          builder.fail(fmt::format("an alloc at {:#x}, which is in use", e.address), "an address that is free");
        }
        ids.emplace(e.address, builder.allocate(e.size, builder.stream(e.stream), time));
      } else {
        if (it == ids.end()) {
          builder.fail(fmt::format("a second free_requested of {:#x}", e.address), "one free for each allocation");
        }
        builder.free(it->second, builder.stream(e.stream), time);
        ids.erase(it);
      }
    }
    Trace trace = builder.finish(trace_name(path_));
    trace.older_blocks = older_.size();
    trace.left_out_bytes = left_out_;
    return trace;
  }

  Document document_;
  const std::string& path_;
  const TraceReadOptions& options_;
  std::uint64_t visited_ = 0;
  std::vector<Entry> entries_;
  std::unordered_map<std::uint64_t, bool> live_;  // Addresses that the window saw, and whether a block is there now.
  std::vector<Block> older_;
  std::uint64_t left_out_ = 0;
};

}  // namespace

Trace read_snapshot(ByteSource& source, const TraceReadOptions& options) {
  std::string data = read_all(source, options.max_bytes);
  return SnapshotReader(pickle::read(std::move(data), source.path(), options.max_memory), source.path(), options)
      .read();
}

}  // namespace cistern::trace
