// What every driver must do with memory. Streams are in stream_conformance_test.cpp, faults in driver_faults_test.cpp.
#include "conformance/driver_conformance.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <set>

namespace cistern::conformance {
namespace {

TEST_P(DriverConformance, CapabilitiesMakeSense) {
  const Capabilities& c = capabilities();
  EXPECT_FALSE(c.name.empty());
  EXPECT_GT(c.total_memory, std::size_t{16} << 20);
  EXPECT_TRUE(std::has_single_bit(c.granularity));
  EXPECT_TRUE(std::has_single_bit(c.alignment));
  EXPECT_GE(c.alignment, 64u);
  EXPECT_LE(c.alignment, c.granularity);
  EXPECT_GT(c.max_buffer, 0u);
  EXPECT_FALSE(c.virtual_memory && c.whole_buffers);
  EXPECT_FALSE(c.double_mapping && !c.virtual_memory);
}

TEST_P(DriverConformance, ReservedRangesAreAlignedAndApart) {
  CISTERN_NEEDS(capabilities().virtual_memory);
  std::array<Address, 4> bases{};
  for (Address& base : bases) {
    ASSERT_EQ(driver().reserve(64 * cell_, base), Status::ok) << driver().error_text();
    EXPECT_NE(base, 0u);
    EXPECT_EQ(base % cell_, 0u);
  }
  for (const Address a : bases) {
    for (const Address b : bases) EXPECT_TRUE(a == b || a + 64 * cell_ <= b || b + 64 * cell_ <= a);
  }
  for (const Address base : bases) EXPECT_EQ(driver().unreserve(base, 64 * cell_), Status::ok);
}

TEST_P(DriverConformance, RangesMuchLargerThanMemoryCanBeReserved) {
  CISTERN_NEEDS(capabilities().virtual_memory);
  // As the allocator does it: four times the memory, halved on refusal.
  std::size_t bytes = capabilities().total_memory * 4 / cell_ * cell_;
  Address base = 0;
  Status status = driver().reserve(bytes, base);
  while (status == Status::out_of_memory && bytes > 64 * cell_) {
    bytes = bytes / 2 / cell_ * cell_;
    status = driver().reserve(bytes, base);
  }
  ASSERT_EQ(status, Status::ok) << driver().error_text();
  Physical piece{};
  ASSERT_EQ(driver().create(cell_, piece), Status::ok);
  EXPECT_EQ(driver().map(base + bytes - cell_, piece, cell_), Status::ok) << driver().error_text();
  EXPECT_EQ(driver().unmap(base + bytes - cell_, cell_), Status::ok);
  EXPECT_EQ(driver().destroy(piece), Status::ok);
  EXPECT_EQ(driver().unreserve(base, bytes), Status::ok);
}

TEST_P(DriverConformance, HugeSizesAreRefusedAndNothingChanges) {
  CISTERN_NEEDS(capabilities().virtual_memory);
  const std::size_t huge = SIZE_MAX / cell_ * cell_;
  Address base = 1;
  Physical piece{7};
  EXPECT_EQ(driver().reserve(huge, base), Status::out_of_memory);
  EXPECT_FALSE(driver().error_text().empty());
  EXPECT_EQ(driver().create(huge, piece), Status::out_of_memory);
  EXPECT_EQ(base, 1u);
  EXPECT_EQ(piece, Physical{7});
  ASSERT_EQ(driver().reserve(cell_, base), Status::ok);
  EXPECT_EQ(driver().unreserve(base, cell_), Status::ok);
}

TEST_P(DriverConformance, SizesThatAreNoMultipleAreRefused) {
  CISTERN_NEEDS(capabilities().virtual_memory && GetParam().refuses_misuse);
  expect_complaints();
  Address base = 0;
  Physical piece{};
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, cell_ - 1, cell_ + 1}) {
    EXPECT_EQ(driver().reserve(bytes, base), Status::failed);
    EXPECT_EQ(driver().create(bytes, piece), Status::failed);
  }
  EXPECT_FALSE(driver().error_text().empty());
}

