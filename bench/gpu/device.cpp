// Kernels and the few calls of the vendor's driver that a round makes itself.
#include "device.hpp"

#include <dlfcn.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "drivers/cuda/cuda_loader.hpp"

namespace cistern::gpu {
namespace {

// Word i of a range holds key + i * step.
constexpr const char* kKernels = R"(
.version 6.3
.target sm_75
.address_size 64

.visible .entry spin(.param .u64 p_ns) {
  .reg .pred %p;
  .reg .b64 %d<3>;
  ld.param.u64 %d0, [p_ns];
  mov.u64 %d1, %globaltimer;
  add.u64 %d0, %d0, %d1;
again:
  mov.u64 %d1, %globaltimer;
  setp.lt.u64 %p, %d1, %d0;
  @%p bra again;
  ret;
}

.visible .entry fill(.param .u64 p_at, .param .u64 p_words, .param .u64 p_key) {
  .reg .pred %p;
  .reg .b32 %t<4>;
  .reg .b64 %d<9>;
  ld.param.u64 %d0, [p_at];
  ld.param.u64 %d1, [p_words];
  ld.param.u64 %d2, [p_key];
  cvta.to.global.u64 %d0, %d0;
  mov.u32 %t0, %ctaid.x;
  mov.u32 %t1, %ntid.x;
  mov.u32 %t2, %tid.x;
  mov.u32 %t3, %nctaid.x;
  mul.wide.u32 %d3, %t0, %t1;
  cvt.u64.u32 %d4, %t2;
  add.u64 %d3, %d3, %d4;
  mul.wide.u32 %d5, %t3, %t1;
  mov.u64 %d8, 0x9E3779B97F4A7C15;
again:
  setp.ge.u64 %p, %d3, %d1;
  @%p bra done;
  mad.lo.u64 %d6, %d3, %d8, %d2;
  shl.b64 %d7, %d3, 3;
  add.u64 %d7, %d0, %d7;
  st.global.u64 [%d7], %d6;
  add.u64 %d3, %d3, %d5;
  bra again;
done:
  ret;
}

.visible .entry check(.param .u64 p_at, .param .u64 p_words, .param .u64 p_key, .param .u64 p_counter) {
  .reg .pred %p;
  .reg .b32 %t<4>;
  .reg .b64 %d<12>;
  ld.param.u64 %d0, [p_at];
  ld.param.u64 %d1, [p_words];
  ld.param.u64 %d2, [p_key];
  ld.param.u64 %d9, [p_counter];
  cvta.to.global.u64 %d0, %d0;
  cvta.to.global.u64 %d9, %d9;
  mov.u32 %t0, %ctaid.x;
  mov.u32 %t1, %ntid.x;
  mov.u32 %t2, %tid.x;
  mov.u32 %t3, %nctaid.x;
  mul.wide.u32 %d3, %t0, %t1;
  cvt.u64.u32 %d4, %t2;
  add.u64 %d3, %d3, %d4;
  mul.wide.u32 %d5, %t3, %t1;
  mov.u64 %d8, 0x9E3779B97F4A7C15;
  mov.u64 %d10, 1;
again:
  setp.ge.u64 %p, %d3, %d1;
  @%p bra done;
  mad.lo.u64 %d6, %d3, %d8, %d2;
  shl.b64 %d7, %d3, 3;
  add.u64 %d7, %d0, %d7;
  ld.global.u64 %d11, [%d7];
  setp.eq.u64 %p, %d11, %d6;
  @%p bra same;
  red.global.add.u64 [%d9], %d10;
same:
  add.u64 %d3, %d3, %d5;
  bra again;
done:
  ret;
}
)";

void must(int result, const char* call) {
  if (result == 0) return;
  std::fprintf(stderr, "%s failed with %d\n", call, result);
  std::exit(1);
}

template <class Function>
void find(void* library, Function*& out, const char* symbol) {
  out = reinterpret_cast<Function*>(dlsym(library, symbol));
  if (out == nullptr) must(-1, symbol);
}

}  // namespace

std::uint64_t now_ns() {
  return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}

Device& Device::get() {
  static Device device;
  return device;
}

