// From one format to another and back; what other programs make of the files written.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "trace/generate.hpp"
#include "trace/placement.hpp"
#include "trace/support.hpp"

namespace cistern {
namespace {

using trace_test::expect_consistent;
using trace_test::TempFolder;

// A trace with everything: two streams, live at the end, empty blocks, a first time that is not 0.
Trace sample(const TempFolder& folder) {
  return read_trace(
      folder.write("sample.csv",
                   "event,id,size,stream,time_us\na,0,1000,0,3\na,1,0,0,4\na,2,5000000,140000000000000,9\n"
                   "f,0,1000,0,12\na,3,700,0,12\nf,2,5000000,0,15\na,4,1,140000000000000,90000000000\n"));
}

void expect_same(const Trace& a, const Trace& b, std::uint64_t shift = 0) {
  expect_consistent(b);
  ASSERT_EQ(a.events.size(), b.events.size());
  for (std::size_t i = 0; i < a.events.size(); ++i) {
    TraceEvent e = b.events[i];
    e.time_us += shift;
    ASSERT_EQ(a.events[i], e) << "event " << i;
  }
  EXPECT_EQ(a.streams, b.streams);
  EXPECT_EQ(a.peak_live_bytes, b.peak_live_bytes);
}

TEST(TraceConvert, CsvThereAndBack) {
  TempFolder folder;
  const Trace t = sample(folder);
  for (const char* name : {"a.csv", "a.csv.gz"}) {
    write_trace(folder.file(name), t);
    expect_same(t, read_trace(folder.file(name)));
  }
  EXPECT_EQ(trace_test::slurp(folder.file("a.csv")), trace_test::slurp(folder.file("sample.csv")));
  EXPECT_EQ(trace_test::slurp(folder.file("a.csv.gz")).substr(0, 2), "\x1f\x8b");
}

TEST(TraceConvert, SnapshotThereAndBack) {
  TempFolder folder;
  const Trace t = sample(folder);
  for (const char* name : {"a.pickle", "a.pkl", "a.pickle.gz"}) {
    write_trace(folder.file(name), t);
    const Trace back = read_trace(folder.file(name));
    expect_same(t, back);
    EXPECT_EQ(back.left_out_bytes, 0u);
    EXPECT_EQ(back.older_blocks, 0u);
  }
}

TEST(TraceConvert, RmmLogThereAndBack) {
  TempFolder folder;
  // Hours and midnights, but no pause that a clock cannot show.
  std::string text = "event,id,size,stream,time_us\n";
  for (std::uint64_t i = 0; i < 100; ++i) {
    text += "a," + std::to_string(i) + ",64,0," + std::to_string(i * 3'600'000'000u + i) + "\n";
  }
  const Trace t = read_trace(folder.write("hours.csv", text));
  for (const char* name : {"a.rmm", "a.rmm.csv", "a.log", "a.log.gz"}) {
    write_trace(folder.file(name), t);
    expect_same(t, read_trace(folder.file(name)));
  }
}

TEST(TraceConvert, EverySyntheticTraceInEveryFormat) {
  TempFolder folder;
  for (const trace::Workload workload : trace::all_workloads()) {
    SCOPED_TRACE(trace::name_of(workload));
    const Trace t = trace::generate(workload, {.seed = 3, .scale = 0.05});
    for (const char* name : {"t.csv.gz", "t.rmm.csv", "t.pickle"}) {
      write_trace(folder.file(name), t);
      const bool relative = std::string(name) == "t.rmm.csv";
      expect_same(t, read_trace(folder.file(name)), relative ? t.events.front().time_us : 0);
    }
  }
}

TEST(TraceConvert, TheNameDecidesTheFormat) {
  EXPECT_EQ(trace_format_of("a.csv"), TraceFormat::csv);
  EXPECT_EQ(trace_format_of("x/y.z/a.csv.gz"), TraceFormat::csv);
  EXPECT_EQ(trace_format_of("a.rmm.csv"), TraceFormat::rmm_log);
  EXPECT_EQ(trace_format_of("a.log.gz"), TraceFormat::rmm_log);
  EXPECT_EQ(trace_format_of("a.pkl"), TraceFormat::torch_snapshot);
  EXPECT_EQ(trace_format_of("a.json"), TraceFormat::perfetto_json);
  for (const char* name : {"a", "a.txt", "a.gz", "csv", ""}) EXPECT_THROW(trace_format_of(name), TraceError) << name;
  TempFolder folder;
  const Trace t = sample(folder);
  EXPECT_THROW(write_trace(folder.file("out.txt"), t), TraceError);
  EXPECT_FALSE(trace_test::fs::exists(folder.file("out.txt")));
  write_trace(folder.file("out.txt"), t, {.format = TraceFormat::csv});
  expect_same(t, read_trace(folder.file("out.txt")));
}

TEST(TraceConvert, AFileCanBeReplacedByItself) {
  TempFolder folder;
  const Trace t = sample(folder);
  write_trace(folder.file("sample.csv"), read_trace(folder.file("sample.csv")));
  expect_same(t, read_trace(folder.file("sample.csv")));
}

TEST(TraceConvert, AddressesNeverOverlap) {
  const Trace t = trace::generate(trace::Workload::random, {.seed = 5, .scale = 0.2});
  const trace::Placement p = trace::place(t, "t");
  std::map<std::uint64_t, std::uint64_t> live;
  for (const TraceEvent& e : t.events) {
    const std::uint64_t at = p.addresses[e.id];
    if (e.kind == TraceEventKind::free) {
      live.erase(at);
      continue;
    }
    const auto [it, fresh] = live.emplace(at, trace::placed_size(e.size));
    ASSERT_TRUE(fresh);
    if (it != live.begin()) {
      ASSERT_LE(std::prev(it)->first + std::prev(it)->second, at);
    }
    if (std::next(it) != live.end()) {
      ASSERT_LE(at + it->second, std::next(it)->first);
    }
    bool inside = false;
    for (const auto& r : p.ranges) inside |= at >= r.address && at + it->second <= r.address + r.size;
    ASSERT_TRUE(inside);
  }
}

TEST(TraceConvert, AddressesBeyondTheirRangeAreRefused) {
  TempFolder folder;
  const Trace t = read_trace(folder.write("t.csv", "event,id,size,stream,time_us\na,0,9223372036854775807,0,0\n"));
  for (const char* name : {"a.pickle", "a.rmm"}) {
    EXPECT_THROW(write_trace(folder.file(name), t), TraceError);
    EXPECT_FALSE(trace_test::fs::exists(folder.file(name)));
  }
  write_trace(folder.file("a.json"), t);
}

constexpr const char* kNames[] = {"a.csv", "a.rmm", "a.pickle", "a.json"};

void expect_refused(const TempFolder& folder, const Trace& t, const std::string& text,
                    const TraceWriteOptions& options = {}, std::string_view only = "") {
  for (const std::string name : kNames) {
    if (!only.empty() && name != only) continue;
    try {
      write_trace(folder.file(name), t, options);
      ADD_FAILURE() << name << " was written, expected: " << text;
    } catch (const TraceError& error) {
      EXPECT_EQ(error.file(), folder.file(name));
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    }
    EXPECT_FALSE(trace_test::fs::exists(folder.file(name))) << name;
  }
}

TEST(TraceConvert, ATraceThatIsNoneIsRefusedByItsEvent) {
  TempFolder folder;
  const Trace good = sample(folder);
  const auto broken = [&](std::size_t event, auto change, const std::string& text) {
    Trace t = good;
    change(t.events[event]);
    expect_refused(folder, t, "event " + std::to_string(event) + ": " + text);
  };
  broken(
      2, [](TraceEvent& e) { e.stream = 3; }, "stream 3; there are 2");
  broken(
      4, [](TraceEvent& e) { e.id = 7; }, "id 7; expected 3");
  broken(
      4, [](TraceEvent& e) { e.id = 2; }, "id 2; expected 3");
  broken(
      0, [](TraceEvent& e) { e.kind = TraceEventKind::free; }, "a free of id 0, which no event allocated before");
  broken(
      3, [](TraceEvent& e) { e.id = UINT32_MAX; }, "a free of id 4294967295");
  broken(
      5,
      [](TraceEvent& e) {
        e = {1000, 15, 0, 0, TraceEventKind::free};
      },
      "a second free of id 0");
  broken(
      5, [](TraceEvent& e) { e.size -= 1; }, "a free of id 2 with size 4999999; expected 5000000");
  broken(
      3, [](TraceEvent& e) { e.time_us = 8; }, "the time 8 us after 9 us");
  broken(
      1, [](TraceEvent& e) { e.size = UINT64_MAX; }, "the size 18446744073709551615");
  broken(
      6, [](TraceEvent& e) { e.size = INT64_MAX; }, "700 live bytes and 9223372036854775807 more");
  broken(
      1, [](TraceEvent& e) { e.kind = TraceEventKind{2}; }, "kind 2");
}

TEST(TraceConvert, ATraceWhoseMembersDisagreeIsRefused) {
  TempFolder folder;
  const Trace good = sample(folder);
  expect_refused(folder, Trace{}, "a trace without events");
  Trace t = good;
  t.streams.clear();
  expect_refused(folder, t, "without streams");
  t.streams = {5, 6};
  expect_refused(folder, t, "a first stream called 5");
  t.streams.assign(65537, 0);
  expect_refused(folder, t, "65537 streams");
  t = good;
  t.allocations = 4;
  expect_refused(folder, t, "4 allocations");
  t = good;
  t.original_ids = {1, 2};
  expect_refused(folder, t, "2 original ids");
  t.original_ids = {1, 2, 3, 4, 1};
  expect_refused(folder, t, "the original id 1 twice", {}, "a.csv");
  t.original_ids = {1, 2, 3, 4, UINT64_MAX};
  expect_refused(folder, t, "the original id 18446744073709551615", {}, "a.csv");
  t = good;
  t.streams[1] = UINT64_MAX;
  expect_refused(folder, t, "a stream called 18446744073709551615", {}, "a.csv");
  t = good;
  t.events.back().time_us = UINT64_MAX;
  expect_refused(folder, t, "the time 18446744073709551615 us", {}, "a.csv");
  for (const int level : {0, 10, 99, -1}) {
    expect_refused(folder, good, "gzip_level " + std::to_string(level), {.format = {}, .gzip_level = level});
  }
  expect_refused(folder, good, "format 9", {.format = TraceFormat{9}});
}

// What PyTorch's memory_viz page relies on: opcodes that it knows, blocks that tile their segment, and a history that
// leads to the state in `segments`.
constexpr const char* kCheckSnapshot = R"(
import pickle, pickletools, sys
data = open(sys.argv[1], 'rb').read()
known = set('PROTO APPEND APPENDS LIST TUPLE NEWFALSE NEWTRUE NONE BINGET BININT BININT1 BININT2 EMPTY_DICT EMPTY_LIST '
            'FRAME LONG1 LONG_BINGET MARK MEMOIZE BINPUT LONG_BINPUT SETITEMS SETITEM DICT SHORT_BINUNICODE BINUNICODE '
            'STOP EMPTY_TUPLE TUPLE1 TUPLE2 TUPLE3 BINFLOAT'.split())
ops = {op.name for op, _, _ in pickletools.genops(data)}
assert ops <= known, ops - known
assert 2 <= data[1] <= 4
s = pickle.loads(data)
assert len(s['device_traces']) == 1
state = {}
for g in s['segments']:
    at = g['address']
    for b in g['blocks']:
        assert b['address'] == at and b['size'] > 0 and b['requested_size'] <= b['size']
        if b['state'] == 'active_allocated': state[at] = b['requested_size']
        else: assert b['state'] == 'inactive'
        at += b['size']
    assert at == g['address'] + g['total_size'] and at < 2**53
    assert g['device'] == 0 and 'frames' in g
live, last, mapped = {}, 0, []
for e in s['device_traces'][0]:
    assert e['time_us'] >= last; last = e['time_us']
    a = e['addr']
    if e['action'] == 'segment_alloc': mapped.append((a, a + e['size']))
    elif e['action'] == 'alloc':
        assert a not in live and any(x <= a and a + e['size'] <= y for x, y in mapped); live[a] = e['size']
    elif e['action'] == 'free_requested': requested = a
    elif e['action'] == 'free_completed': assert a == requested; assert live.pop(a) == e['size']
    else: assert False, e
assert live == state, (len(live), len(state))
assert sorted(mapped) == sorted((g['address'], g['address'] + g['total_size']) for g in s['segments'])
)";

TEST(TraceConvert, PythonOpensTheSnapshot) {
  if (!trace_test::have_python()) GTEST_SKIP() << "no python3";
  TempFolder folder;
  write_trace(folder.file("a.pickle"), sample(folder));
  trace_test::run_python(folder, kCheckSnapshot, folder.file("a.pickle"));
  for (const trace::Workload workload : {trace::Workload::decode, trace::Workload::two_streams}) {
    write_trace(folder.file("b.pickle"), trace::generate(workload, {.seed = 1, .scale = 0.1}));
    trace_test::run_python(folder, kCheckSnapshot, folder.file("b.pickle"));
  }
}

TEST(TraceConvert, PerfettoJsonIsWellFormed) {
  TempFolder folder;
  Trace t = sample(folder);
  t.name = "a \"quoted\" \xff name";
  write_trace(folder.file("a.json"), t);
  const nlohmann::json j = nlohmann::json::parse(trace_test::slurp(folder.file("a.json")));
  std::map<std::string, int> kinds;
  std::map<std::uint64_t, int> open;
  std::uint64_t last_live = 0, peak = 0, last = 0;
  for (const auto& e : j.at("traceEvents")) {
    const std::string ph = e.at("ph");
    ++kinds[ph];
    if (ph == "M") continue;
    EXPECT_GE(e.at("ts").get<std::uint64_t>(), last);
    last = e.at("ts");
    if (ph == "b") ++open[e.at("id")];
    if (ph == "e") --open[e.at("id")];
    if (ph == "C" && e.at("pid") == 1) {
      last_live = e.at("args").at("bytes");
      peak = std::max(peak, last_live);
    }
  }
  EXPECT_EQ(kinds["b"], 5);
  EXPECT_EQ(kinds["e"], 2);
  EXPECT_EQ(kinds["C"], 14);
  EXPECT_EQ(kinds["M"], 3);
  EXPECT_EQ(last_live, t.live_at_end_bytes);
  EXPECT_EQ(peak, t.peak_live_bytes);
  for (const auto& [id, count] : open) EXPECT_GE(count, 0) << id;
}

}  // namespace
}  // namespace cistern