class MappedConformance : public DriverConformance {
 protected:
  static constexpr std::size_t kCells = 16;
  void SetUp() override {
    DriverConformance::SetUp();
    if (IsSkipped()) return;
    CISTERN_NEEDS(capabilities().virtual_memory);
    ASSERT_EQ(driver().reserve(kCells * cell_, base_), Status::ok) << driver().error_text();
  }
  void TearDown() override {
    if (base_ != 0) {
      EXPECT_EQ(driver().synchronize_device(), Status::ok);
      EXPECT_EQ(driver().unreserve(base_, kCells * cell_), Status::ok) << driver().error_text();
    }
    DriverConformance::TearDown();
  }
  Address at(std::size_t cell) const { return base_ + cell * cell_; }
  Physical create(std::size_t cells) {
    Physical piece{};
    EXPECT_EQ(driver().create(cells * cell_, piece), Status::ok) << driver().error_text();
    EXPECT_NE(piece, Physical::none);
    return piece;
  }
  Status map(std::size_t cell, Physical piece, std::size_t cells) {
    return driver().map(at(cell), piece, cells * cell_);
  }
  Status unmap(std::size_t cell, std::size_t cells) { return driver().unmap(at(cell), cells * cell_); }

  Address base_ = 0;
};

TEST_P(MappedConformance, PiecesComeAndGo) {
  for (int round = 0; round < 20; ++round) {
    std::vector<Physical> pieces;
    for (std::size_t i = 0; i < 5; ++i) pieces.push_back(create(i + 1));
    EXPECT_EQ(std::set<Physical>(pieces.begin(), pieces.end()).size(), pieces.size());
    std::size_t cell = 0;
    for (std::size_t i = 0; i < 5; cell += ++i) EXPECT_EQ(map(cell, pieces[i], i + 1), Status::ok);
    cell = 0;
    for (std::size_t i = 0; i < 5; cell += ++i) EXPECT_EQ(unmap(cell, i + 1), Status::ok);
    for (const Physical piece : pieces) EXPECT_EQ(driver().destroy(piece), Status::ok);
  }
}

TEST_P(MappedConformance, BytesStayUntilTheUnmap) {
  CISTERN_NEEDS(GetParam().stores_bytes);
  const Physical a = create(1), b = create(2);
  ASSERT_EQ(map(4, a, 1), Status::ok);
  ASSERT_EQ(map(5, b, 2), Status::ok);
  // Across the border of two pieces.
  const auto bytes = pattern(2 * cell_, 3);
  write(at(4) + 512, bytes);
  EXPECT_EQ(read(at(4) + 512, bytes.size()), bytes);
  EXPECT_EQ(unmap(4, 1), Status::ok);
  EXPECT_EQ(read(at(5), cell_),
            std::vector<std::uint8_t>(bytes.begin() + static_cast<std::ptrdiff_t>(cell_ - 512),
                                      bytes.begin() + static_cast<std::ptrdiff_t>(2 * cell_ - 512)));
  EXPECT_EQ(unmap(5, 2), Status::ok);
  EXPECT_EQ(driver().destroy(a), Status::ok);
  EXPECT_EQ(driver().destroy(b), Status::ok);
}

TEST_P(MappedConformance, FreshMemoryIsZeroWhereItIsSaid) {
  CISTERN_NEEDS(GetParam().stores_bytes && capabilities().fresh_is_zero);
  for (std::uint8_t round = 0; round < 3; ++round) {
    const Physical piece = create(2);
    ASSERT_EQ(map(2, piece, 2), Status::ok);
    EXPECT_EQ(read(at(2), 2 * cell_), std::vector<std::uint8_t>(2 * cell_));
    write(at(2), pattern(2 * cell_, round));
    EXPECT_EQ(unmap(2, 2), Status::ok);
    EXPECT_EQ(driver().destroy(piece), Status::ok);
  }
}

