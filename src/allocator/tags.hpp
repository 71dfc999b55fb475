// Names of tags: one number a name, for the life of the process. Thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace cistern::allocation {

// Number of a name, made at first use. 0 (no tag) for an empty name, and when all 65,535 numbers are taken.
std::uint16_t tag_number(std::string_view name);
std::string tag_name(std::uint16_t number);

// Around fork().
void lock_tags();
void unlock_tags();

}  // namespace cistern::allocation
