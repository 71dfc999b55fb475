// Each rule of Apple's that the stand-in enforces is broken once, and must be reported: a stand-in that lets a fault
// pass would make the tests over it worthless. Rules that metal_standin_test.cpp breaks already are not repeated here.
#include <cstdlib>

#include "drivers/metal_support.hpp"

namespace cistern::drivers {
namespace {

using metal::Hazard;
using metal::Storage;
using objc::AutoreleasePool;
using objc::Int;
using objc::Ref;
using objc::runtime;
using objc::Sel;
using objc::send;
using objc::UInt;

class MetalMisuse : public MetalTest {
 protected:
  void SetUp() override {
    MetalTest::SetUp();
    if (IsSkipped()) return;
    expect_violations();
    begin();
  }
  void TearDown() override {
    device_.reset();
    MetalTest::TearDown();
  }
  void begin(const Settings& settings = {}) {
    device_.reset();
    library().restart(settings);
    const AutoreleasePool pool;
    device_ = Ref<metal::Device>::adopt(runtime().create_default_device());
    ASSERT_TRUE(device_);
  }
  // Exactly one violation since the last look, with this text in it.
  void expect_told(const char* text) {
    const std::vector<std::string> all = library().violations();
    control().clear_violations();
    ASSERT_EQ(all.size(), 1u) << text;
    EXPECT_NE(all[0].find(text), std::string::npos) << all[0];
  }
  static Sel sel(const char* name) { return runtime().register_name(name); }
  Ref<metal::Buffer> buffer(std::size_t bytes) { return metal::new_buffer(device_.get(), bytes, kOptions); }
  // A descriptor of a heap; `type` 1 is placement.
  Ref<objc::Object> heap_descriptor(UInt bytes, Int type) {
    void* const made =
        send<void*>(send<void*>(runtime().look_up_class("MTLHeapDescriptor"), sel("alloc")), sel("init"));
    send<void, Int>(made, sel("setType:"), type);
    send<void, UInt>(made, sel("setStorageMode:"), static_cast<UInt>(Storage::shared));
    send<void, UInt>(made, sel("setSize:"), bytes);
    return Ref<objc::Object>::adopt(made);
  }
  static constexpr UInt kOptions = metal::resource_options(Storage::shared, Hazard::untracked);
  static constexpr UInt kPrivate = metal::resource_options(Storage::private_, Hazard::untracked);

