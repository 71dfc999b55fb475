// The parts of a round on a GPU; each prints its figures by report(). Single-threaded but for threads().
#pragma once

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "allocator/device_allocator.hpp"
#include "allocator/registry.hpp"
#include "device.hpp"
#include "trace/replay_program.hpp"

namespace cistern::gpu {

// One figure a line, as JSON: {"part": ..., "case": ..., "figure": ..., "value": ...}. scripts/gpu_table.py reads them.
inline void report(const char* part, const std::string& name, const char* figure, double value) {
  std::printf("{\"part\": \"%s\", \"case\": \"%s\", \"figure\": \"%s\", \"value\": %.6g}\n", part, name.c_str(), figure,
              value);
  std::fflush(stdout);
}

inline std::unique_ptr<allocation::DeviceAllocator> fresh_allocator() {
  return std::make_unique<allocation::DeviceAllocator>(cistern::Device::cuda(0),
                                                       allocation::make_driver(cistern::Device::cuda(0)));
}

// Hot pairs on a stream, beside the vendor's own; on one thread and on several.
void pairs(unsigned threads);
// Each trace with spins that keep the GPU behind: memory, driver time, host waits; then under a limit.
void behind(const std::vector<trace::Program>& programs, unsigned passes);
// Each trace without kernels: time per event of the second pass.
void events(const std::vector<trace::Program>& programs);
// Each trace with kernels that write every block whole and check it before it is freed, behind the host.
void verify(const std::vector<trace::Program>& programs);
// Fills the device, catches the error, frees, goes on; then the largest block after fragmentation.
void fill();
// Two streams hand buffers to each other.
void hand_over(unsigned long count);

}  // namespace cistern::gpu
