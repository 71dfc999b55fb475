// What the files of the C interface share: handles behind the opaque types, and the turning of exceptions into
// statuses. Called by src/adapters/ only. The last error's text is per thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <exception>
#include <memory>
#include <new>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "cistern/buffer_pool.hpp"
#include "cistern/c.h"
#include "cistern/error.hpp"
#include "cistern/memory.hpp"

struct cistern_stream {
  cistern::Stream value;
};
struct cistern_pool {
  cistern::BufferPool value;
};
struct cistern_tensor {
  cistern::TypedBuffer value;
};

namespace cistern::c {

// Keeps the text for cistern_last_error(). Never throws.
void set_last_error(const char* text) noexcept;
// Bytes for cistern_last_out_of_memory().
void set_last_out_of_memory(std::size_t requested, std::size_t limit) noexcept;

// Runs f; an exception becomes a status and a text.
template <class F>
cistern_status guarded(F&& f) noexcept {
  try {
    f();
    return CISTERN_OK;
  } catch (const cistern::invalid_argument& e) {
    set_last_error(e.what());
    return CISTERN_INVALID_ARGUMENT;
  } catch (const cistern::driver_error& e) {
    set_last_error(e.what());
    return CISTERN_DRIVER_ERROR;
  } catch (const cistern::out_of_memory& e) {
    set_last_error(e.what());
    set_last_out_of_memory(e.requested(), e.limit());
    return CISTERN_OUT_OF_MEMORY;
  } catch (const std::bad_alloc& e) {
    set_last_out_of_memory(0, 0);
    set_last_error(e.what());
    return CISTERN_OUT_OF_MEMORY;
  } catch (const std::exception& e) {
    set_last_error(e.what());
    return CISTERN_INTERNAL_ERROR;
  } catch (...) {
    set_last_error("an exception of unknown type");
    return CISTERN_INTERNAL_ERROR;
  }
}

// Throws invalid_argument "CALL: NAME is null".
void require(const void* pointer, const char* call, const char* name);

inline Device from_c(cistern_device device) {
  if (device.type < 0 || device.type > static_cast<int>(DeviceType::model)) {
    throw invalid_argument("device type " + std::to_string(device.type) + ": expected a cistern_device_type (0 to 3)");
  }
  return {static_cast<DeviceType>(device.type), device.index};
}
inline cistern_device to_c(Device device) { return {static_cast<int32_t>(device.type), device.index}; }
inline Buffer from_c(cistern_buffer buffer) { return {static_cast<core::Block*>(buffer.block), buffer.serial}; }
inline cistern_buffer to_c(Buffer buffer) { return {buffer.block(), buffer.serial()}; }
// The opaque type is the allocator itself: allocators live as long as the process.
inline Allocator& from_c(cistern_allocator* allocator) { return *reinterpret_cast<Allocator*>(allocator); }
inline const Allocator& from_c(const cistern_allocator* allocator) {
  return *reinterpret_cast<const Allocator*>(allocator);
}
inline cistern_allocator* to_c(Allocator& allocator) { return reinterpret_cast<cistern_allocator*>(&allocator); }
// Throws invalid_argument for a type that Cistern does not have.
DType from_c(cistern_dtype dtype);
inline cistern_dtype to_c(DType dtype) {
  const DLPackType type = to_dlpack(dtype);
  return {type.code, type.bits, type.lanes};
}
// Throws invalid_argument as Shape does, and for a null shape of a rank.
Shape shape_from_c(const int64_t* extents, std::size_t rank, const char* call);
// The stream, or the default stream of the device.
inline Stream stream_or_default(const cistern_stream* stream, Device device) {
  return stream != nullptr ? stream->value : Stream(device);
}
Bucketing bucketing_from_c(std::uint32_t bucketing, const char* call);

// The handle is made before the buffer, which so cannot be lost.
template <class Make>
void give_handle(cistern_tensor** out, Make&& make) {
  auto handle = std::make_unique<cistern_tensor>();
  handle->value = make();
  *out = handle.release();
}

// Writes as snprintf() does.
inline std::size_t write_text(std::string_view from, char* text, std::size_t capacity) noexcept {
  if (text != nullptr && capacity > 0) {
    const std::size_t count = std::min(from.size(), capacity - 1);
    std::copy_n(from.data(), count, text);
    text[count] = '\0';
  }
  return from.size();
}

// What check_invariants() found becomes an exception.
inline void throw_faults(const std::vector<std::string>& faults) {
  if (faults.empty()) return;
  std::string text = faults.front();
  for (std::size_t i = 1; i < faults.size(); ++i) text += '\n' + faults[i];
  throw std::logic_error(text);
}

// Size of the struct when it was new: what every caller has.
template <class Struct>
inline constexpr std::size_t kFirstSize = sizeof(Struct);
template <>
inline constexpr std::size_t kFirstSize<cistern_stats> = offsetof(cistern_stats, objects);
template <>
inline constexpr std::size_t kFirstSize<cistern_pool_counts> = offsetof(cistern_pool_counts, registered_count);

template <class Struct>
void check_struct_size(const Struct& given) {
  constexpr std::size_t first = kFirstSize<Struct>;
  if (given.struct_size >= first) return;
  std::string text = "struct_size " + std::to_string(given.struct_size) + ": expected sizeof the struct, " +
                     std::to_string(sizeof(Struct));
  if (first < sizeof(Struct)) text += ", or from an older header at least " + std::to_string(first);
  throw invalid_argument(text);
}

// Copies `from` to a caller's struct that may be older and shorter; both start with their size.
template <class Struct>
void copy_versioned(Struct from, Struct* to) {
  check_struct_size(*to);
  const std::size_t size = to->struct_size;
  from.struct_size = size;
  __builtin_memcpy(to, &from, std::min(size, sizeof(Struct)));
}

// A caller's struct, which may be older and shorter, over the defaults; those alone when it is null.
template <class Struct>
Struct read_versioned(const Struct* from, Struct defaults) {
  if (from == nullptr) return defaults;
  check_struct_size(*from);
  __builtin_memcpy(&defaults, from, std::min(from->struct_size, sizeof(Struct)));
  return defaults;
}

}  // namespace cistern::c
