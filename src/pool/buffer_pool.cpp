// BufferPool: checks of the arguments, and the way to its core.
#include "cistern/buffer_pool.hpp"

#include <atomic>
#include <string>
#include <utility>

#include "cistern/error.hpp"
#include "pool/pool_core.hpp"

namespace cistern {

namespace {

std::atomic<std::uint64_t> next_pool_id{1};

[[noreturn]] void refuse(const std::string& what, const std::string& why) {
  throw invalid_argument("BufferPool::" + what + ": " + why);
}

[[noreturn]] void refuse_request(const char* what, std::size_t byte_len, DType dtype, const Shape& shape) {
  if (!is_valid(dtype)) refuse(what, "there is no dtype number " + std::to_string(static_cast<unsigned>(dtype)));
  const std::string type = std::string(name_of(dtype)) + to_string(shape);
  std::size_t need = 0;
  if (!shape.count_bytes(size_of(dtype), need)) refuse(what, "the bytes of " + type + " do not fit in 64 bits");
  if (need != byte_len) {
    refuse(what, std::to_string(byte_len) + " bytes do not match " + type + ", which needs " + std::to_string(need));
  }
  refuse(what, std::to_string(byte_len) + " bytes are more than any device could have");
}

// Bytes of dtype and shape, checked.
std::size_t bytes_of(const char* what, DType dtype, const Shape& shape) {
  std::size_t bytes = 0;
  if (!is_valid(dtype) || !shape.count_bytes(size_of(dtype), bytes)) refuse_request(what, 0, dtype, shape);
  return bytes;
}

TypedBuffer add_registered(pooling::PoolCore& core, Buffer buffer, bool owned, DType dtype, const Shape& shape) {
  const char* what = "register_existing";
  const std::size_t bytes = bytes_of(what, dtype, shape);
  if (!buffer || !buffer.live()) refuse(what, "the buffer is null or was freed");
  if (buffer.device() != core.stream().device()) {
    refuse(what,
           "the pool is of " + to_string(core.stream().device()) + ", the buffer of " + to_string(buffer.device()));
  }
  if (buffer.size() < bytes) {
    refuse(what, "the buffer has " + std::to_string(buffer.size()) + " bytes, " + std::string(name_of(dtype)) +
                     to_string(shape) + " needs " + std::to_string(bytes));
  }
  return detail::HandleAccess::make(core.add_registered(buffer, owned, bytes, dtype), 0, bytes, dtype, shape);
}

pooling::PoolCore* make_core(Allocator& allocator, const Stream& stream, PoolOptions options, std::uint64_t id) {
  if (stream.device() != allocator.device()) {
    refuse("BufferPool",
           "the stream is of " + to_string(stream.device()) + ", the allocator of " + to_string(allocator.device()));
  }
  if (options.zero_on_reuse && allocator.device().type != DeviceType::cpu) {
    refuse("BufferPool", "zero_on_reuse is for CPU memory, not for " + to_string(allocator.device()));
  }
  return new pooling::PoolCore(allocator, stream, options, id);
}

}  // namespace

BufferPool::BufferPool(Device device, PoolOptions options)
    : BufferPool(cistern::allocator(device), Stream(device), options) {}

BufferPool::BufferPool(const Stream& stream, PoolOptions options)
    : BufferPool(cistern::allocator(stream.device()), stream, options) {}

BufferPool::BufferPool(Allocator& allocator, const Stream& stream, PoolOptions options)
    : front_(nullptr),
      core_(make_core(allocator, stream, options, next_pool_id.fetch_add(1, std::memory_order_relaxed))) {
  front_ = &core_->front();
}

BufferPool::~BufferPool() { core_->close(); }

detail::PoolBucket* BufferPool::find_exact(std::size_t byte_len) const noexcept { return core_->find_exact(byte_len); }

// NOLINTNEXTLINE(performance-unnecessary-value-param): the shape by value, as declared, for the caller's sake.
TypedBuffer BufferPool::alloc_slow(std::size_t byte_len, DType dtype, Shape shape) {
  std::size_t need = 0;
  if (!is_valid(dtype) || !shape.count_bytes(size_of(dtype), need) || need != byte_len ||
      byte_len > detail::kMaxRequest) {
    refuse_request("alloc", byte_len, dtype, shape);
  }
  return detail::HandleAccess::make(core_->take(byte_len, dtype), 0, byte_len, dtype, shape);
}

TypedBuffer BufferPool::alloc(Device device, std::size_t byte_len, DType dtype, const Shape& shape) {
  if (device != this->device()) {
    refuse("alloc", "the pool is of " + to_string(this->device()) + ", not of " + to_string(device));
  }
  return alloc(byte_len, dtype, shape);
}

TypedBuffer BufferPool::alloc(DType dtype, const Shape& shape) {
  return alloc(bytes_of("alloc", dtype, shape), dtype, shape);
}

std::vector<TypedBuffer> BufferPool::alloc_batch(std::span<const BufferRequest> requests) {
  std::vector<TypedBuffer> out(requests.size());
  alloc_batch(requests, out);
  return out;
}

void BufferPool::alloc_batch(std::span<const BufferRequest> requests, std::span<TypedBuffer> out) {
  if (requests.size() != out.size()) {
    refuse("alloc_batch", std::to_string(requests.size()) + " requests for " + std::to_string(out.size()) + " handles");
  }
  // Requests are judged before the first is served; what is left to fail is memory.
  for (const BufferRequest& request : requests) {
    const std::size_t bytes = bytes_of("alloc_batch", request.dtype, request.shape);
    if (bytes != request.byte_len || bytes > detail::kMaxRequest) {
      refuse_request("alloc_batch", request.byte_len, request.dtype, request.shape);
    }
  }
  // The slots are chained until all are there: the caller's handles are replaced only then.
  detail::Slot* first = nullptr;
  detail::Slot** end = &first;
  try {
    for (const BufferRequest& request : requests) {
      detail::Slot* slot = core_->take(request.byte_len, request.dtype);
      *end = slot;
      end = &detail::detail_of(*slot).next;
      *end = nullptr;
    }
  } catch (...) {
    while (first != nullptr) core_->recycle(*std::exchange(first, detail::detail_of(*first).next));
    throw;
  }
  for (std::size_t i = 0; first != nullptr; ++i) {
    const BufferRequest& request = requests[i];
    detail::Slot* slot = std::exchange(first, detail::detail_of(*first).next);
    out[i] = detail::HandleAccess::make(slot, 0, request.byte_len, request.dtype, request.shape);
  }
}

void BufferPool::release(TypedBuffer& buffer) {
  if (const char* why = core_->may_release(buffer)) refuse("release", why);
  core_->release(buffer);
}

void BufferPool::reset(Escape escape) {
  if (escape == Escape::error) {
    const std::vector<std::string> held = core_->held_buffers();
    if (!held.empty()) {
      constexpr std::size_t kNamed = 8;
      std::string text = "handles still refer to " + std::to_string(held.size()) + " buffers: ";
      for (std::size_t i = 0; i < held.size() && i < kNamed; ++i) text += (i == 0 ? "" : "; ") + held[i];
      if (held.size() > kNamed) text += "; and others";
      refuse("reset", text);
    }
  }
  core_->reset();
}

void BufferPool::trim() { core_->trim(); }

void BufferPool::clear() {
  auto* fresh = new pooling::PoolCore(core_->allocator(), core_->stream(), core_->options(), core_->pool_id());
  front_ = &fresh->front();
  std::exchange(core_, fresh)->close();
}

TypedBuffer BufferPool::register_existing(Buffer buffer, DType dtype, const Shape& shape) {
  return add_registered(*core_, buffer, false, dtype, shape);
}

TypedBuffer BufferPool::register_existing(UniqueBuffer&& buffer, DType dtype, const Shape& shape) {
  TypedBuffer handle = add_registered(*core_, buffer.get(), true, dtype, shape);
  buffer.release();
  return handle;
}

std::size_t BufferPool::free_count() const {
  core_->collect();
  return core_->total_count() - core_->handed_out_count() - core_->escaped_count();
}
std::size_t BufferPool::free_bytes() const {
  core_->collect();
  return core_->total_bytes() - core_->handed_out_bytes() - core_->escaped_bytes();
}
std::size_t BufferPool::in_use_count() const {
  core_->collect();
  return core_->handed_out_count() + core_->escaped_count();
}
std::size_t BufferPool::in_use_bytes() const {
  core_->collect();
  return core_->handed_out_bytes() + core_->escaped_bytes();
}
std::size_t BufferPool::escaped_count() const {
  core_->collect();
  return core_->escaped_count();
}
std::size_t BufferPool::total_count() const {
  core_->collect();
  return core_->total_count();
}
std::size_t BufferPool::total_bytes() const {
  core_->collect();
  return core_->total_bytes();
}
std::size_t BufferPool::registered_count() const { return core_->registered_count(); }
std::size_t BufferPool::registered_bytes() const { return core_->registered_bytes(); }

Device BufferPool::device() const noexcept { return core_->stream().device(); }
const Stream& BufferPool::stream() const noexcept { return core_->stream(); }
const PoolOptions& BufferPool::options() const noexcept { return core_->options(); }

std::size_t BufferPool::bucket_bytes(std::size_t byte_len) const {
  if (byte_len > detail::kMaxRequest) {
    refuse("bucket_bytes", std::to_string(byte_len) + " bytes are more than any device could have");
  }
  return core_->bucket_bytes(byte_len);
}

std::vector<std::string> BufferPool::check_invariants() const {
  core_->collect();
  return core_->check_invariants();
}

}  // namespace cistern
