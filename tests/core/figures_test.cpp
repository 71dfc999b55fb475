// Sums, peaks within the credit, floors, tags.
#include "core/figures.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <thread>

namespace cistern::core {
namespace {

// As the fast path does it.
void change(Figures& figures, Account& account, std::int64_t bytes) {
  account.add(bytes, bytes > 0 ? 1 : -1);
  if (account.bytes > account.high) figures.checkpoint();
}

TEST(Figures, SumsAccountsAndTheSharedOne) {
  Figures figures;
  Account a, b;
  figures.attach(a);
  figures.attach(b);
  change(figures, a, 1000);
  change(figures, b, -300);
  figures.add_shared(50, 1);
  EXPECT_EQ(figures.active(), 750U);
  EXPECT_EQ(figures.live_buffers(), 1U);
}

TEST(Figures, ThePeakOfOneThreadIsExactForLargeSteps) {
  Figures figures;
  Account a;
  figures.attach(a);
  for (int i = 0; i < 10; ++i) change(figures, a, 1 << 20);
  for (int i = 0; i < 10; ++i) change(figures, a, -(1 << 20));
  EXPECT_EQ(figures.peak(), 10U << 20);
  figures.reset_peak();
  EXPECT_EQ(figures.peak(), 0U);
  change(figures, a, 3 << 20);
  change(figures, a, -(3 << 20));
  EXPECT_EQ(figures.peak(), 3U << 20);
}

// Threads that come and go by the same bytes: once the peak has seen them together, none of them looks again.
TEST(Figures, AllotmentsFollowWhatEachThreadHolds) {
  std::mt19937_64 random(5);
  Figures figures;
  std::array<Account, 16> accounts;
  for (Account& account : accounts) figures.attach(account);
  constexpr std::int64_t kBlock = 1 << 20;
  for (Account& account : accounts) change(figures, account, kBlock);
  int looks = 0;
  for (int i = 0; i < 100000; ++i) {
    Account& account = accounts[random() % accounts.size()];
    const std::int64_t bytes = account.bytes == 0 ? kBlock : -kBlock;
    looks += account.bytes + bytes > account.high ? 1 : 0;
    change(figures, account, bytes);
  }
  EXPECT_LE(looks, 16);
  EXPECT_EQ(figures.peak(), 16U << 20);
}

// One hands blocks over, the other frees them: what the second does not come back to is room for the first.
TEST(Figures, AThreadThatOnlyFreesKeepsNoAllotment) {
  Figures figures;
  Account gives, frees;
  figures.attach(gives);
  figures.attach(frees);
  change(figures, gives, 64 << 20);
  for (int i = 0; i < 100; ++i) {
    change(figures, frees, -(1 << 20));
    change(figures, gives, 1 << 20);
  }
  EXPECT_EQ(figures.peak(), 64U << 20);
  change(figures, frees, -(33 << 20));
  figures.checkpoint();
  EXPECT_GE(gives.high - gives.bytes, 11 << 20) << "a third of the room";
}

TEST(Figures, ThePeakIsWithinTheCreditOfEachThread) {
  std::mt19937_64 random(3);
  Figures figures;
  std::array<Account, 4> accounts;
  for (Account& account : accounts) figures.attach(account);
  std::int64_t sum = 0, peak = 0;
  std::array<std::int64_t, 4> held{};
  for (int i = 0; i < 200000; ++i) {
    const std::size_t who = random() % 4;
    std::int64_t bytes = static_cast<std::int64_t>(random() % 200000);
    if (random() % 2 == 0) bytes = -std::min(bytes, held[who]);
    held[who] += bytes;
    sum += bytes;
    peak = std::max(peak, sum);
    change(figures, accounts[who], bytes);
    ASSERT_LE(figures.peak(), static_cast<std::uint64_t>(peak));
    ASSERT_GE(figures.peak() + 4 * Figures::kCredit + Figures::kCredit, static_cast<std::uint64_t>(peak));
  }
}

TEST(Figures, AFloorIsSeenByWhoeverFallsBelowIt) {
  Figures figures;
  Account a, b;
  figures.attach(a);
  figures.attach(b);
  change(figures, a, 10 << 20);
  change(figures, b, 10 << 20);
  figures.set_floor(15 << 20, 0);
  std::int64_t freed = 0;
  while (a.bytes >= a.low) {
    change(figures, a, -65536);
    freed += 65536;
  }
  EXPECT_LE(freed, (5 << 20) + 65536);
  figures.set_floor(Figures::kNoFloor, 0);
  EXPECT_EQ(a.low, Account::kNone);
}

TEST(Figures, AnAccountsOwnWatermarkOutlivesAFloor) {
  Figures figures;
  Account a;
  figures.attach(a);
  a.set_keep_low(-100);
  figures.set_floor(0, 0);
  EXPECT_GE(a.low, -100);
  figures.set_floor(Figures::kNoFloor, 0);
  EXPECT_EQ(a.low, -100);
}

TEST(Figures, ReadersBesideWriters) {
  Figures figures;
  Account a;
  figures.attach(a);
  std::thread writer([&] {
    for (int i = 0; i < 100000; ++i) {
      change(figures, a, 4096);
      change(figures, a, -4096);
    }
  });
  for (int i = 0; i < 10000; ++i) EXPECT_LE(figures.active(), 4096U);
  writer.join();
  EXPECT_EQ(figures.active(), 0U);
}

TEST(TagFigures, CountsByTag) {
  TagFigures tags;
  tags.add(7, 100);
  tags.add(60000, 900);
  tags.add(7, 50);
  tags.subtract(7, 120);
  const auto entries = tags.entries();
  ASSERT_EQ(entries.size(), 2U);
  EXPECT_EQ(entries[0].tag, 60000);
  EXPECT_EQ(entries[0].active, 900U);
  EXPECT_EQ(entries[1].active, 30U);
  EXPECT_EQ(entries[1].peak, 150U);
  tags.reset_peaks();
  EXPECT_EQ(tags.entries()[1].peak, 30U);
}

}  // namespace
}  // namespace cistern::core
