// Error types that Cistern throws. Any code may use them. Thread-safe: the objects are immutable.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>

namespace cistern {

/// A caller's mistake: double free, foreign pointer, wrong device, bad size. The state is unchanged.
class invalid_argument : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

/// No memory under the limit after everything that could be given back was given back. The allocator stays usable.
/// what() names the request, the limit, active, cached and reserved bytes, the largest free range and the biggest tags.
class out_of_memory : public std::bad_alloc {
 public:
  /// `requested` and `limit` are bytes.
  out_of_memory(std::string text, std::size_t requested, std::size_t limit)
      : text_(std::make_shared<const std::string>(std::move(text))), requested_(requested), limit_(limit) {}
  const char* what() const noexcept override { return text_->c_str(); }
  std::size_t requested() const noexcept { return requested_; }
  std::size_t limit() const noexcept { return limit_; }

 private:
  std::shared_ptr<const std::string> text_;
  std::size_t requested_;
  std::size_t limit_;
};

/// The operating system or a vendor library failed in a way that is neither a lack of memory nor the caller's mistake.
class driver_error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace cistern
