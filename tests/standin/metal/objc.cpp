// The runtime's entry points and the books of objects.
#include "standin/metal/objc.hpp"

#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <set>
#include <unordered_set>

namespace cistern::standin::metal {
namespace {

constexpr std::size_t kKeptDead = 50000;  // Deallocated objects whose memory is kept, so that a use of one is seen.
constexpr std::size_t kMostTexts = 1000;

struct Runtime {
  std::recursive_mutex mutex;
  std::set<std::string> names;  // Of selectors; a node's address is the selector.
  std::map<std::string, Class*> classes;
  std::unordered_set<Object*> live;
  std::unordered_set<const Object*> dead;
  std::deque<std::pair<void*, std::size_t>> kept;
  Books books;
};

// Never destroyed: programs release objects in static destructors.
Runtime& runtime() {
  static Runtime* const instance = new Runtime;
  return *instance;
}

thread_local std::vector<std::vector<Object*>> pools;

void* return_nil() { return nullptr; }

// So that a method that fails also returns zero where two registers are read.
struct TwoWords {
  std::size_t a, b;
};
TwoWords return_zeros() { return {0, 0}; }

}  // namespace

std::recursive_mutex& lock_of_all() { return runtime().mutex; }
Books& books() { return runtime().books; }

Sel intern(const char* name) { return runtime().names.insert(name).first->c_str(); }

Class* find_class(const char* name) {
  const auto found = runtime().classes.find(name);
  return found == runtime().classes.end() ? nullptr : found->second;
}

Class* add_class(const char* name, void (*destroy)(Object*), const std::vector<MethodSpec>& methods,
                 const std::vector<MethodSpec>& class_methods) {
  auto* const meta = new Class(name, nullptr, nullptr);
  auto* const made = new Class(name, meta, destroy);
  for (const MethodSpec& m : methods) made->methods[intern(m.selector)] = {m.imp, m.may_fail};
  for (const MethodSpec& m : class_methods) meta->methods[intern(m.selector)] = {m.imp, m.may_fail};
  runtime().classes[name] = made;
  return made;
}

bool responds(const Object* object, Sel selector) {
  return object->isa->methods.contains(selector) && !hidden(selector);
}

void violation(const char* format, ...) {
  char text[400];
  std::va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  const Guard guard;
  ++books().violation_count;
  if (books().violations.size() < kMostTexts) books().violations.emplace_back(text);
}

void list_object(Object* object) {
  const Guard guard;
  runtime().live.insert(object);
  runtime().dead.erase(object);
}

void retire(Object* object, void* memory, std::size_t bytes) {
  const Guard guard;
  Runtime& r = runtime();
  Class* const was = object->isa;
  r.live.erase(object);
  r.dead.insert(object);
  (new (memory) Object(was))->references = 0;
  r.kept.emplace_back(memory, bytes);
  if (r.kept.size() > kKeptDead) {
    r.dead.erase(static_cast<Object*>(r.kept.front().first));
    ::operator delete(r.kept.front().first);
    r.kept.pop_front();
  }
}

bool alive(const Object* object) { return !runtime().dead.contains(object); }

Object* retain(Object* object) {
  const Guard guard;
  if (!alive(object)) {
    violation("retain of a deallocated %s", object->isa->name);
  } else {
    ++object->references;
  }
  return object;
}

void release(Object* object) {
  const Guard guard;
  if (!alive(object)) {
    violation("over-release of a %s", object->isa->name);
  } else if (object->isa->destroy != nullptr && --object->references == 0) {
    object->isa->destroy(object);
  }
}

void autorelease_object(Object* object) {
  if (pools.empty()) {
    violation("a %s was autoreleased with no pool in place", object->isa->name);
    return;
  }
  pools.back().push_back(object);
}

std::vector<Leak> leaks() {
  std::map<std::string, std::size_t> counts;
  for (const Object* object : runtime().live) ++counts[object->isa->name];
  std::vector<Leak> out;
  for (const auto& [name, count] : counts) {
    // Devices and their names live as long as the process, as Apple's do.
    if (name != "MTLDevice" && name != "NSString") out.push_back({name, count});
  }
  return out;
}

std::size_t live_objects(const std::string& class_name) {
  std::size_t count = 0;
  for (const Object* object : runtime().live) count += class_name == object->isa->name ? 1 : 0;
  return count;
}

}  // namespace cistern::standin::metal

using namespace cistern::standin::metal;

// Called by objc_msgSend with a receiver that is not null.
extern "C" Imp cistern_standin_metal_lookup(Object* receiver, Sel selector) {
  const Guard guard;
  Books& b = books();
  ++b.all_calls;
  ++b.calls[selector];
  if (!alive(receiver)) {
    violation("-%s was sent to a deallocated %s", selector, receiver->isa->name);
    return imp(&return_zeros);
  }
  const auto found = receiver->isa->methods.find(selector);
  if (found == receiver->isa->methods.end() || hidden(selector)) {
    violation("%s does not understand -%s", receiver->isa->name, selector);
    return imp(&return_zeros);
  }
  if (found->second.may_fail && b.fail_left != 0 && (b.fail_selector == nullptr || b.fail_selector == selector)) {
    if (b.fail_skip != 0) {
      --b.fail_skip;
    } else {
      --b.fail_left;
      ++b.injected;
      return imp(&return_nil);
    }
  }
  return found->second.imp;
}

CISTERN_METAL_ENTRY const void* sel_registerName(const char* name) {
  const Guard guard;
  return intern(name);
}

CISTERN_METAL_ENTRY void* objc_lookUpClass(const char* name) {
  const Guard guard;
  return hidden(name) ? nullptr : find_class(name);
}

CISTERN_METAL_ENTRY void* objc_retain(void* object) {
  return object == nullptr ? nullptr : retain(static_cast<Object*>(object));
}

CISTERN_METAL_ENTRY void objc_release(void* object) {
  if (object != nullptr) release(static_cast<Object*>(object));
}

// A pool is known by its depth.
CISTERN_METAL_ENTRY void* objc_autoreleasePoolPush() {
  pools.emplace_back();
  return reinterpret_cast<void*>(pools.size());
}

CISTERN_METAL_ENTRY void objc_autoreleasePoolPop(void* pool) {
  const auto depth = reinterpret_cast<std::uintptr_t>(pool);
  if (depth == 0 || depth > pools.size()) {
    violation("an autorelease pool was popped that is not there");
    return;
  }
  while (pools.size() >= depth) {
    const std::vector<Object*> objects = std::move(pools.back());
    pools.pop_back();
    for (Object* const object : objects) release(object);
  }
}
