// Reading of dtype names. No state.
#include "cistern/dtype.hpp"

#include <string>

#include "cistern/error.hpp"

namespace cistern {

DType parse_dtype(std::string_view text) {
  for (std::size_t i = 0; i < kDTypeCount; ++i) {
    const DTypeInfo& entry = detail::kDTypes[i];
    if (text == entry.name || text == entry.long_name) return static_cast<DType>(i);
  }
  std::string message = "parse_dtype: no dtype is called \"" + std::string(text) + "\"; known are";
  for (const DTypeInfo& entry : detail::kDTypes) message.append(" ").append(entry.name);
  throw invalid_argument(message);
}

}  // namespace cistern
