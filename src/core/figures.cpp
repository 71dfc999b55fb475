// Sums, peaks and allotments.
#include "core/figures.hpp"

#include <algorithm>
#include <new>

namespace cistern::core {

void Figures::attach(Account& account) {
  const std::lock_guard lock(mutex_);
  account.next = accounts_.load(std::memory_order_relaxed);
  accounts_.store(&account, std::memory_order_release);
  ++account_count_;
}

std::int64_t Figures::sum(std::atomic<std::int64_t> Account::*field) const {
  std::int64_t total = 0;
  for (const Account* a = accounts_.load(std::memory_order_acquire); a != nullptr; a = a->next) {
    total += (a->*field).load(std::memory_order_relaxed);
  }
  return total;
}

bool Figures::add_shared(std::int64_t bytes, std::int64_t count) {
  shared_.count.fetch_add(count, std::memory_order_relaxed);
  const std::int64_t now = shared_.bytes.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  if (now > shared_.high.load(std::memory_order_relaxed)) checkpoint();
  return now < shared_.low.load(std::memory_order_relaxed);
}

std::uint64_t Figures::peak() const {
  // What threads hold below their allotments may be above the last checkpoint by the credits.
  return clamp(std::max(peak_.load(std::memory_order_relaxed), sum(&Account::bytes)));
}

// Each account gets back to the most that it held, as far as the peak has room for all, and a share of what is left.
// What is held is read once, for the peak and for the room below it: more than there is room for is never handed out.
void Figures::hand_out(std::int64_t least_peak) {
  std::int64_t active = 0, wanted = 0;
  for (Account* a = accounts_.load(std::memory_order_relaxed); a != nullptr; a = a->next) {
    const std::int64_t bytes = a->bytes.load(std::memory_order_relaxed);
    if (bytes < a->least) {
      // It frees what others allocated: it will not come back to what it held.
      a->most -= a->least - bytes;
      a->least = bytes;
    }
    a->most = std::max(a->most, bytes);
    active += bytes;
    wanted += a->most - bytes;
  }
  const std::int64_t peak = std::max(active, least_peak), room = peak - active;
  peak_.store(peak, std::memory_order_relaxed);
  const double part = wanted > room ? static_cast<double>(room) / static_cast<double>(wanted) : 1;
  const std::int64_t share = wanted < room ? (room - wanted) / account_count_ : 0;
  for (Account* a = accounts_.load(std::memory_order_relaxed); a != nullptr; a = a->next) {
    const std::int64_t bytes = a->bytes.load(std::memory_order_relaxed);
    // A range that is too wide shrinks; whoever needs it passes its allotment and widens it again.
    if (part < 1) a->most = bytes + static_cast<std::int64_t>(part * static_cast<double>(a->most - bytes));
    a->high.store(a->most + share + kCredit, std::memory_order_relaxed);
  }
}

void Figures::checkpoint() {
  const std::lock_guard lock(mutex_);
  hand_out(peak_.load(std::memory_order_relaxed));
}

void Figures::reset_peak() {
  const std::lock_guard lock(mutex_);
  hand_out(0);
}

void Figures::set_floor(std::int64_t floor, std::int64_t credit) {
  const std::lock_guard lock(mutex_);
  const std::int64_t room = floor == kNoFloor ? 0 : sum(&Account::bytes) - floor;
  const std::int64_t share = (room >= 0 ? room : credit) / account_count_;
  for (Account* a = accounts_.load(std::memory_order_relaxed); a != nullptr; a = a->next) {
    const std::int64_t own = floor == kNoFloor ? kNoFloor : a->bytes.load(std::memory_order_relaxed) - share;
    a->floor.store(own, std::memory_order_relaxed);
    a->low.store(std::max(own, a->keep_low.load(std::memory_order_relaxed)), std::memory_order_relaxed);
  }
}

TagFigures::~TagFigures() {
  for (auto& page : pages_) delete page.load(std::memory_order_relaxed);
}

TagFigures::Counter* TagFigures::counter(std::uint16_t tag) {
  auto& slot = pages_[tag / 256];
  Page* page = slot.load(std::memory_order_acquire);
  if (page == nullptr) {
    auto fresh = std::unique_ptr<Page>(new (std::nothrow) Page);
    if (fresh == nullptr) return nullptr;
    if (slot.compare_exchange_strong(page, fresh.get(), std::memory_order_acq_rel)) page = fresh.release();
  }
  return &(*page)[tag % 256];
}

void TagFigures::add(std::uint16_t tag, std::uint64_t bytes) {
  Counter* c = counter(tag);
  if (c == nullptr) return;
  const auto delta = static_cast<std::int64_t>(bytes);
  const std::int64_t now = c->active.fetch_add(delta, std::memory_order_relaxed) + delta;
  std::int64_t peak = c->peak.load(std::memory_order_relaxed);
  while (now > peak && !c->peak.compare_exchange_weak(peak, now, std::memory_order_relaxed)) {
  }
}

void TagFigures::subtract(std::uint16_t tag, std::uint64_t bytes) {
  if (Counter* c = counter(tag)) c->active.fetch_sub(static_cast<std::int64_t>(bytes), std::memory_order_relaxed);
}

std::vector<TagFigures::Entry> TagFigures::entries() const {
  std::vector<Entry> result;
  for (std::size_t p = 0; p < pages_.size(); ++p) {
    const Page* page = pages_[p].load(std::memory_order_acquire);
    if (page == nullptr) continue;
    for (std::size_t i = 0; i < page->size(); ++i) {
      const std::int64_t active = (*page)[i].active.load(std::memory_order_relaxed);
      const std::int64_t peak = (*page)[i].peak.load(std::memory_order_relaxed);
      if (peak <= 0) continue;
      result.push_back({static_cast<std::uint16_t>(p * 256 + i),
                        static_cast<std::uint64_t>(std::max<std::int64_t>(active, 0)),
                        static_cast<std::uint64_t>(peak)});
    }
  }
  std::stable_sort(result.begin(), result.end(), [](const Entry& a, const Entry& b) { return a.active > b.active; });
  return result;
}

void TagFigures::reset_peaks() {
  for (auto& slot : pages_) {
    Page* page = slot.load(std::memory_order_acquire);
    if (page == nullptr) continue;
    for (Counter& c : *page) c.peak.store(c.active.load(std::memory_order_relaxed), std::memory_order_relaxed);
  }
}

}  // namespace cistern::core
