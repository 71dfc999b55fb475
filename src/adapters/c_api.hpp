// What the files of the C interface share: handles behind the opaque types, and the turning of exceptions into
// statuses. Called by src/adapters/c_*.cpp only. The last error's text is per thread.
#pragma once

#include <exception>
#include <new>
#include <string>

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
  } catch (const std::bad_alloc& e) {
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

// Copies `from` to a caller's struct that may be older and shorter; both start with their size.
template <class Struct>
void copy_versioned(Struct from, Struct* to) {
  const std::size_t size = to->struct_size;
  if (size < sizeof(to->struct_size))
    throw invalid_argument("struct_size " + std::to_string(size) + ": expected sizeof the struct");
  from.struct_size = size;
  __builtin_memcpy(to, &from, size < sizeof(Struct) ? size : sizeof(Struct));
}

}  // namespace cistern::c
