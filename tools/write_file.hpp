// Files that appear whole or not at all. Used by the commands. Any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace cistern::tools {

// Throws UsageError, naming the file, when it could not be written: the folder is missing, it is a folder itself, no
// permission. Leaves nothing behind. For telling so before long work.
void check_writable(const std::string& path);

// Whether writing both paths would write one file, under whatever names. Never for a pipe or a device.
bool same_file(const std::string& path, const std::string& other);

// Throws UsageError when writing `path` would replace one of the files, under whatever name.
void check_no_input(const std::string& path, const std::vector<std::string>& inputs);

// Writes beside the file, then takes its place; through a symbolic link; with gzip for a name in ".gz". Throws
// runtime_error naming the file. pre: check_writable().
void write_file(const std::string& path, std::string_view content);

}  // namespace cistern::tools
