// Objects over blocks: reuse, and dropping in order.
#include "allocator/block_objects.hpp"

#include <algorithm>
#include <new>

namespace cistern::allocation {

using drivers::Status;

BlockObjects::~BlockObjects() {
  for (const Retired& retired : retired_) driver_.destroy_object(retired.object);
  for (const auto& [place, entry] : entries_) {
    if (entry.idle) driver_.destroy_object(entry.object);
  }
}

void BlockObjects::link(Entry& entry) {
  entry.idle = true;
  entry.older = newest_;
  entry.newer = nullptr;
  (newest_ != nullptr ? newest_->newer : oldest_) = &entry;
  newest_ = &entry;
  link_in_list(entry);
  ++idle_count_;
}

void BlockObjects::link_in_list(Entry& entry) {
  Entry*& first = list_of(entry);
  entry.same_prev = nullptr;
  entry.same_next = first;
  if (first != nullptr) first->same_prev = &entry;
  first = &entry;
}

void BlockObjects::unlink_from_list(Entry& entry) {
  (entry.same_prev != nullptr ? entry.same_prev->same_next : list_of(entry)) = entry.same_next;
  if (entry.same_next != nullptr) entry.same_next->same_prev = entry.same_prev;
  if (entry.waits_for != nullptr && entry.same_prev == nullptr && entry.same_next == nullptr) {
    waiting_.erase(entry.waits_for);
  }
  entry.same_prev = entry.same_next = nullptr;
  entry.waits_for = nullptr;
}

void BlockObjects::wait_for(Entry& entry, const core::HeapNode* node) {
  try {
    waiting_.try_emplace(node, nullptr);
  } catch (const std::bad_alloc&) {
    return;  // It will be looked at again.
  }
  unlink_from_list(entry);
  entry.waits_for = node;
  link_in_list(entry);
}

void BlockObjects::freed(const core::HeapNode* node) {
  if (waiting_.empty()) return;
  const auto found = waiting_.find(node);
  if (found == waiting_.end()) return;
  Entry* entry = found->second;
  waiting_.erase(found);
  while (entry != nullptr) {
    Entry& free = *entry;
    entry = entry->same_next;
    free.waits_for = nullptr;
    link_in_list(free);
  }
}

void BlockObjects::unlink(Entry& entry) {
  (entry.older != nullptr ? entry.older->newer : oldest_) = entry.newer;
  (entry.newer != nullptr ? entry.newer->older : newest_) = entry.older;
  unlink_from_list(entry);
  entry.older = entry.newer = nullptr;
  entry.idle = false;
  --idle_count_;
}

std::map<BlockObjects::Place, BlockObjects::Entry>::iterator BlockObjects::erase(
    std::map<Place, Entry>::iterator entry) {
  if (entry->second.idle) unlink(entry->second);
  --sizes_.at({entry->second.range, entry->first.second}).entries;
  const auto following = entries_.erase(entry);
  // Lists of sizes stay for when the size comes back; a program with ever new sizes shall not collect them.
  if (sizes_.size() > 4 * (entries_.size() + kSpareSizes)) {
    std::erase_if(sizes_, [](const auto& size) { return size.second.entries == 0; });
  }
  return following;
}

void* BlockObjects::acquire(std::uint32_t range, std::uint64_t offset, const drivers::Segment& segment,
                            std::uint64_t inside, std::uint64_t bytes) {
  const Place place{segment.base + inside, bytes};
  if (const auto known = entries_.find(place); known != entries_.end()) {
    if (!known->second.idle) return nullptr;
    unlink(known->second);
    return known->second.object;
  }
  void* const object = make(segment, inside, bytes);
  if (object == nullptr) return nullptr;
  try {
    SameSize& same = sizes_[{range, bytes}];
    const auto added = entries_.emplace(place, Entry{}).first;
    ++same.entries;
    added->second.object = object;
    added->second.place = &added->first;
    added->second.offset = offset;
    added->second.range = range;
  } catch (const std::bad_alloc&) {
    driver_.destroy_object(object);
    return nullptr;
  }
  return object;
}

void* BlockObjects::make(const drivers::Segment& segment, std::uint64_t inside, std::uint64_t bytes) {
  settle();
  void* object = nullptr;
  if (driver_.create_object(segment, inside, bytes, object) == Status::ok) return object;
  // There is a cap on the number of objects: those that wait for work, and those that nobody uses now, give way.
  retire_idle(idle_count_ / 2);
  settle();
  if (!work_.wait_for_all()) return nullptr;
  settle();
  return driver_.create_object(segment, inside, bytes, object) == Status::ok ? object : nullptr;
}

void BlockObjects::release(std::uint64_t address, std::uint64_t bytes) {
  const auto found = entries_.find({address, bytes});
  if (found == entries_.end()) return;
  link(found->second);
  // In batches: a batch has one ticket.
  if (idle_count_ > most_idle_) retire_idle(most_idle_ - most_idle_ / 16);
}

void BlockObjects::retire_idle(std::size_t keep) {
  while (idle_count_ > keep) {
    Entry& entry = *oldest_;
    try {
      retired_.push_back({entry.object, entry.place->first, core::Ticket::none, false});
    } catch (const std::bad_alloc&) {
      return;
    }
    erase(entries_.find(*entry.place));
  }
}

void BlockObjects::settle() {
  if (retired_.empty()) return;
  if (!retired_.back().marked) {
    work_.new_frees();
    const core::Ticket ticket = work_.mark();
    for (auto r = retired_.rbegin(); r != retired_.rend() && !r->marked; ++r) {
      r->ticket = ticket;
      r->marked = true;
    }
  }
  while (!retired_.empty() && work_.passed(retired_.front().ticket)) {
    driver_.destroy_object(retired_.front().object);
    retired_.pop_front();
  }
}

void BlockObjects::drop_idle() {
  retire_idle(0);
  settle();
}

void BlockObjects::forget(std::uint64_t address, std::uint64_t bytes) {
  for (auto entry = entries_.lower_bound({address, 0});
       entry != entries_.end() && entry->first.first - address < bytes;) {
    driver_.destroy_object(entry->second.object);
    entry = erase(entry);
  }
  std::erase_if(retired_, [&](const Retired& retired) {
    const bool over = retired.address >= address && retired.address - address < bytes;
    if (over) driver_.destroy_object(retired.object);
    return over;
  });
}

std::vector<std::string> BlockObjects::check_invariants() const {
  std::vector<std::string> broken;
  std::size_t idle = 0;
  for (const Entry* entry = oldest_; entry != nullptr; entry = entry->newer) {
    ++idle;
    if (!entry->idle) broken.push_back("objects: one in the list of idle ones is live");
    if (entry->newer == nullptr && entry != newest_) broken.push_back("objects: the list of idle ones is torn");
  }
  const auto marked_idle = static_cast<std::size_t>(
      std::count_if(entries_.begin(), entries_.end(), [](const auto& entry) { return entry.second.idle; }));
  if (idle != idle_count_ || idle != marked_idle) broken.push_back("objects: the count of idle ones is wrong");
  for (const auto& [node, first] : waiting_) {
    if (first == nullptr) broken.push_back("objects: nobody waits for a node that has a list");
    if (node->state != core::NodeState::live) broken.push_back("objects: some wait for a node that is free");
    for (const Entry* entry = first; entry != nullptr; entry = entry->same_next) {
      if (!entry->idle || entry->waits_for != node) broken.push_back("objects: one waits in the wrong list");
    }
  }
  return broken;
}

}  // namespace cistern::allocation
