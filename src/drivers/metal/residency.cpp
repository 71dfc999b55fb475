// Choice of what is wired, and the sets.
#include "drivers/metal/residency.hpp"

#include <algorithm>
#include <new>

namespace cistern::drivers::metal {
namespace {

// Entries that are looked at when room has come: a thousand small ones behind a large one shall not cost a walk each
// time.
constexpr int kLookAhead = 256;

}  // namespace

Residency::~Residency() {
  for (const Set& set : sets_) {
    for (Queue* const queue : queues_) remove_residency_set(queue, set.object.get());
    if (set.count != 0) end_residency(set.object.get());
  }
}

bool Residency::insert(void* allocation, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const Age age = next_age_++;
  try {
    Entry& entry = entries_.emplace(age, Entry{allocation, bytes, kNone, false}).first->second;
    ages_.emplace(allocation, age);
    list_of(entry).insert(age);
  } catch (const std::bad_alloc&) {
    ages_.erase(allocation);
    entries_.erase(age);
    return false;
  }
  figures_.waiting += bytes;
  fill();
  return true;
}

void Residency::erase(void* allocation) {
  const std::lock_guard lock(mutex_);
  const auto found = ages_.find(allocation);
  if (found == ages_.end()) return;
  const Age age = found->second;
  Entry& entry = entries_.at(age);
  if (entry.set != kNone) unwire(age, entry);
  list_of(entry).erase(age);
  figures_.waiting -= entry.bytes;
  ages_.erase(found);
  entries_.erase(age);
  fill();
}

void Residency::set_idle(void* allocation, bool idle) {
  const std::lock_guard lock(mutex_);
  const auto found = ages_.find(allocation);
  if (found == ages_.end()) return;
  Entry& entry = entries_.at(found->second);
  if (entry.idle == idle) return;
  // A node is moved, so that this needs no memory.
  auto node = list_of(entry).extract(found->second);
  entry.idle = idle;
  list_of(entry).insert(std::move(node));
  fill();
}

void Residency::set_limit(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  limit_ = bytes;
  // Idle ones leave first, then the youngest.
  for (const int idle : {1, 0}) {
    while (figures_.wired > limit_ && !lists_[1][idle].empty()) {
      const Age age = *lists_[1][idle].rbegin();
      unwire(age, entries_.at(age));
    }
  }
  fill();
}

// Wires what waits, as far as the limit allows: live ones before idle ones, and idle ones give way to live ones.
void Residency::fill() {
  if (limit_ == 0) return;
  for (const int idle : {0, 1}) {
    int looked = 0;
    for (auto next = lists_[0][idle].begin(); next != lists_[0][idle].end() && looked < kLookAhead; ++looked) {
      const Age age = *next++;
      Entry& entry = entries_.at(age);
      if (entry.bytes > limit_) continue;
      std::size_t room = limit_ - figures_.wired;
      if (room < entry.bytes && idle == 0) {
        std::size_t could_leave = 0;
        for (const Age other : lists_[1][1]) could_leave += entries_.at(other).bytes;
        while (room + could_leave >= entry.bytes && room < entry.bytes) {
          const Age other = *lists_[1][1].rbegin();
          could_leave -= entries_.at(other).bytes;
          unwire(other, entries_.at(other));
          room = limit_ - figures_.wired;
        }
      }
      if (room >= entry.bytes && !wire(age, entry)) return;
    }
  }
}

// False when Metal made no set for it; the entry waits on.
bool Residency::wire(Age age, Entry& entry) {
  const std::size_t index = choose_set(entry.bytes);
  if (index == kNone) return false;
  Set& set = sets_[index];
  add_allocation(set.object.get(), entry.allocation);
  ++figures_.calls;
  set.bytes += entry.bytes;
  ++set.count;
  set.dirty = set.grown = true;
  auto node = list_of(entry).extract(age);
  entry.set = index;
  list_of(entry).insert(std::move(node));
  figures_.waiting -= entry.bytes;
  figures_.wired += entry.bytes;
  return true;
}

void Residency::unwire(Age age, Entry& entry) {
  Set& set = sets_[entry.set];
  remove_allocation(set.object.get(), entry.allocation);
  ++figures_.calls;
  set.bytes -= entry.bytes;
  --set.count;
  set.dirty = true;
  auto node = list_of(entry).extract(age);
  entry.set = kNone;
  list_of(entry).insert(std::move(node));
  figures_.wired -= entry.bytes;
  figures_.waiting += entry.bytes;
}

std::size_t Residency::choose_set(std::size_t bytes) {
  std::size_t emptiest = kNone;
  // The newest first: the older ones are full, or have not changed for long and need no commit.
  for (std::size_t i = sets_.size(); i-- > 0;) {
    if (sets_[i].bytes + bytes <= set_bytes_ || sets_[i].count == 0) return i;
    if (emptiest == kNone || sets_[i].bytes < sets_[emptiest].bytes) emptiest = i;
  }
  if (device_ == nullptr || sets_.size() >= most_sets_) return emptiest;
  try {
    sets_.reserve(sets_.size() + 1);
  } catch (const std::bad_alloc&) {
    return emptiest;
  }
  Set set;
  set.object = new_residency_set(device_);
  ++figures_.calls;
  if (!set.object) return emptiest;
  for (Queue* const queue : queues_) {
    add_residency_set(queue, set.object.get());
    ++figures_.calls;
  }
  sets_.push_back(std::move(set));
  return sets_.size() - 1;
}

bool Residency::commit() {
  const std::lock_guard lock(mutex_);
  bool any = false;
  for (Set& set : sets_) {
    if (!set.dirty) continue;
    any = true;
    metal::commit(set.object.get());
    ++figures_.commits;
    ++figures_.calls;
    if (set.grown && set.count != 0) {
      request_residency(set.object.get());
      ++figures_.calls;
    } else if (set.count == 0) {
      end_residency(set.object.get());
      ++figures_.calls;
    }
    set.dirty = set.grown = false;
  }
  return any;
}

bool Residency::staged() const {
  const std::lock_guard lock(mutex_);
  return std::any_of(sets_.begin(), sets_.end(), [](const Set& set) { return set.dirty; });
}

void Residency::attach(Queue* queue) {
  const std::lock_guard lock(mutex_);
  if (!has_residency_sets(queue)) return;
  queues_.push_back(queue);
  for (const Set& set : sets_) {
    add_residency_set(queue, set.object.get());
    ++figures_.calls;
  }
}

void Residency::detach(Queue* queue) {
  const std::lock_guard lock(mutex_);
  if (std::erase(queues_, queue) == 0) return;
  for (const Set& set : sets_) {
    remove_residency_set(queue, set.object.get());
    ++figures_.calls;
  }
}

ResidencyFigures Residency::figures() const {
  const std::lock_guard lock(mutex_);
  ResidencyFigures out = figures_;
  out.sets = sets_.size();
  return out;
}

std::vector<std::string> Residency::check_invariants() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> broken;
  std::size_t wired = 0;
  std::size_t waiting = 0;
  std::vector<std::size_t> bytes(sets_.size());
  std::vector<std::size_t> counts(sets_.size());
  for (const auto& [age, entry] : entries_) {
    (entry.set != kNone ? wired : waiting) += entry.bytes;
    if (entry.set != kNone) {
      bytes[entry.set] += entry.bytes;
      ++counts[entry.set];
    }
    if (!lists_[entry.set != kNone ? 1 : 0][entry.idle ? 1 : 0].contains(age))
      broken.push_back("residency: an entry is in the wrong list");
  }
  if (wired != figures_.wired || waiting != figures_.waiting) broken.push_back("residency: the sums are wrong");
  if (wired > limit_) broken.push_back("residency: more is wired than the limit allows");
  if (ages_.size() != entries_.size()) broken.push_back("residency: an allocation has no age");
  if (sets_.size() > most_sets_) broken.push_back("residency: too many sets");
  for (std::size_t i = 0; i < sets_.size(); ++i) {
    if (bytes[i] != sets_[i].bytes || counts[i] != sets_[i].count)
      broken.push_back("residency: the sums of a set are wrong");
    if (sets_.size() < most_sets_ && bytes[i] > set_bytes_ && counts[i] > 1)
      broken.push_back("residency: a set is too large");
  }
  return broken;
}

}  // namespace cistern::drivers::metal
