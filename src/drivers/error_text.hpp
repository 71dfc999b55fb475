// ErrorText: the text of a driver's last failure, in fixed storage so that reporting a failure cannot itself fail.
// Does not allocate. Each driver keeps one in thread-local storage; no locking needed.
#pragma once

#include <array>
#include <cstdarg>
#include <cstddef>
#include <cstdio>

namespace cistern::drivers {

class ErrorText {
 public:
#if defined(__GNUC__)
  __attribute__((format(printf, 2, 3)))
#endif
  void
  set(const char* format, ...) noexcept {
    std::va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text_.data(), text_.size(), format, arguments);
    va_end(arguments);
  }
  const char* c_str() const noexcept { return text_.data(); }

 private:
  std::array<char, 320> text_{};
};

}  // namespace cistern::drivers
