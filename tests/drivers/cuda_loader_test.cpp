// Finding the library, old drivers, no device.
#include "drivers/cuda/cuda_loader.hpp"

#include "drivers/cuda_fixture.hpp"

namespace cistern::drivers {
namespace {

class CudaLoader : public CudaTest {};

const char* path() { return std::getenv("CISTERN_CUDA_LIBRARY"); }

TEST_F(CudaLoader, AMissingLibraryIsNamed) {
  cuda::CudaApi api;
  std::string why;
  EXPECT_FALSE(cuda::load("/nowhere/libcuda.so.1", api, why));
  EXPECT_TRUE(contains(why, "CUDA") && contains(why, "/nowhere/libcuda.so.1")) << why;
  EXPECT_EQ(api.init, nullptr);
}

TEST_F(CudaLoader, ALibraryThatIsNotCudaIsRefused) {
  cuda::CudaApi api;
  std::string why;
  EXPECT_FALSE(cuda::load("libm.so.6", api, why));
  EXPECT_TRUE(contains(why, "libm.so.6") && contains(why, "cuInit")) << why;
}

TEST_F(CudaLoader, EveryEntryPointOfANewDriverIsFound) {
  cuda::CudaApi api;
  std::string why;
  ASSERT_TRUE(cuda::load(path(), api, why)) << why;
#define CISTERN_EXPECT_FOUND(member, name, version, symbol, need, ...) EXPECT_NE(api.member, nullptr) << name;
  CISTERN_CUDA_ENTRY_POINTS(CISTERN_EXPECT_FOUND)
#undef CISTERN_EXPECT_FOUND
  EXPECT_EQ(api.version, 13000);
}

TEST_F(CudaLoader, AnOldDriverHasLess) {
  restart({{"VERSION", "11010"}});
  cuda::CudaApi api;
  std::string why;
  ASSERT_TRUE(cuda::load(path(), api, why)) << why;
  EXPECT_EQ(api.stream_number, nullptr);
  EXPECT_EQ(api.allocate_async, nullptr);
  EXPECT_FALSE(api.has_pools());
  EXPECT_TRUE(api.has_virtual_memory());
}

TEST_F(CudaLoader, ADriverThatIsTooOldIsRefused) {
  restart({{"VERSION", "10020"}});
  cuda::CudaApi api;
  std::string why;
  EXPECT_FALSE(cuda::load(path(), api, why));
  EXPECT_TRUE(contains(why, "10.2") && contains(why, "11.0")) << why;
}

TEST_F(CudaLoader, NoDeviceIsSaidClearly) {
  restart({{"DEVICES", "0"}});
  std::string why;
  EXPECT_TRUE(list_cuda_devices(&why).empty());
  EXPECT_TRUE(contains(why, "no device")) << why;
  EXPECT_EQ(make_cuda_driver(0, {}, &why), nullptr);
  EXPECT_TRUE(contains(why, "no device")) << why;
}

TEST_F(CudaLoader, SettingsThatNobodyKnowsAreRefusedByName) {
  for (const char* name : {"CISTERN_CUDA_MEMORY", "CISTERN_CUDA_UNIFIED"}) {
    const char* const before = std::getenv(name);
    const std::string kept = before != nullptr ? before : "";
    setenv(name, "virtul", 1);
    std::string why;
    EXPECT_FALSE(cuda_config_from_environment(&why));
    EXPECT_TRUE(contains(why, std::string(name) + "=virtul")) << why;
    setenv(name, kept.c_str(), 1);
    EXPECT_TRUE(cuda_config_from_environment(&why)) << why;
  }
}

TEST_F(CudaLoader, DevicesAreListedWithWhatTheyCan) {
  restart({{"DEVICES", "3"}, {"MEMORY", "1073741824"}, {"WITHOUT", "concurrent rdma"}});
  std::string why;
  const std::vector<CudaDeviceInfo> all = list_cuda_devices(&why);
  ASSERT_EQ(all.size(), 3u) << why;
  EXPECT_EQ(all[2].index, 2);
  EXPECT_EQ(all[2].name, "Stand-in GPU 2");
  EXPECT_EQ(all[0].total_memory, 1073741824u);
  EXPECT_EQ(all[0].compute_major, 9);
  EXPECT_TRUE(all[0].virtual_memory && all[0].memory_pools && all[0].managed && all[0].exportable);
  EXPECT_FALSE(all[0].concurrent_managed || all[0].rdma);
  EXPECT_EQ(cuda_driver_version(), 13000);
  EXPECT_EQ(make_cuda_driver(3, {}, &why), nullptr);
  EXPECT_TRUE(contains(why, "no device 3") && contains(why, "3 can be used")) << why;
  EXPECT_EQ(make_cuda_driver(-1, {}, &why), nullptr);
}

}  // namespace
}  // namespace cistern::drivers
