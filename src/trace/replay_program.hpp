// Program: a trace made ready to be replayed as fast as it can be: events of 16 bytes, blocks named by dense slots that
// are used again (so the table of handles stays in the cache), what is alive at the end listed in id order. Curves:
// what one untimed replay saw, for drawings. Does not: allocate memory, know allocators. Called by the replay engine,
// the report and the tools. Plain values; no lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cistern/trace.hpp"

namespace cistern::trace {

enum class OpKind : std::uint8_t {
  allocate,
  free,     // In the order of the stream that allocated.
  free_on,  // In the order of another stream, which the op names.
};

struct Op {
  std::uint64_t bytes = 0;   // Asked for; of a free as well.
  std::uint32_t slot = 0;    // Index into the table of handles.
  std::uint16_t stream = 0;  // Index into Program::streams.
  OpKind kind = OpKind::allocate;
};
static_assert(sizeof(Op) == 16);

struct Program {
  std::string name;  // Trace::name.
  std::string path;  // As it was given.
  std::vector<Op> ops;
  std::vector<std::uint64_t> times_us;  // One an op; never falls.
  std::vector<std::uint64_t> ids;       // What the source calls the block, one an op.
  std::vector<Op> tail;                 // Frees of what is alive at the end, in id order.
  std::vector<std::uint64_t> streams;   // The source's number of each stream index; 0 is the default stream.
  std::uint32_t slots = 0;              // The most blocks alive at once.
  std::uint64_t peak_live = 0;          // Bytes asked for.
  std::size_t peak_op = 0;              // The op that reached it first.
  std::uint64_t largest = 0;            // Bytes of the largest block.
  std::uint64_t allocations = 0;
  std::uint64_t duration_us() const { return times_us.empty() ? 0 : times_us.back(); }
};

// `path` is where the trace came from.
Program compile(const Trace& trace, const std::string& path);

// One block's life in a replay. Ends are op indexes; `died` is the number of ops for what is alive at the end.
struct Life {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;  // Asked for.
  std::uint64_t id = 0;
  std::uint32_t born = 0;
  std::uint32_t died = 0;
  std::uint16_t stream = 0;
};

// After each op. Bytes.
struct Curves {
  std::vector<std::uint64_t> live;  // Asked for.
  std::vector<std::uint64_t> reserved;
  std::vector<std::uint64_t> cached;  // Reserved, but in no live block.
  std::vector<Life> lives;            // By birth.
};

}  // namespace cistern::trace
