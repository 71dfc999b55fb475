// What only the model has: its rules, prices, clock, faults and reports.
#include "drivers/model/model_driver.hpp"

#include <gtest/gtest.h>

#include <array>
#include <string>

#include "drivers/model/address_space.hpp"

namespace cistern::drivers {
namespace {

constexpr std::size_t kCell = std::size_t{2} << 20;

void* stream(std::uintptr_t i) { return reinterpret_cast<void*>(i); }

class ModelDriverTest : public ::testing::Test {
 protected:
  void make(ModelConfig config) {
    driver_ = make_model_driver(std::move(config));
    if (driver_->capabilities().virtual_memory) {
      ASSERT_EQ(driver_->reserve(64 * kCell, base_), Status::ok);
    }
  }
  void SetUp() override { make({.manual = true}); }
  void TearDown() override { EXPECT_EQ(driver_->check_invariants(), std::vector<std::string>{}); }

  Address at(std::size_t cell) const { return base_ + cell * kCell; }
  Physical create(std::size_t cells) {
    Physical piece{};
    EXPECT_EQ(driver_->create(cells * kCell, piece), Status::ok) << driver_->error_text();
    return piece;
  }
  Physical mapped(std::size_t cell, std::size_t cells) {
    const Physical piece = create(cells);
    EXPECT_EQ(driver_->map(at(cell), piece, cells * kCell), Status::ok) << driver_->error_text();
    return piece;
  }
  // Exactly one violation so far, with this text in it.
  void expect_violation(const std::string& text) {
    const auto violations = driver_->violations();
    ASSERT_EQ(violations.size(), 1u);
    EXPECT_NE(violations[0].find(text), std::string::npos) << violations[0];
    driver_->clear_violations();
  }

