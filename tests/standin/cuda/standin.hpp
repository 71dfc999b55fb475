// The stand-in for the CUDA driver library: what a test can tell it besides the vendor's entry points. The library has
// the entry points that Cistern uses, and those that test programs use to make streams and graphs. Behind them is host
// memory; streams run behind the host; the vendor's rules are enforced: what is undefined behaviour there is listed as
// a violation here, and where the vendor's kernel would die, the context is lost here, too.
//
// Set by the environment, read at start and at reset(); a value that is none ends the process with status 2:
//   CISTERN_STANDIN_DEVICES   count (1)            CISTERN_STANDIN_MEMORY   bytes of each device (8 GiB)
//   CISTERN_STANDIN_VERSION   driver's (13000)     CISTERN_STANDIN_LAG_US   how far streams are behind (100)
//   CISTERN_STANDIN_MANUAL    1: work is done only by complete(), complete_all() and calls that wait for it
//   CISTERN_STANDIN_WITHOUT   list of: virtual_memory managed concurrent posix rdma pools peers
//   CISTERN_STANDIN_REFUSE    list of: virtual_memory posix rdma; the device says it can, and then it cannot
//   CISTERN_STANDIN_JUNK      1: new device memory is filled with rubbish
//   CISTERN_STANDIN_FAIL      NAME:NTH[:RESULT[:TIMES]], as fail()
//   CISTERN_STANDIN_REPORT    1: print violations and leaks at exit; strict: and exit with status 86 if there are any
//
// Every function may be called by any thread. Tests load them by name: see cuda_library.hpp.
#pragma once

#include <cstddef>
#include <cstdint>

#include "drivers/cuda/cuda_api.hpp"

namespace cistern::standin {

inline constexpr int kStrictExit = 86;
inline constexpr int kBadSettingExit = 2;

// X(name, result, parameters...); the exported symbol is cistern_standin_NAME.
#define CISTERN_STANDIN_CONTROLS(X)                                                                                   \
  /* Forgets everything and reads the environment again. pre: nothing of it is in use. */                             \
  X(reset, void, )                                                                                                    \
  /* As at the end of the process: every call says that the driver has ended. Until reset(). */                       \
  X(end, void, )                                                                                                      \
  X(set_lag_us, void, double)                                                                                         \
  X(set_stream_lag_us, void, drivers::cuda::Stream, double)                                                           \
  X(set_manual, void, int)                                                                                            \
  X(complete, void, drivers::cuda::Stream)                                                                            \
  X(complete_all, void, )                                                                                             \
  X(pending, std::size_t, )                                                                                           \
  /* Kernels. Write a pattern; count bytes that are not as it was written; only use the range, writing if not 0. */   \
  X(launch_fill, drivers::cuda::Result, drivers::cuda::Stream, drivers::cuda::DevicePtr, std::size_t, std::uint64_t)  \
  X(launch_check, drivers::cuda::Result, drivers::cuda::Stream, drivers::cuda::DevicePtr, std::size_t, std::uint64_t) \
  X(launch_touch, drivers::cuda::Result, drivers::cuda::Stream, drivers::cuda::DevicePtr, std::size_t, int)           \
  X(mismatches, std::uint64_t, )                                                                                      \
  /* Text number i, cut to the buffer; its length is returned. */                                                     \
  X(violation_count, std::size_t, )                                                                                   \
  X(violation, std::size_t, std::size_t, char*, std::size_t)                                                          \
  X(clear_violations, void, )                                                                                         \
  X(leak_count, std::size_t, )                                                                                        \
  X(leak, std::size_t, std::size_t, char*, std::size_t)                                                               \
  /* The nth call (1 is the next) of the entry point, or of any ("*"), and those after it, fail. nth 0 ends it. */    \
  X(fail, void, const char*, std::uint64_t, drivers::cuda::Result, std::uint64_t)                                     \
  X(injected, std::uint64_t, )                                                                                        \
  X(calls, std::uint64_t, const char*)                                                                                \
  /* Calls that found work pending and waited for it. */                                                              \
  X(host_waits, std::uint64_t, )                                                                                      \
  X(physical_bytes, std::size_t, int)                                                                                 \
  /* Another process takes or gives memory. */                                                                        \
  X(set_memory, void, int, std::size_t)

}  // namespace cistern::standin
