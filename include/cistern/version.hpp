// The version of Cistern. The build reads it from here. Values only.
#pragma once

namespace cistern {

/// Semantic version: before 1.0 a new minor version may change the interface.
inline constexpr const char kVersion[] = "0.1.0";

}  // namespace cistern
