// BlockObjects: the device's objects over single blocks (MTLBuffer), on devices where ptr() of a buffer is one.
//
// Does: make an object at the first use of a place, keep it while the place is free, hand it out again when a block of
// the same place and size comes back; drop objects after the device's work is done, oldest first, when there are too
// many or the driver has no more. Does not: own memory, know blocks. Called by Central under the device's lock.
//
//   state    its block                             leaves by
//   live     is handed out, or in a cache          release(): idle
//   idle     went back to the heap of pages        acquire() of its place: live; too many, pressure: retired
//   retired  is no more                            the ticket of its time passed: destroyed
//
// After a split or a merge the objects of the old blocks stay idle for a while: loops place the same blocks again, so
// they come back, and a new block goes where an idle object of its size stands if that place is free. An object is no
// memory, only a name for some: that its place is in use under another name is allowed. An idle object whose place
// turned out to be taken waits for the block there to be freed, and is not looked at before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "allocator/driver_backing.hpp"
#include "core/page_heap.hpp"
#include "drivers/driver.hpp"

namespace cistern::allocation {

class BlockObjects {
 public:
  BlockObjects(drivers::Driver& driver, DeviceWork& work, std::size_t most_idle)
      : driver_(driver), work_(work), most_idle_(most_idle) {}
  // Destroys all that are not live. pre: the device is idle.
  ~BlockObjects();
  BlockObjects(const BlockObjects&) = delete;
  BlockObjects& operator=(const BlockObjects&) = delete;

  // What a visitor says of a place: enough seen, go on, or the live node that is in the way.
  struct Verdict {
    bool done = false;
    const core::HeapNode* taken_by = nullptr;
  };
  // Where idle objects of [least, most] bytes stand: visit(offset, bytes) for some of them, small ones first, of one
  // size the last freed first, until it says that it has seen enough.
  template <class Visit>
  void find_idle(std::uint32_t range, std::uint64_t least, std::uint64_t most, Visit visit) {
    int left = kTries;
    for (auto size = sizes_.lower_bound({range, least});
         size != sizes_.end() && size->first.first == range && size->first.second <= most && left > 0; ++size) {
      for (Entry* entry = size->second.idle; entry != nullptr && left-- > 0;) {
        Entry& seen = *entry;
        entry = entry->same_next;
        const Verdict verdict = visit(seen.offset, size->first.second);
        if (verdict.done) return;
        if (verdict.taken_by != nullptr) wait_for(seen, verdict.taken_by);
      }
    }
  }
  // The node is about to be free: objects that wait for it can be found again.
  void freed(const core::HeapNode* node);
  // An object over [inside, inside + bytes) of the segment, live; `offset` is the place in its heap of pages. Null when
  // the driver makes none, even after idle ones were dropped.
  void* acquire(std::uint32_t range, std::uint64_t offset, const drivers::Segment& segment, std::uint64_t inside,
                std::uint64_t bytes);
  // pre: live.
  void release(std::uint64_t address, std::uint64_t bytes);

  // Destroys retired objects whose work is done.
  void settle();
  // Drops all idle objects; those whose work is not done go later.
  void drop_idle();
  // Destroys all objects over the range at once. pre: no work can touch it, none of them is live.
  void forget(std::uint64_t address, std::uint64_t bytes);

  std::size_t idle() const { return idle_count_; }
  std::size_t retired() const { return retired_.size(); }
  std::size_t live() const { return entries_.size() - idle_count_; }
  std::vector<std::string> check_invariants() const;

 private:
  static constexpr int kTries = 48;  // Looks of one search: they cost less than a call to Metal.
  static constexpr std::size_t kSpareSizes = 1024;
  using Place = std::pair<std::uint64_t, std::uint64_t>;  // Address, bytes.
  using Size = std::pair<std::uint32_t, std::uint64_t>;   // Range of addresses, bytes.
  struct Entry {
    void* object = nullptr;
    const Place* place = nullptr;  // The key of this entry.
    std::uint64_t offset = 0;
    std::uint32_t range = 0;
    bool idle = false;
    Entry* older = nullptr;  // Idle ones only.
    Entry* newer = nullptr;
    Entry* same_prev = nullptr;  // Idle ones of one size, the last freed first; or those that wait for one node.
    Entry* same_next = nullptr;
    const core::HeapNode* waits_for = nullptr;
  };
  struct Retired {
    void* object = nullptr;
    std::uint64_t address = 0;  // Of its place.
    core::Ticket ticket = core::Ticket::none;
    bool marked = false;
  };

  void* make(const drivers::Segment& segment, std::uint64_t inside, std::uint64_t bytes);
  void link(Entry& entry);
  void unlink(Entry& entry);
  // The list of its size, or of those that wait for the same node.
  Entry*& list_of(const Entry& entry) {
    return entry.waits_for != nullptr ? waiting_.at(entry.waits_for)
                                      : sizes_.at({entry.range, entry.place->second}).idle;
  }
  void link_in_list(Entry& entry);
  void unlink_from_list(Entry& entry);
  void wait_for(Entry& entry, const core::HeapNode* node);
  // The entry leaves the books.
  std::map<Place, Entry>::iterator erase(std::map<Place, Entry>::iterator entry);
  // Retires the oldest idle ones until `keep` are left.
  void retire_idle(std::size_t keep);

  drivers::Driver& driver_;
  DeviceWork& work_;
  const std::size_t most_idle_;
  std::map<Place, Entry> entries_;
  struct SameSize {
    Entry* idle = nullptr;      // The first; null where all are live, or wait.
    std::uint64_t entries = 0;  // Live and idle ones.
  };
  std::map<Size, SameSize> sizes_;
  std::unordered_map<const core::HeapNode*, Entry*> waiting_;
  Entry* oldest_ = nullptr;
  Entry* newest_ = nullptr;
  std::size_t idle_count_ = 0;
  std::deque<Retired> retired_;  // Oldest first; those without a ticket at the end.
};

}  // namespace cistern::allocation
