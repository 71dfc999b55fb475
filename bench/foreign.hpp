// Other allocators as pairs of functions: the C library's, mimalloc, jemalloc. The last two are loaded with dlopen()
// into their own scope, since linking either would replace malloc for the whole process. Thread-safe after the first
// call.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace cistern::bench {

struct ForeignAllocator {
  std::string name;
  void* (*malloc)(std::size_t);
  void (*free)(void*);
};

// jemalloc needs more static thread storage than the loader keeps for libraries that are loaded late. The loader can
// only be told when a program starts: starts this one anew, once. Does nothing where that is not known how to do.
void restart_with_room_for_libraries();
// The C library first, then those that are installed.
const std::vector<ForeignAllocator>& foreign_allocators();

}  // namespace cistern::bench
