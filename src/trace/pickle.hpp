// A reader for Python pickles of protocols 2 to 5 that hold plain data: None, bool, int, float, str, bytes, tuple,
// list, dict, set. It runs nothing: every opcode that would import, call or build is refused by name. Safe on hostile
// input: no recursion, memory bounded by a budget, every length checked against the file. Called by snapshot.cpp and
// tests. A Document is immutable after reading; no locking.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cistern/trace.hpp"

namespace cistern::trace::pickle {

enum class Kind : std::uint8_t {
  unset,  // An empty place of the memo; never in a document.
  none,
  boolean,
  integer,      // Fits in 64 bits with sign.
  big_integer,  // Does not; kept as its bytes.
  real,
  text,  // UTF-8; str, and str of Python 2.
  bytes,
  tuple,
  list,
  dict,  // Items alternate key, value.
  set,
};

std::string_view kind_name(Kind kind);

// 16 bytes. Text and bytes point into the document's data; containers are numbers, so that objects may be shared or
// contain themselves.
struct Value {
  Kind kind = Kind::unset;
  std::uint32_t length = 0;  // Of text, bytes and big integers.
  union {
    std::int64_t integer = 0;
    double real;
    std::uint64_t start;  // Of text, bytes and big integers, in the data.
    std::uint64_t index;  // Of a container.
  };
};

class Document {
 public:
  const Value& root() const { return root_; }
  std::size_t data_size() const { return data_.size(); }

  std::string_view text(const Value& value) const { return {data_.data() + value.start, value.length}; }
  // Of a tuple, list, set, or dict (keys and values in turn).
  std::span<const Value> items(const Value& value) const { return containers_[value.index]; }
  // The value under a key of text; of several, the last. Null when there is none or `dict` is none.
  const Value* find(const Value& dict, std::string_view key) const;

 private:
  friend class Reader;
  std::string data_;
  std::vector<std::vector<Value>> containers_;
  Value root_;
};

// Decodes the whole of `data`. `max_memory` bounds the bytes of decoded values. Throws TraceError: what was found, at
// which byte, and what was expected.
Document read(std::string data, const std::string& path, std::uint64_t max_memory);

}  // namespace cistern::trace::pickle
