// The Objective-C runtime as a table of function pointers, so that Metal can be used without an Apple header and on a
// computer that has none: found when the program runs, in Apple's libraries or in the one that $CISTERN_METAL_LIBRARY
// names. Does: send messages with the exact prototype, own objects (Ref), open autorelease pools. Does not: know
// Metal's classes (metal_api.hpp does). Called by the Metal driver alone. Thread-safe; the table never changes once it
// is there.
//
// Ownership is manual. What a method named new... or alloc returns is owned by the caller (Ref::adopt); everything else
// is autoreleased: it lives until the innermost AutoreleasePool of the thread ends, and is a plain pointer here.
#pragma once

#include <cstddef>
#include <string>
#include <type_traits>
#include <utility>

namespace cistern::drivers::objc {

using Sel = const void*;
struct Class;
struct Object;

// NSUInteger, NSInteger and BOOL of the platform.
using UInt = unsigned long;
using Int = long;
#if defined(__APPLE__) && defined(__x86_64__)
using Bool = signed char;
#else
using Bool = bool;
#endif

// One entry point a line: name of the member, return type, symbol, parameters. All are needed.
#define CISTERN_OBJC_FUNCTIONS(X)                           \
  X(register_name, Sel, "sel_registerName", const char*)    \
  X(look_up_class, Class*, "objc_lookUpClass", const char*) \
  X(retain, void*, "objc_retain", void*)                    \
  X(release, void, "objc_release", void*)                   \
  X(pool_push, void*, "objc_autoreleasePoolPush", )         \
  X(pool_pop, void, "objc_autoreleasePoolPop", void*)       \
  X(create_default_device, void*, "MTLCreateSystemDefaultDevice", )

struct Runtime {
#define CISTERN_OBJC_MEMBER(name, result, symbol, ...) result (*name)(__VA_ARGS__) = nullptr;
  CISTERN_OBJC_FUNCTIONS(CISTERN_OBJC_MEMBER)
#undef CISTERN_OBJC_MEMBER
  // Never called as it is: send() casts it to the prototype of the method.
  void (*msg_send)() = nullptr;
  // Null where the system has no such function (all devices: macOS only).
  void* (*copy_all_devices)() = nullptr;
  int (*sysctl_by_name)(const char*, void*, std::size_t*, void*, std::size_t) = nullptr;
};

// The process's runtime, found at the first call that succeeds. Null, and why, when there is none.
const Runtime* load(std::string& why);

// The same for those who come after a load() that succeeded.
const Runtime& runtime() noexcept;

// A whole number that the system knows by name ("hw.memsize"); `fallback` where it does not.
std::size_t system_number(const char* name, std::size_t fallback);

// Sends a message. Every type is given, none is deduced: the call must have the prototype of the method. Structures of
// up to 16 bytes come back in registers on every platform in question; larger ones are not used.
template <class R, class... A>
R send(const void* receiver, Sel selector, std::type_identity_t<A>... arguments) {
  using Method = R (*)(const void*, Sel, A...);
  return reinterpret_cast<Method>(runtime().msg_send)(receiver, selector, arguments...);
}

// Owns one reference to an object. Move-only.
template <class T>
class Ref {
 public:
  Ref() noexcept = default;
  // Takes over a reference that the caller owns.
  static Ref adopt(void* object) noexcept { return Ref(static_cast<T*>(object)); }
  // Adds a reference to an object of somebody else.
  static Ref retain(void* object) noexcept {
    return Ref(static_cast<T*>(object == nullptr ? nullptr : runtime().retain(object)));
  }
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(Ref&& other) noexcept {
    if (this != &other) {
      reset();
      object_ = std::exchange(other.object_, nullptr);
    }
    return *this;
  }
  ~Ref() { reset(); }
  void reset() noexcept {
    if (object_ != nullptr) runtime().release(std::exchange(object_, nullptr));
  }
  T* get() const noexcept { return object_; }
  // The reference goes to the caller.
  T* leave() noexcept { return std::exchange(object_, nullptr); }
  explicit operator bool() const noexcept { return object_ != nullptr; }

 private:
  explicit Ref(T* object) noexcept : object_(object) {}
  T* object_ = nullptr;
};

// What is autoreleased on this thread while the scope lasts is let go at its end. Pools nest.
class AutoreleasePool {
 public:
  AutoreleasePool() : pool_(runtime().pool_push()) {}
  ~AutoreleasePool() { runtime().pool_pop(pool_); }
  AutoreleasePool(const AutoreleasePool&) = delete;
  AutoreleasePool& operator=(const AutoreleasePool&) = delete;

 private:
  void* pool_;
};

}  // namespace cistern::drivers::objc
