// What a handle tells. No lock: a descriptor is never unmapped, and its serial says whether the handle still names it.
#include "cistern/buffer.hpp"

#include "allocator/device_allocator.hpp"

namespace cistern {

bool Buffer::live() const noexcept {
  if (block_ == nullptr || block_->serial.load(std::memory_order_acquire) != serial_ || serial_ % 2 == 0) return false;
  return !core::claimed(block_, serial_);
}

void* Buffer::ptr() const noexcept {
  if (!live()) return nullptr;
  const core::BlockObject* object = core::BlockPool::object_of(block_);
  if (object != nullptr) {
    if (void* const named = object->object.load(std::memory_order_acquire)) return named;
  }
  return reinterpret_cast<void*>(block_->address.load(std::memory_order_acquire));
}

std::size_t Buffer::offset() const noexcept {
  if (!live()) return 0;
  const core::BlockObject* object = core::BlockPool::object_of(block_);
  return object != nullptr ? object->offset.load(std::memory_order_relaxed) : 0;
}

void* Buffer::raw_ptr() const {
  if (block_ == nullptr) return nullptr;
  allocation::DeviceAllocator* owner = allocation::allocator_of(block_);
  if (owner == nullptr) throw invalid_argument("cistern: raw_ptr: the buffer's allocator is gone");
  return owner->host_pointer(*this);
}

std::size_t Buffer::size() const noexcept { return live() ? block_->capacity : 0; }

Device Buffer::device() const noexcept {
  const allocation::DeviceAllocator* owner = block_ != nullptr ? allocation::allocator_of(block_) : nullptr;
  return owner != nullptr ? owner->device() : Device{};
}

}  // namespace cistern
