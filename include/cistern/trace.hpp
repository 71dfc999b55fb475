// Allocation traces: what a program asked of its allocator, in order. Reading, writing, and recording them.
// Knows nothing of devices and allocates no device memory. Values may be shared between threads while nobody writes
// to them; TraceRecorder is thread-safe. The formats are described in docs/trace-format.md.
// Part of the library cistern_trace, not of cistern.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace cistern {

/// A trace file that cannot be read or written. what() is "FILE:LINE: found ..., expected ...".
class TraceError : public std::runtime_error {
 public:
  /// `line` starts at 1; 0 means that the fault has no line (a binary format, a file that cannot be opened).
  TraceError(std::string file, std::uint64_t line, std::string found, std::string expected);

  const std::string& file() const noexcept;
  std::uint64_t line() const noexcept;
  const std::string& found() const noexcept;
  const std::string& expected() const noexcept;

 private:
  struct Parts;
  std::shared_ptr<const Parts> parts_;
};

enum class TraceEventKind : std::uint8_t { allocate, free };

/// One request of the program. 24 bytes, so that a long trace stays in cache.
struct TraceEvent {
  std::uint64_t size = 0;     ///< Bytes asked for; a free carries the size of its allocation.
  std::uint64_t time_us = 0;  ///< Host clock; never smaller than that of the event before.
  std::uint32_t id = 0;       ///< 0, 1, 2, ... in the order of the allocations.
  std::uint16_t stream = 0;   ///< Index into Trace::streams; a free names the stream that it was ordered on.
  TraceEventKind kind = TraceEventKind::allocate;

  friend bool operator==(const TraceEvent&, const TraceEvent&) = default;
};

/// A checked trace: every free has its allocation before it, no id is allocated or freed twice, times never fall.
struct Trace {
  using Event = TraceEvent;

  std::string name;           ///< File name without folders and extensions.
  std::vector<Event> events;  ///< In order.
  /// What the source called each stream. Index 0 is the default stream (value 0), whether or not it is used.
  std::vector<std::uint64_t> streams{0};
  /// What a csv file called each allocation, by id; empty when it counted 0, 1, 2, ... or the source was no csv file.
  std::vector<std::uint64_t> original_ids;

  std::uint32_t allocations = 0;         ///< Ids run from 0 to allocations - 1.
  std::uint64_t peak_live_bytes = 0;     ///< Largest sum of the sizes alive at one time.
  std::uint64_t live_at_end_bytes = 0;   ///< Sum of the sizes never freed.
  std::uint32_t live_at_end = 0;         ///< How many were never freed.
  std::uint64_t duration_us = 0;         ///< From the first event to the last.
  std::uint64_t failed_allocations = 0;  ///< Requests that the source says failed; they are not events.
  std::uint64_t older_blocks = 0;    ///< Of a snapshot: blocks older than its window; their allocations stand first.
  std::uint64_t left_out_bytes = 0;  ///< Of a snapshot: live all through the window, no event, left out.

  /// "0" for the default stream; otherwise the source's value, in hexadecimal when it looks like an address.
  std::string stream_name(std::size_t index) const;
};

/// What a file can be. Input is recognised by content; output is chosen by the file's name unless stated.
enum class TraceFormat : std::uint8_t {
  csv,             ///< Cistern's own; `.csv`, `.csv.gz`.
  rmm_log,         ///< Log of RMM's logging resource adaptor; `.rmm`, `.log`, `.rmm.csv`, each also with `.gz`.
  torch_snapshot,  ///< PyTorch memory snapshot, as its memory_viz page opens it; `.pickle`, `.pkl`, also with `.gz`.
  perfetto_json,   ///< Chrome JSON trace; output only; `.json`, `.json.gz`.
};

struct TraceReadOptions {
  /// Which device of a PyTorch snapshot; left out, the only one that has events.
  std::optional<std::uint32_t> device;
  /// Of a PyTorch snapshot: also take the blocks that were there before the window and outlived it (weights,
  /// workspaces). They have no event in it. A block whose free is in the window is taken in any case.
  bool older_blocks = false;
  /// Bytes, after decompression, that a file read as a whole (a pickle) may have.
  std::uint64_t max_bytes = std::uint64_t{4} << 30;
  /// Bytes of host memory that the decoded objects of a pickle may take; a hostile file decodes to many times its size.
  std::uint64_t max_memory = std::uint64_t{8} << 30;
};

struct TraceWriteOptions {
  std::optional<TraceFormat> format;  ///< Left out: by the file's name.
  int gzip_level = 6;                 ///< 1 to 9; used when the file's name ends with ".gz".
};

/// Reads any known format, gzip-compressed or not. Throws TraceError; nothing is returned of a file with a fault.
Trace read_trace(const std::string& path, const TraceReadOptions& options = {});

/// Writes a trace. The file appears whole or not at all (a new file takes the old one's place). Throws TraceError, and
/// then touches no file for what read_trace() would not read: a trace without events, events or members that are not
/// as `Trace` says (the text has the event's number), numbers of 2^63 or more in a csv file, options out of range.
void write_trace(const std::string& path, const Trace& trace, const TraceWriteOptions& options = {});

/// The format that write_trace() takes from a file's name. Throws TraceError for a name that says none.
TraceFormat trace_format_of(const std::string& path);

/// Records a program's own allocations into a csv (or csv.gz) trace, event by event.
/// Thread-safe: one lock orders the events and their times. allocated() and freed() never throw, so that they may stand
/// in an allocator's hook; the first failure is kept and thrown by close(). They allocate host memory: do not call them
/// from a replacement of operator new.
class TraceRecorder {
 public:
  /// Creates the file, or writes to a pipe or a device. Throws TraceError when it cannot be written, and for a file
  /// whose name does not end in ".csv" or ".csv.gz".
  explicit TraceRecorder(const std::string& path);
  /// Closes; a failure is lost then, so call close() to learn of it.
  ~TraceRecorder();
  TraceRecorder(const TraceRecorder&) = delete;
  TraceRecorder& operator=(const TraceRecorder&) = delete;

  /// `key` names the allocation until it is freed: an address, or any number that is not in use.
  /// A key that is in use is taken as freed unseen: its free is written first, and counted in missed().
  void allocated(std::uint64_t key, std::uint64_t size, std::uint64_t stream = 0) noexcept;
  /// A key that is not known (allocated before the recording) is left out and counted in missed().
  /// `stream` left out is the stream of the allocation.
  void freed(std::uint64_t key, std::optional<std::uint64_t> stream = std::nullopt) noexcept;

  void allocated(const void* pointer, std::uint64_t size, std::uint64_t stream = 0) noexcept;
  void freed(const void* pointer, std::optional<std::uint64_t> stream = std::nullopt) noexcept;

  /// Events written so far.
  std::uint64_t events() const noexcept;
  /// Frees without an allocation and allocations without a free in between.
  std::uint64_t missed() const noexcept;
  /// Hands what was recorded so far to the operating system. Throws TraceError if any write failed.
  void flush();
  /// Writes what is left and closes the file; later events are ignored. Throws TraceError if an event was refused or a
  /// write failed; the events before it are in the file. Refused is what no trace may hold: sizes, streams and sums of
  /// live bytes of 2^63 or more, more than 65,536 streams or 2^31 events. A recording without events throws as well:
  /// its file has a header alone, which read_trace() refuses. A second call does nothing.
  void close();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cistern
