// Figures: bytes and counts of live buffers, kept a thread and summed on read; their peak; bytes by tag.
//
// Each thread cache has an Account that its thread alone writes. The peak needs no common counter on the fast path:
// each account has an allotment `high`, and while
//       sum of all `high`  <=  peak + accounts x kCredit
// holds, no thread below its allotment can have raised the peak by more than the credits. A thread that passes its own
// calls checkpoint(), which takes the exact sum of the moment and hands out new allotments: up to what each account
// held before, as far as that fits, so that threads that come and go by the same bytes need no more of them. In the
// same way `low` is a floor for an explicit cache limit: while every account is above its own, the sum is above what
// was asked for. Does not: know devices, limits, or who frees what. Locking: reads take none; checkpoint() and the
// setters one leaf lock.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "core/units.hpp"

namespace cistern::core {

struct Account {
  std::atomic<std::int64_t> bytes{0};  // May be negative: a thread frees what another one allocated.
  std::atomic<std::int64_t> count{0};
  std::atomic<std::int64_t> high{-1};         // -1: the first allocation makes a checkpoint.
  std::atomic<std::int64_t> low{kNone};       // The larger of the next two.
  std::atomic<std::int64_t> floor{kNone};     // From an explicit cache limit.
  std::atomic<std::int64_t> keep_low{kNone};  // From the bound of the thread's own cache.
  std::int64_t most = 0, least = 0;           // Between which `bytes` moves; under the figures' lock.
  Account* next = nullptr;

  static constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::min();

  // pre: called by the account's thread. When set_floor() runs at the same time, one of the two may be missed until the
  // next call: the watermark is then late by what is freed in between.
  void set_keep_low(std::int64_t value) {
    keep_low.store(value, std::memory_order_relaxed);
    low.store(std::max(value, floor.load(std::memory_order_relaxed)), std::memory_order_relaxed);
  }

  // The same, moved by `delta`. Without a watermark there is nothing to move.
  void move_keep_low(std::int64_t delta) {
    const std::int64_t before = keep_low.load(std::memory_order_relaxed);
    if (before != kNone) set_keep_low(before + delta);
  }

  // pre: called by the account's thread.
  void add(std::int64_t delta_bytes, std::int64_t delta_count) {
    bytes.store(bytes.load(std::memory_order_relaxed) + delta_bytes, std::memory_order_relaxed);
    count.store(count.load(std::memory_order_relaxed) + delta_count, std::memory_order_relaxed);
  }
};

class Figures {
 public:
  // How far a thread may pass the peak unseen: docs/design.md, "Limits and figures".
  static constexpr std::int64_t kCredit = 64 * KiB;
  static constexpr std::int64_t kNoFloor = Account::kNone;

  Figures() { attach(shared_); }
  Figures(const Figures&) = delete;
  Figures& operator=(const Figures&) = delete;

  // The account must live as long as the figures.
  void attach(Account& account);
  // For callers without an account of their own; any thread. Whether the common account is now below its floor.
  bool add_shared(std::int64_t bytes, std::int64_t count);

  std::uint64_t active() const { return clamp(sum(&Account::bytes)); }
  std::uint64_t live_buffers() const { return clamp(sum(&Account::count)); }
  std::uint64_t peak() const;
  void reset_peak();
  // Raises the peak to the sum of the moment and hands out new allotments.
  void checkpoint();
  // From now on an account that falls below its part of `floor` bytes is below its `low`. With kNoFloor none is.
  // When the sum is already below the floor, each account may free `credit` more bytes before it does.
  void set_floor(std::int64_t floor, std::int64_t credit);

  // To hold and let go around fork().
  std::mutex& mutex() { return mutex_; }

 private:
  static std::uint64_t clamp(std::int64_t v) { return v > 0 ? static_cast<std::uint64_t>(v) : 0; }
  std::int64_t sum(std::atomic<std::int64_t> Account::*field) const;
  void hand_out(std::int64_t least_peak);

  std::atomic<Account*> accounts_{nullptr};
  std::atomic<std::int64_t> peak_{0};
  std::int64_t account_count_ = 0;
  Account shared_;
  std::mutex mutex_;
};

// Bytes of live buffers by tag. Any thread, no lock but for the first use of a page of counters.
class TagFigures {
 public:
  struct Entry {
    std::uint16_t tag = 0;
    std::uint64_t active = 0;
    std::uint64_t peak = 0;
  };

  TagFigures() = default;
  ~TagFigures();
  TagFigures(const TagFigures&) = delete;
  TagFigures& operator=(const TagFigures&) = delete;

  void add(std::uint16_t tag, std::uint64_t bytes);
  void subtract(std::uint16_t tag, std::uint64_t bytes);
  // Tags that ever had bytes, most active bytes first.
  std::vector<Entry> entries() const;
  void reset_peaks();

 private:
  struct Counter {
    std::atomic<std::int64_t> active{0};
    std::atomic<std::int64_t> peak{0};
  };
  using Page = std::array<Counter, 256>;
  Counter* counter(std::uint16_t tag);

  std::array<std::atomic<Page*>, 256> pages_{};
};

}  // namespace cistern::core
