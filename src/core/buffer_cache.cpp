// Classes, ages and the hash table of the whole-buffer cache. Picture, contract and locking are in buffer_cache.hpp.
#include "core/buffer_cache.hpp"

#include <algorithm>
#include <bit>
#include <exception>
#include <utility>

#include "core/units.hpp"

namespace cistern::core {
namespace {

constexpr unsigned kFirstTableBits = 6;
constexpr std::size_t kSmallest = 8;  // Bytes of the smallest rounded capacity.
// 2^64 divided by the golden ratio: spreads keys that follow each other.
constexpr std::uint64_t kSpread = 0x9E3779B97F4A7C15u;

}  // namespace

BufferCache::BufferCache(std::size_t page, std::size_t cap, Evict evict)
    : page_(page),
      cap_(cap),
      evict_(std::move(evict)),
      page_bits_(static_cast<unsigned>(std::countr_zero(page))),
      table_shift_(64 - kFirstTableBits),
      table_(std::size_t{1} << kFirstTableBits) {}

BufferCache::~BufferCache() { clear(); }

std::size_t BufferCache::rounded(std::size_t bytes) const {
  if (bytes < page_) return std::bit_ceil(std::max(bytes, kSmallest));
  return (bytes + page_ - 1) & ~(page_ - 1);
}

// Number of the class, rising with the capacity. pre: capacity > 0.
std::size_t BufferCache::key_of(std::size_t capacity) const {
  if (capacity < page_) return static_cast<std::size_t>(std::bit_width(capacity));
  return page_bits_ + (capacity >> page_bits_);
}

std::size_t BufferCache::home_of(std::size_t key) const {
  return static_cast<std::size_t>((std::uint64_t{key} * kSpread) >> table_shift_);
}

// Index of the slot that has the key, or of the empty one where it belongs.
std::size_t BufferCache::find(std::size_t key) const {
  const std::size_t mask = table_.size() - 1;
  std::size_t at = home_of(key);
  while (table_[at].key != key && table_[at].key != 0) at = (at + 1) & mask;
  return at;
}

BufferCache::Taken BufferCache::take(std::size_t bytes) {
  const std::size_t twice = bytes > SIZE_MAX / 2 ? SIZE_MAX : 2 * bytes;
  const std::size_t more = bytes > SIZE_MAX - 2 * page_ ? SIZE_MAX : bytes + 2 * page_;
  const std::size_t end = std::min(twice, more);
  if (bytes < end && count_ != 0) {
    const std::size_t last = key_of(end - 1);
    for (std::size_t key = key_of(bytes); key <= last; ++key) {
      Slot& slot = table_[find(key)];
      std::uint32_t index = slot.first;
      while (index != kNone && nodes_[index].capacity < bytes) index = nodes_[index].next;
      if (index == kNone) continue;
      if (nodes_[index].capacity >= end) break;
      const Taken taken{nodes_[index].buffer, nodes_[index].capacity};
      unlink(slot, index);
      return taken;
    }
  }
  return {};
}

BufferCache::Taken BufferCache::take_oldest() {
  if (oldest_ == kNone) return {};
  const Taken taken{nodes_[oldest_].buffer, nodes_[oldest_].capacity};
  unlink(table_[find(key_of(taken.capacity))], oldest_);
  return taken;
}

void BufferCache::put(void* buffer, std::size_t capacity) {
  if (capacity == 0 || capacity > cap_ || !make_room()) {
    evict_(buffer, capacity);
    return;
  }
  if (bytes_ > cap_ - capacity) trim(cap_ - capacity);
  const std::size_t key = key_of(capacity);
  Slot& slot = table_[find(key)];
  if (slot.key == 0) {
    slot.key = key;
    ++used_slots_;
  }
  const std::uint32_t index = unused_;
  Node& node = nodes_[index];
  unused_ = node.next;
  std::uint32_t before = kNone;
  std::uint32_t after = slot.first;
  while (after != kNone && nodes_[after].capacity < capacity) {
    before = after;
    after = nodes_[after].next;
  }
  node = {buffer, capacity, before, after, newest_, kNone};
  (before == kNone ? slot.first : nodes_[before].next) = index;
  if (after != kNone) nodes_[after].prev = index;
  (newest_ == kNone ? oldest_ : nodes_[newest_].newer) = index;
  newest_ = index;
  bytes_ += capacity;
  ++count_;
}

std::size_t BufferCache::trim(std::size_t keep) {
  const std::size_t before = bytes_;
  while (bytes_ > keep) evict_node(oldest_);
  return before - bytes_;
}

std::size_t BufferCache::set_cap(std::size_t cap) {
  const std::size_t previous = std::exchange(cap_, cap);
  trim(cap);
  return previous;
}

// Sees to one unused node and one empty slot for the next put(); false when the host has no memory.
bool BufferCache::make_room() {
  try {
    if (unused_ == kNone) {
      const std::size_t size = nodes_.size();
      if (size > kNone / 2) return false;
      nodes_.resize(std::max<std::size_t>(64, 2 * size));
      for (std::size_t i = nodes_.size(); i-- > size;) {
        nodes_[i].next = unused_;
        unused_ = static_cast<std::uint32_t>(i);
      }
    }
    if (2 * (used_slots_ + 1) > table_.size()) {
      // Classes that are empty now are dropped; the table doubles only if that leaves it more than a quarter full.
      const auto filled = static_cast<std::size_t>(
          std::count_if(table_.begin(), table_.end(), [](const Slot& slot) { return slot.first != kNone; }));
      const bool grow = 4 * filled > table_.size();
      std::vector<Slot> old(grow ? 2 * table_.size() : table_.size());
      old.swap(table_);
      if (grow) --table_shift_;
      for (const Slot& slot : old) {
        if (slot.first != kNone) table_[find(slot.key)] = slot;
      }
      used_slots_ = filled;
    }
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

void BufferCache::unlink(Slot& slot, std::uint32_t index) {
  Node& node = nodes_[index];
  (node.prev == kNone ? slot.first : nodes_[node.prev].next) = node.next;
  if (node.next != kNone) nodes_[node.next].prev = node.prev;
  (node.older == kNone ? oldest_ : nodes_[node.older].newer) = node.newer;
  (node.newer == kNone ? newest_ : nodes_[node.newer].older) = node.older;
  bytes_ -= node.capacity;
  --count_;
  node.next = unused_;
  unused_ = index;
}

void BufferCache::evict_node(std::uint32_t index) {
  const Node node = nodes_[index];
  unlink(table_[find(key_of(node.capacity))], index);
  evict_(node.buffer, node.capacity);
}

std::vector<std::string> BufferCache::check_invariants() const {
  std::vector<std::string> broken;
  const auto rule = [&broken](bool holds, const char* text) {
    if (!holds) broken.emplace_back(text);
  };
  std::size_t bytes = 0, count = 0, used = 0, unused = 0, aged = 0;
  for (std::size_t at = 0; at < table_.size(); ++at) {
    const Slot& slot = table_[at];
    rule(slot.key != 0 || slot.first == kNone, "a slot without a class has buffers");
    if (slot.key == 0) continue;
    ++used;
    rule(find(slot.key) == at, "a class is not found where it is");
    std::uint32_t before = kNone;
    for (std::uint32_t i = slot.first; i != kNone; before = i, i = nodes_[i].next) {
      if (++count > nodes_.size()) return {"a class runs in a circle"};
      bytes += nodes_[i].capacity;
      rule(key_of(nodes_[i].capacity) == slot.key, "a buffer is in the wrong class");
      rule(nodes_[i].prev == before, "the links of a class do not match");
      rule(before == kNone || nodes_[before].capacity <= nodes_[i].capacity, "a class is not in order of capacity");
    }
  }
  for (std::uint32_t i = oldest_, before = kNone; i != kNone; before = i, i = nodes_[i].newer) {
    if (++aged > nodes_.size()) return {"the list by age runs in a circle"};
    rule(nodes_[i].older == before, "the links by age do not match");
    rule(nodes_[i].newer != kNone || newest_ == i, "the newest buffer is not at the end of the list by age");
  }
  for (std::uint32_t i = unused_; i != kNone; i = nodes_[i].next) {
    if (++unused > nodes_.size()) return {"the unused nodes run in a circle"};
  }
  rule(bytes == bytes_, "the bytes are not the sum of the cached capacities");
  rule(bytes_ <= cap_, "more bytes than the cap are cached");
  rule(count == count_, "the count is not the number of cached buffers");
  rule(aged == count, "the list by age has not all buffers");
  rule(unused + count == nodes_.size(), "nodes are lost");
  rule(used == used_slots_, "the count of used slots is wrong");
  rule(2 * used <= table_.size(), "the table is too full");
  return broken;
}

}  // namespace cistern::core
