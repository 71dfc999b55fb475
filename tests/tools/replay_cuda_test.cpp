// Every recorded trace through `cistern replay` on the CUDA driver over the stand-in, which lists broken rules and what
// was not given back, and ends with a status of its own then. Bytes are written and read back by the device.
#include <filesystem>

#include "run_cli.hpp"
#include "standin/cuda/standin.hpp"

namespace cistern::tools_test {
namespace {

class ReplayCuda : public Cli, public testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    Cli::SetUp();
    setenv("CISTERN_CUDA_LIBRARY", CISTERN_STANDIN_DIR "/libcistern_standin_cuda.so", 1);
    setenv("CISTERN_STANDIN_MEMORY", "25769803776", 1);
    setenv("CISTERN_STANDIN_REPORT", "strict", 1);
    setenv("CISTERN_STANDIN_LAG_US", "1000", 1);
  }
  void TearDown() override {
    for (const char* name : {"CISTERN_CUDA_LIBRARY", "CISTERN_STANDIN_MEMORY", "CISTERN_STANDIN_REPORT",
                             "CISTERN_STANDIN_LAG_US", "CISTERN_CUDA_MEMORY"}) {
      unsetenv(name);
    }
    Cli::TearDown();
  }
  static std::string trace(const std::string& name) {
    const char* const folder = std::getenv("CISTERN_TRACES");
    return (folder != nullptr ? std::string(folder) : CISTERN_SOURCE_DIR "/data/traces") + "/" + name + ".csv.gz";
  }
  void replay(const std::vector<std::string>& options) {
    const std::string path = trace(GetParam());
    if (!std::filesystem::exists(path)) GTEST_SKIP() << path;
    std::vector<std::string> arguments = {"replay", "--device", "cuda", "--json", "--repeat", "2"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    arguments.push_back(path);
    const Ran ran = run(arguments);
    ASSERT_EQ(ran.status, 0) << ran.out << ran.err;
    const auto row = lines(ran.out).at(0);
    EXPECT_EQ(row["failed"], 0);
    EXPECT_EQ(row["check"]["faults"], 0) << ran.out;
    EXPECT_GT(row["check"]["bytes_verified"], 100000);
    ratio_ = row["ratio"].get<double>();
  }
  double ratio_ = 0;
};

TEST_P(ReplayCuda, VirtualMemory) {
  replay({"--check"});
  EXPECT_LE(ratio_, 1.08);
}

TEST_P(ReplayCuda, Segments) {
  setenv("CISTERN_CUDA_MEMORY", "segments", 1);
  replay({"--check"});
}

INSTANTIATE_TEST_SUITE_P(Traces, ReplayCuda,
                         testing::Values("gpt2_train", "gpt2_train_ckpt", "moe_decode", "qwen_decode", "resnet_varres",
                                         "serving", "two_streams", "vit_infer"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace cistern::tools_test
