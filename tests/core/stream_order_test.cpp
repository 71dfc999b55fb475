// Uses by other streams, and which heap has waited for which.
#include "core/stream_order.hpp"

#include <gtest/gtest.h>

#include "core/block.hpp"

namespace cistern::core {
namespace {

TEST(StreamUses, RemembersEachStreamOnce) {
  StreamUses uses;
  Block a, b;
  EXPECT_TRUE(uses.empty());
  uses.add(&a, 3);
  uses.add(&a, 3);
  uses.add(&a, 5);
  EXPECT_TRUE(uses.contains(&a));
  EXPECT_FALSE(uses.contains(&b));
  StreamUses::Taken taken = uses.take(&a);
  EXPECT_EQ(taken.mapped(), (std::vector<std::uint32_t>{3, 5}));
  EXPECT_TRUE(uses.take(&a).empty());
  EXPECT_TRUE(uses.empty());
  uses.put_back(std::move(taken));
  EXPECT_EQ(uses.size(), 1U);
  EXPECT_EQ(uses.take(&a).mapped(), (std::vector<std::uint32_t>{3, 5}));
}

TEST(StreamUses, AnHeirStandsForAStreamThatIsGone) {
  StreamUses uses;
  Block a, b;
  uses.add(&a, 3);
  uses.add(&b, 0);
  uses.add(&b, 3);
  uses.replace_stream(3, 0);
  EXPECT_EQ(uses.take(&a).mapped(), (std::vector<std::uint32_t>{0}));
  EXPECT_EQ(uses.take(&b).mapped(), (std::vector<std::uint32_t>{0}));
}

constexpr StreamIndex kA{0}, kB{1}, kC{2};

Freed free_by(OrderLedger& ledger, StreamIndex stream) {
  ledger.know(stream);
  return ledger.free(stream, {});
}

// The streams that `stream` is made to wait for.
std::vector<StreamIndex> waits(OrderLedger& ledger, StreamIndex stream, const Freed& freed) {
  std::vector<StreamIndex> others;
  EXPECT_TRUE(ledger.order(stream, freed, {}, [&](StreamIndex other) {
    others.push_back(other);
    return true;
  }));
  EXPECT_TRUE(ledger.ready(stream, freed));
  return others;
}

TEST(OrderLedger, NobodyWaitsForItselfOrForFreshMemory) {
  OrderLedger ledger;
  EXPECT_TRUE(ledger.ready(kA, {}));
  EXPECT_TRUE(ledger.ready(kA, free_by(ledger, kA)));
  EXPECT_FALSE(ledger.several());
  EXPECT_FALSE(ledger.ready(kA, free_by(ledger, kB)));
  EXPECT_TRUE(ledger.several());
}

TEST(OrderLedger, AWaitCoversWhatWasFreedBefore) {
  OrderLedger ledger;
  const Freed first = free_by(ledger, kA), second = free_by(ledger, kA);
  EXPECT_EQ(waits(ledger, kB, first), std::vector{kA});
  EXPECT_TRUE(ledger.ready(kB, second)) << "freed before the wait";
  EXPECT_FALSE(ledger.ready(kC, second)) << "another stream has not waited";
  EXPECT_FALSE(ledger.ready(kB, free_by(ledger, kA))) << "freed since";
}

TEST(OrderLedger, AWaitCoversWhatTheOtherWaitedFor) {
  OrderLedger ledger;
  const Freed freed = free_by(ledger, kA);
  waits(ledger, kB, freed);
  const Freed later = free_by(ledger, kA);
  EXPECT_EQ(waits(ledger, kC, free_by(ledger, kB)), std::vector{kB});
  EXPECT_TRUE(ledger.ready(kC, freed));
  EXPECT_FALSE(ledger.ready(kC, later));
}

TEST(OrderLedger, JoinedMemoryIsReadyWhenAllItsPartsAre) {
  OrderLedger ledger;
  Freed both = free_by(ledger, kA);
  both.join(free_by(ledger, kB));
  EXPECT_EQ(waits(ledger, kA, both), std::vector{kB});
  EXPECT_EQ(waits(ledger, kC, both), std::vector{kA}) << "which comes after the other";
  both.join(free_by(ledger, kC));
  EXPECT_EQ(waits(ledger, kA, both), std::vector{kC}) << "what it had waited for before is still known apart";
  both.join({});
  EXPECT_TRUE(ledger.ready(kA, both));
}

TEST(OrderLedger, MoreStreamsThanAreKeptApartStandForAll) {
  OrderLedger ledger;
  Freed all;
  for (std::uint16_t i = 0; i < 70; ++i) all.join(free_by(ledger, StreamIndex{i}));
  EXPECT_EQ(waits(ledger, StreamIndex{68}, all).size(), 69U);
  EXPECT_FALSE(ledger.ready(kA, all));
  all.join(free_by(ledger, kB));
  EXPECT_EQ(waits(ledger, StreamIndex{68}, all), std::vector{kB});
}

TEST(OrderLedger, AllMeansThoseThatFreedSinceTheLastWait) {
  OrderLedger ledger;
  Freed all;
  for (std::uint16_t i = 0; i < 70; ++i) all.join(free_by(ledger, StreamIndex{i}));
  waits(ledger, kA, all);
  Freed again;
  for (std::uint16_t i = 20; i < 25; ++i) again.join(free_by(ledger, StreamIndex{i}));
  EXPECT_EQ(waits(ledger, kA, again).size(), 5U);
}

TEST(OrderLedger, NobodyWaitsForWhatTheHostHasWaitedFor) {
  OrderLedger ledger;
  const Freed before = free_by(ledger, kA);
  ledger.all_done();
  EXPECT_TRUE(ledger.ready(kB, before));
  EXPECT_FALSE(ledger.ready(kB, free_by(ledger, kA)));
}

TEST(OrderLedger, AWaitThatFailsIsNotRemembered) {
  OrderLedger ledger;
  const Freed freed = free_by(ledger, kA);
  EXPECT_FALSE(ledger.order(kB, freed, {}, [](StreamIndex) { return false; }));
  EXPECT_FALSE(ledger.ready(kB, freed));
}

TEST(OrderLedger, OnlyThePartThatIsTakenIsWaitedFor) {
  OrderLedger ledger;
  for (const StreamIndex stream : {kA, kB, kC}) ledger.know(stream);
  Freed both = ledger.free(kA, {0, 1 * MiB});
  both.join(ledger.free(kB, {1 * MiB, 2 * MiB}));
  EXPECT_TRUE(ledger.ready(kA, both, {0, 1 * MiB}));
  EXPECT_TRUE(ledger.ready(kB, both, {1 * MiB, 2 * MiB}));
  EXPECT_FALSE(ledger.ready(kB, both, {1 * MiB - 1, 2 * MiB}));
  EXPECT_FALSE(ledger.ready(kA, both, {0, 1 * MiB + 1}));
  const auto refuse = [](StreamIndex) { return false; };
  EXPECT_TRUE(ledger.order(kB, both, {1 * MiB, 2 * MiB}, refuse));
  EXPECT_FALSE(ledger.order(kB, both, {0, 2 * MiB}, refuse));
  // Between the two parts of one stream nothing else is known.
  both.join(ledger.free(kA, {4 * MiB, 5 * MiB}));
  EXPECT_FALSE(ledger.ready(kB, both, {2 * MiB, 3 * MiB}));
}

TEST(OrderLedger, WhatIsCutOffIsForgotten) {
  OrderLedger ledger;
  for (const StreamIndex stream : {kA, kB, kC}) ledger.know(stream);
  Freed all = ledger.free(kA, {0, 1 * MiB});
  all.join(ledger.free(kB, {1 * MiB, 2 * MiB}));
  all.join(ledger.free(kC, {2 * MiB, 3 * MiB}));
  all.clip({1 * MiB, 2 * MiB + 512});
  EXPECT_EQ(waits(ledger, kA, all), (std::vector{kB, kC}));
  all.clip({1 * MiB, 2 * MiB});
  EXPECT_TRUE(ledger.ready(kB, all));
  all.move_to({8 * MiB, 9 * MiB});
  EXPECT_TRUE(ledger.ready(kC, all, {1 * MiB, 2 * MiB}));
  EXPECT_FALSE(ledger.ready(kC, all, {9 * MiB - 1, 10 * MiB}));
  all.clip({0, 8 * MiB});
  EXPECT_TRUE(ledger.ready(kC, all)) << "nothing is left of it";
}

TEST(OrderLedger, AnotherStreamBehindTheNumberHasWaitedForNone) {
  OrderLedger ledger;
  const Freed freed = free_by(ledger, kA);
  waits(ledger, kB, freed);
  ledger.forget(kB);
  EXPECT_FALSE(ledger.ready(kB, freed));
}

}  // namespace
}  // namespace cistern::core
