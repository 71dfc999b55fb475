// The process-wide list of model addresses in use. Contract and locking are in address_space.hpp.
#include "drivers/model/address_space.hpp"

#include <map>
#include <mutex>

namespace cistern::drivers {
namespace {

// Between 16 TiB and 96 TiB: within the 47 bits of a user address, and where neither programs nor libraries are loaded.
constexpr Address kFirst = Address{16} << 40;
constexpr Address kEnd = Address{96} << 40;

struct Space {
  std::mutex mutex;
  std::map<Address, std::size_t> taken;
};

// Never destroyed: drivers may be destroyed after static objects.
Space& space() {
  static Space* const space = new Space;
  return *space;
}

}  // namespace

Address take_model_addresses(std::size_t bytes, std::size_t alignment) {
  Space& s = space();
  const std::lock_guard lock(s.mutex);
  const auto up = [alignment](Address at) { return (at + alignment - 1) & ~Address{alignment - 1}; };
  Address at = up(kFirst);
  for (const auto& [base, size] : s.taken) {
    if (base >= at && base - at >= bytes) break;
    at = up(base + size);
  }
  if (at >= kEnd || bytes > kEnd - at) return 0;
  s.taken.emplace(at, bytes);
  return at;
}

void give_model_addresses(Address base) {
  Space& s = space();
  const std::lock_guard lock(s.mutex);
  s.taken.erase(base);
}

}  // namespace cistern::drivers
