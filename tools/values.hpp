// What the options of the command line may be given: checks that CLI11 runs on the text of a value before it converts
// it. CLI11 alone takes "-1" as the largest number there is, "010" as 8, and "" as nothing said. No state.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cistern/device.hpp"

namespace CLI {
class Validator;
}

namespace cistern::tools {

// Throws UsageError for what names no device that there is.
Device read_device(const std::string& text);

// The whole text as a number: decimal digits and nothing else; with a fraction. False when it is not one, or too large.
bool read_number(std::string_view text, std::uint64_t& value);
bool read_number(std::string_view text, double& value);

// Of such digits. For Option::transform().
CLI::Validator whole(std::uint64_t least, std::uint64_t most);
// The same with a fraction.
CLI::Validator seconds(double least, double most);
// One of these words.
CLI::Validator one_of(std::vector<std::string> words);
// Anything but the empty text; `what` is expected, as in "a file".
CLI::Validator some(std::string_view what);

}  // namespace cistern::tools
