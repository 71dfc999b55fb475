// One call into the CUDA driver: makes the device's context current on this thread, sets the thread's capture mode to
// relaxed, so that the call does not end a graph capture, and puts both back. Turns results into Status and text.
// Used by the CUDA driver only. Objects live on the stack of one thread; no locking.
#pragma once

#include "drivers/cuda/cuda_api.hpp"
#include "drivers/driver.hpp"

namespace cistern::drivers::cuda {

// The text of this thread's last failure.
const char* last_error() noexcept;
#if defined(__GNUC__)
__attribute__((format(printf, 1, 2)))
#endif
void set_last_error(const char* format, ...) noexcept;
// The same with what a member returns then: our own refusal, and no memory of the host's for the books.
Status failed(const char* text) noexcept;
Status no_records() noexcept;

// Keeps the result's name and the call's as the thread's error text. pre: result is not a success.
Status report(const CudaApi& api, Result result, const char* call) noexcept;

// The driver has ended, most often because the process is about to: what it held is gone already.
inline bool gone(Result result) { return result == kDeinitialized || result == kContextIsDestroyed; }
// The device's context is lost, and all work with it: nothing that was submitted runs any more.
inline bool broken(Result result) {
  return result == kEccUncorrectable || result == kIllegalAddress || result == kLaunchTimeout || result == kAssert ||
         (result >= kHardwareStackError && result <= kLaunchFailed);
}
// The call would have ended a graph capture.
inline bool about_capture(Result result) { return result >= kCaptureUnsupported && result <= kCaptureWrongThread; }

class Entered {
 public:
  // Without a context it leaves the thread's own.
  Entered(const CudaApi& api, Context context) noexcept;
  ~Entered();
  Entered(const Entered&) = delete;
  Entered& operator=(const Entered&) = delete;

  bool ok() const noexcept { return status_ == Status::ok; }
  Status status() const noexcept { return status_; }
  // Why it is not ok, as the driver said it.
  Result result() const noexcept { return result_; }

 private:
  const CudaApi& api_;
  Status status_ = Status::ok;
  Result result_ = kSuccess;
  int mode_ = kCaptureRelaxed;
  bool pushed_ = false;
  bool exchanged_ = false;
};

}  // namespace cistern::drivers::cuda
