// Files that appear whole or not at all. See write_file.hpp.
#include "write_file.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "cli.hpp"
#include "trace/sink.hpp"

namespace cistern::tools {
namespace {

namespace fs = std::filesystem;

// After the check: the disk is full, the folder is gone.
[[noreturn]] void fail(const std::string& path, std::string_view why) {
  throw std::runtime_error(fmt::format("{}: could not be written: {}", path, why));
}

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

void write_gzip(const std::string& path, std::string_view content) {
  try {
    trace::ByteSink sink(path);
    sink.write(content);
    sink.commit();
  } catch (const trace::WriteError& error) {
    fail(path, error.found());
  }
}

}  // namespace

void check_writable(const std::string& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) refuse(path, "is a folder");
  errno = 0;
  if (special(path)) {
    // A pipe would wait for its reader, and be closed on it.
    if (!fs::is_fifo(path, error) && !std::ofstream(path, std::ios::binary)) refuse(path, std::strerror(errno));
    return;
  }
  const std::string part = temporary(trace::follow_links(path));
  std::ofstream out(part, std::ios::binary);
  if (!out) refuse(path, std::strerror(errno));
  out.close();
  fs::remove(part, error);
}

bool same_file(const std::string& path, const std::string& other) {
  if (special(path)) return false;
  std::error_code error;
  const fs::path a = fs::weakly_canonical(fs::absolute(trace::follow_links(path), error), error);
  const fs::path b = fs::weakly_canonical(fs::absolute(trace::follow_links(other), error), error);
  return path == other || (!a.empty() && a == b) || fs::equivalent(path, other, error);
}

void check_no_input(const std::string& path, const std::vector<std::string>& inputs) {
  for (const std::string& input : inputs) {
    if (same_file(path, input)) {
      throw UsageError(fmt::format("{}: is an input, which would be lost; expected another file to write", path));
    }
  }
}

void write_file(const std::string& path, std::string_view content) {
  if (path.ends_with(".gz")) return write_gzip(path, content);
  const bool in_place = special(path);
  const std::string file = trace::follow_links(path);
  const std::string target = in_place ? file : temporary(file);
  errno = 0;
  std::ofstream out(target, std::ios::binary | std::ios::trunc);
  out.write(content.data(), static_cast<std::streamsize>(content.size()));
  out.close();
  std::error_code error;
  if (!out) {
    const std::string why = errno != 0 ? std::strerror(errno) : "cannot be written";
    if (!in_place) fs::remove(target, error);
    fail(path, why);
  }
  if (in_place) return;
  fs::rename(target, file, error);
  if (error) {
    const std::string why = error.message();
    fs::remove(target, error);
    fail(path, why);
  }
}

}  // namespace cistern::tools
