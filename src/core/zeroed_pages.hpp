// Zeroed memory of which only the parts that are touched cost anything. Declared for the core, which has no system
// header; defined in the allocator layer. Thread-safe.
#pragma once

#include <cstddef>

namespace cistern::core {

// Null when the system has none. pre: bytes > 0.
void* take_zeroed_pages(std::size_t bytes) noexcept;
// pre: what take_zeroed_pages() gave for as many bytes.
void give_zeroed_pages(void* pages, std::size_t bytes) noexcept;

}  // namespace cistern::core
