// Zeroed, aligned host memory from the C library. Stateless; thread-safe as calloc() is.
// Does not use aligned_alloc(): only calloc() can give large zeroed memory without touching it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace cistern::drivers {

// Zeroed memory, or null. pre: alignment is a power of two, at least alignof(std::max_align_t). `bytes` may be 0.
inline void* aligned_calloc(std::size_t bytes, std::size_t alignment) noexcept {
  if (bytes > PTRDIFF_MAX - alignment) return nullptr;
  void* const start = std::calloc(1, bytes + alignment);
  if (start == nullptr) return nullptr;
  // The next boundary is above `start` by at least alignof(max_align_t): room for the pointer that free needs.
  const std::uintptr_t from = reinterpret_cast<std::uintptr_t>(start);
  char* const out = static_cast<char*>(start) + (alignment - (from & (alignment - 1)));
  std::memcpy(out - sizeof start, &start, sizeof start);
  return out;
}

// pre: `ptr` came from aligned_calloc() and was not freed, or is null.
inline void aligned_free(void* ptr) noexcept {
  if (ptr == nullptr) return;
  void* start = nullptr;
  std::memcpy(&start, static_cast<char*>(ptr) - sizeof start, sizeof start);
  std::free(start);
}

}  // namespace cistern::drivers
