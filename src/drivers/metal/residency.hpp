// Residency: which memory of a Metal device is wired, in residency sets of bounded size.
//
// Does: keep what was told of under the wired limit, live memory before memory that nobody uses, older before younger;
// stage changes and commit them once per batch; attach every set to every queue. Does not: own memory or queues, decide
// when a batch ends. Called by the Metal driver. Thread-safe: it has a lock of its own, a leaf.
//
//   state     in a set  counts against the limit   may become
//   waiting   no        no                         wired (there is room, or live and an idle one gives way), gone
//   wired     yes       yes                        waiting (a lower limit, or idle and a live one waits), gone
//
// A set holds at most `set_bytes` (one larger allocation has a set for itself), so that a commit, whose price grows
// with what is in the set, stays cheap. A queue takes 32 sets; when there are that many, the emptiest takes more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "drivers/metal/metal_api.hpp"

namespace cistern::drivers::metal {

struct ResidencyFigures {
  std::size_t wired = 0;    // Bytes.
  std::size_t waiting = 0;  // Bytes that the limit keeps out.
  std::size_t sets = 0;
  std::uint64_t commits = 0;  // Since the start.
  std::uint64_t calls = 0;    // All calls to Metal since the start.
};

class Residency {
 public:
  static constexpr std::size_t kLeastSetBytes = std::size_t{64} << 20;
  static constexpr std::size_t kSetsPerWorkingSet = 20;  // A set holds 5 % of the recommended working set.

  explicit Residency(std::size_t set_bytes, std::size_t most_sets) : set_bytes_(set_bytes), most_sets_(most_sets) {}
  Residency(const Residency&) = delete;
  Residency& operator=(const Residency&) = delete;
  // Ends all sets. pre: an autorelease pool is open.
  ~Residency();

  // Without a device nothing is ever wired.
  void set_device(Device* device) { device_ = device; }

  // `allocation` is an MTLHeap or an MTLBuffer. False when the host has no memory for the record; nothing changed then.
  bool insert(void* allocation, std::size_t bytes);
  // Before the owner's release. Its place goes to those that wait.
  void erase(void* allocation);
  // Idle: nobody uses any of it now.
  void set_idle(void* allocation, bool idle);
  // Bytes that may be wired.
  void set_limit(std::size_t bytes);
  // What was staged becomes real. True when there was something.
  bool commit();
  bool staged() const;

  void attach(Queue* queue);
  void detach(Queue* queue);

  ResidencyFigures figures() const;
  // One message a broken rule; empty when all hold.
  std::vector<std::string> check_invariants() const;

 private:
  static constexpr std::size_t kNone = SIZE_MAX;

  struct Entry {
    void* allocation = nullptr;
    std::size_t bytes = 0;
    std::size_t set = kNone;
    bool idle = false;
  };
  struct Set {
    Ref<ResidencySet> object;
    std::size_t bytes = 0;
    std::size_t count = 0;
    bool dirty = false;  // Staged changes.
    bool grown = false;  // Some of them are additions.
  };
  using Age = std::uint64_t;

  // The list that an entry of this state is in.
  std::set<Age>& list_of(const Entry& entry) { return lists_[entry.set != kNone ? 1 : 0][entry.idle ? 1 : 0]; }
  void fill();
  bool wire(Age age, Entry& entry);
  void unwire(Age age, Entry& entry);
  std::size_t choose_set(std::size_t bytes);

  const std::size_t set_bytes_;
  const std::size_t most_sets_;
  Device* device_ = nullptr;
  mutable std::mutex mutex_;
  std::size_t limit_ = 0;
  std::map<Age, Entry> entries_;
  std::unordered_map<void*, Age> ages_;
  std::set<Age> lists_[2][2];  // [wired][idle], oldest first.
  std::vector<Set> sets_;
  std::vector<Queue*> queues_;
  Age next_age_ = 1;
  ResidencyFigures figures_;
};

}  // namespace cistern::drivers::metal
