// The store of slots, and last_look().
#include "pool/slot_store.hpp"

#include <memory>

#include "pool/heavy_fence.hpp"

namespace cistern::pooling {

using detail::Slot;
using detail::SlotChunk;
using detail::SlotDetail;

namespace {

// A stack that is pushed one by one and emptied at once, so that an address that returns does no harm.
std::atomic<Slot*> store{nullptr};

// All pages ever made, so that leak checkers find them.
struct Page {
  SlotChunk* chunk;
  Page* older;
};
std::atomic<Page*> pages{nullptr};

}  // namespace

Slot* take_slots() {
  if (Slot* first = store.exchange(nullptr, std::memory_order_acq_rel)) return first;
  auto chunk = std::make_unique<SlotChunk>();
  auto* page = new Page{chunk.get(), pages.load(std::memory_order_relaxed)};
  (void)chunk.release();
  while (!pages.compare_exchange_weak(page->older, page, std::memory_order_acq_rel)) {
  }
  const std::uint8_t hint = has_heavy_fence() ? 0 : 1;
  for (std::size_t i = 0; i < SlotChunk::kSlots; ++i) {
    page->chunk->slots[i].hint.store(hint, std::memory_order_relaxed);
    page->chunk->details[i].next = i + 1 < SlotChunk::kSlots ? &page->chunk->slots[i + 1] : nullptr;
  }
  return &page->chunk->slots[0];
}

detail::HandleCell& cell_of(const Slot& slot) {
  const auto address = reinterpret_cast<std::uintptr_t>(&slot);
  auto* chunk = reinterpret_cast<SlotChunk*>(address & ~std::uintptr_t{sizeof(SlotChunk) - 1});
  detail::HandleCell* cells = chunk->cells.load(std::memory_order_acquire);
  if (cells == nullptr) {
    auto made = std::make_unique<detail::HandleCell[]>(SlotChunk::kSlots);
    if (chunk->cells.compare_exchange_strong(cells, made.get(), std::memory_order_acq_rel)) cells = made.release();
  }
  return cells[&slot - chunk->slots];
}

void put_slot(Slot& slot) noexcept {
  SlotDetail& detail = detail::detail_of(slot);
  slot.state = detail::SlotState::empty;
  slot.host = nullptr;
  slot.shared.store(0, std::memory_order_relaxed);
  slot.hint.store(has_heavy_fence() ? 0 : 1, std::memory_order_relaxed);
  detail.buffer = Buffer();
  detail.owner = nullptr;
  const std::uint32_t watch = detail.watch.load(std::memory_order_relaxed);
  detail.watch.store(((watch & ~std::uint32_t{kStateMask}) + 4) | kNone, std::memory_order_release);
  detail.next = store.load(std::memory_order_relaxed);
  while (!store.compare_exchange_weak(detail.next, &slot, std::memory_order_acq_rel, std::memory_order_relaxed)) {
  }
}

void make_orphan(Slot& slot) noexcept {
  SlotDetail& detail = detail::detail_of(slot);
  const std::uint32_t watch = detail.watch.load(std::memory_order_relaxed);
  detail.watch.store((watch & ~std::uint32_t{kStateMask}) | kOrphan, std::memory_order_release);
  slot.hint.store(1, std::memory_order_release);
}

}  // namespace cistern::pooling

namespace cistern::detail {

void last_look(Slot& slot) noexcept {
  // Stands in for the heavy fence where there is none; also orders the look after the caller's drop.
  pooling::full_fence();
  SlotDetail& detail = detail_of(slot);
  std::uint32_t watch = detail.watch.load(std::memory_order_acquire);
  if ((watch & pooling::kStateMask) != pooling::kOrphan || handle_count(slot) != 0) return;
  // The generation makes sure that this is still the life of the slot that was looked at.
  const std::uint32_t claimed = (watch & ~std::uint32_t{pooling::kStateMask}) | pooling::kClaimed;
  if (detail.watch.compare_exchange_strong(watch, claimed, std::memory_order_acq_rel)) detail.owner->retire(slot);
}

}  // namespace cistern::detail
