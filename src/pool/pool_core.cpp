// PoolCore: getting memory, taking it back, ending. Counts, texts and checks are in pool_check.cpp.
#include "pool/pool_core.hpp"

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "allocator/kept_buffers.hpp"
#include "cistern/error.hpp"
#include "pool/heavy_fence.hpp"
#include "pool/slot_store.hpp"

namespace cistern::pooling {

using allocation::Keeper;
using detail::detail_of;
using detail::handle_count;
using detail::kUsedElsewhere;
using detail::Slot;
using detail::SlotDetail;
using detail::SlotState;

PoolCore::PoolCore(Allocator& allocator, const Stream& stream, PoolOptions options, std::uint64_t pool_id)
    : SlotOwner(pool_id),
      allocator_(allocator),
      stream_(stream),
      options_(options),
      on_cpu_(allocator.device().type == DeviceType::cpu) {
  if (options_.bucketing > Bucketing::exact) {
    throw invalid_argument("cistern: there is no bucketing number " +
                           std::to_string(static_cast<unsigned>(options_.bucketing)));
  }
  if (options_.bucketing == Bucketing::eight_steps) front_.sizes = detail::PoolFront::Sizes::steps;
  if (options_.bucketing == Bucketing::exact) front_.sizes = detail::PoolFront::Sizes::table;
  if (options_.zero_on_reuse) front_.sizes = detail::PoolFront::Sizes::slow;
  std::uint32_t count = 0;
  if (options_.bucketing == Bucketing::power_of_two) count = detail::kPowerBuckets;
  if (options_.bucketing == Bucketing::eight_steps) count = detail::kStepBuckets;
  front_.buckets.resize(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    front_.buckets[i].bytes =
        options_.bucketing == Bucketing::power_of_two ? detail::power_bytes(i) : detail::step_bytes(i);
  }
  if (options_.bucketing == Bucketing::exact) exact_.resize(64);
}

// --- Buckets
// ----------------------------------------------------------------------------------------------------------

std::size_t PoolCore::bucket_bytes(std::size_t bytes) const noexcept {
  switch (options_.bucketing) {
    case Bucketing::power_of_two:
      return detail::power_bytes(detail::power_index(bytes));
    case Bucketing::eight_steps:
      return detail::step_bytes(detail::step_index(bytes));
    case Bucketing::exact:
      break;
  }
  return std::max<std::size_t>(bytes, 1);  // A buffer has an address, even of no bytes.
}

Bucket* PoolCore::find(std::size_t bytes) noexcept {
  switch (options_.bucketing) {
    case Bucketing::power_of_two:
      return &front_.buckets[detail::power_index(bytes)];
    case Bucketing::eight_steps:
      return &front_.buckets[detail::step_index(bytes)];
    case Bucketing::exact:
      break;
  }
  return find_exact(bytes);
}

// Where the size is in the table, or where it would go. The table is at most half full.
std::size_t PoolCore::exact_place(std::size_t bytes) const noexcept {
  const std::size_t mask = exact_.size() - 1;
  // Fibonacci hashing; sizes are multiples of powers of two, so the upper half of the product is the better one.
  std::size_t place = ((bytes * 0x9E3779B97F4A7C15u) >> 32) & mask;
  while (exact_[place].taken && exact_[place].bytes != bytes) place = (place + 1) & mask;
  return place;
}

Bucket* PoolCore::find_exact(std::size_t bytes) noexcept {
  const Exact& entry = exact_[exact_place(std::max<std::size_t>(bytes, 1))];
  return entry.taken ? &front_.buckets[entry.bucket] : nullptr;
}

Bucket& PoolCore::add_exact(std::size_t bytes) {
  if ((front_.buckets.size() + 1) * 2 > exact_.size()) {
    std::vector<Exact> old(exact_.size() * 2);
    old.swap(exact_);
    for (const Exact& entry : old) {
      if (entry.taken) exact_[exact_place(entry.bytes)] = entry;
    }
  }
  front_.buckets.emplace_back().bytes = bytes;
  exact_[exact_place(bytes)] = {bytes, static_cast<std::uint32_t>(front_.buckets.size() - 1), true};
  return front_.buckets.back();
}

// --- Handing out
// ------------------------------------------------------------------------------------------------------

Slot* PoolCore::take(std::size_t bytes, DType dtype) {
  Bucket* bucket = find(bytes);
  if (bucket == nullptr || bucket->used == bucket->listed) bucket = &refill(bytes);
  Slot* slot = bucket->list[bucket->used++];
  slot->dtype = dtype;
  slot->primary.store(1, std::memory_order_relaxed);
  if (options_.zero_on_reuse) std::memset(slot->host, 0, bytes);
  return slot;
}

Bucket& PoolCore::refill(std::size_t bytes) {
  // Escaped buffers that a miss looks at before it asks the allocator: few enough to cost less than that.
  constexpr std::size_t kLooks = 64;
  Bucket* bucket = find(bytes);
  if (bucket != nullptr) {
    look_for_returned(*bucket, kLooks);
    if (bucket->used < bucket->listed) return *bucket;
  }
  // Everything that can fail comes before the first change that counts.
  const std::size_t capacity = bucket_bytes(bytes);
  if (bucket == nullptr) bucket = &add_exact(capacity);
  make_room(*bucket);
  reserve_slot();
  const Buffer buffer = allocate(capacity);

  Slot& slot = pop_slot();
  SlotDetail& detail = detail_of(slot);
  detail.owner = this;
  detail.buffer = buffer;
  detail.bucket = static_cast<std::uint32_t>(bucket - front_.buckets.data());
  detail.owned = true;
  // Not so when the allocator takes its memory from a pool itself.
  detail.kept = allocation::keep(buffer, Keeper::pool) == Keeper::none;
  slot.host = on_cpu_ ? static_cast<std::byte*>(buffer.ptr()) : nullptr;
  // What lies behind the request stays untouched, so that rounding up costs address space and no pages.
  if (on_cpu_ && !options_.zero_on_reuse) std::memset(slot.host, 0, bytes);
  if (std::find(live_.begin(), live_.end(), detail.bucket) == live_.end()) live_.push_back(detail.bucket);
  ++total_count_;
  total_bytes_ += capacity;
  list_free(*bucket, slot);
  return *bucket;
}

// post: one more member can be listed anywhere without allocation.
void PoolCore::make_room(Bucket& bucket) {
  if (live_.capacity() == live_.size()) live_.reserve(live_.size() * 2 + 16);
  if (bucket.members() < bucket.room) return;
  if (bucket.room > UINT32_MAX / 2) throw std::bad_alloc();
  const std::uint32_t room = std::max<std::uint32_t>(8, bucket.room * 2);
  auto list = std::make_unique<Slot*[]>(room);
  bucket.escaped.reserve(room);
  std::copy_n(bucket.list.get(), bucket.listed, list.get());
  bucket.list = std::move(list);
  bucket.room = room;
}

void PoolCore::reserve_slot() {
  if (spare_ == nullptr) spare_ = take_slots();
}

Slot& PoolCore::pop_slot() noexcept { return *std::exchange(spare_, detail_of(*spare_).next); }

Buffer PoolCore::allocate(std::size_t bytes) {
  try {
    return allocator_.malloc(bytes, stream_);
  } catch (const out_of_memory&) {
    collect();
    if (total_count_ == handed_out_count() + escaped_count_) throw;
    trim();
  }
  return allocator_.malloc(bytes, stream_);
}

// --- Lists
// ------------------------------------------------------------------------------------------------------------

void PoolCore::list_free(Bucket& bucket, Slot& slot) noexcept {
  slot.state = SlotState::listed;
  detail_of(slot).index = bucket.listed;
  bucket.list[bucket.listed++] = &slot;  // There is room: see make_room().
}

void PoolCore::unlist(Bucket& bucket, Slot& slot) noexcept {
  // The last one handed out takes the slot's place, the last free one takes that one's.
  const std::uint32_t place = detail_of(slot).index;
  const std::uint32_t edge = --bucket.used;
  const std::uint32_t end = --bucket.listed;
  bucket.list[place] = bucket.list[edge];
  detail_of(*bucket.list[place]).index = place;
  if (edge == end) return;
  bucket.list[edge] = bucket.list[end];
  detail_of(*bucket.list[edge]).index = edge;
}

void PoolCore::to_escaped(Bucket& bucket, Slot& slot, SlotState state) noexcept {
  unlist(bucket, slot);
  slot.state = state;
  bucket.escaped.push_back(&slot);
  ++escaped_count_;
  escaped_bytes_ += bucket.bytes;
}

void PoolCore::look_for_returned(Bucket& bucket, std::size_t budget) noexcept {
  for (budget = std::min(budget, bucket.escaped.size()); budget > 0; --budget) {
    if (bucket.next_look >= bucket.escaped.size()) bucket.next_look = 0;
    Slot& slot = *bucket.escaped[bucket.next_look];
    if (handle_count(slot) != 0) {
      ++bucket.next_look;
      continue;
    }
    bucket.escaped[bucket.next_look] = bucket.escaped.back();
    bucket.escaped.pop_back();
    --escaped_count_;
    escaped_bytes_ -= bucket.bytes;
    if (slot.shared.load(std::memory_order_relaxed) != 0) {
      discard(bucket, slot);  // Used on another stream: the allocator knows when that is over.
    } else {
      list_free(bucket, slot);
    }
  }
}

void PoolCore::collect() noexcept {
  if (escaped_count_ == 0) return;
  for (const std::uint32_t index : live_) {
    Bucket& bucket = front_.buckets[index];
    look_for_returned(bucket, bucket.escaped.size());
  }
}

// --- Taking back
// ------------------------------------------------------------------------------------------------------

void PoolCore::recycle(Slot& slot) noexcept {
  Bucket& bucket = front_.buckets[detail_of(slot).bucket];
  slot.primary.store(0, std::memory_order_relaxed);
  if (slot.shared.load(std::memory_order_relaxed) != 0) {
    if ((slot.shared.load(std::memory_order_relaxed) & kUsedElsewhere) != 0) {
      unlist(bucket, slot);
      discard(bucket, slot);
      return;
    }
    slot.shared.store(0, std::memory_order_relaxed);
  }
  std::uint32_t& place = detail_of(slot).index;
  Slot* last_used = bucket.list[--bucket.used];
  std::swap(bucket.list[place], bucket.list[bucket.used]);
  std::swap(place, detail_of(*last_used).index);
}

void PoolCore::release(TypedBuffer& handle) noexcept {
  Slot& slot = *detail::HandleAccess::slot(handle);
  if (slot.state == SlotState::escaped) {
    slot.state = SlotState::released;
    handle.reset();
  } else if (handle_count(slot) == 1) {
    // The caller's handle: nobody else can make another.
    detail::HandleAccess::forget(handle);
    recycle(slot);
  } else {
    to_escaped(front_.buckets[detail_of(slot).bucket], slot, SlotState::released);
    handle.reset();
  }
}

void PoolCore::reset() noexcept {
  for (const std::uint32_t index : live_) reset_bucket(front_.buckets[index]);
}

void PoolCore::reset_bucket(Bucket& bucket) noexcept {
  std::uint32_t busy = 0;
  for (std::uint32_t i = 0; i < bucket.used; ++i) {
    const Slot& slot = *bucket.list[i];
    busy |= slot.primary.load(std::memory_order_acquire);
    busy |= slot.shared.load(std::memory_order_acquire);
  }
  // As many looks as buffers were handed out, and a few: the cost stays a share of theirs.
  if (!bucket.escaped.empty()) look_for_returned(bucket, bucket.used + 4);
  if (busy != 0) [[unlikely]] {
    // Downwards: what unlist() moves to `i` was looked at before.
    for (std::uint32_t i = bucket.used; i-- > 0;) {
      Slot& slot = *bucket.list[i];
      if (handle_count(slot) != 0) {
        to_escaped(bucket, slot, SlotState::escaped);
      } else if (slot.shared.load(std::memory_order_relaxed) != 0) {
        unlist(bucket, slot);
        discard(bucket, slot);
      }
    }
  }
  bucket.used = 0;
}

void PoolCore::trim() noexcept {
  collect();
  for (const std::uint32_t index : live_) {
    Bucket& bucket = front_.buckets[index];
    while (bucket.listed > bucket.used) discard(bucket, *bucket.list[--bucket.listed]);
  }
}

void PoolCore::free_memory(Slot& slot) noexcept {
  const SlotDetail& detail = detail_of(slot);
  if (detail.kept) allocation::let_go(detail.buffer);
  if (!detail.owned) return;
  try {
    allocator_.free(detail.buffer);
  } catch (const std::exception&) {
    // The allocator's fault; this may run in a destructor.
  }
}

void PoolCore::discard(Bucket& bucket, Slot& slot) noexcept {
  free_memory(slot);
  --total_count_;
  total_bytes_ -= bucket.bytes;
  put_slot(slot);
}

void PoolCore::record_use(Slot& slot, const Stream& stream) {
  if (stream == stream_) return;
  allocator_.record_use(detail_of(slot).buffer, stream);
  slot.shared.fetch_or(kUsedElsewhere, std::memory_order_relaxed);
}

// --- The end
// ----------------------------------------------------------------------------------------------------------

void PoolCore::close() noexcept {
  trim();
  while (spare_ != nullptr) put_slot(pop_slot());
  remaining_.store(total_count_ + registered_.size() + 1, std::memory_order_relaxed);
  const auto for_each = [this](auto visit) {
    for (const std::uint32_t index : live_) {
      const Bucket& bucket = front_.buckets[index];
      for (std::uint32_t i = 0; i < bucket.listed; ++i) visit(*bucket.list[i]);
      for (Slot* slot : bucket.escaped) visit(*slot);
    }
    for (Slot* slot : registered_) visit(*slot);
  };
  for (Slot* slot : registered_) slot->shared.fetch_sub(1, std::memory_order_acq_rel);
  if (remaining_.load(std::memory_order_relaxed) > 1) {
    for_each([](Slot& slot) { make_orphan(slot); });
    heavy_fence();
    for_each([](Slot& slot) { detail::last_look(slot); });
  }
  let_go();
}

void PoolCore::retire(Slot& slot) noexcept {
  free_memory(slot);
  put_slot(slot);
  let_go();
}

void PoolCore::let_go() noexcept {
  if (remaining_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
}

// --- Registered buffers
// -----------------------------------------------------------------------------------------------

Slot* PoolCore::add_registered(Buffer buffer, bool owned, std::size_t bytes, DType dtype) {
  reserve_slot();
  if (registered_.size() == registered_.capacity()) registered_.reserve(registered_.size() * 2 + 8);
  if (const Keeper by = allocation::keep(buffer, Keeper::registered); by != Keeper::none) {
    throw invalid_argument("BufferPool::register_existing: the buffer is " + allocation::to_string(by) +
                           "; expected one that nobody keeps");
  }
  Slot& slot = pop_slot();
  registered_.push_back(&slot);
  registered_bytes_ += bytes;
  SlotDetail& detail = detail_of(slot);
  detail.owner = this;
  detail.buffer = buffer;
  detail.owned = owned;
  detail.kept = true;
  slot.host = on_cpu_ ? static_cast<std::byte*>(buffer.ptr()) : nullptr;
  slot.dtype = dtype;
  slot.state = SlotState::registered;
  // The caller's handle, and the pool's own share.
  slot.primary.store(1, std::memory_order_relaxed);
  slot.shared.store(1, std::memory_order_relaxed);
  return &slot;
}

}  // namespace cistern::pooling
