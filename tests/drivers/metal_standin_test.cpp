// The stand-in of the Objective-C runtime and Metal: the trampoline, ownership, and that broken rules are seen.
#include <thread>

#include "drivers/metal_support.hpp"

namespace cistern::drivers {
namespace {

using objc::AutoreleasePool;
using objc::Ref;
using objc::runtime;
using objc::send;
using objc::UInt;

class MetalStandin : public MetalTest {
 protected:
  void SetUp() override {
    MetalTest::SetUp();
    if (IsSkipped()) return;
    const AutoreleasePool pool;
    device_ = Ref<metal::Device>::adopt(runtime().create_default_device());
    ASSERT_TRUE(device_);
  }
  void TearDown() override {
    device_.reset();
    MetalTest::TearDown();
  }
  Ref<metal::Heap> heap(std::size_t bytes) {
    return metal::new_placement_heap(device_.get(), bytes, metal::Storage::shared, metal::Hazard::untracked);
  }
  static constexpr UInt kOptions = metal::resource_options(metal::Storage::shared, metal::Hazard::untracked);
  // The one violation since the last look.
  std::string violation() {
    const std::vector<std::string> all = library().violations();
    control().clear_violations();
    expect_violations();
    return all.size() == 1 ? all[0] : std::to_string(all.size()) + " violations";
  }
  static bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

