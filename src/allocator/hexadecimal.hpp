// Addresses and handles in the texts of errors.
#pragma once

#include <array>
#include <cstdint>
#include <cstdio>
#include <string>

namespace cistern::allocation {

inline std::string hexadecimal(std::uint64_t value) {
  std::array<char, 24> text{};
  std::snprintf(text.data(), text.size(), "0x%llx", static_cast<unsigned long long>(value));
  return text.data();
}

}  // namespace cistern::allocation
