// Loads the other allocators. dlopen() keeps each in its own scope.
#include "foreign.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

namespace cistern::bench {
namespace {

void load(std::vector<ForeignAllocator>& all, const char* name, std::initializer_list<const char*> files,
          const char* malloc_name, const char* free_name) {
  for (const char* file : files) {
    void* library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) continue;
    auto* take = reinterpret_cast<void* (*)(std::size_t)>(dlsym(library, malloc_name));
    auto* give = reinterpret_cast<void (*)(void*)>(dlsym(library, free_name));
    if (take == nullptr || give == nullptr) continue;
    all.push_back({name, take, give});
    return;
  }
}

}  // namespace

void restart_with_room_for_libraries() {
#ifdef __GLIBC__
  static constexpr const char* kTunables = "GLIBC_TUNABLES";
  static constexpr const char* kRoom = "glibc.rtld.optional_static_tls";
  const char* set = std::getenv(kTunables);
  const std::string before = set != nullptr ? set : "";
  if (before.find(kRoom) != std::string::npos) return;
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string line((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::vector<char*> arguments;
  for (std::size_t at = 0; at < line.size(); at = line.find('\0', at) + 1) arguments.push_back(&line[at]);
  arguments.push_back(nullptr);
  setenv(kTunables, (before + (before.empty() ? "" : ":") + kRoom + "=65536").c_str(), 1);
  execv("/proc/self/exe", arguments.data());
  // It goes on without the libraries that do not fit.
#endif
}

const std::vector<ForeignAllocator>& foreign_allocators() {
  static const std::vector<ForeignAllocator> all = [] {
    std::vector<ForeignAllocator> found{{"libc", &std::malloc, &std::free}};
    load(found, "mimalloc", {"libmimalloc.so.2", "libmimalloc.so.2.0", "libmimalloc.so"}, "mi_malloc", "mi_free");
    load(found, "jemalloc", {"libjemalloc.so.2", "libjemalloc.so"}, "malloc", "free");
    return found;
  }();
  return all;
}

}  // namespace cistern::bench