Device::Device() {
  std::string why;
  api_ = drivers::cuda::library(why);
  if (api_ == nullptr) {
    std::fprintf(stderr, "%s\n", why.c_str());
    std::exit(1);
  }
  must(api_->init(0), "cuInit");
  must(api_->primary_retain(&context_, 0), "cuDevicePrimaryCtxRetain");
  enter();
  const char* const path = std::getenv("CISTERN_CUDA_LIBRARY");
  void* const library = dlopen(path != nullptr ? path : "libcuda.so.1", RTLD_NOW);
  int (*load)(void**, const void*) = nullptr;
  int (*function)(void**, void*, const char*) = nullptr;
  find(library, load, "cuModuleLoadData");
  find(library, function, "cuModuleGetFunction");
  find(library, launch_, "cuLaunchKernel");
  void* module = nullptr;
  must(load(&module, kKernels), "cuModuleLoadData");
  must(function(&spin_, module, "spin"), "cuModuleGetFunction");
  must(function(&fill_, module, "fill"), "cuModuleGetFunction");
  must(function(&check_, module, "check"), "cuModuleGetFunction");
  drivers::cuda::DevicePtr counter = 0;
  must(api_->memory_allocate(&counter, 8), "cuMemAlloc");
  counter_ = counter;
  must(api_->fill_async(counter_, 0, 8, nullptr), "cuMemsetD8Async");
  synchronize();
}

void Device::enter() { must(api_->context_push(context_), "cuCtxPushCurrent"); }

NativeStream Device::make_stream() {
  NativeStream out = nullptr;
  must(api_->stream_create(&out, drivers::cuda::kStreamNonBlocking), "cuStreamCreate");
  return out;
}

void Device::destroy_stream(NativeStream stream) { must(api_->stream_destroy(stream), "cuStreamDestroy"); }

void Device::launch(void* function, unsigned blocks, unsigned threads, NativeStream stream, void** arguments) {
  must(launch_(function, blocks, 1, 1, threads, 1, 1, 0, stream, arguments, nullptr), "cuLaunchKernel");
}

void Device::spin(NativeStream stream, std::uint64_t nanoseconds) {
  void* arguments[] = {&nanoseconds};
  launch(spin_, 1, 1, stream, arguments);
}

namespace {

unsigned blocks_for(std::uint64_t words) {
  const std::uint64_t blocks = (words + 255) / 256;
  return static_cast<unsigned>(blocks < 1 ? 1 : blocks > 1056 ? 1056 : blocks);
}

}  // namespace

void Device::fill(NativeStream stream, std::uint64_t at, std::uint64_t bytes, std::uint64_t key) {
  std::uint64_t words = bytes / 8;
  if (words == 0) return;
  void* arguments[] = {&at, &words, &key};
  launch(fill_, blocks_for(words), 256, stream, arguments);
}

void Device::check(NativeStream stream, std::uint64_t at, std::uint64_t bytes, std::uint64_t key) {
  std::uint64_t words = bytes / 8;
  if (words == 0) return;
  void* arguments[] = {&at, &words, &key, &counter_};
  launch(check_, blocks_for(words), 256, stream, arguments);
}

void Device::order(NativeStream earlier, NativeStream later) {
  if (earlier == later) return;
  // One event a thread serves for ever: a wait takes what was recorded last before it.
  thread_local drivers::cuda::EventHandle event = nullptr;
  if (event == nullptr) must(api_->event_create(&event, drivers::cuda::kEventDisableTiming), "cuEventCreate");
  must(api_->event_record(event, earlier), "cuEventRecord");
  must(api_->stream_wait(later, event, 0), "cuStreamWaitEvent");
}

void Device::synchronize() { must(api_->context_synchronize(), "cuCtxSynchronize"); }

std::uint64_t Device::mismatches() {
  std::uint64_t count = 0;
  const auto to = static_cast<drivers::cuda::DevicePtr>(reinterpret_cast<std::uintptr_t>(&count));
  must(api_->copy_async(to, counter_, 8, nullptr), "cuMemcpyAsync");
  synchronize();
  return count;
}

void Device::keep_pool() {
  drivers::cuda::Pool pool = nullptr;
  std::uint64_t all = UINT64_MAX;
  must(api_->default_pool(&pool, 0), "cuDeviceGetDefaultMemPool");
  must(api_->pool_set(pool, drivers::cuda::kReleaseThreshold, &all), "cuMemPoolSetAttribute");
}

std::uint64_t Device::allocate_async(std::size_t bytes, NativeStream stream) {
  drivers::cuda::DevicePtr out = 0;
  must(api_->allocate_async(&out, bytes, stream), "cuMemAllocAsync");
  return out;
}

void Device::free_async(std::uint64_t at, NativeStream stream) { must(api_->free_async(at, stream), "cuMemFreeAsync"); }

std::size_t Device::free_memory() {
  std::size_t free = 0, total = 0;
  must(api_->memory_info(&free, &total), "cuMemGetInfo");
  return free;
}

void Lag::hold() {
  constexpr std::uint64_t kSpin = 4'000'000;  // Nanoseconds; few launches, and no gap between them.
  const std::uint64_t now = now_ns();
  if (end_ < now) end_ = now;
  while (end_ < now + lag_) {
    Device::get().spin(stream_, kSpin);
    end_ += kSpin;
  }
}

}  // namespace cistern::gpu
