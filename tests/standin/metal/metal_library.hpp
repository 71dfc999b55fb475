// For tests: the Metal library that the process uses, be it the stand-in or Apple's. Unless $CISTERN_METAL_LIBRARY is
// set it is the stand-in (also on macOS), and the variable is set so that the driver takes the same. With another one,
// a test that needs the stand-in's controls is to be skipped. Not thread-safe.
#pragma once

#include <dlfcn.h>

#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "drivers/metal/metal_api.hpp"
#include "drivers/metal/metal_driver.hpp"
#include "standin/metal/standin.hpp"

namespace cistern::standin::metal {

struct Controls {
#define CISTERN_METAL_STANDIN_MEMBER(name, result, ...) result (*name)(__VA_ARGS__) = nullptr;
  CISTERN_METAL_STANDIN_CONTROLS(CISTERN_METAL_STANDIN_MEMBER)
#undef CISTERN_METAL_STANDIN_MEMBER
};

class MetalLibrary {
 public:
  static MetalLibrary& get() {
    static MetalLibrary* const instance = new MetalLibrary;
    return *instance;
  }

  bool usable() const { return usable_; }
  const std::string& why() const { return why_; }
  bool is_standin() const { return control.reset != nullptr; }

  // Everything from the start, with these variables (without CISTERN_METAL_STANDIN_) set and all others not. Stand-in
  // only. pre: nothing of the device is in use but the queues of queue().
  void restart(const std::map<std::string, std::string>& settings = {}) {
    for (const char* const name : {"NAME", "DEVICES", "MEMORY", "WORKING_SET", "MAX_BUFFER", "RSRC_LIMIT", "PAGE",
                                   "ALIGN", "LARGE_ALIGN", "LAG_US", "MANUAL", "WITHOUT", "WITH", "JUNK", "FAIL"}) {
      const auto found = settings.find(name);
      const std::string variable = std::string("CISTERN_METAL_STANDIN_") + name;
      if (found == settings.end()) {
        unsetenv(variable.c_str());
      } else {
        setenv(variable.c_str(), found->second.c_str(), 1);
      }
    }
    drop_queues();
    control.reset();
  }

  // Queue number i of the default device, made when it is first asked for; number 0 is the driver's own.
  void* queue(int i) {
    if (i == 0) return nullptr;
    const drivers::objc::AutoreleasePool pool;
    while (static_cast<int>(queues_.size()) < i) queues_.push_back(make_queue().leave());
    return queues_[static_cast<std::size_t>(i) - 1];
  }
  drivers::objc::Ref<drivers::metal::Queue> make_queue() {
    using drivers::objc::Ref;
    const drivers::objc::AutoreleasePool pool;
    const auto device = Ref<drivers::metal::Device>::adopt(drivers::objc::runtime().create_default_device());
    return drivers::metal::new_queue(device.get());
  }
  void drop_queues() {
    for (void* const queue : queues_) drivers::objc::runtime().release(queue);
    queues_.clear();
  }

  std::vector<std::string> violations() const { return texts(control.violation_count(), control.violation); }
  // What is alive, but for the queues of queue().
  std::vector<std::string> leaks() {
    drop_queues();
    return texts(control.leak_count(), control.leak);
  }

  Controls control;

 private:
  MetalLibrary() {
#if defined(__APPLE__)
    const std::string standin = std::string(CISTERN_STANDIN_DIR) + "/libcistern_standin_metal.dylib";
#else
    const std::string standin = std::string(CISTERN_STANDIN_DIR) + "/libcistern_standin_metal.so";
#endif
    const char* const set = std::getenv("CISTERN_METAL_LIBRARY");
    if (set == nullptr || *set == '\0') setenv("CISTERN_METAL_LIBRARY", standin.c_str(), 1);
    usable_ = drivers::metal_device_count(&why_) > 0;
    void* const library = dlopen(std::getenv("CISTERN_METAL_LIBRARY"), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return;
#define CISTERN_METAL_STANDIN_FIND(name, result, ...) find(library, control.name, "cistern_metal_standin_" #name);
    CISTERN_METAL_STANDIN_CONTROLS(CISTERN_METAL_STANDIN_FIND)
#undef CISTERN_METAL_STANDIN_FIND
  }

  template <class Function>
  static void find(void* library, Function*& out, const char* symbol) {
    out = reinterpret_cast<Function*>(dlsym(library, symbol));
  }

  template <class Read>
  static std::vector<std::string> texts(std::size_t count, Read read) {
    std::vector<std::string> out;
    char text[512];
    for (std::size_t i = 0; i < count; ++i) {
      if (read(i, text, sizeof text) != 0) out.emplace_back(text);
    }
    return out;
  }

  std::vector<void*> queues_;
  bool usable_ = false;
  std::string why_;
};

}  // namespace cistern::standin::metal
