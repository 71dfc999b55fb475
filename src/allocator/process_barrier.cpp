// The barrier on Linux; elsewhere there is none.
#include "allocator/process_barrier.hpp"

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>

namespace cistern::allocation {
namespace {

// linux/membarrier.h; spelled out because old kernel headers lack them.
constexpr int kPrivateExpedited = 1 << 3;
constexpr int kRegisterPrivateExpedited = 1 << 4;

}  // namespace

bool barrier_on_all_threads() {
#if defined(SYS_membarrier)
  if (syscall(SYS_membarrier, kPrivateExpedited, 0) == 0) return true;
  // Not registered yet (in this process: a forked child registers again).
  return syscall(SYS_membarrier, kRegisterPrivateExpedited, 0) == 0 &&
         syscall(SYS_membarrier, kPrivateExpedited, 0) == 0;
#else
  return false;
#endif
}

}  // namespace cistern::allocation
#else

namespace cistern::allocation {

bool barrier_on_all_threads() { return false; }

}  // namespace cistern::allocation
#endif