TEST_P(MappedConformance, AMovedPieceBringsItsBytesOrShowsZeros) {
  const Physical piece = create(1);
  ASSERT_EQ(map(0, piece, 1), Status::ok);
  const auto bytes = pattern(cell_, 9);
  if (GetParam().stores_bytes) write(at(0), bytes);
  if (capabilities().double_mapping) {
    EXPECT_EQ(map(8, piece, 1), Status::ok) << "a second mapping for a time";
    EXPECT_EQ(unmap(0, 1), Status::ok);
  } else {
    EXPECT_EQ(unmap(0, 1), Status::ok);
    EXPECT_EQ(map(8, piece, 1), Status::ok);
  }
  if (GetParam().stores_bytes) {
    EXPECT_EQ(read(at(8), cell_), capabilities().bytes_follow_piece ? bytes : std::vector<std::uint8_t>(cell_));
  }
  // The old address is free for another piece.
  const Physical other = create(1);
  EXPECT_EQ(map(0, other, 1), Status::ok);
  EXPECT_EQ(unmap(0, 1), Status::ok);
  EXPECT_EQ(unmap(8, 1), Status::ok);
  EXPECT_EQ(driver().destroy(other), Status::ok);
  EXPECT_EQ(driver().destroy(piece), Status::ok);
}

TEST_P(MappedConformance, MisuseIsRefusedAndChangesNothing) {
  CISTERN_NEEDS(GetParam().refuses_misuse);
  expect_complaints();
  const Physical a = create(2), b = create(2);
  ASSERT_EQ(map(4, a, 2), Status::ok);
  EXPECT_EQ(map(4, b, 2), Status::failed) << "over a mapping";
  EXPECT_EQ(map(3, b, 2), Status::failed) << "over the start of one";
  EXPECT_EQ(map(5, b, 2), Status::failed) << "over the end of one";
  EXPECT_EQ(map(8, b, 1), Status::failed) << "a part of a piece";
  EXPECT_EQ(map(8, b, 3), Status::failed) << "more than the piece";
  EXPECT_EQ(map(kCells - 1, b, 2), Status::failed) << "over the end of the range";
  EXPECT_EQ(driver().map(at(8) + 4096, b, 2 * cell_), Status::failed) << "not at a multiple of the granularity";
  EXPECT_EQ(driver().map(at(8), Physical{999999}, 2 * cell_), Status::failed) << "no such piece";
  EXPECT_EQ(driver().map(at(8), Physical::none, 2 * cell_), Status::failed);
  EXPECT_EQ(unmap(4, 1), Status::failed) << "a part of a mapping";
  EXPECT_EQ(unmap(5, 1), Status::failed) << "not at its start";
  EXPECT_EQ(unmap(8, 2), Status::failed) << "nothing there";
  EXPECT_EQ(driver().destroy(a), Status::failed) << "mapped";
  EXPECT_EQ(driver().destroy(Physical{999999}), Status::failed);
  EXPECT_EQ(driver().unreserve(base_, kCells * cell_), Status::failed) << "something is mapped";
  EXPECT_EQ(driver().unreserve(base_ + cell_, cell_), Status::failed) << "not a whole range";
  EXPECT_FALSE(driver().error_text().empty());
  // Everything is as it was.
  EXPECT_EQ(unmap(4, 2), Status::ok);
  EXPECT_EQ(driver().destroy(a), Status::ok);
  EXPECT_EQ(driver().destroy(a), Status::failed) << "twice";
  EXPECT_EQ(driver().destroy(b), Status::ok);
}

TEST_P(MappedConformance, FillAndCopyInStreamOrder) {
  const Physical piece = create(2);
  ASSERT_EQ(map(0, piece, 2), Status::ok);
  void* const s = stream(1);
  EXPECT_EQ(driver().fill(at(0), 0xAB, cell_, s), Status::ok);
  EXPECT_EQ(driver().copy(at(1), at(0), cell_, s), Status::ok);
  EXPECT_EQ(driver().fill(at(0), 0xCD, 1000, s), Status::ok);
  EXPECT_EQ(driver().fill(at(0), 0xFF, 0, s), Status::ok);
  EXPECT_EQ(driver().synchronize_device(), Status::ok);
  if (GetParam().stores_bytes) {
    EXPECT_EQ(read(at(1), cell_), std::vector<std::uint8_t>(cell_, 0xAB));
    std::vector<std::uint8_t> expected(2000, 0xCD);
    std::fill(expected.begin() + 1000, expected.end(), std::uint8_t{0xAB});
    EXPECT_EQ(read(at(0), 2000), expected);
  }
  EXPECT_EQ(unmap(0, 2), Status::ok);
  EXPECT_EQ(driver().destroy(piece), Status::ok);
}

