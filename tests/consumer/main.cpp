// A small user of the installed library: allocates, writes, frees, reads the figures. Used by every way of consuming
// Cistern. Not a test of the allocator itself.
#include <cistern/allocator.hpp>
#include <cistern/memory.hpp>
#include <cstdio>
#include <cstring>

int main() {
  const cistern::Buffer buffer = cistern::malloc(1000);
  if (buffer.size() < 1000) return 1;
  std::memset(buffer.raw_ptr(), 7, 1000);
  if (cistern::get_active_memory() < 1000) return 1;
  cistern::free(buffer);
  if (cistern::get_active_memory() != 0) return 1;
  try {
    cistern::free(buffer);
    return 1;
  } catch (const cistern::invalid_argument&) {
    // The exception type is the same on both sides of a shared library.
  }
  std::puts("consumer: ok");
  return 0;
}
