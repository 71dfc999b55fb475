// The pickle machine: a stack of values, a stack of marks, a memo; see pickle.hpp.
#include "trace/pickle.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "trace/pickle_opcodes.hpp"

namespace cistern::trace::pickle {

std::string_view kind_name(Kind kind) {
  switch (kind) {
    case Kind::unset:
      return "nothing";
    case Kind::none:
      return "None";
    case Kind::boolean:
      return "a bool";
    case Kind::integer:
      return "an int";
    case Kind::big_integer:
      return "an int beyond 64 bits";
    case Kind::real:
      return "a float";
    case Kind::text:
      return "a str";
    case Kind::bytes:
      return "bytes";
    case Kind::tuple:
      return "a tuple";
    case Kind::list:
      return "a list";
    case Kind::dict:
      return "a dict";
    case Kind::set:
      return "a set";
  }
  return "something";
}

const Value* Document::find(const Value& dict, std::string_view key) const {
  if (dict.kind != Kind::dict) return nullptr;
  const std::span<const Value> all = items(dict);
  for (std::size_t i = all.size(); i >= 2; i -= 2) {
    const Value& candidate = all[i - 2];
    if (candidate.kind == Kind::text && text(candidate) == key) return &all[i - 1];
  }
  return nullptr;
}

// Of an empty container: its vector, the room that the growing vector of containers has spare, the heap's own bytes.
constexpr std::uint64_t kContainerBytes = 3 * sizeof(std::vector<Value>);

class Reader {
 public:
  Reader(std::string data, const std::string& path, std::uint64_t max_memory) : path_(path), budget_(max_memory) {
    document_.data_ = std::move(data);
  }

  Document run() {
    check_protocol();
    while (step()) {
    }
    if (at_ != size()) {
      fail(fmt::format("{} bytes behind the end of the pickle", size() - at_), "the end of the file");
    }
    return std::move(document_);
  }

 private:
  std::size_t size() const { return document_.data_.size(); }

  // The fault is at the opcode that is being run.
  [[noreturn]] void fail(const std::string& found, const std::string& expected) const {
    throw TraceError(path_, 0, fmt::format("{} at byte {}", found, opcode_at_), expected);
  }

  void charge(std::uint64_t bytes) {
    if (bytes > budget_) fail("more decoded data than the memory limit allows", "a pickle that decodes to less");
    budget_ -= bytes;
  }

  void need(std::uint64_t bytes) const {
    if (bytes > size() - at_) {
      fail(fmt::format("an item of {} bytes with {} bytes left", bytes, size() - at_),
           "a whole pickle (is the file cut?)");
    }
  }

  // Little endian, as all of pickle but floats.
  std::uint64_t take_number(unsigned bytes) {
    need(bytes);
    std::uint64_t v = 0;
    for (unsigned i = 0; i < bytes; ++i) {
      v |= std::uint64_t{static_cast<unsigned char>(document_.data_[at_ + i])} << (8 * i);
    }
    at_ += bytes;
    return v;
  }

  template <class Vector>
  void grow(Vector& vector, std::size_t count) {
    if (count <= vector.capacity()) return;
    const std::size_t capacity = std::max<std::size_t>(count, vector.capacity() * 2);
    charge((capacity - vector.capacity()) * sizeof(Value));
    vector.reserve(capacity);
  }

  void push(const Value& value) {
    grow(stack_, stack_.size() + 1);
    stack_.push_back(value);
  }

  // How many values lie above the last mark.
  std::size_t base() const { return marks_.empty() ? 0 : marks_.back(); }

  Value pop() {
    if (stack_.size() <= base()) fail("an opcode that takes a value from an empty stack", "a well-formed pickle");
    const Value value = stack_.back();
    stack_.pop_back();
    return value;
  }

  Value& top() {
    if (stack_.size() <= base()) fail("an opcode that needs a value on an empty stack", "a well-formed pickle");
    return stack_.back();
  }

  // Start of the values above the last mark, which is taken away.
  std::size_t pop_mark() {
    if (marks_.empty()) fail("an opcode that needs a mark where none is", "a well-formed pickle");
    const std::size_t mark = marks_.back();
    marks_.pop_back();
    return mark;
  }

  Value make_container(Kind kind, std::size_t from) {
    charge(kContainerBytes);
    std::vector<Value>& items = document_.containers_.emplace_back();
    charge((stack_.size() - from) * sizeof(Value));
    items.assign(stack_.begin() + static_cast<std::ptrdiff_t>(from), stack_.end());
    stack_.resize(from);
    Value value;
    value.kind = kind;
    value.index = document_.containers_.size() - 1;
    return value;
  }

