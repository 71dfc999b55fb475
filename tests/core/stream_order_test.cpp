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
  EXPECT_EQ(uses.take(&a), (std::vector<std::uint32_t>{3, 5}));
  EXPECT_TRUE(uses.take(&a).empty());
  EXPECT_TRUE(uses.empty());
}

TEST(StreamUses, AnHeirStandsForAStreamThatIsGone) {
  StreamUses uses;
  Block a, b;
  uses.add(&a, 3);
  uses.add(&b, 0);
  uses.add(&b, 3);
  uses.replace_stream(3, 0);
  EXPECT_EQ(uses.take(&a), (std::vector<std::uint32_t>{0}));
  EXPECT_EQ(uses.take(&b), (std::vector<std::uint32_t>{0}));
}

TEST(OrderLedger, AWaitHoldsUntilTheNextFree) {
  OrderLedger ledger;
  EXPECT_FALSE(ledger.needs_wait(1, 1));
  EXPECT_TRUE(ledger.needs_wait(1, 0));
  ledger.waited(1, 0);
  EXPECT_FALSE(ledger.needs_wait(1, 0));
  EXPECT_TRUE(ledger.needs_wait(2, 0));
  ledger.freed(0);
  EXPECT_TRUE(ledger.needs_wait(1, 0));
  ledger.waited(1, 0);
  ledger.forget(1);
  EXPECT_TRUE(ledger.needs_wait(1, 0));
}

}  // namespace
}  // namespace cistern::core
