// The stand-in for the Objective-C runtime and Metal: what a test can tell it besides the vendor's entry points. Behind
// them is host memory; queues run behind the host; Apple's rules are enforced: what Metal's validation layer would stop
// at, and what is undefined without it, is listed as a violation here. Calls cost nothing.
//
// Set by the environment, read at start and at reset() (sizes in bytes; each begins with CISTERN_METAL_STANDIN_):
//
//   NAME         of the device ("Apple M0 (stand-in)"; "Paravirtual" in it makes a virtual machine's)
//   DEVICES      count (1)
//   MEMORY       of the computer (64 GiB)
//   WORKING_SET  recommended (3/4 of it)
//   MAX_BUFFER   longest buffer (1/2 of the memory)
//   RSRC_LIMIT   most objects (0: no such sysctl)
//   PAGE         4096 or 16384 (16384)
//   ALIGN        of buffers in heaps (256)
//   LARGE_ALIGN  the same from 1 MiB on (ALIGN)
//   LAG_US       how far queues are behind, microseconds (100)
//   MANUAL       1: work is done only by complete(), complete_all() and calls that wait for it
//   WITHOUT      list of: unified heaps shared_heaps linear_heaps placement residency shared_wait no_copy
//   WITH         list of: sparse
//   JUNK         1: new memory is filled with rubbish
//   FAIL         SELECTOR:NTH[:TIMES], as fail(); a selector's colons are written as dots
//   REPORT       1: print violations and leaks at exit; strict: and exit with status 86 if there are any; calls: print
//   the
//                count of each message as well
//
// Every function may be called by any thread. Tests load them by name: see metal_library.hpp.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cistern::standin::metal {

inline constexpr int kStrictExit = 86;

// X(name, result, parameters...); the exported symbol is cistern_metal_standin_NAME. Objects are Objective-C objects.
#define CISTERN_METAL_STANDIN_CONTROLS(X)                                                                            \
  /* Forgets violations, counts and plans, and reads the environment again. Objects that live stay; devices are made \
   * anew. */                                                                                                        \
  X(reset, void, )                                                                                                   \
  X(set_lag_us, void, double)                                                                                        \
  X(set_manual, void, int)                                                                                           \
  X(complete, void, void*)                                                                                           \
  X(complete_all, void, )                                                                                            \
  /* Command buffers that are committed and not done. */                                                             \
  X(pending, std::size_t, )                                                                                          \
  /* Kernels in a command buffer of their own on a queue: write a pattern from (buffer, offset, bytes, seed); count  \
     bytes that are not as it was written. `retained` 0: the command buffer does not keep the buffer alive. */       \
  X(launch_fill, int, void*, void*, std::size_t, std::size_t, std::uint64_t, int)                                    \
  X(launch_check, int, void*, void*, std::size_t, std::size_t, std::uint64_t, int)                                   \
  X(mismatches, std::uint64_t, )                                                                                     \
  /* Text number i, cut to the buffer; its length is returned. */                                                    \
  X(violation_count, std::size_t, )                                                                                  \
  X(violation, std::size_t, std::size_t, char*, std::size_t)                                                         \
  X(clear_violations, void, )                                                                                        \
  /* Objects that live now but for devices, by class. */                                                             \
  X(leak_count, std::size_t, )                                                                                       \
  X(leak, std::size_t, std::size_t, char*, std::size_t)                                                              \
  X(live_objects, std::size_t, const char*)                                                                          \
  /* The nth call (1 is the next) of a method that can fail, or of any ("*"), and those after it, return nil. 0 ends \
   * it. */                                                                                                          \
  X(fail, void, const char*, std::uint64_t, std::uint64_t)                                                           \
  X(injected, std::uint64_t, )                                                                                       \
  /* Messages with this selector, or all ("*"), since the start or the last reset. */                                \
  X(calls, std::uint64_t, const char*)                                                                               \
  X(allocated_bytes, std::size_t, )                                                                                  \
  /* Bytes in residency sets whose residency was requested. */                                                       \
  X(resident_bytes, std::size_t, )                                                                                   \
  /* Another program takes or gives memory. */                                                                       \
  X(set_memory, void, std::size_t)

}  // namespace cistern::standin::metal
