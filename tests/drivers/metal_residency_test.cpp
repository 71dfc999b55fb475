// Residency over the stand-in: budget, order, batches, sets of bounded size, queues.
#include <random>

#include "drivers/metal_support.hpp"

namespace cistern::drivers {
namespace {

class MetalResidency : public MetalTest {
 protected:
  std::size_t resident() { return control().resident_bytes(); }
};

TEST_F(MetalResidency, NothingIsWiredByDefault) {
  start();
  const Segment s = segment(16 * kMiB);
  EXPECT_EQ(figures().wired, 0u);
  EXPECT_EQ(figures().waiting, 16 * kMiB);
  EXPECT_EQ(figures().residency_sets, 0u);
  EXPECT_EQ(driver().commit_residency(), Status::ok);
  EXPECT_EQ(figures().residency_commits, 0u);
  drop(s);
}

TEST_F(MetalResidency, RaisingTheLimitWiresWhatIsThere) {
  start();
  const Segment a = segment(16 * kMiB), b = segment(32 * kMiB);
  EXPECT_EQ(driver().set_wired_limit(40 * kMiB), Status::ok);
  EXPECT_EQ(resident(), 16 * kMiB) << "the second does not fit";
  EXPECT_EQ(driver().set_wired_limit(48 * kMiB), Status::ok);
  EXPECT_EQ(resident(), 48 * kMiB);
  EXPECT_EQ(driver().set_wired_limit(33 * kMiB), Status::ok);
  EXPECT_EQ(resident(), 16 * kMiB) << "the youngest leaves first";
  EXPECT_EQ(driver().set_wired_limit(0), Status::ok);
  EXPECT_EQ(resident(), 0u);
  drop(a);
  drop(b);
}

TEST_F(MetalResidency, FreeingPromotesWhatWaits) {
  start();
  ASSERT_EQ(driver().set_wired_limit(32 * kMiB), Status::ok);
  const Segment a = segment(32 * kMiB), b = segment(16 * kMiB), c = segment(16 * kMiB);
  EXPECT_EQ(figures().wired, 32 * kMiB);
  EXPECT_EQ(figures().waiting, 32 * kMiB);
  drop(a);
  EXPECT_EQ(figures().wired, 32 * kMiB) << "both of the others";
  EXPECT_EQ(driver().commit_residency(), Status::ok);
  EXPECT_EQ(resident(), 32 * kMiB);
  drop(b);
  drop(c);
}

TEST_F(MetalResidency, MemoryThatNobodyUsesGivesWay) {
  start();
  ASSERT_EQ(driver().set_wired_limit(32 * kMiB), Status::ok);
  const Segment cached = segment(32 * kMiB);
  driver().segment_used(cached, false);
  EXPECT_EQ(figures().wired, 32 * kMiB) << "it may stay while there is room";
  const Segment live = segment(16 * kMiB);
  EXPECT_EQ(figures().wired, 16 * kMiB);
  EXPECT_EQ(figures().waiting, 32 * kMiB);
  driver().segment_used(cached, true);
  EXPECT_EQ(figures().wired, 16 * kMiB) << "the older one may not push a live one out";
  EXPECT_EQ(driver().commit_residency(), Status::ok);
  EXPECT_EQ(resident(), 16 * kMiB);
  drop(cached);
  drop(live);
}

TEST_F(MetalResidency, ABatchIsOneCommit) {
  start();
  ASSERT_EQ(driver().set_wired_limit(std::size_t{1} << 30), Status::ok);
  std::vector<Segment> all;
  for (int i = 0; i < 50; ++i) all.push_back(segment(kMiB));
  EXPECT_EQ(figures().residency_commits, 0u);
  EXPECT_EQ(resident(), 0u);
  Event event{};
  ASSERT_EQ(driver().record(nullptr, event), Status::ok) << "a submission ends the batch";
  EXPECT_EQ(figures().residency_commits, 1u);
  EXPECT_EQ(resident(), 50 * kMiB);
  driver().release(event);
  EXPECT_EQ(driver().commit_residency(), Status::ok);
  EXPECT_EQ(figures().residency_commits, 1u) << "nothing was staged";
  for (const Segment& s : all) drop(s);
  EXPECT_EQ(driver().commit_residency(), Status::ok);
  EXPECT_EQ(figures().residency_commits, 2u);
  EXPECT_EQ(resident(), 0u);
}

TEST_F(MetalResidency, AboveTheWorkingSetIsRefused) {
  start({}, {{"WORKING_SET", "1073741824"}});
  EXPECT_EQ(driver().set_wired_limit(std::size_t{1} << 30), Status::ok);
  EXPECT_EQ(driver().set_wired_limit((std::size_t{1} << 30) + 1), Status::failed);
  EXPECT_NE(driver().error_text().find("Setting a wired limit larger than the maximum working set size is not allowed"),
            std::string::npos);
}

TEST_F(MetalResidency, SetsAreBoundedAndOnEveryQueue) {
  // 5 % of the working set is 64 MiB here.
  start({}, {{"WORKING_SET", "1342177280"}});
  const std::size_t working_set = driver().capabilities().recommended_working_set;
  ASSERT_EQ(driver().set_wired_limit(working_set), Status::ok);
  driver().stream_id(library().queue(1));
  std::vector<Segment> all;
  for (int i = 0; i < 24; ++i) all.push_back(segment(40 * kMiB));
  EXPECT_EQ(figures().residency_sets, 24u) << "two of them do not fit in one";
  driver().stream_id(library().queue(2));
  for (int i = 0; i < 40; ++i) all.push_back(segment(4 * kMiB));
  EXPECT_EQ(figures().residency_sets, 24u) << "the small ones go between them";
  for (int i = 0; i < 3; ++i) all.push_back(segment(50 * kMiB));
  EXPECT_EQ(driver().commit_residency(), Status::ok);
  EXPECT_EQ(resident(), figures().wired);
  EXPECT_LE(figures().wired, working_set);
  for (const Segment& s : all) drop(s);
}

TEST_F(MetalResidency, TheNumberOfSetsIsBounded) {
  start({}, {{"WORKING_SET", "34359738368"}, {"MEMORY", "68719476736"}});
  ASSERT_EQ(driver().set_wired_limit(std::size_t{32} << 30), Status::ok);
  driver().stream_id(library().queue(1));
  std::vector<Segment> all;
  // Each is more than half of a set, so each wants a set of its own.
  for (int i = 0; i < 36; ++i) all.push_back(segment(870 * kMiB));
  EXPECT_EQ(figures().residency_sets, 30u);
  EXPECT_EQ(driver().commit_residency(), Status::ok);
  EXPECT_EQ(resident(), 36 * 870 * kMiB);
  for (const Segment& s : all) drop(s);
}

TEST_F(MetalResidency, MemoryGivenBackIsNotKeptForLong) {
  start({}, {{"MEMORY", "1073741824"}, {"WORKING_SET", "805306368"}, {"MAX_BUFFER", "1073741824"}});
  ASSERT_EQ(driver().set_wired_limit(768 * kMiB), Status::ok);
  const Segment a = segment(700 * kMiB);
  EXPECT_EQ(driver().commit_residency(), Status::ok);
  drop(a);
  const Segment b = segment(900 * kMiB);
  drop(b);
  const Segment c = segment(60 * kMiB);
  EXPECT_EQ(driver().commit_residency(), Status::ok);
  drop(c);
  // The set still has it; the attempt that fails makes the removal real and tries again.
  const Segment d = segment(1000 * kMiB);
  drop(d);
}

TEST_F(MetalResidency, WithoutSetsALimitIsUnsupported) {
  start({}, {{"WITHOUT", "residency"}});
  EXPECT_FALSE(driver().capabilities().residency);
  EXPECT_EQ(driver().set_wired_limit(kMiB), Status::unsupported);
  const Segment s = segment(kMiB);
  driver().stream_id(library().queue(1));
  EXPECT_EQ(driver().commit_residency(), Status::ok);
  drop(s);
}

TEST_F(MetalResidency, ASetThatMetalDoesNotMakeLeavesMemoryWaiting) {
  start();
  ASSERT_EQ(driver().set_wired_limit(64 * kMiB), Status::ok);
  control().fail("newResidencySetWithDescriptor:error:", 1, 1);
  const Segment a = segment(kMiB);
  EXPECT_EQ(figures().wired, 0u);
  const Segment b = segment(kMiB);
  EXPECT_EQ(figures().wired, 2 * kMiB) << "the next chance takes both";
  drop(a);
  drop(b);
}

TEST_F(MetalResidency, RandomOperationsKeepTheRules) {
  for (const unsigned seed : {1u, 2u, 3u}) {
    start({}, {{"WORKING_SET", "1342177280"}});
    std::mt19937 random(seed);
    std::vector<Segment> all;
    std::size_t limit = 0;
    for (int step = 0; step < 800; ++step) {
      const auto pick = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
      switch (pick(6)) {
        case 0:
        case 1:
          if (all.size() < 60) all.push_back(segment((1 + pick(40)) * kMiB));
          break;
        case 2:
          if (!all.empty()) {
            const std::size_t i = pick(all.size());
            drop(all[i]);
            all[i] = all.back();
            all.pop_back();
          }
          break;
        case 3:
          limit = pick(1200) * kMiB;
          EXPECT_EQ(driver().set_wired_limit(limit), Status::ok);
          EXPECT_EQ(resident(), figures().wired);
          break;
        case 4:
          if (!all.empty()) driver().segment_used(all[pick(all.size())], pick(2) == 0);
          break;
        default:
          driver().stream_id(library().queue(static_cast<int>(1 + pick(3))));
          EXPECT_EQ(driver().commit_residency(), Status::ok);
          EXPECT_EQ(resident(), figures().wired) << "seed " << seed << " step " << step;
      }
      EXPECT_LE(figures().wired, limit);
      ASSERT_EQ(check_metal_invariants(driver()), std::vector<std::string>{}) << "seed " << seed << " step " << step;
    }
    for (const Segment& s : all) drop(s);
    EXPECT_EQ(figures().wired + figures().waiting, 0u);
  }
}

}  // namespace
}  // namespace cistern::drivers
