// For tests: the CUDA library that the process uses, be it the stand-in or the vendor's. Without $CISTERN_CUDA_LIBRARY
// it is the stand-in, and the variable is set so that the driver takes the same. With the vendor's, a test that needs
// the stand-in's controls is to be skipped. Not thread-safe, but for make_stream().
#pragma once

#include <dlfcn.h>

#include <cstdlib>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "drivers/cuda/cuda_loader.hpp"
#include "standin/cuda/standin.hpp"

namespace cistern::standin {

namespace cuda = drivers::cuda;

struct Controls {
#define CISTERN_STANDIN_MEMBER(name, result, ...) result (*name)(__VA_ARGS__) = nullptr;
  CISTERN_STANDIN_CONTROLS(CISTERN_STANDIN_MEMBER)
#undef CISTERN_STANDIN_MEMBER
};

// Entry points that the driver has no use for, but programs have.
struct ProgramApi {
  cuda::Result (*begin)(cuda::Stream, int) = nullptr;
  cuda::Result (*end)(cuda::Stream, void**) = nullptr;
  cuda::Result (*instantiate)(void**, void*, unsigned long long) = nullptr;
  cuda::Result (*launch)(void*, cuda::Stream) = nullptr;
  cuda::Result (*destroy)(void*) = nullptr;
  cuda::Result (*destroy_executable)(void*) = nullptr;
  cuda::Result (*launch_host)(cuda::Stream, void (*)(void*), void*) = nullptr;
  cuda::Result (*synchronize)(cuda::Stream) = nullptr;
};

class CudaLibrary {
 public:
  static CudaLibrary& get() {
    static CudaLibrary* const instance = new CudaLibrary;
    return *instance;
  }

  // Whether there is a library, and a device.
  bool usable() const { return usable_; }
  const std::string& why() const { return why_; }
  bool is_standin() const { return control.reset != nullptr; }

  // Everything from the start, with these variables (without CISTERN_STANDIN_) set and all others not. Stand-in only.
  void restart(const std::map<std::string, std::string>& settings = {}) {
    for (const char* const name :
         {"DEVICES", "MEMORY", "VERSION", "LAG_US", "MANUAL", "WITHOUT", "REFUSE", "JUNK", "FAIL"}) {
      const auto found = settings.find(name);
      const std::string variable = std::string("CISTERN_STANDIN_") + name;
      if (found == settings.end()) {
        unsetenv(variable.c_str());
      } else {
        setenv(variable.c_str(), found->second.c_str(), 1);
      }
    }
    streams_.clear();
    control.reset();
  }

  // Stream number i of the device, made when it is first asked for; number 0 is the legacy stream.
  cuda::Stream stream(int i, int device = 0) {
    if (i == 0) return nullptr;
    const std::lock_guard lock(mutex_);
    auto& all = streams_[device];
    while (static_cast<int>(all.size()) < i) all.push_back(make_stream(device));
    return all[static_cast<std::size_t>(i) - 1];
  }

  cuda::Stream make_stream(int device = 0, unsigned flags = 0) {
    cuda::Stream out = nullptr;
    in_context(device, [&] { check(api.stream_create(&out, flags), "cuStreamCreate"); });
    return out;
  }
  void destroy_stream(cuda::Stream stream, int device = 0) {
    in_context(device, [&] { check(api.stream_destroy(stream), "cuStreamDestroy"); });
  }

  // Runs something with the device's primary context current. The context is held from then on, since it ends with its
  // last holder and the streams made in it shall live.
  template <class Do>
  void in_context(int device, Do something) {
    cuda::Context context = nullptr;
    check(api.primary_retain(&context, device), "cuDevicePrimaryCtxRetain");
    check(api.context_push(context), "cuCtxPushCurrent");
    something();
    cuda::Context popped = nullptr;
    check(api.context_pop(&popped), "cuCtxPopCurrent");
  }

  std::vector<std::string> violations() const { return texts(control.violation_count(), control.violation); }
  // What is not given back, but for what drivers and tests keep for reuse.
  std::vector<std::string> leaks(bool all = false) const {
    std::vector<std::string> out = texts(control.leak_count(), control.leak);
    if (!all) {
      std::erase_if(out, [](const std::string& line) {
        return line.starts_with("events") || line.starts_with("primary context");
      });
    }
    return out;
  }

  static void check(cuda::Result result, const char* call) {
    if (result != cuda::kSuccess) throw std::runtime_error(std::string(call) + " said " + std::to_string(result));
  }

  cuda::CudaApi api;
  Controls control;
  ProgramApi program;

 private:
  CudaLibrary() {
    const std::string standin = std::string(CISTERN_STANDIN_DIR) + "/libcistern_standin_cuda.so";
    setenv("CISTERN_CUDA_LIBRARY", standin.c_str(), 0);
    const char* const path = std::getenv("CISTERN_CUDA_LIBRARY");
    usable_ = cuda::load(path, api, why_) && api.init(0) == cuda::kSuccess;
    void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return;
#define CISTERN_STANDIN_FIND(name, result, ...) find(library, control.name, "cistern_standin_" #name);
    CISTERN_STANDIN_CONTROLS(CISTERN_STANDIN_FIND)
#undef CISTERN_STANDIN_FIND
    find(library, program.begin, "cuStreamBeginCapture_v2");
    find(library, program.end, "cuStreamEndCapture");
    find(library, program.instantiate, "cuGraphInstantiateWithFlags");
    find(library, program.launch, "cuGraphLaunch");
    find(library, program.destroy, "cuGraphDestroy");
    find(library, program.destroy_executable, "cuGraphExecDestroy");
    find(library, program.launch_host, "cuLaunchHostFunc");
    find(library, program.synchronize, "cuStreamSynchronize");
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

  std::mutex mutex_;
  std::map<int, std::vector<cuda::Stream>> streams_;
  bool usable_ = false;
  std::string why_;
};

}  // namespace cistern::standin
