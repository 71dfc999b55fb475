// Every call of a workload fails once: nothing is lost, and the next attempt succeeds. Over every driver.
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <utility>

#include "conformance/driver_factories.hpp"
#include "conformance/faulty_driver.hpp"

namespace cistern::conformance {
namespace {

// Undoes steps in reverse order. A step that fails by plan is tried again, as an allocator would at its next chance.
class Undo {
 public:
  Undo() = default;
  Undo(const Undo&) = delete;
  Undo& operator=(const Undo&) = delete;
  ~Undo() {
    while (!steps_.empty()) {
      if (steps_.back()() != Status::ok) {
        EXPECT_EQ(steps_.back()(), Status::ok);
      }
      steps_.pop_back();
    }
  }
  void add(std::function<Status()> step) { steps_.push_back(std::move(step)); }

 private:
  std::vector<std::function<Status()>> steps_;
};

#define CISTERN_TRY(call)                                                  \
  do {                                                                     \
    if (const Status status = (call); status != Status::ok) return status; \
  } while (false)

Status mapped_work(Driver& driver, void* s0, void* s1) {
  const std::size_t cell = driver.capabilities().granularity;
  Undo undo;
  Address base = 0;
  CISTERN_TRY(driver.reserve(16 * cell, base));
  undo.add([&, base] { return driver.unreserve(base, 16 * cell); });
  for (std::size_t i = 0; i < 3; ++i) {
    Physical piece{};
    CISTERN_TRY(driver.create(2 * cell, piece));
    undo.add([&, piece] { return driver.destroy(piece); });
    const Address at = base + 4 * i * cell;
    CISTERN_TRY(driver.map(at, piece, 2 * cell));
    undo.add([&, at] { return driver.unmap(at, 2 * cell); });
  }
  // Stands between the work and the unmaps.
  undo.add([&] { return driver.synchronize_device(); });
  CISTERN_TRY(driver.fill(base, 1, 2 * cell, s0));
  Event event{};
  CISTERN_TRY(driver.record(s0, event));
  undo.add([&, event] { return driver.release(event), Status::ok; });
  CISTERN_TRY(driver.wait(s1, event));
  CISTERN_TRY(driver.copy(base + 4 * cell, base, 2 * cell, s1));
  CISTERN_TRY(driver.order(s1, s0));
  CISTERN_TRY(driver.synchronize(event));
  return Status::ok;
}

Status segment_work(Driver& driver, void* s0, void* s1) {
  const std::size_t cell = driver.capabilities().granularity;
  Undo undo;
  for (int i = 0; i < 2; ++i) {
    Segment segment;
    CISTERN_TRY(driver.create_segment(2 * cell, segment));
    undo.add([&, segment] { return driver.destroy_segment(segment); });
    if (driver.capabilities().block_objects) {
      void* object = nullptr;
      CISTERN_TRY(driver.create_object(segment, 0, cell, object));
      undo.add([&, object] { return driver.destroy_object(object), Status::ok; });
    }
    undo.add([&] { return driver.synchronize_device(); });
    CISTERN_TRY(driver.fill(segment.base, 1, cell, i == 0 ? s0 : s1));
  }
  return Status::ok;
}

Status host_work(Driver& driver, void* s0, void*) {
  Undo undo;
  std::array<void*, 2> host{};
  for (void*& ptr : host) {
    CISTERN_TRY(driver.allocate_host(HostKind::unified, 10000, ptr));
    undo.add([&driver, ptr] { return driver.free_host(HostKind::unified, ptr, 10000); });
  }
  undo.add([&] { return driver.synchronize_device(); });
  const auto address = [](void* ptr) { return static_cast<Address>(reinterpret_cast<std::uintptr_t>(ptr)); };
  CISTERN_TRY(driver.fill(address(host[0]), 3, 10000, s0));
  CISTERN_TRY(driver.copy(address(host[1]), address(host[0]), 10000, s0));
  return Status::ok;
}

class DriverFaults : public ::testing::TestWithParam<DriverFactory> {};

TEST_P(DriverFaults, EveryCallFailsOnceAndTheNextAttemptSucceeds) {
  auto made = GetParam().make();
  if (made == nullptr) GTEST_SKIP() << GetParam().name << " is not there";
  FaultyDriver driver(std::move(made));
  const Capabilities& c = driver.capabilities();
  void* const s0 = GetParam().stream(driver.below(), 0);
  void* const s1 = GetParam().stream(driver.below(), 1);
  const auto work = [&]() -> Status {
    if (c.virtual_memory) CISTERN_TRY(mapped_work(driver, s0, s1));
    if (!c.virtual_memory && !c.whole_buffers) CISTERN_TRY(segment_work(driver, s0, s1));
    return host_work(driver, s0, s1);
  };
  for (const Status status : {Status::out_of_memory, Status::failed}) {
    std::uint64_t failures = 0;
    for (std::uint64_t n = 1;; ++n) {
      const std::uint64_t before = driver.plan().injected();
      driver.plan().fail(Call::any, n, status);
      const Status seen = work();
      if (driver.plan().injected() == before) {
        EXPECT_EQ(seen, Status::ok);
        break;
      }
      ++failures;
      EXPECT_TRUE(seen == status || seen == Status::ok) << "call " << n;
      EXPECT_EQ(GetParam().complaints(driver.below()), std::vector<std::string>{}) << "call " << n;
      driver.plan().clear();
      EXPECT_EQ(work(), Status::ok) << "after a failure of call " << n;
    }
    EXPECT_GE(failures, 6u);
  }
}

std::string name_of(const ::testing::TestParamInfo<DriverFactory>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Drivers, DriverFaults, ::testing::ValuesIn(driver_factories()), name_of);

}  // namespace
}  // namespace cistern::conformance
