// Classes, objects, reference counts and autorelease pools of the stand-in. Internal to the stand-in.
// Locking: one lock for everything, which every method takes for its whole length; it may be taken again by its holder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <new>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#define CISTERN_METAL_ENTRY extern "C" __attribute__((visibility("default")))

namespace cistern::standin::metal {

using Sel = const char*;  // Interned: equal names have one address.
using Imp = void (*)();   // Cast to its prototype by the caller of objc_msgSend.

struct Class;

// The first word of an Objective-C object is its class.
struct Object {
  explicit Object(Class* c) : isa(c) {}
  Class* isa;
  long references = 1;  // 0: deallocated, kept for a while so that a use is seen.
};

struct Method {
  Imp imp = nullptr;
  bool may_fail = false;  // Returns nil when a plan says so.
};

// A class is an object, too: its class (`isa`) has the class methods.
struct Class : Object {
  Class(const char* n, Class* meta, void (*d)(Object*)) : Object(meta), name(n), destroy(d) {}
  const char* name;
  void (*destroy)(Object*);  // Ends the object and gives its memory back; null for classes.
  std::unordered_map<Sel, Method> methods;
};

struct MethodSpec {
  const char* selector;
  Imp imp;
  bool may_fail = false;
};

std::recursive_mutex& lock_of_all();
class Guard {
 public:
  Guard() : lock_(lock_of_all()) {}

 private:
  std::lock_guard<std::recursive_mutex> lock_;
};

template <class F>
Imp imp(F* function) {
  return reinterpret_cast<Imp>(function);
}

Sel intern(const char* name);
Class* add_class(const char* name, void (*destroy)(Object*), const std::vector<MethodSpec>& methods,
                 const std::vector<MethodSpec>& class_methods = {});
Class* find_class(const char* name);
// Methods and classes that the environment hides.
bool hidden(const std::string& name);
bool responds(const Object* object, Sel selector);

#if defined(__GNUC__)
__attribute__((format(printf, 1, 2)))
#endif
void violation(const char* format, ...);

// Objects: made with one reference, listed while they live.
void list_object(Object* object);
void retire(Object* object, void* memory, std::size_t bytes);
Object* retain(Object* object);
void release(Object* object);
// The innermost pool of this thread will release it.
template <class T>
T* autorelease(T* object);
void autorelease_object(Object* object);
bool alive(const Object* object);

template <class T>
T* autorelease(T* object) {
  autorelease_object(object);
  return object;
}

template <class T, class... A>
T* make(A&&... arguments) {
  auto* object = new (::operator new(sizeof(T))) T(std::forward<A>(arguments)...);
  list_object(object);
  return object;
}

// For add_class().
template <class T>
void destroy(Object* object) {
  auto* const whole = static_cast<T*>(object);
  whole->~T();
  retire(object, whole, sizeof(T));
}

// A strong reference inside the stand-in.
template <class T>
class Strong {
 public:
  Strong() = default;
  explicit Strong(T* object) : object_(object) {
    if (object != nullptr) retain(object);
  }
  Strong(const Strong& other) : Strong(other.object_) {}
  Strong(Strong&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Strong& operator=(Strong other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Strong() {
    if (object_ != nullptr) release(object_);
  }
  T* get() const { return object_; }
  T* operator->() const { return object_; }

 private:
  T* object_ = nullptr;
};

struct Leak {
  std::string name;
  std::size_t count = 0;
};
std::vector<Leak> leaks();
std::size_t live_objects(const std::string& class_name);

struct Books {
  std::vector<std::string> violations;
  std::size_t violation_count = 0;
  std::unordered_map<Sel, std::uint64_t> calls;
  std::uint64_t all_calls = 0;
  Sel fail_selector = nullptr;  // Null: any that may fail.
  std::uint64_t fail_skip = 0;
  std::uint64_t fail_left = 0;
  std::uint64_t injected = 0;
};
Books& books();

}  // namespace cistern::standin::metal
