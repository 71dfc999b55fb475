// Runs the built program `cistern` and keeps what it printed. For the tests of the command line.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace cistern::tools_test {

namespace fs = std::filesystem;

struct Ran {
  int status = -1;
  std::string out, err;
};

inline std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// A folder of the test's own, and the program run in it.
class Cli : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "cistern-cli-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override {
    std::error_code error;
    fs::remove_all(folder_, error);
  }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string write(const std::string& name, std::string_view content) const {
    std::ofstream(folder_ / name, std::ios::binary).write(content.data(), static_cast<std::streamsize>(content.size()));
    return path(name);
  }
  Ran run(const std::vector<std::string>& arguments) const {
    std::string command = "cd '" + folder_.string() + "' && '" CISTERN_CLI "'";
    for (const std::string& argument : arguments) {
      command += " '";
      for (const char c : argument) command += c == '\'' ? std::string("'\\''") : std::string(1, c);
      command += "'";
    }
    command += " >.out 2>.err </dev/null";
    const int status = std::system(command.c_str());
    Ran ran;
    ran.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    ran.out = read_file(folder_ / ".out");
    ran.err = read_file(folder_ / ".err");
    return ran;
  }
  static std::vector<nlohmann::json> lines(const std::string& text) {
    std::vector<nlohmann::json> out;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) out.push_back(nlohmann::json::parse(line));
    return out;
  }
  // Refused as bad input: status 2, nothing printed as a result, the text in the message, which names the program.
  void expect_refused(const std::vector<std::string>& arguments, const std::string& text) const {
    const Ran ran = run(arguments);
    EXPECT_EQ(ran.status, 2) << ran.out << ran.err;
    EXPECT_EQ(ran.out, "");
    EXPECT_NE(ran.err.find(text), std::string::npos) << ran.err;
    EXPECT_EQ(ran.err.rfind("cistern: ", 0), 0U) << "whose message it is: " << ran.err;
  }

  fs::path folder_;
};

inline constexpr const char* kTrace =
    "event,id,size,stream,time_us\n"
    "a,0,1048576,0,0\n"
    "a,1,3000000,0,10\n"
    "f,0,1048576,0,20\n"
    "a,2,500,0,30\n"
    "f,1,3000000,0,40\n";

}  // namespace cistern::tools_test
