// Zeroed pages from the system. Large ones do not come from calloc(): where a C library has enough memory that was used
// before, it clears all of it.
#include "core/zeroed_pages.hpp"

#include <sys/mman.h>

#include <cstdlib>

namespace cistern::core {

namespace {

constexpr std::size_t kMapped = std::size_t{64} << 10;  // From here on a mapping of its own.

}  // namespace

void* take_zeroed_pages(std::size_t bytes) noexcept {
  if (bytes < kMapped) return std::calloc(1, bytes);
  void* const pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) return nullptr;
#if defined(MADV_NOHUGEPAGE)
  madvise(pages, bytes, MADV_NOHUGEPAGE);  // A touch costs a small page, whatever the system's default is.
#endif
  return pages;
}

void give_zeroed_pages(void* pages, std::size_t bytes) noexcept {
  if (bytes < kMapped) {
    std::free(pages);
  } else {
    munmap(pages, bytes);
  }
}

}  // namespace cistern::core
