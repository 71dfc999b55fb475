// Finds the CUDA driver's library when the program runs: $CISTERN_CUDA_LIBRARY, else libcuda.so.1. The library is never
// unloaded. Does not choose a device. Called by the CUDA driver; thread-safe.
#pragma once

#include <string>

#include "drivers/cuda/cuda_api.hpp"

namespace cistern::drivers::cuda {

// Fills `api` from the library at `path`; the library is loaded, but not initialised. False, and why, when it is
// missing, older than CUDA 11, or lacks an entry point that is needed.
bool load(const char* path, CudaApi& api, std::string& why);

// The process's library, loaded and initialised at the first call. Null, and why, when there is none or no device.
const CudaApi* library(std::string& why);

// Whether this process is a fork of one that had initialised CUDA: nothing works here.
bool forked() noexcept;

}  // namespace cistern::drivers::cuda
