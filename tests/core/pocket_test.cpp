// The block that a thread keeps: which one, for whom, and how others take it. Races: allocator.Pockets.
#include "core/pocket.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

namespace cistern::core {
namespace {

class PocketTest : public testing::Test {
 protected:
  PocketTest() {
    pocket_.set_most(1000);
    for (std::size_t i = 0; i < blocks_.size(); ++i) blocks_[i].capacity = 100 * (i + 1);
  }

  Pocket pocket_;
  std::array<Block, 12> blocks_{};
  Block* const one_ = &blocks_[0];  // 100 bytes.
  Block* const two_ = &blocks_[1];
};

TEST_F(PocketTest, KeepsTheLastBlockForItsSizeAgainAndAgain) {
  EXPECT_EQ(pocket_.take(100), nullptr);
  pocket_.note(one_);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(pocket_.put(one_));
    EXPECT_EQ(pocket_.bytes(), 100U);
    EXPECT_EQ(pocket_.take(200), nullptr);
    EXPECT_EQ(pocket_.take(100), one_);
    EXPECT_EQ(pocket_.bytes(), 0U);
  }
}

TEST_F(PocketTest, KeepsNoOtherBlock) {
  EXPECT_FALSE(pocket_.put(one_));
  pocket_.note(one_);
  pocket_.note(two_);
  EXPECT_FALSE(pocket_.put(one_));
  EXPECT_TRUE(pocket_.put(two_));
  EXPECT_EQ(pocket_.take(), two_);
  EXPECT_FALSE(pocket_.put(two_)) << "taken in order to be given back, not to be handed out";
  pocket_.note(two_);
  EXPECT_EQ(pocket_.take(), nullptr);
  EXPECT_FALSE(pocket_.put(two_)) << "another block came or went";
  pocket_.note(two_);
  pocket_.note(nullptr);
  EXPECT_FALSE(pocket_.put(two_));
  EXPECT_EQ(pocket_.take(), nullptr);
}

TEST_F(PocketTest, KeepsNothingAboveItsBound) {
  Block* const most = &blocks_[9];
  Block* const more = &blocks_[10];
  pocket_.note(more);
  EXPECT_FALSE(pocket_.put(more));
  pocket_.note(most);
  EXPECT_TRUE(pocket_.put(most));
}

TEST_F(PocketTest, WhileItIsClosedOnlyOthersTake) {
  pocket_.note(one_);
  ASSERT_TRUE(pocket_.put(one_));
  pocket_.close();
  EXPECT_EQ(pocket_.take(100), nullptr);
  EXPECT_EQ(pocket_.take(), nullptr);
  EXPECT_EQ(pocket_.steal(101), nullptr);
  EXPECT_EQ(pocket_.steal(100), one_);
  EXPECT_EQ(pocket_.steal(1), nullptr);
  pocket_.note(two_);
  EXPECT_FALSE(pocket_.put(two_));
  pocket_.open();
  EXPECT_EQ(pocket_.take(100), nullptr);
}

TEST_F(PocketTest, WhatItRefusedIsNotTheLastOneAnyMore) {
  pocket_.note(one_);
  pocket_.close();
  EXPECT_FALSE(pocket_.put(one_));
  pocket_.open();
  EXPECT_FALSE(pocket_.put(one_));
}

// While it was closed its thread could not empty it, and got another block.
TEST_F(PocketTest, KeepsNoSecondBlock) {
  pocket_.note(one_);
  ASSERT_TRUE(pocket_.put(one_));
  pocket_.close();
  ASSERT_EQ(pocket_.take(), nullptr);
  pocket_.open();
  pocket_.note(two_);
  EXPECT_FALSE(pocket_.put(two_));
  EXPECT_EQ(pocket_.take(), one_);
}

TEST_F(PocketTest, NoBlockHasNoBytes) {
  pocket_.note(one_);
  EXPECT_EQ(pocket_.take(0), nullptr);
  EXPECT_TRUE(pocket_.put(one_)) << "it was not looked into";
}

TEST_F(PocketTest, ItRestsTwiceAsLongEachTime) {
  std::uint32_t expected = 0;
  for (int theft = 0; theft < 17; ++theft) {
    std::uint32_t refused = 0;
    for (pocket_.note(one_); !pocket_.put(one_); pocket_.note(one_)) ++refused;
    ASSERT_EQ(refused, expected);
    pocket_.close();
    ASSERT_EQ(pocket_.steal(1), one_);
    pocket_.rest();
    pocket_.open();
    expected = theft == 0 ? Pocket::kFirstRefusals : std::min(2 * expected, Pocket::kMostRefusals);
  }
  EXPECT_EQ(expected, Pocket::kMostRefusals);
}

TEST_F(PocketTest, ForgettingLeavesItEmptyAndOpen) {
  pocket_.note(one_);
  ASSERT_TRUE(pocket_.put(one_));
  pocket_.close();
  pocket_.forget();
  EXPECT_EQ(pocket_.steal(1), nullptr);
  EXPECT_FALSE(pocket_.put(one_));
  pocket_.note(one_);
  EXPECT_TRUE(pocket_.put(one_));
}

}  // namespace
}  // namespace cistern::core