TEST_P(DriverConformance, SegmentsComeAndGo) {
  CISTERN_NEEDS(!capabilities().virtual_memory && !capabilities().whole_buffers);
  std::array<Segment, 4> segments{};
  for (std::size_t i = 0; i < segments.size(); ++i) {
    ASSERT_EQ(driver().create_segment((i + 1) * cell_, segments[i]), Status::ok) << driver().error_text();
    EXPECT_EQ(segments[i].bytes, (i + 1) * cell_);
    EXPECT_NE(segments[i].object, nullptr);
    EXPECT_EQ(segments[i].base % capabilities().alignment, 0u);
  }
  for (std::size_t i = 1; i < segments.size(); ++i) EXPECT_NE(segments[i].object, segments[i - 1].object);
  for (const Segment& segment : segments) EXPECT_EQ(driver().destroy_segment(segment), Status::ok);
  if (GetParam().refuses_misuse) {
    expect_complaints();
    EXPECT_EQ(driver().destroy_segment(segments[0]), Status::failed);
  }
}

TEST_P(DriverConformance, BytesOfASegmentStay) {
  CISTERN_NEEDS(!capabilities().virtual_memory && !capabilities().whole_buffers && GetParam().stores_bytes);
  Segment segment;
  ASSERT_EQ(driver().create_segment(2 * cell_, segment), Status::ok) << driver().error_text();
  const auto bytes = pattern(cell_, 7);
  write(segment.base + capabilities().alignment, bytes);
  EXPECT_EQ(read(segment.base + capabilities().alignment, cell_), bytes);
  EXPECT_EQ(driver().destroy_segment(segment), Status::ok);
}

TEST_P(DriverConformance, ObjectsHaveACap) {
  CISTERN_NEEDS(!capabilities().virtual_memory && !capabilities().whole_buffers);
  CISTERN_NEEDS(capabilities().block_objects && capabilities().max_objects <= 100000);
  Segment segment;
  ASSERT_EQ(driver().create_segment(cell_, segment), Status::ok);
  std::size_t size = 0, alignment = 0;
  driver().block_layout(1, size, alignment);
  std::vector<void*> objects;
  Status status = Status::ok;
  while (status == Status::ok && objects.size() < capabilities().max_objects) {
    void* object = nullptr;
    const std::size_t offset = objects.size() * std::max(size, alignment) % cell_;
    status = driver().create_object(segment, offset, size, object);
    if (status == Status::ok) objects.push_back(object);
  }
  EXPECT_EQ(status, Status::out_of_memory);
  EXPECT_EQ(objects.size(), capabilities().max_objects - 1) << "the segment is an object, too";
  for (void* const object : objects) driver().destroy_object(object);
  EXPECT_EQ(driver().destroy_segment(segment), Status::ok);
}

TEST_P(DriverConformance, CallsOfTheOtherKindAreUnsupported) {
  if (capabilities().virtual_memory || capabilities().whole_buffers) {
    Segment segment;
    EXPECT_EQ(driver().create_segment(cell_, segment), Status::unsupported);
  }
  if (!capabilities().virtual_memory) {
    Address base = 0;
    Physical piece{};
    EXPECT_EQ(driver().reserve(cell_, base), Status::unsupported);
    EXPECT_EQ(driver().create(cell_, piece), Status::unsupported);
  }
  if (!capabilities().residency) {
    EXPECT_EQ(driver().set_wired_limit(0), Status::unsupported);
  }
  EXPECT_FALSE(driver().error_text().empty());
}

