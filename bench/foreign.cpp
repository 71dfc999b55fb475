// Loads the other allocators. dlopen() keeps each in its own scope.
#include "foreign.hpp"

#include <dlfcn.h>

#include <cstdlib>

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
