// PoolCore: counts, texts of errors, and the check of its rules.
#include <algorithm>
#include <set>
#include <string>

#include "pool/pool_core.hpp"

namespace cistern::pooling {

using detail::detail_of;
using detail::handle_count;
using detail::Slot;
using detail::SlotState;

std::size_t PoolCore::handed_out_count() const noexcept {
  std::size_t count = 0;
  for (const std::uint32_t index : live_) count += front_.buckets[index].used;
  return count;
}

std::size_t PoolCore::handed_out_bytes() const noexcept {
  std::size_t bytes = 0;
  for (const std::uint32_t index : live_) bytes += front_.buckets[index].used * front_.buckets[index].bytes;
  return bytes;
}

const char* PoolCore::may_release(const TypedBuffer& handle) const noexcept {
  const Slot* slot = detail::HandleAccess::slot(handle);
  if (slot == nullptr) return "the handle is empty (released before, or never filled)";
  if (const detail::SlotOwner* owner = detail_of(*slot).owner; owner != this) {
    return owner->pool_id() == pool_id() ? "the buffer is from before clear(); drop its handles instead"
                                         : "the buffer belongs to another pool";
  }
  if (slot->state == SlotState::registered) return "the buffer is registered; it is not recycled";
  if (handle.is_view()) return "the handle is a view; release the buffer that it is part of";
  if (slot->state == SlotState::released) return "the buffer was released before through another handle";
  return nullptr;
}

std::vector<std::string> PoolCore::held_buffers() const {
  std::vector<std::string> lines;
  for (const std::uint32_t index : live_) {
    const Bucket& bucket = front_.buckets[index];
    for (std::uint32_t i = 0; i < bucket.used; ++i) {
      const Slot& slot = *bucket.list[i];
      const std::size_t handles = handle_count(slot);
      if (handles == 0) continue;
      lines.push_back(std::string(name_of(slot.dtype)) + " in " + std::to_string(bucket.bytes) + " bytes (" +
                      std::to_string(handles) + (handles == 1 ? " handle)" : " handles)"));
    }
  }
  return lines;
}

std::vector<std::string> PoolCore::check_invariants() const {
  std::vector<std::string> broken;
  const auto require = [&](bool holds, const char* rule) {
    if (!holds) broken.emplace_back(rule);
  };

  std::set<const Slot*> seen;
  std::size_t listed = 0;
  std::size_t escaped = 0;
  std::size_t bytes = 0;
  std::size_t escaped_bytes = 0;
  std::size_t members = 0;
  bool once = true;
  bool memory = true;
  bool places = true;
  bool states = true;
  bool room = true;
  bool free_unused = true;
  const auto look = [&](const Slot& slot) {
    once = once && seen.insert(&slot).second;
    memory = memory && detail_of(slot).buffer && detail_of(slot).owner == this;
  };
  for (const std::uint32_t index : live_) {
    const Bucket& bucket = front_.buckets[index];
    room = room && bucket.members() <= bucket.room && bucket.room <= bucket.escaped.capacity();
    require(bucket.used <= bucket.listed, "no more slots of a bucket are handed out than it lists");
    for (std::uint32_t i = 0; i < bucket.listed; ++i) {
      const Slot& slot = *bucket.list[i];
      look(slot);
      places = places && detail_of(slot).index == i && detail_of(slot).bucket == index;
      states = states && slot.state == SlotState::listed;
      if (i >= bucket.used) free_unused = free_unused && slot.primary.load() == 0 && slot.shared.load() == 0;
    }
    for (const Slot* slot : bucket.escaped) {
      look(*slot);
      places = places && detail_of(*slot).bucket == index;
      states = states && (slot->state == SlotState::escaped || slot->state == SlotState::released);
    }
    listed += bucket.listed;
    escaped += bucket.escaped.size();
    bytes += bucket.members() * bucket.bytes;
    escaped_bytes += bucket.escaped.size() * bucket.bytes;
  }
  for (const Bucket& bucket : front_.buckets) members += bucket.members();
  std::size_t own_shares = 0;
  for (const Slot* slot : registered_) {
    look(*slot);
    states = states && slot->state == SlotState::registered;
    own_shares += (slot->shared.load() & detail::kCountMask) != 0;
  }

  require(total_count_ == listed + escaped && total_bytes_ == bytes, "total = free + handed out + escaped");
  require(members == total_count_, "buckets that ever had a buffer are known");
  require(escaped == escaped_count_ && escaped_bytes == escaped_bytes_, "escaped buffers are counted");
  require(once, "no buffer is listed twice");
  require(memory, "every listed slot has memory and belongs to this pool");
  require(places, "a listed slot knows its bucket and its place");
  require(states, "a slot's state tells the list that it is in");
  require(room, "a bucket's lists have room for all its members");
  require(free_unused, "a free buffer has no handle");
  require(own_shares == registered_.size(), "the pool holds a share of every registered buffer");
  return broken;
}

}  // namespace cistern::pooling
