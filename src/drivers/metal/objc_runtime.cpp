// Finding the runtime.
#include "drivers/metal/objc_runtime.hpp"

#include <atomic>
#include <cstdlib>
#include <mutex>

#if defined(__unix__) || defined(__APPLE__)
#include <dlfcn.h>
#define CISTERN_HAS_DLOPEN 1
#endif

namespace cistern::drivers::objc {
namespace {

std::atomic<const Runtime*> loaded{nullptr};

#if defined(CISTERN_HAS_DLOPEN)

// Libraries that are never closed; a symbol is looked up in each of them.
class Libraries {
 public:
  bool open(const char* path, std::string& why) {
    void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      const char* const text = dlerror();
      why = text != nullptr ? text : path;
      return false;
    }
    all_[count_++] = library;
    return true;
  }
  void* find(const char* symbol) const {
    for (std::size_t i = 0; i < count_; ++i) {
      if (void* const found = dlsym(all_[i], symbol)) return found;
    }
    return nullptr;
  }

 private:
  void* all_[8] = {};
  std::size_t count_ = 0;
};

template <class Function>
void find(const Libraries& libraries, Function*& slot, const char* symbol) {
  slot = reinterpret_cast<Function*>(libraries.find(symbol));
}

bool open_all(Libraries& libraries, std::string& why) {
  if (const char* const path = std::getenv("CISTERN_METAL_LIBRARY"); path != nullptr && *path != '\0') {
    return libraries.open(path, why);
  }
#if defined(__APPLE__)
  // CoreGraphics must be there, or a program without a window gets no default device on macOS.
  std::string ignored;
  const bool found = libraries.open("/usr/lib/libobjc.A.dylib", why) &&
                     libraries.open("/System/Library/Frameworks/Metal.framework/Metal", why);
  libraries.open("/System/Library/Frameworks/Foundation.framework/Foundation", ignored);
  libraries.open("/System/Library/Frameworks/CoreGraphics.framework/CoreGraphics", ignored);
  libraries.open("/usr/lib/libSystem.B.dylib", ignored);
  return found;
#else
  why = "this is no Apple system, and CISTERN_METAL_LIBRARY names no library";
  return false;
#endif
}

bool fill(Runtime& table, std::string& why) {
  Libraries libraries;
  if (!open_all(libraries, why)) return false;
#define CISTERN_OBJC_FIND(name, result, symbol, ...) \
  find(libraries, table.name, symbol);               \
  if (table.name == nullptr) {                       \
    why = "the library lacks " symbol;               \
    return false;                                    \
  }
  CISTERN_OBJC_FUNCTIONS(CISTERN_OBJC_FIND)
#undef CISTERN_OBJC_FIND
  find(libraries, table.msg_send, "objc_msgSend");
  find(libraries, table.copy_all_devices, "MTLCopyAllDevices");
  find(libraries, table.sysctl_by_name, "sysctlbyname");
  if (table.msg_send == nullptr) why = "the library lacks objc_msgSend";
  return table.msg_send != nullptr;
}

#else

bool fill(Runtime&, std::string& why) {
  why = "libraries cannot be loaded on this system";
  return false;
}

#endif

}  // namespace

const Runtime* load(std::string& why) {
  if (const Runtime* known = loaded.load(std::memory_order_acquire)) return known;
  static std::mutex mutex;
  static Runtime table;
  const std::lock_guard lock(mutex);
  if (const Runtime* known = loaded.load(std::memory_order_acquire)) return known;
  Runtime found;
  if (!fill(found, why)) {
    why = "Metal: " + why;
    return nullptr;
  }
  table = found;
  loaded.store(&table, std::memory_order_release);
  return &table;
}

const Runtime& runtime() noexcept { return *loaded.load(std::memory_order_acquire); }

std::size_t system_number(const char* name, std::size_t fallback) {
  const Runtime& table = runtime();
  // The kernel says how wide the number is; a narrow one fills the low bytes, since Apple's computers are
  // little-endian.
  unsigned long long value = 0;
  std::size_t size = sizeof value;
  if (table.sysctl_by_name == nullptr || table.sysctl_by_name(name, &value, &size, nullptr, 0) != 0 || value == 0) {
    return fallback;
  }
  return static_cast<std::size_t>(value);
}

}  // namespace cistern::drivers::objc
