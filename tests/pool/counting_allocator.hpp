// CountingAllocator: the CPU's allocator, watched. It keeps count of calls and of live buffers, and fails when told to.
// Thread-safe, since handles give memory back from any thread.
#pragma once

#include <atomic>
#include <cstring>
#include <mutex>
#include <set>

#include "cistern/allocator.hpp"
#include "cistern/error.hpp"

namespace cistern::testing {

class CountingAllocator final : public Allocator {
 public:
  Buffer malloc(std::size_t bytes) override {
    return watch(bytes, [&] { return inner_.malloc(bytes); });
  }
  Buffer malloc(std::size_t bytes, const Stream& stream) override {
    return watch(bytes, [&] { return inner_.malloc(bytes, stream); });
  }
  void free(Buffer buffer) override {
    forget(buffer);
    inner_.free(buffer);
  }
  void free(Buffer buffer, const Stream& stream) override {
    forget(buffer);
    inner_.free(buffer, stream);
  }
  void free_raw(void* ptr) override { free(inner_.find(ptr)); }
  Buffer find(const void* ptr) const override { return inner_.find(ptr); }
  std::size_t size(Buffer buffer) const override { return inner_.size(buffer); }
  Buffer make_buffer(void* ptr, std::size_t bytes) override { return inner_.make_buffer(ptr, bytes); }
  void release(Buffer buffer) override { inner_.release(buffer); }
  void record_use(Buffer buffer, const Stream&) override {
    if (!buffer.live()) throw invalid_argument("record_use of a freed buffer");
    ++uses;
  }
  Device device() const noexcept override { return inner_.device(); }

  std::size_t live() const {
    const std::lock_guard lock(mutex_);
    return live_.size();
  }

  std::atomic<std::size_t> mallocs{0};
  std::atomic<std::size_t> frees{0};
  std::atomic<std::size_t> uses{0};
  std::atomic<std::size_t> wrong_frees{0};     // Of buffers that did not come from here, or twice.
  std::atomic<std::size_t> limit{SIZE_MAX};    // Live buffers; one more is out of memory.
  std::atomic<std::size_t> fail_in{SIZE_MAX};  // 0: the next malloc fails, 1: the one after it, ...
  std::atomic<bool> dirty{true};               // New memory reads 0xA5.

 private:
  template <typename Get>
  Buffer watch(std::size_t bytes, Get get) {
    const bool fails = fail_in.load() != SIZE_MAX && fail_in.fetch_sub(1) == 0;
    if (fails || live() >= limit.load()) throw out_of_memory("told to fail", bytes, 0);
    const Buffer buffer = get();
    if (dirty) std::memset(buffer.raw_ptr(), 0xA5, bytes);
    ++mallocs;
    const std::lock_guard lock(mutex_);
    live_.insert(buffer.ptr());
    return buffer;
  }
  void forget(Buffer buffer) {
    ++frees;
    const std::lock_guard lock(mutex_);
    if (live_.erase(buffer.ptr()) == 0) ++wrong_frees;
  }

  Allocator& inner_ = allocator(Device::cpu());
  mutable std::mutex mutex_;
  std::set<const void*> live_;
};

}  // namespace cistern::testing
