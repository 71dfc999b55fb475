// The host has no memory for the books: for every allocation of operator new that a workload makes, that one fails,
// once. The call that meets it says so or goes on without, every rule still holds, and what comes after finds all as
// before.
#include <cstdio>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "allocator/device_allocator.hpp"
#include "cistern/error.hpp"
#include "drivers/cpu/cpu_driver.hpp"
#include "pool/counting_new.hpp"

namespace {

using cistern::Buffer;
using cistern::allocation::DeviceAllocator;

constexpr std::size_t kSizes[] = {1, 100, 1000, 5000, 20000, 70000, 300000, 1 << 20, 5 << 20, 40 << 20};
constexpr int kSteps = 600;

int faults = 0;

class Workload {
 public:
  // `limit`: 0 for none. Near it pieces leave.
  Workload(std::size_t limit, std::size_t number) : limit_(limit), number_(number) {
    if (limit != 0) allocator_.set_memory_limit(limit);
    live_.reserve(kSteps);
  }

  // Whether the failure was met.
  bool run() {
    allocations = 0;
    failing = number_;
    for (int i = 0; i < kSteps; ++i) {
      const bool before = allocations < number_;
      step();
      // From a question on blocks are entered into the index; in half of the workloads it comes early.
      if (i == 50 && number_ % 2 != 0) ask();
      if (before && allocations >= number_) check();
    }
    const bool met = allocations >= number_;
    check();
    for (const Buffer& buffer : live_) allocator_.free(buffer);
    live_.clear();
    allocator_.clear_cache();
    check();
    if (allocator_.stats().reserved != 0) fault("memory is kept");
    return met;
  }

 private:
  void step() {
    try {
      if (live_.empty() || random_() % 5 < 3) {
        const std::size_t bytes = kSizes[random_() % std::size(kSizes)];
        live_.push_back(allocator_.malloc(bytes + random_() % bytes));
      } else {
        std::swap(live_[random_() % live_.size()], live_.back());
        allocator_.free(live_.back());
        live_.pop_back();
      }
    } catch (const std::bad_alloc&) {
      // cistern::out_of_memory is one.
    } catch (const std::exception& error) {
      fault(error.what());
    }
  }

  void check() {
    failing = 0;
    for (const std::string& message : allocator_.check_invariants()) fault(message.c_str());
    ask();
  }

  void ask() {
    for (const Buffer& buffer : live_) {
      if (!buffer.live() || allocator_.find(buffer.ptr()) != buffer) fault("a buffer is lost");
    }
  }

  void fault(const char* text) {
    ++faults;
    std::printf("limit %zu, allocation %zu fails: %s\n", limit_, number_, text);
  }

  const std::size_t limit_, number_;
  DeviceAllocator allocator_{cistern::Device::cpu(), cistern::drivers::make_cpu_driver()};
  std::mt19937_64 random_{7};
  std::vector<Buffer> live_;
};

}  // namespace

int main() {
  for (const std::size_t limit : {std::size_t{0}, std::size_t{300} << 20}) {
    std::size_t number = 1;
    while (Workload(limit, number).run() && faults < 20) ++number;
    if (faults == 0 && number < 100) {
      std::printf("limit %zu: only %zu allocations were met\n", limit, number - 1);
      return 1;
    }
  }
  return faults == 0 ? 0 : 1;
}
