// PyTorch snapshots: which entries are events, blocks older than the window, devices, and faults.
#include "trace/snapshot.hpp"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "trace/support.hpp"

namespace cistern {
namespace {

using trace_test::expect_consistent;
using trace_test::expect_fault;
using trace_test::TempFolder;

// Pickles by hand, so that these tests need no Python.
std::string text(std::string_view s) { return "\x8c" + std::string(1, static_cast<char>(s.size())) + std::string(s); }
std::string number(std::int64_t v) {
  std::string out = "\x8a\x08";
  for (int i = 0; i < 8; ++i) out += static_cast<char>(static_cast<std::uint64_t>(v) >> (8 * i));
  return out;
}
std::string list(const std::vector<std::string>& items) {
  std::string out = "](";
  for (const std::string& item : items) out += item;
  return out + "e";
}
std::string dict(const std::vector<std::pair<std::string, std::string>>& items) {
  std::string out = "}(";
  for (const auto& [key, value] : items) out += text(key) + value;
  return out + "u";
}
std::string entry(std::string_view action, std::int64_t address, std::int64_t size, std::int64_t time,
                  std::int64_t stream = 0) {
  return dict({{"action", text(action)},
               {"addr", number(address)},
               {"size", number(size)},
               {"stream", number(stream)},
               {"time_us", number(time)}});
}
std::string block(std::int64_t size, std::string_view state, std::int64_t requested) {
  return dict({{"size", number(size)}, {"state", text(state)}, {"requested_size", number(requested)}});
}
std::string segment(std::int64_t device, std::int64_t address, const std::vector<std::string>& blocks) {
  return dict(
      {{"device", number(device)}, {"address", number(address)}, {"stream", number(0)}, {"blocks", list(blocks)}});
}
std::string snapshot(const std::vector<std::vector<std::string>>& traces,
                     const std::vector<std::string>& segments = {}) {
  std::vector<std::string> lists;
  for (const auto& trace : traces) lists.push_back(list(trace));
  return "\x80\x04" + dict({{"segments", list(segments)}, {"device_traces", list(lists)}}) + ".";
}

TEST(Snapshot, TheHostsFreeCounts) {
  TempFolder folder;
  const Trace t = read_trace(folder.write("run.pickle", snapshot({{
                                                            entry("segment_alloc", 4096, 1 << 20, 1000),
                                                            entry("alloc", 4096, 100, 1010),
                                                            entry("alloc", 8192, 50, 1020, 77),
                                                            entry("free_requested", 4096, 100, 1030),
                                                            entry("oom", 0, 1 << 30, 1035),
                                                            entry("free_completed", 4096, 100, 1040),
                                                            entry("alloc", 4096, 7, 1050),
                                                            entry("snapshot", 0, 0, 1060),
                                                        }})));
  expect_consistent(t);
  EXPECT_EQ(t.name, "run");
  ASSERT_EQ(t.events.size(), 4u);
  EXPECT_EQ(t.events[0], (TraceEvent{100, 10, 0, 0, TraceEventKind::allocate}));
  EXPECT_EQ(t.events[2], (TraceEvent{100, 30, 0, 0, TraceEventKind::free}));
  EXPECT_EQ(t.events[3].id, 2u);
  EXPECT_EQ(t.streams, (std::vector<std::uint64_t>{0, 77}));
}

TEST(Snapshot, BlocksOlderThanTheWindow) {
  TempFolder folder;
  const std::string bytes =
      snapshot({{
                   entry("free_completed", 512, 10, 5),  // Freed by the host before the window.
                   entry("free_requested", 9000, 30, 6),
                   entry("free_completed", 9000, 30, 6),
                   entry("alloc", 9000, 31, 7),
                   entry("free_requested", 8000, 20, 8),
               }},
               {segment(0, 1000,
                        {block(1000, "active_allocated", 900), block(6000, "inactive", 0),
                         block(1000, "active_pending_free", 20), block(512, "active_allocated", 31)}),
                segment(1, 500000, {block(64, "active_allocated", 64)})});
  const std::string path = folder.write("t.pickle", bytes);
  const Trace t = read_trace(path);
  expect_consistent(t);
  ASSERT_EQ(t.events.size(), 5u);
  EXPECT_EQ(t.events[0], (TraceEvent{20, 0, 0, 0, TraceEventKind::allocate})) << "lowest address first";
  EXPECT_EQ(t.events[1], (TraceEvent{30, 0, 1, 0, TraceEventKind::allocate}));
  EXPECT_EQ(t.older_blocks, 2u);
  EXPECT_EQ(t.left_out_bytes, 900u);

  TraceReadOptions options;
  options.older_blocks = true;
  const Trace all = read_trace(path, options);
  expect_consistent(all);
  ASSERT_EQ(all.events.size(), 6u);
  EXPECT_EQ(all.events[0].size, 900u);
  EXPECT_EQ(all.older_blocks, 3u);
  EXPECT_EQ(all.left_out_bytes, 0u);
}

TEST(Snapshot, Devices) {
  TempFolder folder;
  const std::string two =
      folder.write("two.pickle", snapshot({{}, {entry("alloc", 1, 10, 0)}, {entry("alloc", 1, 20, 0)}}));
  expect_fault(two, 0, "events of 2 devices (1, 2)", "option device");
  TraceReadOptions options;
  options.device = 2;
  EXPECT_EQ(read_trace(two, options).events[0].size, 20u);
  options.device = 0;
  expect_fault(two, 0, "no events of device 0 (devices with events: 1, 2)", "a device with events", options);
  options.device = 9;
  expect_fault(two, 0, "no events of device 9", "a device with events", options);
  const std::string one = folder.write("one.pickle", snapshot({{}, {entry("alloc", 1, 10, 0)}}));
  EXPECT_EQ(read_trace(one).events[0].size, 10u);
}

TEST(Snapshot, EntriesWithoutTimes) {
  TempFolder folder;
  const std::string e =
      dict({{"action", text("alloc")}, {"addr", number(1)}, {"size", number(2)}, {"stream", number(0)}});
  EXPECT_EQ(read_trace(folder.write("t.pickle", snapshot({{e}}))).events[0].time_us, 0u);
}

TEST(Snapshot, Faults) {
  TempFolder folder;
  const auto fault = [&](const std::string& bytes, std::string_view found, std::string_view expected = {}) {
    expect_fault(folder.write("t.pickle", bytes), 0, found, expected);
  };
  fault("\x80\x04N.", "None as the snapshot", "torch.cuda.memory._snapshot()");
  fault("\x80\x04].", "a list as the snapshot");
  fault("\x80\x04}.", "no list device_traces");
  fault("\x80\x04" + dict({{"device_traces", number(1)}}) + ".", "no list device_traces");
  fault("\x80\x04" + dict({{"device_traces", list({"N"})}}) + ".", "None as device_traces[0]");
  fault(snapshot({}), "no events in device_traces");
  fault(snapshot({{}}), "no events in device_traces");
  fault(snapshot({{"N"}}), "None as entry 0 of device_traces[0]");
  fault(snapshot({{dict({})}}), "no action in entry 0");
  fault(snapshot({{entry("explode", 1, 1, 1)}}), "the action \"explode\" in entry 0", "PyTorch");
  fault(snapshot({{entry("alloc", 1, -1, 1)}}), "-1 as size in entry 0", "9223372036854775807");
  fault(snapshot({{entry("alloc", 1, 1, -1)}}), "a bad time_us in entry 0");
  fault(snapshot({{dict({{"action", text("alloc")}})}}), "no addr in entry 0");
  fault(snapshot({{dict({{"action", text("alloc")}, {"addr", text("x")}})}}), "a str as addr in entry 0");
  fault(snapshot({{entry("alloc", 1, 1, 1), entry("alloc", 1, 1, 1)}}), "in use in entry 1 of device_traces[0]");
  fault(snapshot({{entry("alloc", 1, 1, 1), entry("free_requested", 1, 1, 1), entry("free_requested", 1, 1, 1)}}),
        "a second free_requested of 0x1 in entry 2");
  fault(snapshot({{entry("alloc", 1, INT64_MAX, 1), entry("alloc", 2, 1, 1)}}), "live bytes", "9223372036854775807");
  fault(snapshot({{entry("segment_alloc", 1, 1, 1)}}), "no event");
  fault(snapshot({{entry("alloc", 1, 1, 1)}}, {"N"}), "None as segments[0]");
  fault(snapshot({{entry("alloc", 1, 1, 1)}}, {dict({{"device", number(0)}})}), "no list blocks in segments[0]");
  fault(snapshot({{entry("alloc", 1, 1, 1)}}, {segment(0, 1, {"N"})}), "None as a block of segments[0]");
}

TEST(Snapshot, SharedListsCannotMakeAnEndlessWalk) {
  // One list of entries, named 100,000 times: each name costs two bytes.
  std::string body =
      "\x80\x04}\x8c\x0d"
      "device_traces](";
  std::string entries = "](" + entry("snapshot", 0, 0, 0) + "\x94";
  for (int i = 0; i < 1000; ++i) entries += std::string("h\0", 2);
  body += entries + "e\x94";
  for (int i = 0; i < 100000; ++i) body += "h\x01";
  body += "es.";
  TempFolder folder;
  TraceReadOptions options;
  expect_fault(folder.write("t.pickle", body), 0, "events of 100001 devices", "device", options);
  // As blocks of one segment, named again and again.
  std::string blocks = "](" + block(1, "inactive", 0) + "\x94";
  for (int i = 0; i < 10000; ++i) blocks += std::string("h\0", 2);
  blocks += "e";
  std::string segments =
      "](" + dict({{"device", number(0)}, {"address", number(1)}, {"stream", number(0)}, {"blocks", blocks}}) + "\x94";
  for (int i = 0; i < 10000; ++i) segments += "h\x01";
  segments += "e";
  const std::string bytes = "\x80\x04}(" + text("segments") + segments + text("device_traces") +
                            list({list({entry("alloc", 1, 1, 1)})}) + "u.";
  expect_fault(folder.write("u.pickle", bytes), 0, "more entries than the file has bytes", "snapshot");
}

TEST(Snapshot, ARecordedSnapshotIsItsCsv) {
  const std::string pickle = trace_test::recorded_trace("vit_infer.pickle.gz");
  const std::string csv = trace_test::recorded_trace("vit_infer.csv.gz");
  if (pickle.empty() || csv.empty()) GTEST_SKIP() << "no recorded traces";
  const Trace a = read_trace(pickle);
  const Trace b = read_trace(csv);
  expect_consistent(a);
  EXPECT_EQ(a.name, b.name);
  EXPECT_TRUE(a.events == b.events);
  EXPECT_EQ(a.peak_live_bytes, b.peak_live_bytes);
  EXPECT_EQ(a.left_out_bytes, 2 * 33554432u + 2 * 1048576u);
}

TEST(Snapshot, ProtocolsThatPythonWrites) {
  if (!trace_test::have_python()) GTEST_SKIP() << "no python3";
  TempFolder folder;
  trace_test::run_python(folder, R"(
import pickle, sys, gzip
def e(action, addr, size, t): return dict(action=action, addr=addr, size=size, stream=0, time_us=t, frames=[
    dict(filename='a.py', line=1, name='f')])
trace = [e('alloc', 2**46 + i * 512, i, 10**15 + i) for i in range(2000)]
trace += [e('free_requested', 2**46 + i * 512, i, 10**15 + 5000 + i) for i in range(1500)]
snapshot = dict(segments=[], device_traces=[trace, []], allocator_settings=dict(x=0.5, y='z', n=None))
for p in range(2, 6):
    with open(sys.argv[1] + '/%d.pickle' % p, 'wb') as f: pickle.dump(snapshot, f, p)
    with gzip.open(sys.argv[1] + '/%d.pickle.gz' % p, 'wb') as f: pickle.dump(snapshot, f, p)
)",
                         folder.file(""));
  for (const char* name : {"2.pickle", "3.pickle", "4.pickle", "5.pickle", "2.pickle.gz", "5.pickle.gz"}) {
    const Trace t = read_trace(folder.file(name));
    expect_consistent(t);
    EXPECT_EQ(t.events.size(), 3500u) << name;
    EXPECT_EQ(t.events[1999].size, 1999u) << name;
    EXPECT_EQ(t.duration_us, 6499u) << name;
  }
}

}  // namespace
}  // namespace cistern
