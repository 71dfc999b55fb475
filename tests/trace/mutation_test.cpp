// Damaged files: valid ones of every format with bytes changed, cut, doubled and joined at random places. Reading
// either gives a consistent trace or throws TraceError; nothing else may happen. Seeds are fixed; a failure prints its
// own.
#include <gtest/gtest.h>

#include <random>

#include "trace/generate.hpp"
#include "trace/pickle.hpp"
#include "trace/support.hpp"

namespace cistern {
namespace {

using trace_test::TempFolder;

class Mutator {
 public:
  explicit Mutator(std::uint64_t seed) : random_(seed) {}

  std::string operator()(const std::string& original) {
    std::string s = original;
    const std::uint64_t count = 1 + below(6);
    for (std::uint64_t i = 0; i < count && !s.empty(); ++i) mutate(s);
    return s;
  }

 private:
  std::uint64_t below(std::uint64_t n) { return n == 0 ? 0 : random_() % n; }

  void mutate(std::string& s) {
    const std::size_t at = below(s.size());
    const std::size_t length = below(std::min<std::size_t>(s.size() - at, 64)) + 1;
    switch (below(8)) {
      case 0:
        s[at] = static_cast<char>(s[at] ^ (1 << below(8)));
        break;
      case 1:
        s[at] = static_cast<char>(below(256));
        break;
      case 2:
        s.resize(at);
        break;
      case 3:
        s.erase(at, length);
        break;
      case 4:
        s.insert(at, s.substr(below(s.size()), length));
        break;
      case 5:
        for (std::size_t i = at; i < std::min(at + 8, s.size()); ++i) s[i] = below(2) ? '\xff' : '\0';
        break;
      case 6:
        s.insert(at, length, static_cast<char>("()[]}{tueasl.2019,-\n"[below(20)]));
        break;
      default: {
        // Two pieces change places.
        const std::size_t other = below(s.size());
        const std::size_t size = std::min({length, s.size() - at, s.size() - other});
        for (std::size_t i = 0; i < size; ++i) std::swap(s[at + i], s[other + i]);
      }
    }
  }

  std::mt19937_64 random_;
};

// How many of the mutated files could still be read.
int survive(const std::string& name, const std::string& original, std::uint64_t first_seed, int count) {
  TempFolder folder;
  TraceReadOptions options;
  options.max_bytes = 8 << 20;
  options.max_memory = 64 << 20;
  int read = 0;
  for (int i = 0; i < count; ++i) {
    const std::uint64_t seed = first_seed + static_cast<std::uint64_t>(i);
    SCOPED_TRACE(name + " seed " + std::to_string(seed));
    const std::string path = folder.write(name, Mutator(seed)(original));
    try {
      options.older_blocks = i % 2 == 1;
      const Trace t = read_trace(path, options);
      trace_test::expect_consistent(t);
      ++read;
    } catch (const TraceError& e) {
      EXPECT_EQ(e.file(), path);
      EXPECT_FALSE(e.found().empty());
      EXPECT_FALSE(e.expected().empty());
      EXPECT_LT(std::string_view(e.what()).size(), path.size() + 1000);
    }
    if (testing::Test::HasFailure()) break;
  }
  return read;
}

std::string file_of(const std::string& name, double scale) {
  TempFolder folder;
  write_trace(folder.file(name), trace::generate(trace::Workload::two_streams, {.seed = 9, .scale = scale}));
  return trace_test::slurp(folder.file(name));
}

TEST(TraceMutation, Csv) { EXPECT_GT(survive("t.csv", file_of("t.csv", 0.005), 1, 4000), 0); }
TEST(TraceMutation, CsvGz) { survive("t.csv.gz", file_of("t.csv.gz", 0.02), 10'001, 3000); }
TEST(TraceMutation, RmmLog) { EXPECT_GT(survive("t.log", file_of("t.log", 0.005), 20'001, 4000), 0); }
TEST(TraceMutation, Snapshot) { EXPECT_GT(survive("t.pickle", file_of("t.pickle", 0.005), 30'001, 6000), 0); }

// Sequences of opcodes that are valid one by one: deeper into the machine than damage to a file gets.
TEST(TraceMutation, RandomPickles) {
  using namespace std::string_literals;
  const std::vector<std::string> words = {"N",
                                          "\x88",
                                          "\x89",
                                          "K\x05",
                                          "M\x01\x02",
                                          "J\xff\xff\xff\x7f",
                                          "\x8a\x01\xff",
                                          "G\1\2\3\4\5\6\7\x08",
                                          "(",
                                          "t",
                                          "\x85",
                                          "\x86",
                                          "\x87",
                                          ")",
                                          "]",
                                          "a",
                                          "e",
                                          "l",
                                          "}",
                                          "s",
                                          "u",
                                          "d",
                                          "\x8f",
                                          "\x90",
                                          "0",
                                          "1",
                                          "2",
                                          "\x91",
                                          "\x94",
                                          "h\0"s,
                                          "h\1",
                                          "q\2",
                                          "h\2",
                                          "C\1x",
                                          "\x8c\6action",
                                          "\x8c\5"
                                          "alloc",
                                          "\x8c\4"
                                          "addr",
                                          "\x8c\x0d"
                                          "device_traces",
                                          "\x8c\4size",
                                          "\x8c\6stream",
                                          "\x8c\x08segments",
                                          "\x8c\6"
                                          "blocks",
                                          "\x8c\x05state",
                                          "j\3\0\0\0"s,
                                          "r\3\0\0\0"s,
                                          "\x95\0\0\0\0\0\0\0\0"s};
  std::mt19937_64 random(77);
  int read = 0;
  for (int i = 0; i < 40'000; ++i) {
    std::string body = "\x80\x04";
    const std::uint64_t length = 1 + random() % 40;
    for (std::uint64_t n = 0; n < length; ++n) body += words[random() % words.size()];
    try {
      const trace::pickle::Document d = trace::pickle::read(body + ".", "t", 1 << 20);
      EXPECT_NE(d.root().kind, trace::pickle::Kind::unset);
      ++read;
    } catch (const TraceError&) {
    }
  }
  EXPECT_GT(read, 100);
}

}  // namespace
}  // namespace cistern