  Ref<metal::Device> device_;
};

TEST_F(MetalStandin, ANullReceiverReturnsZeros) {
  EXPECT_EQ(send<void*>(nullptr, runtime().register_name("name")), nullptr);
  const auto pair = metal::heap_buffer_size_and_align(nullptr, 1, 0);
  EXPECT_EQ(pair.size, 0u);
  EXPECT_EQ(pair.align, 0u);
  EXPECT_EQ(send<double>(nullptr, runtime().register_name("value")), 0.0);
}

TEST_F(MetalStandin, ArgumentsOnTheStackAndInStructuresArrive) {
  const AutoreleasePool pool;
  const auto queue = metal::new_queue(device_.get());
  const auto a = metal::new_buffer(device_.get(), 4096, kOptions), b = metal::new_buffer(device_.get(), 4096, kOptions);
  auto* const commands = metal::command_buffer(queue.get());
  metal::encode_fill(commands, a.get(), 100, 200, 0x7E);
  metal::encode_copy(commands, a.get(), 96, b.get(), 512, 208);  // Seven arguments: one is on the stack.
  metal::commit(commands);
  control().complete_all();
  const auto* const bytes = static_cast<const unsigned char*>(metal::contents(b.get()));
  EXPECT_EQ(bytes[515], 0);
  EXPECT_EQ(bytes[516], 0x7E);
  EXPECT_EQ(bytes[715], 0x7E);
  EXPECT_EQ(bytes[716], 0);
}

TEST_F(MetalStandin, OwnershipIsCounted) {
  {
    const AutoreleasePool pool;
    auto queue = metal::new_queue(device_.get());
    EXPECT_EQ(control().live_objects("MTLCommandQueue"), 1u);
    auto again = Ref<metal::Queue>::retain(queue.get());
    queue.reset();
    EXPECT_EQ(control().live_objects("MTLCommandQueue"), 1u);
    {
      const AutoreleasePool inner;
      metal::command_buffer(again.get());
      EXPECT_EQ(control().live_objects("MTLCommandBuffer"), 1u);
    }
    EXPECT_EQ(control().live_objects("MTLCommandBuffer"), 0u);
  }
  EXPECT_EQ(control().live_objects("MTLCommandQueue"), 0u);
}

TEST_F(MetalStandin, BrokenRulesOfOwnershipAreSeen) {
  const AutoreleasePool pool;
  void* const queue = metal::new_queue(device_.get()).leave();
  EXPECT_EQ(library().leaks().size(), 1u);
  runtime().release(queue);
  runtime().release(queue);
  EXPECT_TRUE(has(violation(), "over-release"));
  send<void*>(queue, runtime().register_name("commandBuffer"));
  EXPECT_TRUE(has(violation(), "deallocated"));
  send<void*>(device_.get(), runtime().register_name("fly:"));
  EXPECT_TRUE(has(violation(), "does not understand"));
  std::thread([&] { metal::name(device_.get()); }).join();
  EXPECT_TRUE(has(violation(), "no pool"));
}

TEST_F(MetalStandin, BrokenRulesOfHeapsAreSeen) {
  const AutoreleasePool pool;
  const auto h = heap(kMiB);
  EXPECT_FALSE(metal::new_buffer_in(h.get(), 4096,
                                    metal::resource_options(metal::Storage::private_, metal::Hazard::untracked), 0));
  EXPECT_TRUE(has(violation(), "do not match"));
  EXPECT_FALSE(
      metal::new_buffer_in(h.get(), 4096, metal::resource_options(metal::Storage::shared, metal::Hazard::tracked), 0));
  EXPECT_TRUE(has(violation(), "do not match"));
  EXPECT_FALSE(metal::new_buffer_in(h.get(), 4096, kOptions, 128));
  EXPECT_TRUE(has(violation(), "multiple"));
  EXPECT_FALSE(metal::new_buffer_in(h.get(), 4096, kOptions, kMiB - 1024));
  EXPECT_TRUE(has(violation(), "beyond"));
  EXPECT_FALSE(metal::new_buffer(device_.get(), 0, kOptions));
  EXPECT_TRUE(has(violation(), "length is 0"));
  char memory[64];
  EXPECT_FALSE(metal::new_buffer_no_copy(device_.get(), memory + 1, 64, kOptions));
  EXPECT_TRUE(has(violation(), "whole pages"));
}

TEST_F(MetalStandin, BrokenRulesOfResidencyAreSeen) {
  const AutoreleasePool pool;
  const auto h = heap(kMiB);
  const auto queue = metal::new_queue(device_.get());
  const auto set = metal::new_residency_set(device_.get());
  metal::add_allocation(set.get(), h.get());
  metal::request_residency(set.get());
  EXPECT_TRUE(has(violation(), "not committed"));
  metal::add_allocation(set.get(), h.get());
  EXPECT_TRUE(has(violation(), "in the set already"));
  std::vector<Ref<metal::ResidencySet>> sets;
  for (UInt i = 0; i < metal::kResidencySetsPerQueue; ++i) {
    sets.push_back(metal::new_residency_set(device_.get()));
    metal::add_residency_set(queue.get(), sets.back().get());
  }
  EXPECT_EQ(library().violations().size(), 0u);
  metal::add_residency_set(queue.get(), set.get());
  EXPECT_TRUE(has(violation(), "32 sets"));
  metal::remove_residency_set(queue.get(), set.get());
  EXPECT_TRUE(has(violation(), "does not have it"));
}

TEST_F(MetalStandin, BrokenRulesOfWorkAreSeen) {
  const AutoreleasePool pool;
  const auto queue = metal::new_queue(device_.get());
  const auto buffer = metal::new_buffer(device_.get(), 4096, kOptions);
  auto* commands = metal::command_buffer(queue.get());
  metal::encode_fill(commands, buffer.get(), 0, 4096 + 4, 1);
  EXPECT_TRUE(has(violation(), "outside"));
  metal::encode_fill(commands, buffer.get(), 0, 6, 1);
  EXPECT_TRUE(has(violation(), "multiples of 4"));
  metal::commit(commands);
  metal::commit(commands);
  EXPECT_TRUE(has(violation(), "was committed"));
  auto gone = metal::new_buffer(device_.get(), 4096, kOptions);
  control().set_manual(1);
  control().launch_fill(queue.get(), gone.get(), 0, 4096, 1, 0);
  gone.reset();
  control().complete_all();
  EXPECT_TRUE(has(violation(), "released before"));
}

TEST_F(MetalStandin, TheNthCallFailsOnDemand) {
  const AutoreleasePool pool;
  control().fail("newBufferWithLength:options:", 2, 2);
  EXPECT_TRUE(metal::new_buffer(device_.get(), 64, kOptions));
  EXPECT_FALSE(metal::new_buffer(device_.get(), 64, kOptions));
  EXPECT_FALSE(metal::new_buffer(device_.get(), 64, kOptions));
  EXPECT_TRUE(metal::new_buffer(device_.get(), 64, kOptions));
  EXPECT_EQ(control().injected(), 2u);
}

}  // namespace
}  // namespace cistern::drivers
