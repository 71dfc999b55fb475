// PageHeap: places blocks in one reserved address range by best fit, and keeps physical memory only where it is needed.
// HeapGroup: the heaps of one device (one for all streams, more for graph captures), their common budget, and the
// pieces that they lend each other.
//
// Does: split, merge, choice of place, choice of physical pieces (create, move, release), the tight mode under a limit.
// Does not: touch a piece that holds a live block, on which other threads may submit work at any time; touch memory,
// know devices, lock. Every member is called under the device's lock. Called by the allocator layer.
//
// Streams share a heap. A block is in the order of one stream; free memory remembers the streams that freed it. A
// request goes where its stream need not wait if there is such a place, else its stream is made to wait for the others.
//
// The range is a list of nodes in address order:
//
//   | live | run | live | gap | run | live | stale | live |  open end ...
//
//   state  bytes             physical memory       may become
//   live   in use            mapped                run
//   run    free              mapped                live, gap or stale (its piece leaves)
//   gap    free              none                  run (a piece arrives)
//   stale  free              still shows a piece   gap (its ticket passed)
//                            that moved elsewhere
//
// A hole is a maximal sequence of free nodes. Adjacent runs are always merged, so are adjacent gaps.
#pragma once

#include <algorithm>
#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/backing.hpp"
#include "core/stream_order.hpp"
#include "core/units.hpp"

namespace cistern::core {

struct Block;
class HeapGroup;
class PageHeap;

struct HeapConfig {
  std::uint64_t cell_bytes = 2 * MiB;      // Granularity of the physical memory.
  std::uint64_t alignment = 512;           // Of every block's start and size; at least 64.
  std::uint64_t range_bytes = 0;           // Reserved address space of a heap; a multiple of cell_bytes.
  std::uint64_t limit_bytes = UINT64_MAX;  // Reserved memory of the whole group never exceeds it.
  bool tight = false;                      // The limit is close to what will be live: see set_limit().
  bool virtual_memory = true;              // false: pieces are segments that never move, blocks never cross them.
  bool commit_on_touch = false;            // A piece costs nothing before it is written: none is larger than the need.
  // Held memory may exceed the peak of live bytes so far before pieces move, and by 1 more where streams share it.
  std::uint64_t slack_percent = 4;
  std::uint64_t segment_bytes = 16 * MiB;  // Usual size of a segment, where not very much is held.
};

enum class NodeState : std::uint8_t { live, run, gap, stale };

// A stretch of the range. The caller keeps the pointer of a live node as its handle, and may use `block`. What the
// neighbours of a block that comes or goes are asked for is on the first cache line.
struct alignas(64) HeapNode {
  std::uint64_t offset = 0;  // Bytes from the start of the range.
  std::uint64_t size = 0;    // Bytes.
  HeapNode* prev = nullptr;  // In address order.
  HeapNode* next = nullptr;
  HeapNode* bin_prev = nullptr;  // In its bin (run) or list (gap).
  HeapNode* bin_next = nullptr;
  PageHeap* heap = nullptr;
  NodeState state = NodeState::gap;
  bool idle = false;  // Live only: nobody uses it.
  std::uint16_t bin = 0;
  StreamIndex stream{};    // Live only: in whose order it is.
  Block* block = nullptr;  // Live only; the heap never reads it.
  Freed freed;             // Free only.
};

// Counts since the start.
struct HeapCounts {
  std::uint64_t created = 0;
  std::uint64_t moved = 0;
  std::uint64_t released = 0;
};

// What every step asks; the slow ways keep the first four up to date, every step the others.
struct HeapGauge {
  std::uint64_t reserved = 0;  // Bytes of physical memory held.
  std::uint64_t changes = 0;   // Grows with every change of what is held, moved or allowed.
  bool over = false;           // More is held than the limit allows.
  bool tight = false;
  std::uint64_t live = 0;       // Bytes in live nodes,
  std::uint64_t idle = 0;       // in those of them that nobody uses,
  std::uint64_t peak_live = 0;  // and the most in the others, by which the policy goes.

  void note_live() { peak_live = std::max(peak_live, live - idle); }
};

class HeapGroup {
 public:
  explicit HeapGroup(HeapConfig config);
  ~HeapGroup();
  HeapGroup(const HeapGroup&) = delete;
  HeapGroup& operator=(const HeapGroup&) = delete;

