// Writing of files, plain or gzip; see sink.hpp.
#include "trace/sink.hpp"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <new>
#include <system_error>
#include <utility>

#include "cistern/trace.hpp"

namespace cistern::trace {
namespace {

// A name that nobody else writes to: clock and a counter of this process.
std::string temporary_name(const std::string& path) {
  static std::atomic<unsigned> counter{0};
  const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
  return fmt::format("{}.{:x}.{}.tmp", path, now, counter.fetch_add(1));
}

}  // namespace

std::string follow_links(const std::string& path) {
  namespace fs = std::filesystem;
  constexpr int kMost = 40;  // As Linux follows; more are a ring, which opening then tells of.
  fs::path at = path;
  std::error_code error;
  for (int i = 0; i < kMost && fs::is_symlink(fs::symlink_status(at, error)); ++i) {
    const fs::path next = fs::read_symlink(at, error);
    if (error) break;
    at = next.is_absolute() ? next : at.parent_path() / next;
  }
  return at.string();
}

struct ByteSink::Deflater {
  z_stream stream{};
  std::array<char, 64 * 1024> out;

  explicit Deflater(int level) {
    // 15 + 16: the largest window and the gzip wrapper. 8: zlib's default memory level.
    if (deflateInit2(&stream, std::clamp(level, 1, 9), Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) != Z_OK) {
      throw std::bad_alloc();
    }
  }
  ~Deflater() { deflateEnd(&stream); }
  Deflater(const Deflater&) = delete;
  Deflater& operator=(const Deflater&) = delete;
};

ByteSink::ByteSink(std::string path, int gzip_level, Mode mode) : path_(std::move(path)) {
  target_ = follow_links(path_);
  std::error_code ec;
  const auto type = std::filesystem::status(path_, ec).type();
  using std::filesystem::file_type;
  if (type == file_type::directory) throw TraceError(path_, 0, "a directory", "a file to write");
  if (path_.ends_with(".gz")) deflater_ = std::make_unique<Deflater>(gzip_level);
  // A pipe or a device cannot be replaced by a file, so it is written in place.
  if (mode == Mode::replace && (type == file_type::not_found || type == file_type::regular)) {
    temporary_ = temporary_name(target_);
  }
  file_ = std::fopen((temporary_.empty() ? target_ : temporary_).c_str(), "wb");
  if (file_ == nullptr) fail(fmt::format("a place where no file can be made ({})", std::strerror(errno)));
}

ByteSink::~ByteSink() {
  if (file_ == nullptr) return;
  std::fclose(file_);
  if (!temporary_.empty()) std::remove(temporary_.c_str());
}

void ByteSink::fail(const std::string& what) const { throw WriteError(path_, 0, what, "a file that can be written"); }

void ByteSink::write_file(const char* data, std::size_t size) {
  errno = 0;
  if (std::fwrite(data, 1, size, file_) != size) fail(fmt::format("a write error ({})", std::strerror(errno)));
}

void ByteSink::deflate_all(std::string_view bytes, int flush) {
  z_stream& z = deflater_->stream;
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  z.avail_in = static_cast<uInt>(bytes.size());
  do {
    z.next_out = reinterpret_cast<Bytef*>(deflater_->out.data());
    z.avail_out = static_cast<uInt>(deflater_->out.size());
    deflate(&z, flush);
    write_file(deflater_->out.data(), deflater_->out.size() - z.avail_out);
  } while (z.avail_out == 0);
}

void ByteSink::write(std::string_view bytes) {
  if (deflater_ == nullptr) return write_file(bytes.data(), bytes.size());
  // zlib counts in 32 bits.
  constexpr std::size_t kPiece = std::size_t{1} << 30;
  for (std::size_t at = 0; at < bytes.size(); at += kPiece) deflate_all(bytes.substr(at, kPiece), Z_NO_FLUSH);
}

void ByteSink::flush() {
  if (deflater_ != nullptr) deflate_all({}, Z_SYNC_FLUSH);
  if (std::fflush(file_) != 0) fail(fmt::format("a write error ({})", std::strerror(errno)));
}

void ByteSink::commit() {
  if (deflater_ != nullptr) deflate_all({}, Z_FINISH);
  std::FILE* const file = std::exchange(file_, nullptr);
  errno = 0;
  if (std::fclose(file) != 0) {
    const int error = errno;
    if (!temporary_.empty()) std::remove(temporary_.c_str());
    fail(fmt::format("a write error ({})", std::strerror(error)));
  }
  if (temporary_.empty()) return;
  std::error_code ec;
  std::filesystem::rename(temporary_, target_, ec);
  if (ec) {
    std::remove(temporary_.c_str());
    fail(fmt::format("a file that cannot be replaced ({})", ec.message()));
  }
}

}  // namespace cistern::trace
