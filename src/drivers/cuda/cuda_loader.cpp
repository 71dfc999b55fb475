// Loading the CUDA driver library and finding its entry points by version.
#include "drivers/cuda/cuda_loader.hpp"

#include <atomic>
#include <cstdlib>

#if defined(__unix__) || defined(__APPLE__)
#include <dlfcn.h>
#include <pthread.h>
#define CISTERN_HAS_DLOPEN 1
#endif

namespace cistern::drivers::cuda {
namespace {

constexpr const char* kDefaultLibrary = "libcuda.so.1";
constexpr int kOldestVersion = 11000;  // CUDA 11.0: the newest form of an entry point that is required.
constexpr unsigned long long kLegacyStreamEntryPoints = 1;  // The null stream is the legacy stream.

std::atomic<bool> in_forked_child{false};

#if defined(CISTERN_HAS_DLOPEN)

// The two forms of cuGetProcAddress: since CUDA 12.0 with a status, since 11.3 without.
using GetAddressWithStatus = Result (*)(const char*, void**, int, unsigned long long, int*);
using GetAddress = Result (*)(const char*, void**, int, unsigned long long);

class Symbols {
 public:
  explicit Symbols(void* library) : library_(library) {
    with_status_ = reinterpret_cast<GetAddressWithStatus>(dlsym(library, "cuGetProcAddress_v2"));
    plain_ = reinterpret_cast<GetAddress>(dlsym(library, "cuGetProcAddress"));
  }

  // Null where the driver has no such entry point.
  void* find(const char* name, int version, const char* exported) const {
    void* found = nullptr;
    int status = 0;
    Result result = kNotFound;
    if (with_status_ != nullptr) {
      result = with_status_(name, &found, version, kLegacyStreamEntryPoints, &status);
    } else if (plain_ != nullptr) {
      result = plain_(name, &found, version, kLegacyStreamEntryPoints);
    } else {
      return dlsym(library_, exported);
    }
    return result == kSuccess && status == 0 ? found : nullptr;
  }

  // The toolkit has a library to link with, where every call only says that it is none.
  bool is_stub() const {
    void* found = nullptr;
    int status = 0;
    return with_status_ != nullptr &&
           with_status_("cuInit", &found, kOldestVersion, kLegacyStreamEntryPoints, &status) == kStubLibrary;
  }

 private:
  void* library_;
  GetAddressWithStatus with_status_ = nullptr;
  GetAddress plain_ = nullptr;
};

// True when the entry point is there or not needed.
template <class Function>
bool get(const Symbols& symbols, Function*& slot, const char* name, int version, const char* exported, Need need) {
  slot = reinterpret_cast<Function*>(symbols.find(name, version, exported));
  return slot != nullptr || need == Need::optional;
}

#endif

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string result_text(const CudaApi& api, const char* call, Result result) {
  const char* name = nullptr;
  const char* text = nullptr;
  std::string out = std::string(call) + ": ";
  if (api.error_name(result, &name) != kSuccess || name == nullptr) return out + "error " + std::to_string(result);
  out += name;
  if (api.error_string(result, &text) == kSuccess && text != nullptr) out += std::string(" (") + text + ")";
  return out;
}

struct Library {
  CudaApi api;
  bool usable = false;
  std::string why;

  Library() {
    const char* const named = std::getenv("CISTERN_CUDA_LIBRARY");
    if (!load(named != nullptr && *named != '\0' ? named : kDefaultLibrary, api, why)) return;
    if (const Result result = api.init(0); result != kSuccess) {
      why = result == kNoDevice ? "CUDA: the driver is here, but no device that it can use"
                                : result_text(api, "cuInit", result);
      return;
    }
#if defined(CISTERN_HAS_DLOPEN)
    pthread_atfork(nullptr, nullptr, [] { in_forked_child.store(true, std::memory_order_relaxed); });
#endif
    usable = true;
  }
};

}  // namespace

bool load(const char* path, CudaApi& api, std::string& why) {
#if defined(CISTERN_HAS_DLOPEN)
  void* const handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* const error = dlerror();
    why = std::string("CUDA: no driver: ") + (error != nullptr ? error : path);
    return false;
  }
  const Symbols symbols(handle);
  if (symbols.is_stub()) {
    why = std::string("CUDA: ") + path + " is a stub to link with, not a driver";
    return false;
  }
  CudaApi found;
  const char* missing = nullptr;
#define CISTERN_CUDA_GET(member, name, version, symbol, need, ...) \
  if (!get(symbols, found.member, name, version, symbol, Need::need) && missing == nullptr) missing = name;
  CISTERN_CUDA_ENTRY_POINTS(CISTERN_CUDA_GET)
#undef CISTERN_CUDA_GET
  if (found.driver_version != nullptr && found.driver_version(&found.version) == kSuccess &&
      found.version < kOldestVersion) {
    why = std::string("CUDA: the driver is of version ") + version_text(found.version) +
          ", too old: " + version_text(kOldestVersion) + " is needed";
    return false;
  }
  if (missing != nullptr) {
    why = std::string("CUDA: ") + path + " lacks " + missing;
    return false;
  }
  api = found;
  return true;
#else
  static_cast<void>(api);
  why = std::string("CUDA: this system cannot load ") + path;
  return false;
#endif
}

const CudaApi* library(std::string& why) {
  // Never destroyed: other static objects may still use it when the program exits.
  static const Library* const loaded = new Library;
  if (!loaded->usable) {
    why = loaded->why;
    return nullptr;
  }
  return &loaded->api;
}

bool forked() noexcept { return in_forked_child.load(std::memory_order_relaxed); }

}  // namespace cistern::drivers::cuda
