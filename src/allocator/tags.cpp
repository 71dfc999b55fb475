// The table of tags, and the scope that sets one.
#include "allocator/tags.hpp"

#include <map>
#include <mutex>
#include <new>
#include <vector>

#include "allocator/thread_state.hpp"
#include "cistern/memory.hpp"

namespace cistern {
namespace allocation {
namespace {

// Never destroyed: buffers may be freed by static destructors.
struct Tags {
  std::mutex mutex;
  std::map<std::string, std::uint16_t, std::less<>> numbers;
  std::vector<const std::string*> names{nullptr};

  static Tags& get() {
    alignas(Tags) static unsigned char storage[sizeof(Tags)];
    static Tags* tags = new (storage) Tags;
    return *tags;
  }
};

}  // namespace

std::uint16_t tag_number(std::string_view name) {
  if (name.empty()) return 0;
  Tags& tags = Tags::get();
  const std::lock_guard lock(tags.mutex);
  const auto found = tags.numbers.find(name);
  if (found != tags.numbers.end()) return found->second;
  if (tags.names.size() > UINT16_MAX) return 0;
  tags.names.reserve(tags.names.size() + 1);
  const auto number = static_cast<std::uint16_t>(tags.names.size());
  tags.names.push_back(&tags.numbers.emplace(name, number).first->first);
  return number;
}

std::string tag_name(std::uint16_t number) {
  Tags& tags = Tags::get();
  const std::lock_guard lock(tags.mutex);
  return number != 0 && number < tags.names.size() ? *tags.names[number] : std::string();
}

void lock_tags() { Tags::get().mutex.lock(); }
void unlock_tags() { Tags::get().mutex.unlock(); }

}  // namespace allocation

ScopedTag::ScopedTag(std::string_view name) : previous_(allocation::exchange_tag(allocation::tag_number(name))) {}

ScopedTag::~ScopedTag() { allocation::exchange_tag(previous_); }

}  // namespace cistern
