// Reads the sizes of memory and control groups. Contract and locking are in host_memory.hpp.
#include "drivers/cpu/host_memory.hpp"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <string_view>
#include <vector>

#if defined(__APPLE__)
#include <sys/sysctl.h>
#else
#include <unistd.h>
#endif

namespace cistern::drivers {
namespace {

// A control-group hierarchy as this process sees it.
struct Mount {
  std::string point;  // Where it is mounted.
  std::string top;    // Which group is at the mount point ("/" unless in a namespace or a bind mount).
};

bool has_word(std::string_view list, std::string_view word) {
  while (!list.empty()) {
    const std::size_t comma = std::min(list.find(','), list.size());
    if (list.substr(0, comma) == word) return true;
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return false;
}

// Mount points are written with blanks as \040 and the like.
std::string unescape(const std::string& text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto octal = [&](std::size_t at) { return text[at] >= '0' && text[at] <= '7'; };
    if (text[i] == '\\' && i + 3 < text.size() && octal(i + 1) && octal(i + 2) && octal(i + 3)) {
      out += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + (text[i + 3] - '0'));
      i += 3;
    } else {
      out += text[i];
    }
  }
  return out;
}

// All mounts of the version-2 hierarchy, or of the version-1 hierarchy that has the memory controller.
std::vector<Mount> find_mounts(const std::string& root, bool version2) {
  std::vector<Mount> mounts;
  std::ifstream file(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    // id parent device top point options [tags...] - type source super-options
    const std::size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::istringstream left(line.substr(0, dash));
    std::istringstream right(line.substr(dash + 3));
    std::string skip, top, point, type, source, options;
    left >> skip >> skip >> skip >> top >> point;
    right >> type >> source >> options;
    const bool wanted = version2 ? type == "cgroup2" : type == "cgroup" && has_word(options, "memory");
    if (wanted && !point.empty()) mounts.push_back({unescape(point), unescape(top)});
  }
  return mounts;
}

// The number in a limit file; SIZE_MAX for "max", a missing file or one that is not understood.
std::size_t read_limit(const std::string& path) {
  std::ifstream file(path);
  std::uint64_t value = 0;
  if (!(file >> value)) return SIZE_MAX;
  return value > SIZE_MAX ? SIZE_MAX : static_cast<std::size_t>(value);
}

// Smallest limit from `group` up to the mount's top.
std::size_t smallest_limit(const std::string& root, const Mount& mount, std::string group, const char* file) {
  if (mount.top != "/") {
    const bool inside = group == mount.top || group.rfind(mount.top + "/", 0) == 0;
    group = inside ? group.substr(mount.top.size()) : "";
  }
  // A path with ".." points out of this process's namespace: only the mount's top can be seen.
  if (group.find("..") != std::string::npos) group.clear();
  std::size_t limit = SIZE_MAX;
  while (true) {
    while (!group.empty() && group.back() == '/') group.pop_back();
    limit = std::min(limit, read_limit(root + mount.point + group + "/" + file));
    if (group.empty()) return limit;
    group.resize(group.rfind('/') == std::string::npos ? 0 : group.rfind('/'));
  }
}

}  // namespace

std::size_t physical_memory() {
#if defined(__APPLE__)
  std::uint64_t bytes = 0;
  std::size_t size = sizeof bytes;
  return sysctlbyname("hw.memsize", &bytes, &size, nullptr, 0) == 0 ? static_cast<std::size_t>(bytes) : 0;
#else
  const long pages = sysconf(_SC_PHYS_PAGES);
  const long page = sysconf(_SC_PAGESIZE);
  return pages > 0 && page > 0 ? static_cast<std::size_t>(pages) * static_cast<std::size_t>(page) : 0;
#endif
}

std::size_t cgroup_memory_limit(const std::string& root) {
  std::size_t limit = SIZE_MAX;
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    // number:controllers:group, with no controllers for version 2
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool version2 = controllers.empty();
    if (!version2 && !has_word(controllers, "memory")) continue;
    for (const Mount& mount : find_mounts(root, version2)) {
      limit = std::min(limit, smallest_limit(root, mount, line.substr(second + 1),
                                             version2 ? "memory.max" : "memory.limit_in_bytes"));
    }
  }
  return limit;
}

std::size_t usable_memory() {
  const std::size_t physical = physical_memory();
  return std::min(physical == 0 ? SIZE_MAX : physical, cgroup_memory_limit());
}

}  // namespace cistern::drivers
