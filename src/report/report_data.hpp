// The data that the page's script draws from, as JSON. Called by report.cpp only. Pure functions; any thread.
#pragma once

#include <string>

#include "report/report.hpp"

namespace cistern::report {

// Labels of the size classes, smallest first.
extern const char* const kClassLabels[kClassEnds.size()];

std::string page_data(const Document& document);

}  // namespace cistern::report
