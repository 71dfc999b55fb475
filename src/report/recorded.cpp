// Reads native.json. See recorded.hpp.
#include "report/recorded.hpp"

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace cistern::report {

std::map<std::string, Recorded> load_recorded(const std::string& trace_path, std::string& problem) {
  std::map<std::string, Recorded> out;
  const std::filesystem::path file = std::filesystem::path(trace_path).parent_path() / "native.json";
  std::error_code error;
  if (!std::filesystem::is_regular_file(file, error)) return out;
  std::ifstream stream(file);
  const nlohmann::json all = nlohmann::json::parse(stream, nullptr, false);
  if (!all.is_object()) {
    problem = file.string() + ": expected a JSON object of traces";
    return out;
  }
  const auto read = [](const nlohmann::json& entry, const char* name) {
    RecordedFigure figure;
    const auto it = entry.find(name);
    if (it == entry.end() || !it->is_object()) return figure;
    const auto number = [&](const char* key) {
      const auto value = it->find(key);
      return value != it->end() && value->is_number() ? value->get<double>() : 0.0;
    };
    figure.ratio = number("ratio");
    figure.ns_first = number("ns_first");
    figure.ns_second = number("ns_second");
    return figure;
  };
  for (const auto& [name, entry] : all.items()) {
    if (!entry.is_object()) continue;
    out[name] = {read(entry, "native"), read(entry, "expandable"), read(entry, "async")};
  }
  return out;
}

}  // namespace cistern::report