TEST_P(DriverConformance, BlockLayoutRoundsUpAndNeverWraps) {
  std::size_t size = 0, alignment = 0;
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{63}, std::size_t{64}, std::size_t{513}, cell_, cell_ + 1,
                                  SIZE_MAX / 2, SIZE_MAX - 1, SIZE_MAX}) {
    driver().block_layout(bytes, size, alignment);
    EXPECT_TRUE(std::has_single_bit(alignment));
    EXPECT_GE(alignment, capabilities().alignment);
    EXPECT_EQ(size % capabilities().alignment, 0u);
    if (bytes <= SIZE_MAX / 2 + 1) {
      EXPECT_GE(size, bytes);
    }
    EXPECT_GE(size, std::min(bytes, SIZE_MAX / 2)) << "wrapped";
  }
}

TEST_P(DriverConformance, HostBuffersAreAlignedApartAndWritable) {
  for (const HostKind kind : {HostKind::unified, HostKind::pinned}) {
    std::vector<std::pair<std::uint8_t*, std::size_t>> buffers;
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{0}, std::size_t{1}, std::size_t{100}, std::size_t{4096},
                                    std::size_t{1} << 20, std::size_t{5} << 20}) {
      void* ptr = nullptr;
      ASSERT_EQ(driver().allocate_host(kind, bytes, ptr), Status::ok) << driver().error_text();
      ASSERT_NE(ptr, nullptr);
      EXPECT_EQ(address(ptr) % 64, 0u);
      auto* const start = static_cast<std::uint8_t*>(ptr);
      if (capabilities().fresh_is_zero) {
        EXPECT_TRUE(std::all_of(start, start + bytes, [](std::uint8_t b) { return b == 0; }));
      }
      std::memset(ptr, static_cast<int>(buffers.size()) + 1, bytes);
      buffers.emplace_back(start, bytes);
    }
    EXPECT_NE(buffers[0].first, buffers[1].first);
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      const auto [start, bytes] = buffers[i];
      EXPECT_TRUE(std::all_of(start, start + bytes, [&](std::uint8_t b) { return b == i + 1; }));
      EXPECT_EQ(driver().free_host(kind, start, bytes), Status::ok);
    }
  }
}

TEST_P(DriverConformance, HugeHostBuffersAreRefused) {
  void* ptr = this;
  for (const std::size_t bytes : {SIZE_MAX, SIZE_MAX - 63, SIZE_MAX / 2 + 1}) {
    EXPECT_EQ(driver().allocate_host(HostKind::unified, bytes, ptr), Status::out_of_memory);
  }
  EXPECT_EQ(ptr, this);
}

TEST_P(DriverConformance, WrappedMemoryEndsWhereItBegan) {
  alignas(16384) static std::array<std::uint8_t, 65536> memory;
  for (int i = 0; i < 1000; ++i) {
    void* object = nullptr;
    const Status status = driver().wrap(memory.data(), memory.size(), object);
    if (status == Status::unsupported) return;
    ASSERT_EQ(status, Status::ok) << driver().error_text();
    EXPECT_NE(object, nullptr);
    driver().unwrap(object);
  }
  void* object = nullptr;
  EXPECT_NE(driver().wrap(nullptr, 100, object), Status::ok);
  EXPECT_NE(driver().wrap(memory.data(), 0, object), Status::ok);
}

TEST_P(DriverConformance, FreeMemoryIsAtMostAll) {
  std::size_t free = 1, total = 2;
  const Status status = driver().memory_info(free, total);
  if (status == Status::unsupported) return;
  ASSERT_EQ(status, Status::ok) << driver().error_text();
  EXPECT_LE(free, total);
  EXPECT_GT(total, 0u);
}

TEST_P(DriverConformance, CallsAreCounted) {
  const std::uint64_t before = driver().calls();
  void* ptr = nullptr;
  ASSERT_EQ(driver().allocate_host(HostKind::unified, 100, ptr), Status::ok);
  EXPECT_GT(driver().calls(), before);
  EXPECT_EQ(driver().free_host(HostKind::unified, ptr, 100), Status::ok);
}

std::string name_of(const ::testing::TestParamInfo<DriverFactory>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Drivers, DriverConformance, ::testing::ValuesIn(driver_factories()), name_of);
INSTANTIATE_TEST_SUITE_P(Drivers, MappedConformance, ::testing::ValuesIn(driver_factories()), name_of);

}  // namespace
}  // namespace cistern::conformance