  // Moves the values from `from` on into the container below them.
  void extend(Kind kind, std::size_t from) {
    if (from <= base()) fail("an opcode that needs a container on an empty stack", "a well-formed pickle");
    const Value& container = stack_[from - 1];
    if (container.kind != kind) {
      fail(fmt::format("an opcode that adds to {} on {}", kind_name(kind), kind_name(container.kind)),
           "a well-formed pickle");
    }
    std::vector<Value>& items = document_.containers_[container.index];
    // One call mostly fills the whole container, so that no room is wasted on growth.
    const std::size_t count = items.size() + stack_.size() - from;
    if (items.empty()) {
      charge(count * sizeof(Value));
      items.reserve(count);
    } else {
      grow(items, count);
    }
    items.insert(items.end(), stack_.begin() + static_cast<std::ptrdiff_t>(from), stack_.end());
    stack_.resize(from);
  }

  // Dicts: an even number of values, with keys that Python could hash.
  void check_pairs(std::size_t from) const {
    if ((stack_.size() - from) % 2 != 0) fail("a dict key without a value", "a well-formed pickle");
    for (std::size_t i = from; i < stack_.size(); i += 2) check_key(stack_[i]);
  }
  void check_key(const Value& key) const {
    if (key.kind == Kind::list || key.kind == Kind::dict || key.kind == Kind::set) {
      fail(fmt::format("{} as a key", kind_name(key.kind)), "a key that can be hashed");
    }
  }

  void push_slice(Kind kind, std::uint64_t length) {
    need(length);
    if (length > UINT32_MAX) fail(fmt::format("an item of {} bytes", length), "at most 4 GiB in one item");
    Value value;
    value.kind = kind;
    value.length = static_cast<std::uint32_t>(length);
    value.start = at_;
    at_ += length;
    push(value);
  }

  void push_integer(std::int64_t v) {
    Value value;
    value.kind = Kind::integer;
    value.integer = v;
    push(value);
  }

  // Two's complement of any length.
  void push_long(std::uint64_t length) {
    need(length);
    if (length > 8) return push_slice(Kind::big_integer, length);
    const auto bytes = static_cast<unsigned>(length);
    std::uint64_t v = take_number(bytes);
    const bool negative = bytes != 0 && (v >> (8 * bytes - 1)) != 0;
    if (negative && bytes < 8) v |= ~std::uint64_t{0} << (8 * bytes);
    push_integer(static_cast<std::int64_t>(v));
  }

  void push_real() {
    need(8);
    std::uint64_t bits = 0;
    for (unsigned i = 0; i < 8; ++i) bits = (bits << 8) | static_cast<unsigned char>(document_.data_[at_ + i]);
    at_ += 8;
    Value value;
    value.kind = Kind::real;
    value.real = std::bit_cast<double>(bits);
    push(value);
  }

  void push_simple(Kind kind, std::int64_t v) {
    Value value;
    value.kind = kind;
    value.integer = v;
    push(value);
  }

  void put(std::uint64_t index) {
    // Picklers number densely; a number beyond the file's size only serves to make the memo huge.
    if (index > size()) fail(fmt::format("memo number {}", index), "a memo number below the file's size");
    const Value value = top();
    if (index >= memo_.size()) {
      grow(memo_, index + 1);
      memo_.resize(index + 1);
    }
    memo_[index] = value;
  }

  void get(std::uint64_t index) {
    if (index >= memo_.size() || memo_[index].kind == Kind::unset) {
      fail(fmt::format("memo number {}, which was not set", index), "a well-formed pickle");
    }
    push(memo_[index]);
  }

  void push_tuple(std::size_t count) {
    if (stack_.size() < base() + count) fail("a tuple of more values than the stack has", "a well-formed pickle");
    push(make_container(Kind::tuple, stack_.size() - count));
  }

  void check_protocol() {
    if (size() < 2 || static_cast<std::uint8_t>(document_.data_[0]) != static_cast<std::uint8_t>(Op::proto)) {
      fail("no protocol number", "a pickle of protocol 2, 3, 4 or 5");
    }
    const unsigned protocol = static_cast<unsigned char>(document_.data_[1]);
    if (protocol < 2 || protocol > 5) {
      fail(fmt::format("pickle protocol {}", protocol), "a pickle of protocol 2, 3, 4 or 5");
    }
    at_ = 2;
  }

  // Runs one opcode; false after STOP.
  bool step();
  [[noreturn]] void refuse(std::uint8_t byte) const;

