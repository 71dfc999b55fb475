// One call into the CUDA driver, and what its result means.
#include "drivers/cuda/cuda_call.hpp"

#include <cstdarg>
#include <cstdio>

#include "drivers/cuda/cuda_loader.hpp"
#include "drivers/error_text.hpp"

namespace cistern::drivers::cuda {
namespace {

thread_local ErrorText error_text;

}  // namespace

const char* last_error() noexcept { return error_text.c_str(); }

void set_last_error(const char* format, ...) noexcept {
  char text[320];
  std::va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  error_text.set("%s", text);
}

Status failed(const char* text) noexcept {
  error_text.set("%s", text);
  return Status::failed;
}

Status no_records() noexcept {
  error_text.set("no memory for the driver's own records");
  return Status::out_of_memory;
}

Status report(const CudaApi& api, Result result, const char* call) noexcept {
  const char* name = nullptr;
  const char* text = nullptr;
  if (api.error_name(result, &name) != kSuccess || name == nullptr) name = "an unknown error";
  if (api.error_string(result, &text) != kSuccess || text == nullptr) text = "no text";
  error_text.set("%s: %s (%d): %s", call, name, result, text);
  if (result == kOutOfMemory) return Status::out_of_memory;
  if (result == kNotSupported) return Status::unsupported;
  return about_capture(result) ? Status::capturing : Status::failed;
}

Entered::Entered(const CudaApi& api, Context context) noexcept : api_(api) {
  if (forked()) {
    error_text.set("CUDA does not work in a forked child of a process that used it: start the child by spawn or exec");
    status_ = Status::failed;
    return;
  }
  Context current = nullptr;
  const char* call = "cuCtxGetCurrent";
  result_ = api_.context_current(&current);
  if (result_ == kSuccess && context != nullptr && current != context) {
    call = "cuCtxPushCurrent";
    result_ = api_.context_push(context);
    pushed_ = result_ == kSuccess;
  }
  if (result_ == kSuccess) {
    call = "cuThreadExchangeStreamCaptureMode";
    result_ = api_.exchange_capture_mode(&mode_);
    exchanged_ = result_ == kSuccess;
  }
  if (result_ != kSuccess) status_ = report(api_, result_, call);
}

Entered::~Entered() {
  if (exchanged_ && api_.exchange_capture_mode(&mode_) != kSuccess) api_.exchange_capture_mode(&mode_);
  Context popped = nullptr;
  if (pushed_) api_.context_pop(&popped);
}

}  // namespace cistern::drivers::cuda