  std::unique_ptr<ModelDriver> driver_;
  Address base_ = 0;
};

TEST_F(ModelDriverTest, UnmapUnderPendingWorkKillsTheKernel) {
  mapped(0, 2);
  EXPECT_TRUE(driver_->touch(stream(1), at(1), 100));
  EXPECT_EQ(driver_->unmap(at(0), 2 * kCell), Status::failed);
  expect_violation("kernel dies");
  driver_->complete(stream(1));
  EXPECT_EQ(driver_->unmap(at(0), 2 * kCell), Status::ok);
  EXPECT_EQ(driver_->violation_count(), 0u);
}

TEST_F(ModelDriverTest, APieceMovesUnderPendingWorkIfMappedFirst) {
  const Physical piece = mapped(0, 1);
  EXPECT_TRUE(driver_->touch(stream(1), at(0), kCell));
  EXPECT_EQ(driver_->map(at(8), piece, kCell), Status::ok);
  EXPECT_TRUE(driver_->touch(stream(1), at(8), kCell));
  EXPECT_EQ(driver_->unmap(at(0), kCell), Status::failed);
  expect_violation("kernel dies");
  driver_->complete_all();
  EXPECT_EQ(driver_->unmap(at(0), kCell), Status::ok);
  EXPECT_EQ(driver_->violation_count(), 0u);
}

TEST_F(ModelDriverTest, AMovedPieceIsTheSameMemoryForTheOrderOfStreams) {
  const Physical piece = mapped(0, 1);
  EXPECT_TRUE(driver_->touch(stream(1), at(0), kCell));
  Event event{};
  ASSERT_EQ(driver_->record(stream(1), event), Status::ok);
  EXPECT_EQ(driver_->map(at(8), piece, kCell), Status::ok);
  EXPECT_FALSE(driver_->touch(stream(2), at(8), 512));
  expect_violation("not ordered");
  EXPECT_EQ(driver_->wait(stream(2), event), Status::ok);
  EXPECT_TRUE(driver_->touch(stream(2), at(8), 512));
  driver_->release(event);
}

TEST_F(ModelDriverTest, ReadersMayShareAndDisjointBytesToo) {
  mapped(0, 2);
  EXPECT_TRUE(driver_->touch(stream(1), at(0), 1024, false));
  EXPECT_TRUE(driver_->touch(stream(2), at(0), 1024, false));
  EXPECT_TRUE(driver_->touch(stream(3), at(0) + 1024, kCell, true));
  EXPECT_FALSE(driver_->touch(stream(2), at(0) + 512, 512, true));
  expect_violation("not ordered");
  driver_->complete_all();
  EXPECT_TRUE(driver_->touch(stream(2), at(0), 2 * kCell, true));
}

TEST_F(ModelDriverTest, WorkOnUnmappedAddressesIsAViolation) {
  mapped(0, 1);
  EXPECT_FALSE(driver_->touch(stream(1), at(0) + 1, kCell)) << "one byte too far";
  expect_violation("not mapped");
  EXPECT_FALSE(driver_->touch(stream(1), 4096, 1));
  expect_violation("not mapped");
  EXPECT_FALSE(driver_->touch(stream(1), at(0), SIZE_MAX));
  expect_violation("beyond");
  EXPECT_EQ(driver_->copy(at(0), at(4), 10, stream(1)), Status::failed);
  expect_violation("not mapped");
  EXPECT_EQ(driver_->fill(at(4), 0, 10, stream(1)), Status::failed);
  expect_violation("not mapped");
  std::array<char, 16> mine{};
  const auto host = static_cast<Address>(reinterpret_cast<std::uintptr_t>(mine.data()));
  EXPECT_EQ(driver_->copy(host, at(0), 16, stream(1)), Status::ok) << "a copy reaches any host memory";
  EXPECT_TRUE(driver_->touch(stream(1), at(0), 0));
}

TEST_F(ModelDriverTest, WrappedAndHostMemoryCanBeUsed) {
  std::array<char, 64> mine{};
  const auto host = static_cast<Address>(reinterpret_cast<std::uintptr_t>(mine.data()));
  void* object = nullptr;
  ASSERT_EQ(driver_->wrap(mine.data(), mine.size(), object), Status::ok);
  EXPECT_TRUE(driver_->touch(stream(1), host + 10, 54));
  driver_->unwrap(object);
  EXPECT_FALSE(driver_->touch(stream(1), host + 10, 54));
  expect_violation("not mapped");
  driver_->unwrap(object);
  expect_violation("not wrapped");
  void* ptr = nullptr;
  ASSERT_EQ(driver_->allocate_host(HostKind::unified, 1000, ptr), Status::ok);
  EXPECT_TRUE(driver_->touch(stream(1), static_cast<Address>(reinterpret_cast<std::uintptr_t>(ptr)), 1000));
  EXPECT_EQ(driver_->free_host(HostKind::unified, ptr, 1000), Status::failed);
  expect_violation("kernel dies");
  driver_->complete_all();
  EXPECT_EQ(driver_->free_host(HostKind::unified, ptr, 999), Status::failed);
  expect_violation("1000 bytes");
  EXPECT_EQ(driver_->free_host(HostKind::unified, ptr, 1000), Status::ok);
}

TEST_F(ModelDriverTest, EventsAreNotUsedAfterRelease) {
  Event event{};
  ASSERT_EQ(driver_->record(stream(1), event), Status::ok);
  driver_->release(event);
  driver_->passed(event);
  expect_violation("no event");
  EXPECT_EQ(driver_->wait(stream(1), event), Status::failed);
  expect_violation("no event");
  EXPECT_EQ(driver_->synchronize(event), Status::failed);
  expect_violation("no event");
  driver_->release(event);
  expect_violation("no event");
}

TEST_F(ModelDriverTest, DoubleMappingCanBeForbidden) {
  make({.double_mapping = false});
  const Physical piece = mapped(0, 1);
  EXPECT_EQ(driver_->map(at(8), piece, kCell), Status::failed);
  expect_violation("mapped already");
}

TEST_F(ModelDriverTest, PhysicalMemoryEnds) {
  make({.total_memory = 8 * kCell});
  const Physical a = create(5);
  Physical b{};
  EXPECT_EQ(driver_->create(4 * kCell, b), Status::out_of_memory);
  EXPECT_EQ(driver_->create(3 * kCell, b), Status::ok);
  EXPECT_EQ(driver_->physical_bytes(), 8 * kCell);
  EXPECT_EQ(driver_->destroy(a), Status::ok);
  driver_->set_total_memory(4 * kCell);
  Physical c{};
  EXPECT_EQ(driver_->create(2 * kCell, c), Status::out_of_memory) << "another process took it";
  EXPECT_EQ(driver_->peak_physical_bytes(), 8 * kCell);
  EXPECT_EQ(driver_->violation_count(), 0u) << "to run out of memory breaks no rule";
}

TEST_F(ModelDriverTest, AddressSpaceEnds) {
  make({.address_space = 100 * kCell});
  Address more = 0;
  EXPECT_EQ(driver_->reserve(50 * kCell, more), Status::out_of_memory);
  EXPECT_EQ(driver_->reserve(36 * kCell, more), Status::ok);
}

TEST_F(ModelDriverTest, StreamsRunBehindTheClock) {
  make({.lag_us = 10000});
  EXPECT_TRUE(driver_->capabilities().asynchronous);
  mapped(0, 1);
  driver_->advance_to(500);
  EXPECT_TRUE(driver_->touch(stream(1), at(0), 10));
  Event event{};
  ASSERT_EQ(driver_->record(stream(1), event), Status::ok);
  driver_->advance_to(10499);
  EXPECT_FALSE(driver_->passed(event));
  driver_->advance_to(10500);
  EXPECT_TRUE(driver_->passed(event));
  EXPECT_EQ(driver_->unmap(at(0), kCell), Status::ok);
  driver_->advance_to(0);
  expect_violation("clock");
}

TEST_F(ModelDriverTest, HostWaitsAreCountedWhenSomethingIsPending) {
  make({.lag_us = 2000});
  Event event{};
  ASSERT_EQ(driver_->record(stream(1), event), Status::ok);
  driver_->advance_to(500);
  EXPECT_EQ(driver_->synchronize(event), Status::ok);
  EXPECT_EQ(driver_->synchronize(event), Status::ok);
  EXPECT_EQ(driver_->synchronize_device(), Status::ok);
  EXPECT_EQ(driver_->host_waits(), 1u);
  EXPECT_NEAR(driver_->wait_seconds(), 0.0015, 1e-12);
  driver_->release(event);
}

TEST_F(ModelDriverTest, PricesAddUp) {
  const double start = driver_->handle_seconds();
  const Physical piece = mapped(0, 4);
  EXPECT_EQ(driver_->unmap(at(0), 4 * kCell), Status::ok);
  EXPECT_EQ(driver_->destroy(piece), Status::ok);
  const ModelPrices p;
  EXPECT_NEAR(driver_->handle_seconds() - start, (p.create + p.map + p.set_access + p.unmap + p.release) * 1e-6, 1e-12);
  EXPECT_EQ(driver_->count(Call::create), 1u);
  EXPECT_EQ(driver_->count(Call::map), 1u);
  EXPECT_EQ(driver_->count(Call::unmap), 1u);
  EXPECT_EQ(driver_->count(Call::destroy), 1u);
  EXPECT_EQ(driver_->count(Call::any), 5u) << "with the reserve";
  EXPECT_EQ(driver_->calls(), 6u) << "a map is two of the vendor's calls";
}

TEST_F(ModelDriverTest, FaultsComeWhereTheyArePlanned) {
  driver_->fail(Call::create, 2);
  create(1);
  Physical piece{};
  EXPECT_EQ(driver_->map(at(0), piece, kCell), Status::failed);
  driver_->clear_violations();
  EXPECT_EQ(driver_->create(kCell, piece), Status::out_of_memory);
  EXPECT_NE(driver_->error_text().find("by plan"), std::string::npos);
  EXPECT_EQ(driver_->create(kCell, piece), Status::ok);
  driver_->fail(Call::any, 1, Status::failed, 3);
  EXPECT_EQ(driver_->map(at(0), piece, kCell), Status::failed);
  EXPECT_EQ(driver_->synchronize_device(), Status::failed);
  EXPECT_EQ(driver_->create(kCell, piece), Status::failed);
  EXPECT_EQ(driver_->map(at(0), piece, kCell), Status::ok);
  EXPECT_EQ(driver_->injected_faults(), 4u);
  EXPECT_EQ(driver_->violation_count(), 0u);
  driver_->fail(Call::map, 1);
  driver_->clear_faults();
  EXPECT_EQ(driver_->unmap(at(0), kCell), Status::ok);
  EXPECT_EQ(driver_->map(at(0), piece, kCell), Status::ok);
}

TEST_F(ModelDriverTest, LeaksAreNamedAndReported) {
  const auto report = std::make_shared<ModelReport>();
  {
    ModelConfig config;
    config.report = report;
    const auto driver = make_model_driver(config);
    Address base = 0;
    Physical piece{};
    Event event{};
    void* ptr = nullptr;
    ASSERT_EQ(driver->reserve(kCell, base), Status::ok);
    ASSERT_EQ(driver->create(kCell, piece), Status::ok);
    ASSERT_EQ(driver->map(base, piece, kCell), Status::ok);
    ASSERT_EQ(driver->record(stream(1), event), Status::ok);
    ASSERT_EQ(driver->allocate_host(HostKind::pinned, 10, ptr), Status::ok);
    EXPECT_EQ(driver->leaks().size(), 5u);
    driver->unmap(base, 2 * kCell);
  }
  EXPECT_EQ(report->leaks.size(), 5u);
  EXPECT_EQ(report->violations.size(), 1u);
}

TEST_F(ModelDriverTest, SegmentsHaveRules) {
  make({.total_memory = 16 * kCell, .max_objects = 3, .manual = true, .virtual_memory = false, .block_objects = true});
  Segment a, b;
  ASSERT_EQ(driver_->create_segment(4 * kCell, a), Status::ok);
  EXPECT_EQ(driver_->create_segment(13 * kCell, b), Status::out_of_memory);
  void* object = nullptr;
  EXPECT_EQ(driver_->create_object(a, 4 * kCell, 512, object), Status::failed);
  expect_violation("not in the segment");
  EXPECT_EQ(driver_->create_object(a, 100, 512, object), Status::failed);
  expect_violation("not aligned");
  ASSERT_EQ(driver_->create_object(a, 512, 512, object), Status::ok);
  ASSERT_EQ(driver_->create_segment(kCell, b), Status::ok);
  Segment c;
  EXPECT_EQ(driver_->create_segment(kCell, c), Status::out_of_memory);
  EXPECT_NE(driver_->error_text().find("objects"), std::string::npos);
  EXPECT_EQ(driver_->destroy_segment(a), Status::failed);
  expect_violation("objects are left");
  driver_->destroy_object(object);
  driver_->destroy_object(object);
  expect_violation("no object");
  EXPECT_TRUE(driver_->touch(stream(1), a.base + 4 * kCell - 1, 1));
  EXPECT_EQ(driver_->destroy_segment(a), Status::failed);
  expect_violation("kernel dies");
  driver_->complete_all();
  EXPECT_EQ(driver_->destroy_segment(a), Status::ok);
  EXPECT_EQ(driver_->destroy_segment(b), Status::ok);
  EXPECT_EQ(driver_->leaks(), std::vector<std::string>{});
}

TEST_F(ModelDriverTest, ManyPendingUsesAreSwept) {
  make({.lag_us = 100});
  mapped(0, 8);
  for (int i = 0; i < 20000; ++i) {
    driver_->advance_to(i);
    const auto offset = static_cast<std::size_t>(i % 4000) * 4096;
    ASSERT_TRUE(driver_->touch(stream(1), at(0) + offset, 4096));
  }
  EXPECT_EQ(driver_->unmap(at(0), 8 * kCell), Status::failed);
  driver_->advance_to(1e6);
  EXPECT_EQ(driver_->unmap(at(0), 8 * kCell), Status::ok);
}

TEST_F(ModelDriverTest, RecycledStreamsHaveNewIds) {
  const auto id = driver_->stream_id(stream(5));
  EXPECT_EQ(driver_->stream_id(stream(5)), id);
  driver_->forget_stream(stream(5), id);
  const auto second = driver_->stream_id(stream(5));
  EXPECT_NE(second, id);
  driver_->forget_stream(stream(5), id);
  EXPECT_EQ(driver_->stream_id(stream(5)), second) << "an old id forgets nothing";
  driver_->destroy_stream(stream(5));
  EXPECT_NE(driver_->stream_id(stream(5)), second);
}

TEST(ModelAddresses, NoTwoDevicesShareAny) {
  const auto one = make_model_driver(), two = make_model_driver();
  Address a = 0, b = 0;
  ASSERT_EQ(one->reserve(kCell, a), Status::ok);
  ASSERT_EQ(two->reserve(kCell, b), Status::ok);
  EXPECT_NE(a, b);
}

TEST(ModelAddresses, AreGivenBackAndEnd) {
  const Address a = take_model_addresses(kCell, kCell);
  const Address b = take_model_addresses(kCell, kCell);
  ASSERT_NE(a, 0u);
  EXPECT_NE(a, b);
  give_model_addresses(a);
  EXPECT_EQ(take_model_addresses(kCell, kCell), a) << "the lowest free range";
  EXPECT_EQ(take_model_addresses(std::size_t{1} << 60, kCell), 0u);
  give_model_addresses(a);
  give_model_addresses(b);
}

}  // namespace
}  // namespace cistern::drivers