  Ref<metal::Device> device_;
};

TEST_F(MetalMisuse, Lengths) {
  begin({{"MAX_BUFFER", "1048576"}});
  const AutoreleasePool pool;
  EXPECT_FALSE(buffer(kMiB + 1));
  expect_told("more than maxBufferLength");
  const auto heap = metal::new_placement_heap(device_.get(), 4 * kMiB, Storage::shared, Hazard::untracked);
  ASSERT_TRUE(heap);
  EXPECT_FALSE(metal::new_buffer_in(heap.get(), 2 * kMiB, kOptions, 0));
  expect_told("more than maxBufferLength");
  EXPECT_FALSE(metal::new_buffer_in(heap.get(), 0, kOptions, 0));
  expect_told("length is 0");
  metal::heap_buffer_size_and_align(device_.get(), 0, kOptions);
  expect_told("length is 0");
}

TEST_F(MetalMisuse, Heaps) {
  const AutoreleasePool pool;
  EXPECT_FALSE(metal::new_placement_heap(device_.get(), 0, Storage::shared, Hazard::untracked));
  expect_told("size is 0");
  const auto automatic = heap_descriptor(kMiB, 0);
  const auto heap =
      Ref<metal::Heap>::adopt(send<void*, void*>(device_.get(), sel("newHeapWithDescriptor:"), automatic.get()));
  ASSERT_TRUE(heap);
  EXPECT_FALSE(metal::new_buffer_in(heap.get(), 4096, kOptions, 0));
  expect_told("not of the placement type");
  // Another cache mode is another option, too.
  const auto placement = metal::new_placement_heap(device_.get(), kMiB, Storage::shared, Hazard::untracked);
  EXPECT_FALSE(metal::new_buffer_in(placement.get(), 4096, kOptions | 1, 0));
  expect_told("do not match");
}

TEST_F(MetalMisuse, Views) {
  const AutoreleasePool pool;
  const auto memory = buffer(65536);
  void* const page = metal::contents(memory.get());
  EXPECT_FALSE(metal::new_buffer_no_copy(device_.get(), page, 16384 + 1, kOptions));
  expect_told("whole pages");
  EXPECT_FALSE(metal::new_buffer_no_copy(device_.get(), page, 16384, kPrivate));
  expect_told("private storage");
  EXPECT_EQ(
      (send<void*, void*, UInt, UInt, void*>(device_.get(), sel("newBufferWithBytesNoCopy:length:options:deallocator:"),
                                             page, UInt{16384}, kOptions, page)),
      nullptr);
  expect_told("runs no blocks");
}

TEST_F(MetalMisuse, SparseBuffers) {
  begin({{"WITH", "sparse"}});
  const AutoreleasePool pool;
  EXPECT_FALSE(metal::new_sparse_buffer(device_.get(), kMiB, kOptions));
  expect_told("must be private");
  EXPECT_EQ((send<void*, UInt, UInt, Int>(device_.get(), sel("newBufferWithLength:options:placementSparsePageSize:"),
                                          UInt{kMiB}, kPrivate, Int{7})),
            nullptr);
  expect_told("7 is none");
  begin();
  EXPECT_FALSE(metal::new_sparse_buffer(device_.get(), kMiB, kPrivate));
  expect_told("does not understand");
}

TEST_F(MetalMisuse, Ownership) {
  const AutoreleasePool pool;
  void* const gone = buffer(4096).leave();
  runtime().release(gone);
  runtime().retain(gone);
  expect_told("retain of a deallocated MTLBuffer");
  void* const one = runtime().pool_push();
  runtime().pool_pop(one);
  runtime().pool_pop(one);
  expect_told("popped that is not there");
  const auto all = Ref<objc::Object>::adopt(runtime().copy_all_devices());
  EXPECT_EQ((send<void*, UInt>(all.get(), sel("objectAtIndex:"), UInt{1})), nullptr);
  expect_told("objectAtIndex");
}

TEST_F(MetalMisuse, ResidencySets) {
  const AutoreleasePool pool;
  void* error = nullptr;
  const auto bare = Ref<metal::ResidencySet>::adopt(
      send<void*, void*, void**>(device_.get(), sel("newResidencySetWithDescriptor:error:"), nullptr, &error));
  expect_told("no descriptor");
  const auto queue = metal::new_queue(device_.get());
  const auto set = metal::new_residency_set(device_.get());
  metal::add_allocation(set.get(), queue.get());
  expect_told("is no MTLAllocation");
  const auto memory = buffer(65536);
  metal::remove_allocation(set.get(), memory.get());
  expect_told("it is not in the set");
  metal::add_residency_set(queue.get(), set.get());
  metal::add_residency_set(queue.get(), set.get());
  expect_told("has it already");
  // A removal that is staged is a change, too.
  metal::add_allocation(set.get(), memory.get());
  metal::commit(set.get());
  metal::request_residency(set.get());
  metal::remove_allocation(set.get(), memory.get());
  metal::request_residency(set.get());
  expect_told("not committed");
  metal::remove_allocation(set.get(), memory.get());
  expect_told("it is not in the set");
}

TEST_F(MetalMisuse, CommandBuffersAndEncoders) {
  const AutoreleasePool pool;
  const auto queue = metal::new_queue(device_.get());
  const auto memory = buffer(4096);
  const auto event = metal::new_shared_event(device_.get());
  auto* commands = metal::command_buffer(queue.get());
  void* const encoder = send<void*>(commands, sel("blitCommandEncoder"));
  metal::encode_signal(commands, event.get(), 1);
  expect_told("has not ended");
  metal::encode_wait(commands, event.get(), 1);
  expect_told("has not ended");
  EXPECT_EQ(send<void*>(commands, sel("blitCommandEncoder")), nullptr);
  expect_told("has not ended");
  metal::commit(commands);
  expect_told("has not ended");
  send<void>(encoder, sel("endEncoding"));
  send<void>(encoder, sel("endEncoding"));
  expect_told("the encoder has ended");
  send<void, void*, metal::Range, std::uint8_t>(encoder, sel("fillBuffer:range:value:"), memory.get(),
                                                metal::Range{0, 64}, std::uint8_t{1});
  expect_told("the encoder has ended");
  send<void, void*, UInt, void*, UInt, UInt>(encoder,
                                             sel("copyFromBuffer:sourceOffset:toBuffer:destinationOffset:size:"),
                                             memory.get(), UInt{0}, memory.get(), UInt{1024}, UInt{64});
  expect_told("the encoder has ended");
  send<void>(commands, sel("waitUntilCompleted"));
  expect_told("was not committed");
  metal::encode_fill(commands, memory.get(), 0, 0, 1);
  expect_told("0 bytes");
  metal::encode_copy(commands, memory.get(), 4092, memory.get(), 0, 8);
  expect_told("outside");
  metal::commit(commands);
  metal::encode_fill(commands, memory.get(), 0, 64, 1);
  expect_told("was committed");  // There is no encoder then, and nil takes every message.
  {
    const AutoreleasePool inner;
    metal::encode_signal(metal::command_buffer(queue.get()), event.get(), 5);
  }
  expect_told("never committed");
  {
    const AutoreleasePool inner;
    auto* const open = metal::command_buffer(queue.get());
    send<void*>(open, sel("blitCommandEncoder"));
  }
  expect_told("released before endEncoding");
  control().complete_all();
}

TEST_F(MetalMisuse, EventsAndKernels) {
  const AutoreleasePool pool;
  const auto queue = metal::new_queue(device_.get());
  const auto event = metal::new_shared_event(device_.get());
  for (const std::uint64_t value : {5U, 4U}) {
    auto* const commands = metal::command_buffer(queue.get());
    metal::encode_signal(commands, event.get(), value);
    metal::commit(commands);
  }
  control().complete_all();
  expect_told("below its own");
  const auto memory = buffer(4096);
  EXPECT_NE(control().launch_fill(queue.get(), memory.get(), 4096, 4, 1, 1), 0);
  expect_told("no such part");
  // Bytes that were overwritten in between are counted.
  control().launch_fill(queue.get(), memory.get(), 0, 4096, 1, 1);
  control().launch_fill(queue.get(), memory.get(), 0, 16, 2, 1);
  control().launch_check(queue.get(), memory.get(), 0, 4096, 1, 1);
  control().complete_all();
  EXPECT_GT(control().mismatches(), 0u);
}

// What is broken or alive at the end of a program is told then, and makes its status 86.
using MetalMisuseAtExit = MetalMisuse;
TEST_F(MetalMisuseAtExit, LeaksAndViolationsEndTheProgram) {
  const auto end = [&](bool leak, bool violate, const char* report) {
    setenv("CISTERN_METAL_STANDIN_REPORT", report, 1);
    device_.reset();
    library().restart();
    const AutoreleasePool pool;
    const auto device = Ref<metal::Device>::adopt(runtime().create_default_device());
    if (leak) metal::new_queue(device.get()).leave();
    if (violate) metal::new_buffer(device.get(), 0, kOptions);
    std::exit(0);
  };
  EXPECT_EXIT(end(true, false, "strict"), ::testing::ExitedWithCode(standin::metal::kStrictExit),
              "leak: MTLCommandQueue: 1 alive");
  EXPECT_EXIT(end(false, true, "strict"), ::testing::ExitedWithCode(standin::metal::kStrictExit), "the length is 0");
  EXPECT_EXIT(end(true, true, "1"), ::testing::ExitedWithCode(0), "leak: MTLCommandQueue");
  EXPECT_EXIT(end(false, false, "strict"), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace cistern::drivers