  // The blocks of the stream `lowest` come from the low end of the range, those of others from the top of what is
  // mapped. The backing must outlive the group.
  PageHeap& add_heap(Backing& backing, StreamIndex lowest = {});
  // The number means another stream from now on, which comes after what the one before was given, and has waited for no
  // other one.
  void replace_stream(StreamIndex stream);
  // The stream was made to wait for all that the other one was given so far.
  void come_after(StreamIndex stream, StreamIndex other);
  // The host has waited for all work of the device.
  void all_done();

  const HeapGauge& gauge() const { return gauge_; }
  // Bytes of physical memory held, and the most ever.
  std::uint64_t reserved() const { return gauge_.reserved; }
  std::uint64_t peak_reserved() const;
  void reset_peak_reserved();
  // What was live so far says nothing of what comes: slack and pieces are sized by what is live from now on.
  void forget_peak_live();
  // Bytes in live nodes.
  std::uint64_t live() const { return gauge_.live; }
  // Says that nobody uses the live node, since its holder may hand it out again, or that somebody does.
  void set_idle(HeapNode* node, bool idle) {
    assert(node->state == NodeState::live && node->idle != idle);
    node->idle = idle;
    gauge_.idle = idle ? gauge_.idle + node->size : gauge_.idle - node->size;
    gauge_.note_live();
  }
  // Pieces held now.
  std::uint64_t pieces() const;
  const HeapCounts& counts() const;
  std::uint64_t limit() const;
  // `tight` says that the limit leaves little above the live bytes to come: pieces are small from the start, which
  // costs two to three times the operations. Without it they become small when three quarters of the limit are held.
  void set_limit(std::uint64_t bytes, bool tight);
  // Releases pieces without a live byte until at most `keep` bytes of them are left. Stale addresses whose work is not
  // done are left alone; with `wait` the host waits for them. Returns the bytes released.
  std::uint64_t trim(std::uint64_t keep, bool wait);
  // Unmaps stale addresses whose work is done.
  void collect();
  // Bytes in pieces without a live byte.
  std::uint64_t wholly_free() const;
  // Bytes of the largest block that could be placed without a new piece.
  std::uint64_t largest_free() const;

  // One message a broken rule; empty when all hold.
  std::vector<std::string> check_invariants() const;

 private:
  friend class PageHeap;
  struct Impl;
  HeapGauge gauge_;
  std::unique_ptr<Impl> impl_;
};

class PageHeap {
 public:
  ~PageHeap();
  PageHeap(const PageHeap&) = delete;
  PageHeap& operator=(const PageHeap&) = delete;

  // A live node of at least `bytes` (a multiple of the alignment) that work on the stream may use from now on, or null
  // when no memory is left under the limit. pre: bytes > 0; alignment is a power of two, at least the configured one.
  HeapNode* allocate(std::uint64_t bytes, std::uint64_t alignment, StreamIndex stream);
  // The same from mapped memory only: asks the backing for nothing but the order of streams. Null when nothing fits.
  HeapNode* allocate_mapped(std::uint64_t bytes, std::uint64_t alignment, StreamIndex stream);
  // The same at one place. Null when that is not free and mapped throughout, or when the block would be the first in a
  // piece that it does not cover. pre: [offset, offset + bytes) was a live node before, aligned.
  HeapNode* allocate_at(std::uint64_t offset, std::uint64_t bytes, StreamIndex stream);
  // Bytes that the free run around such a place would have left, and more than any run has where the stream would have
  // to wait for another one; UINT64_MAX where allocate_at() gives null.
  std::uint64_t left_at(std::uint64_t offset, std::uint64_t bytes, StreamIndex stream) const;
  // A live node that touches such a place; null when none does.
  const HeapNode* occupant(std::uint64_t offset, std::uint64_t bytes) const;
  // pre: node is live and of this heap. Makes no call to the backing.
  void free(HeapNode* node);
  // Pieces of a held heap stay where they are, used or not: none moves, leaves, or comes from another heap.
  void hold(bool on);
  // Gives back all pieces of this heap that no live node touches. The host waits for work that may use them. False when
  // some had to stay (live nodes, a device that cannot be waited for now).
  bool release_pieces();
  bool any_live() const;
  // Bytes of physical memory shown in this heap.
  std::uint64_t mapped() const;
  // Visits the nodes in address order.
  void for_each_node(const std::function<void(const HeapNode& node)>& visit) const;
  // Visits the pieces shown in this heap, those that are about to leave included, and whether a live node touches each.
  void for_each_piece(const std::function<void(Piece piece, bool live)>& visit) const;

 private:
  friend class HeapGroup;
  struct Impl;
  PageHeap(HeapGroup& group, Backing& backing, StreamIndex lowest);
  std::unique_ptr<Impl> impl_;
};

}  // namespace cistern::core
