// Writes planning problems with their offsets as CSV, in the columns that csv_reader.cpp understands. No state, no
// locking; any code may call it.
#include <ostream>
#include <string>

#include "cistern/error.hpp"
#include "cistern/plan.hpp"
#include "plan/output_file.hpp"

namespace cistern {
namespace {

std::string quoted(const std::string& id) {
  if (id.find_first_of(",\"\r\n") == std::string::npos && !id.empty()) return id;
  std::string out = "\"";
  for (const char c : id) {
    if (c == '"') out += '"';
    out += c;
  }
  return out + "\"";
}

// True if `a` and `b` leave one window in use, between them: the form "@from:to".
bool frame(const PlanGap& a, const PlanGap& b, std::int64_t size) {
  return a.lower == b.lower && a.upper == b.upper && a.window_lower == 0 && a.window_upper < b.window_lower &&
         b.window_upper == size;
}

std::string gaps_of(const PlanBuffer& b) {
  std::string out;
  const auto window = [&](char mark, std::int64_t from, std::int64_t to) {
    out += mark + std::to_string(from) + ':' + std::to_string(to);
  };
  for (std::size_t i = 0; i < b.gaps.size(); ++i) {
    const PlanGap& g = b.gaps[i];
    if (!out.empty()) out += ' ';
    out += std::to_string(g.lower) + "-" + std::to_string(g.upper);
    if (g.window_lower == 0 && g.window_upper == b.size) continue;
    if (i + 1 < b.gaps.size() && frame(g, b.gaps[i + 1], b.size)) {
      window('@', g.window_upper, b.gaps[++i].window_lower);
    } else if (g.window_lower == 0) {
      window('@', g.window_upper, b.size);
    } else if (g.window_upper == b.size) {
      window('@', 0, g.window_lower);
    } else {
      window('!', g.window_lower, g.window_upper);
    }
  }
  return out;
}

// What could not be read back is refused.
void check_plan(const PlanProblem& problem, const std::vector<std::int64_t>& offsets) {
  if (offsets.size() != problem.buffers.size()) throw invalid_argument("write_plan_csv: expected one offset a buffer");
  const auto fault = validate_plan(problem, offsets);
  if (!fault) return;
  throw invalid_argument("write_plan_csv: buffer " + std::to_string(fault->buffer) + ": " + fault->text);
}

// pre: the plan is checked.
void write_rows(std::ostream& out, const PlanProblem& problem, const std::vector<std::int64_t>& offsets) {
  bool alignments = false;
  bool hints = false;
  bool gaps = false;
  for (const PlanBuffer& b : problem.buffers) {
    alignments = alignments || b.alignment != 1;
    hints = hints || b.hint;
    gaps = gaps || !b.gaps.empty();
  }
  out << "id,lower,upper,size" << (alignments ? ",alignment" : "") << (hints ? ",hint" : "") << (gaps ? ",gaps" : "")
      << ",offset\n";
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    const PlanBuffer& b = problem.buffers[i];
    out << (problem.ids.empty() ? std::to_string(i) : quoted(problem.ids[i])) << ',' << b.lower << ',' << b.upper << ','
        << b.size;
    if (alignments) out << ',' << b.alignment;
    if (hints) out << ',' << (b.hint ? std::to_string(*b.hint) : "");
    if (gaps) out << ',' << gaps_of(b);
    out << ',' << offsets[i] << '\n';
  }
}

}  // namespace

void write_plan_csv(std::ostream& out, const PlanProblem& problem, const std::vector<std::int64_t>& offsets) {
  check_plan(problem, offsets);
  write_rows(out, problem, offsets);
}

void write_plan_csv(const std::string& path, const PlanProblem& problem, const std::vector<std::int64_t>& offsets) {
  check_plan(problem, offsets);
  planner::write_file(path, [&](std::ostream& out) { write_rows(out, problem, offsets); });
}

}  // namespace cistern
