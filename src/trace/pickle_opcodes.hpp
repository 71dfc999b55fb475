// The opcodes of Python's pickle format, with their names for errors. Constants and one pure function.
#pragma once

#include <cstdint>
#include <string_view>

namespace cistern::trace::pickle {

enum class Op : std::uint8_t {
  mark = '(',
  stop = '.',
  pop = '0',
  pop_mark = '1',
  dup = '2',
  none = 'N',
  newtrue = 0x88,
  newfalse = 0x89,
  binint = 'J',
  binint1 = 'K',
  binint2 = 'M',
  long1 = 0x8a,
  long4 = 0x8b,
  binfloat = 'G',
  binstring = 'T',
  short_binstring = 'U',
  binunicode = 'X',
  short_binunicode = 0x8c,
  binunicode8 = 0x8d,
  binbytes = 'B',
  short_binbytes = 'C',
  binbytes8 = 0x8e,
  bytearray8 = 0x96,
  empty_tuple = ')',
  tuple1 = 0x85,
  tuple2 = 0x86,
  tuple3 = 0x87,
  tuple = 't',
  empty_list = ']',
  list = 'l',
  append = 'a',
  appends = 'e',
  empty_dict = '}',
  dict = 'd',
  setitem = 's',
  setitems = 'u',
  empty_set = 0x8f,
  additems = 0x90,
  frozenset = 0x91,
  binget = 'h',
  long_binget = 'j',
  binput = 'q',
  long_binput = 'r',
  memoize = 0x94,
  proto = 0x80,
  frame = 0x95,
};

// Why an opcode that the reader does not know is refused.
struct Refused {
  std::string_view name;  // Empty: no opcode of pickle.
  bool text_form;         // Of protocol 0 or 1: numbers and strings as lines of text.
};

constexpr Refused refused(std::uint8_t byte) {
  switch (byte) {
    case 'c':
      return {"GLOBAL", false};
    case 'R':
      return {"REDUCE", false};
    case 'b':
      return {"BUILD", false};
    case 'i':
      return {"INST", false};
    case 'o':
      return {"OBJ", false};
    case 'P':
      return {"PERSID", false};
    case 'Q':
      return {"BINPERSID", false};
    case 0x81:
      return {"NEWOBJ", false};
    case 0x82:
      return {"EXT1", false};
    case 0x83:
      return {"EXT2", false};
    case 0x84:
      return {"EXT4", false};
    case 0x92:
      return {"NEWOBJ_EX", false};
    case 0x93:
      return {"STACK_GLOBAL", false};
    case 0x97:
      return {"NEXT_BUFFER", false};
    case 0x98:
      return {"READONLY_BUFFER", false};
    case 'I':
      return {"INT", true};
    case 'L':
      return {"LONG", true};
    case 'F':
      return {"FLOAT", true};
    case 'S':
      return {"STRING", true};
    case 'V':
      return {"UNICODE", true};
    case 'g':
      return {"GET", true};
    case 'p':
      return {"PUT", true};
    default:
      return {{}, false};
  }
}

}  // namespace cistern::trace::pickle
