// Files that appear whole or not at all. See write_file.hpp.
#include "write_file.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "cli.hpp"

namespace cistern::tools {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const std::string& path, std::string_view why) {
  throw UsageError(fmt::format("{}: {}; expected a file that can be written", path, why));
}

std::string temporary(const std::string& path) { return fmt::format("{}.{}.part", path, getpid()); }

// A pipe or a device is written in place.
bool special(const std::string& path) {
  std::error_code error;
  const auto type = fs::status(path, error).type();
  return !error && type != fs::file_type::regular && type != fs::file_type::not_found;
}

}  // namespace

void check_writable(const std::string& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) refuse(path, "is a folder");
  if (special(path)) return;
  const std::string part = temporary(path);
  std::ofstream out(part, std::ios::binary);
  if (!out) refuse(path, std::strerror(errno));
  out.close();
  fs::remove(part, error);
}

void check_no_input(const std::string& path, const std::vector<std::string>& inputs) {
  if (special(path)) return;
  for (const std::string& input : inputs) {
    std::error_code error;
    if (path == input || fs::equivalent(path, input, error)) {
      throw UsageError(fmt::format("{}: is an input, which would be lost; expected another file to write", path));
    }
  }
}

void write_file(const std::string& path, std::string_view content) {
  const bool in_place = special(path);
  const std::string target = in_place ? path : temporary(path);
  errno = 0;
  std::ofstream out(target, std::ios::binary | std::ios::trunc);
  out.write(content.data(), static_cast<std::streamsize>(content.size()));
  out.close();
  std::error_code error;
  if (!out) {
    const std::string why = errno != 0 ? std::strerror(errno) : "cannot be written";
    if (!in_place) fs::remove(target, error);
    refuse(path, why);
  }
  if (in_place) return;
  fs::rename(target, path, error);
  if (error) {
    const std::string why = error.message();
    fs::remove(target, error);
    refuse(path, why);
  }
}

}  // namespace cistern::tools
