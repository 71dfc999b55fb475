// stub
#include "cistern/plan.hpp"
namespace cistern { void write_plan_svg(const std::string&, const PlanProblem&, const std::vector<std::int64_t>&, const PlanSvgOptions&) {} }
