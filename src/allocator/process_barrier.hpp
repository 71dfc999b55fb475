// A memory barrier on every running thread of the process, paid by the caller alone (Linux: membarrier). Thread-safe.
#pragma once

namespace cistern::allocation {

// False where the system cannot do it.
bool barrier_on_all_threads();

}  // namespace cistern::allocation
