// The pickle reader: every kind of value, every protocol, every refusal.
#include "trace/pickle.hpp"

#include <gtest/gtest.h>

#include "trace/support.hpp"

namespace cistern::trace {
namespace {

using pickle::Document;
using pickle::Kind;
using pickle::Value;

constexpr std::uint64_t kMemory = 64 << 20;

// A string literal with its inner zero bytes.
template <std::size_t N>
std::string bytes(const char (&literal)[N]) {
  return {literal, N - 1};
}

Document read(const std::string& body, std::uint64_t memory = kMemory) {
  return pickle::read(bytes("\x80\x04") + body, "test.pickle", memory);
}

void expect_refused(const std::string& body, std::string_view found, std::uint64_t memory = kMemory) {
  try {
    read(body, memory);
    ADD_FAILURE() << "was read; expected: " << found;
  } catch (const TraceError& e) {
    EXPECT_NE(std::string_view(e.what()).find(found), std::string_view::npos) << e.what();
    EXPECT_NE(e.found().find(" at byte "), std::string::npos) << e.what();
  }
}

TEST(Pickle, Numbers) {
  const auto integer = [](const std::string& body) {
    const Document d = read(body + ".");
    EXPECT_EQ(d.root().kind, Kind::integer);
    return d.root().integer;
  };
  EXPECT_EQ(integer("K\xff"), 255);
  EXPECT_EQ(integer(bytes("M\x01\x02")), 513);
  EXPECT_EQ(integer("J\xff\xff\xff\xff"), -1);
  EXPECT_EQ(integer(bytes("\x8a\x00")), 0);
  EXPECT_EQ(integer(bytes("\x8a\x01\xff")), -1);
  EXPECT_EQ(integer(bytes("\x8a\x02\xff\x00")), 255);
  EXPECT_EQ(integer(bytes("\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f")), INT64_MAX);
  EXPECT_EQ(integer(bytes("\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80")), INT64_MIN);
  EXPECT_EQ(integer(bytes("\x8b\x02\x00\x00\x00\x00\x01")), 256);
  EXPECT_EQ(read(bytes("\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x80\x00.")).root().kind, Kind::big_integer);
  const Document real = read(bytes("G\x3f\xf8\x00\x00\x00\x00\x00\x00."));
  EXPECT_EQ(real.root().kind, Kind::real);
  EXPECT_EQ(real.root().real, 1.5);
}

TEST(Pickle, ConstantsTextAndBytes) {
  EXPECT_EQ(read("N.").root().kind, Kind::none);
  EXPECT_EQ(read("\x88.").root().integer, 1);
  EXPECT_EQ(read("\x89.").root().integer, 0);
  for (const std::string& body : {bytes("\x8c\x02hi"), bytes("X\x02\x00\x00\x00hi"), bytes("U\x02hi"),
                                  bytes("T\x02\x00\x00\x00hi"), bytes("\x8d\x02\x00\x00\x00\x00\x00\x00\x00hi")}) {
    const Document d = read(body + ".");
    EXPECT_EQ(d.root().kind, Kind::text);
    EXPECT_EQ(d.text(d.root()), "hi");
  }
  for (const std::string& body :
       {bytes("C\x02hi"), bytes("B\x02\x00\x00\x00hi"), bytes("\x8e\x02\x00\x00\x00\x00\x00\x00\x00hi"),
        bytes("\x96\x02\x00\x00\x00\x00\x00\x00\x00hi")}) {
    EXPECT_EQ(read(body + ".").root().kind, Kind::bytes);
  }
}

TEST(Pickle, Containers) {
  const auto count = [](const std::string& body, Kind kind) {
    const Document d = read(body + ".");
    EXPECT_EQ(d.root().kind, kind);
    return d.items(d.root()).size();
  };
  EXPECT_EQ(count(")", Kind::tuple), 0u);
  EXPECT_EQ(count("K\x01\x85", Kind::tuple), 1u);
  EXPECT_EQ(count("K\x01K\x02\x86", Kind::tuple), 2u);
  EXPECT_EQ(count("K\x01K\x02K\x03\x87", Kind::tuple), 3u);
  EXPECT_EQ(count("(K\x01K\x02K\x03K\x04t", Kind::tuple), 4u);
  EXPECT_EQ(count("]", Kind::list), 0u);
  EXPECT_EQ(count("]K\x01"
                  "aK\x02"
                  "a",
                  Kind::list),
            2u);
  EXPECT_EQ(count("](K\x01K\x02"
                  "e(K\x03"
                  "e",
                  Kind::list),
            3u);
  EXPECT_EQ(count("(K\x01K\x02l", Kind::list), 2u);
  EXPECT_EQ(count("}K\x01K\x02s", Kind::dict), 2u);
  EXPECT_EQ(count("}(K\x01K\x02K\x03K\x04u", Kind::dict), 4u);
  EXPECT_EQ(count("(K\x01K\x02"
                  "d",
                  Kind::dict),
            2u);
  EXPECT_EQ(count("\x8f(K\x01K\x02\x90", Kind::set), 2u);
  EXPECT_EQ(count("(K\x01\x91", Kind::set), 1u);
}

TEST(Pickle, MemoAndStack) {
  EXPECT_EQ(read(bytes("K\x05q\x00"
                       "0h\x00."))
                .root()
                .integer,
            5);
  EXPECT_EQ(read(bytes("K\x05r\x03\x00\x00\x00"
                       "0j\x03\x00\x00\x00."))
                .root()
                .integer,
            5);
  EXPECT_EQ(read(bytes("K\x05\x94"
                       "0h\x00."))
                .root()
                .integer,
            5);
  EXPECT_EQ(read("K\x01K\x02"
                 "0.")
                .root()
                .integer,
            1);
  EXPECT_EQ(read("K\x01(K\x02K\x03"
                 "1.")
                .root()
                .integer,
            1);
  EXPECT_EQ(read("K\x01(0.").root().integer, 1);
  const Document twice = read(
      "K\x01"
      "2\x86.");
  EXPECT_EQ(twice.items(twice.root()).size(), 2u);
}

TEST(Pickle, FindTakesTheLastOfEqualKeys) {
  const Document d = read(
      "}(\x8c\x01"
      "aK\x01\x8c\x01"
      "bK\x02\x8c\x01"
      "aK\x03u.");
  ASSERT_NE(d.find(d.root(), "a"), nullptr);
  EXPECT_EQ(d.find(d.root(), "a")->integer, 3);
  EXPECT_EQ(d.find(d.root(), "c"), nullptr);
  EXPECT_EQ(d.find(*d.find(d.root(), "a"), "x"), nullptr);
}

TEST(Pickle, ContainersThatHoldThemselves) {
  const Document d = read("]\x94h" + bytes("\x00") + "a.");
  EXPECT_EQ(d.items(d.root())[0].index, d.root().index);
}

TEST(Pickle, DeepNestingNeedsNoStack) {
  std::string body;
  constexpr std::size_t kDepth = 1 << 20;
  for (std::size_t i = 0; i < kDepth; ++i) body += ']';
  for (std::size_t i = 1; i < kDepth; ++i) body += 'a';
  EXPECT_EQ(read(body + ".", 1 << 30).root().kind, Kind::list);
}

TEST(Pickle, RefusesWhatRunsCode) {
  const std::pair<const char*, const char*> cases[] = {
      {"cos\nsystem\n", "the opcode GLOBAL at byte 2"},
      {"K\x01R", "the opcode REDUCE at byte 4"},
      {"K\x01"
       "b",
       "the opcode BUILD at byte 4"},
      {"(ios\nsystem\n", "the opcode INST at byte 3"},
      {"(o", "the opcode OBJ"},
      {"P1\n", "the opcode PERSID"},
      {"Q", "the opcode BINPERSID"},
      {"\x81", "the opcode NEWOBJ at byte 2"},
      {"\x82\x01", "the opcode EXT1"},
      {"\x83\x01", "the opcode EXT2"},
      {"\x84\x01", "the opcode EXT4"},
      {"\x92", "the opcode NEWOBJ_EX"},
      {"\x8c\x02os\x8c\x06system\x93", "the opcode STACK_GLOBAL at byte 14"},
      {"\x97", "the opcode NEXT_BUFFER"},
      {"\x98", "the opcode READONLY_BUFFER"},
  };
  for (const auto& [body, found] : cases) {
    expect_refused(body, found);
    expect_refused(body, "plain data only");
  }
}

TEST(Pickle, RefusesOldForms) {
  for (const char* body : {"I1\n", "L1L\n", "F1.0\n", "S'a'\n", "Va\n", "g0\n", "p0\n"}) {
    expect_refused(std::string("N") + body, "of protocol 0 at byte 3");
  }
}

TEST(Pickle, RefusesOtherProtocols) {
  for (const char* head : {"\x80\x01", "\x80\x06", "(l"}) {
    EXPECT_THROW(pickle::read(std::string(head) + "N.", "t", kMemory), TraceError) << head;
  }
  EXPECT_THROW(pickle::read("", "t", kMemory), TraceError);
  EXPECT_THROW(pickle::read("\x80", "t", kMemory), TraceError);
}

TEST(Pickle, RefusesMalformed) {
  expect_refused("\xff", "the unknown opcode 0xff at byte 2");
  expect_refused("", "an item of 1 bytes with 0 bytes left at byte 2");
  expect_refused("K", "an item of 1 bytes with 0 bytes left");
  expect_refused("N", "is the file cut?");
  expect_refused(bytes("X\xff\xff\xff\xffhi"), "an item of 4294967295 bytes with 2 bytes left");
  expect_refused(bytes("\x8d\xff\xff\xff\xff\xff\xff\xff\xffhi"), "with 2 bytes left");
  expect_refused(bytes("\x8b\xff\xff\xff\xff"), "with 0 bytes left");
  expect_refused(bytes("\x95\xff\x00\x00\x00\x00\x00\x00\x00N."), "an item of 255 bytes");
  expect_refused(".", "the end of the pickle with 0 values");
  expect_refused("NN.", "the end of the pickle with 2 values");
  expect_refused("N(.", "1 marks left");
  expect_refused("N.x", "1 bytes behind the end of the pickle");
  expect_refused("0", "from an empty stack");
  expect_refused("2", "on an empty stack");
  expect_refused("1", "needs a mark");
  expect_refused("t", "needs a mark");
  expect_refused("a", "on an empty stack");
  expect_refused("Na", "a container on an empty stack");
  expect_refused("NNa", "adds to a list on None");
  expect_refused("N(Ne", "adds to a list on None");
  expect_refused("}(Nu", "a dict key without a value");
  expect_refused("](NNu", "adds to a dict on a list");
  expect_refused("(e", "a container on an empty stack");
  expect_refused("N((e", "a container on an empty stack");
  expect_refused("NNs", "fewer than three values");
  expect_refused("}]Ns", "a list as a key");
  expect_refused("\x8f(}\x90", "a dict as a key");
  expect_refused("N\x86", "a tuple of more values");
  expect_refused("N(\x85", "a tuple of more values");
  expect_refused("h" + bytes("\x00"), "memo number 0, which was not set");
  expect_refused("q" + bytes("\x00"), "on an empty stack");
  expect_refused(bytes("Nr\xff\xff\xff\xff"), "memo number 4294967295");
  expect_refused(bytes("\x80\x04"), "a second protocol number");
}

TEST(Pickle, MemoryIsBounded) {
  // 1 MB of empty lists decodes to about a hundred.
  expect_refused("(" + std::string(1 << 20, ']') + "l.", "more decoded data than the memory limit", 8 << 20);
  expect_refused("(" + std::string(1 << 20, 'N') + "l.", "more decoded data than the memory limit", 8 << 20);
  expect_refused("(" + std::string(1 << 20, '('), "more decoded data than the memory limit", 8 << 20);
  expect_refused("N" + std::string(1 << 20, '\x94'), "more decoded data than the memory limit", 8 << 20);
}

TEST(Pickle, ReadsWhatPythonWrites) {
  if (!trace_test::have_python()) GTEST_SKIP() << "no python3";
  trace_test::TempFolder folder;
  trace_test::run_python(folder, R"(
import pickle, sys
shared = ['s', 1]
data = {'none': None, 'true': True, 'false': False, 'zero': 0, 'byte': 200, 'short': 60000, 'int': -5, 'big': 2**40,
        'min': -2**63, 'huge': 2**70, 'vast': 2**5000, 'float': -2.5, 'text': 'h\u00e4', 'long text': 'x' * 1000,
        'tuple': (1, 2, 3, 4, 5), 'empty': (), 'list': list(range(3000)), 'dict': {i: str(i) for i in range(1500)},
        'shared': [shared, shared], 'many': [str(i) for i in range(600)]}
data['self'] = data
for protocol in range(2, 6):
    extra = dict(data)
    if protocol >= 3: extra.update(bytes=b'ab\x00', long_bytes=b'y' * 1000)
    if protocol >= 4: extra.update(set={1, 2, 3}, frozen=frozenset([4]))
    if protocol >= 5: extra.update(bytearray=bytearray(b'xyz'))
    with open(sys.argv[1] + '/p%d' % protocol, 'wb') as f: pickle.dump(extra, f, protocol)
)",
                         folder.file(""));
  for (int protocol = 2; protocol <= 5; ++protocol) {
    SCOPED_TRACE(protocol);
    const Document d = pickle::read(trace_test::slurp(folder.file("p" + std::to_string(protocol))), "t", kMemory);
    const auto at = [&](std::string_view key) {
      const Value* v = d.find(d.root(), key);
      EXPECT_NE(v, nullptr) << key;
      return v != nullptr ? *v : Value{};
    };
    EXPECT_EQ(at("none").kind, Kind::none);
    EXPECT_EQ(at("true").integer, 1);
    EXPECT_EQ(at("byte").integer, 200);
    EXPECT_EQ(at("short").integer, 60000);
    EXPECT_EQ(at("int").integer, -5);
    EXPECT_EQ(at("big").integer, std::int64_t{1} << 40);
    EXPECT_EQ(at("min").integer, INT64_MIN);
    EXPECT_EQ(at("huge").kind, Kind::big_integer);
    EXPECT_EQ(at("vast").kind, Kind::big_integer);
    EXPECT_EQ(at("float").real, -2.5);
    EXPECT_EQ(d.text(at("text")), "h\xc3\xa4");
    EXPECT_EQ(d.text(at("long text")).size(), 1000u);
    EXPECT_EQ(d.items(at("tuple")).size(), 5u);
    EXPECT_EQ(d.items(at("list")).size(), 3000u);
    EXPECT_EQ(d.items(at("list"))[2999].integer, 2999);
    EXPECT_EQ(d.items(at("dict")).size(), 3000u);
    EXPECT_EQ(d.items(at("shared"))[0].index, d.items(at("shared"))[1].index);
    EXPECT_EQ(d.text(d.items(at("many"))[599]), "599");
    EXPECT_EQ(at("self").kind, Kind::dict);
    if (protocol >= 3) {
      EXPECT_EQ(at("long_bytes").length, 1000u);
    }
    if (protocol >= 4) {
      EXPECT_EQ(d.items(at("set")).size(), 3u);
    }
    if (protocol >= 5) {
      EXPECT_EQ(at("bytearray").kind, Kind::bytes);
    }
  }
}

TEST(Pickle, RefusesWhatPythonWouldRun) {
  if (!trace_test::have_python()) GTEST_SKIP() << "no python3";
  trace_test::TempFolder folder;
  trace_test::run_python(folder, R"(
import pickle, sys, collections, datetime
class Bad:
    def __reduce__(self): return (eval, ('1',))
for i, v in enumerate([Bad(), collections.OrderedDict(a=1), datetime.date(2020, 1, 1), print]):
    for protocol in range(2, 6):
        with open(sys.argv[1] + '/p%d_%d' % (i, protocol), 'wb') as f: pickle.dump({'segments': v}, f, protocol)
)",
                         folder.file(""));
  for (int i = 0; i < 4; ++i) {
    for (int protocol = 2; protocol <= 5; ++protocol) {
      const std::string path = folder.file("p" + std::to_string(i) + "_" + std::to_string(protocol));
      trace_test::expect_fault(path, 0, protocol < 4 ? "the opcode GLOBAL" : "the opcode STACK_GLOBAL", "plain data");
    }
  }
}

}  // namespace
}  // namespace cistern::trace