  const std::string& path_;
  std::uint64_t budget_;
  Document document_;
  std::size_t at_ = 0;
  std::size_t opcode_at_ = 0;
  std::vector<Value> stack_;
  std::vector<std::size_t> marks_;
  std::vector<Value> memo_;
};

void Reader::refuse(std::uint8_t byte) const {
  const Refused what = refused(byte);
  if (what.name.empty()) fail(fmt::format("the unknown opcode {:#04x}", byte), "a pickle of protocol 2, 3, 4 or 5");
  if (what.text_form) {
    fail(fmt::format("the opcode {} of protocol 0", what.name), "a pickle of protocol 2, 3, 4 or 5");
  }
  fail(fmt::format("the opcode {}", what.name),
       "plain data only (None, bool, int, float, str, bytes, tuple, list, dict, set)");
}

bool Reader::step() {
  opcode_at_ = at_;
  need(1);
  const auto byte = static_cast<std::uint8_t>(document_.data_[at_++]);
  switch (static_cast<Op>(byte)) {
    case Op::mark:
      grow(marks_, marks_.size() + 1);
      marks_.push_back(stack_.size());
      return true;
    case Op::stop:
      if (!marks_.empty() || stack_.size() != 1) {
        fail(fmt::format("the end of the pickle with {} values and {} marks left", stack_.size(), marks_.size()),
             "one value");
      }
      document_.root_ = stack_.back();
      return false;
    case Op::pop:
      // At a mark it takes the mark, as Python's machine does.
      if (!marks_.empty() && stack_.size() == marks_.back()) {
        marks_.pop_back();
      } else {
        pop();
      }
      return true;
    case Op::pop_mark:
      stack_.resize(pop_mark());
      return true;
    case Op::dup:
      push(Value(top()));
      return true;
    case Op::none:
      push_simple(Kind::none, 0);
      return true;
    case Op::newtrue:
      push_simple(Kind::boolean, 1);
      return true;
    case Op::newfalse:
      push_simple(Kind::boolean, 0);
      return true;
    case Op::binint:
      push_integer(static_cast<std::int32_t>(take_number(4)));
      return true;
    case Op::binint1:
      push_integer(static_cast<std::int64_t>(take_number(1)));
      return true;
    case Op::binint2:
      push_integer(static_cast<std::int64_t>(take_number(2)));
      return true;
    case Op::long1:
      push_long(take_number(1));
      return true;
    case Op::long4:
      push_long(take_number(4));
      return true;
    case Op::binfloat:
      push_real();
      return true;
    case Op::short_binstring:
    case Op::short_binunicode:
      push_slice(Kind::text, take_number(1));
      return true;
    case Op::binstring:
    case Op::binunicode:
      push_slice(Kind::text, take_number(4));
      return true;
    case Op::binunicode8:
      push_slice(Kind::text, take_number(8));
      return true;
    case Op::short_binbytes:
      push_slice(Kind::bytes, take_number(1));
      return true;
    case Op::binbytes:
      push_slice(Kind::bytes, take_number(4));
      return true;
    case Op::binbytes8:
    case Op::bytearray8:
      push_slice(Kind::bytes, take_number(8));
      return true;
    case Op::empty_tuple:
      push_tuple(0);
      return true;
    case Op::tuple1:
      push_tuple(1);
      return true;
    case Op::tuple2:
      push_tuple(2);
      return true;
    case Op::tuple3:
      push_tuple(3);
      return true;
    case Op::tuple:
      push(make_container(Kind::tuple, pop_mark()));
      return true;
    case Op::empty_list:
      push(make_container(Kind::list, stack_.size()));
      return true;
    case Op::list:
      push(make_container(Kind::list, pop_mark()));
      return true;
    case Op::append:
      top();
      extend(Kind::list, stack_.size() - 1);
      return true;
    case Op::appends:
      extend(Kind::list, pop_mark());
      return true;
    case Op::empty_dict:
      push(make_container(Kind::dict, stack_.size()));
      return true;
    case Op::dict: {
      const std::size_t from = pop_mark();
      check_pairs(from);
      push(make_container(Kind::dict, from));
      return true;
    }
    case Op::setitem:
      if (stack_.size() < base() + 3) fail("SETITEM on a stack of fewer than three values", "a well-formed pickle");
      check_pairs(stack_.size() - 2);
      extend(Kind::dict, stack_.size() - 2);
      return true;
    case Op::setitems: {
      const std::size_t from = pop_mark();
      check_pairs(from);
      extend(Kind::dict, from);
      return true;
    }
    case Op::empty_set:
      push(make_container(Kind::set, stack_.size()));
      return true;
    case Op::additems:
    case Op::frozenset: {
      const std::size_t from = pop_mark();
      for (std::size_t i = from; i < stack_.size(); ++i) check_key(stack_[i]);
      if (static_cast<Op>(byte) == Op::additems) {
        extend(Kind::set, from);
      } else {
        push(make_container(Kind::set, from));
      }
      return true;
    }
    case Op::binget:
      get(take_number(1));
      return true;
    case Op::long_binget:
      get(take_number(4));
      return true;
    case Op::binput:
      put(take_number(1));
      return true;
    case Op::long_binput:
      put(take_number(4));
      return true;
    case Op::memoize:
      put(memo_.size());
      return true;
    case Op::proto:
      fail("a second protocol number", "a well-formed pickle");
    case Op::frame:
      need(take_number(8));
      return true;
  }
  refuse(byte);
}

Document read(std::string data, const std::string& path, std::uint64_t max_memory) {
  return Reader(std::move(data), path, max_memory).run();
}

}  // namespace cistern::trace::pickle
