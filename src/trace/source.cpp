// Reading of files, plain or gzip; see source.hpp.
#include "trace/source.hpp"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "cistern/trace.hpp"
#include "trace/text.hpp"

namespace cistern::trace {
namespace {

constexpr std::size_t kChunk = 256 * 1024;  // Bytes; larger gains nothing measurable.
constexpr char kGzip0 = '\x1f';
constexpr char kGzip1 = '\x8b';

}  // namespace

struct ByteSource::Inflater {
  z_stream stream{};
  bool member_done = false;

  Inflater() {
    // 15: the largest window; + 16: the gzip wrapper and its checksum.
    if (inflateInit2(&stream, 15 + 16) != Z_OK) throw std::bad_alloc();
  }
  ~Inflater() { inflateEnd(&stream); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;
};

ByteSource::ByteSource(std::string path) : path_(std::move(path)) {
  std::error_code ec;
  const auto status = std::filesystem::status(path_, ec);
  if (status.type() == std::filesystem::file_type::not_found) {
    throw TraceError(path_, 0, "no file of this name", "a trace file");
  }
  if (status.type() == std::filesystem::file_type::directory) {
    throw TraceError(path_, 0, "a directory", "a trace file");
  }
  file_ = std::fopen(path_.c_str(), "rb");
  if (file_ == nullptr) {
    throw TraceError(path_, 0, fmt::format("a file that cannot be opened ({})", std::strerror(errno)),
                     "a readable trace file");
  }
  std::setvbuf(file_, nullptr, _IONBF, 0);
  try {
    input_.resize(kChunk);
    input_end_ = read_file(input_.data(), input_.size());
    if (input_end_ == 0) throw TraceError(path_, 0, "an empty file", "a trace");
    if (input_end_ >= 2 && input_[0] == kGzip0 && input_[1] == kGzip1) inflater_ = std::make_unique<Inflater>();
  } catch (...) {
    std::fclose(file_);
    throw;
  }
}

ByteSource::~ByteSource() { std::fclose(file_); }

std::size_t ByteSource::read_file(char* to, std::size_t count) {
  std::size_t done = 0;
  while (done < count) {
    errno = 0;
    const std::size_t got = std::fread(to + done, 1, count - done, file_);
    done += got;
    if (got != 0) continue;
    if (std::ferror(file_)) {
      if (errno == EINTR) {
        std::clearerr(file_);
        continue;
      }
      throw TraceError(path_, 0, fmt::format("a read error ({})", std::strerror(errno)), "a readable trace file");
    }
    break;
  }
  return done;
}

bool ByteSource::refill() {
  if (input_at_ < input_end_) return true;
  input_at_ = 0;
  input_end_ = read_file(input_.data(), input_.size());
  return input_end_ != 0;
}

std::size_t ByteSource::read_inflated(std::span<char> to) {
  // A fault met after some data is not thrown yet: the data is handed out, and the next call meets the fault again.
  z_stream& z = inflater_->stream;
  std::size_t done = 0;
  while (done < to.size()) {
    if (!refill()) {
      if (inflater_->member_done || done != 0) break;
      throw TraceError(path_, 0, fmt::format("the end of the file inside the gzip data (after {} bytes)", consumed_),
                       "whole gzip data (is the file cut?)");
    }
    if (inflater_->member_done) {
      // gzip files may be joined end to end; anything else behind one is a fault.
      if (input_[input_at_] != kGzip0) {
        if (done != 0) break;
        throw TraceError(
            path_, 0,
            fmt::format("{} behind the gzip data (at byte {})",
                        quoted({input_.data() + input_at_, std::min<std::size_t>(8, input_end_ - input_at_)}),
                        consumed_),
            "the end of the file");
      }
      inflateReset(&z);
      inflater_->member_done = false;
    }
    z.next_in = reinterpret_cast<Bytef*>(input_.data() + input_at_);
    z.avail_in = static_cast<uInt>(input_end_ - input_at_);
    const std::size_t room = std::min<std::size_t>(to.size() - done, 1u << 30);
    z.next_out = reinterpret_cast<Bytef*>(to.data() + done);
    z.avail_out = static_cast<uInt>(room);
    const int result = inflate(&z, Z_NO_FLUSH);
    const std::size_t used = input_end_ - input_at_ - z.avail_in;
    input_at_ += used;
    consumed_ += used;
    done += room - z.avail_out;
    if (result == Z_STREAM_END) {
      inflater_->member_done = true;
    } else if (result == Z_MEM_ERROR) {
      throw std::bad_alloc();
    } else if (result != Z_OK && result != Z_BUF_ERROR) {
      if (done != 0) break;
      throw TraceError(path_, 0,
                       fmt::format("damaged gzip data (at byte {}: {})", consumed_,
                                   z.msg != nullptr ? z.msg : "a preset dictionary"),
                       "whole gzip data");
    }
  }
  return done;
}

std::size_t ByteSource::read(std::span<char> to) {
  std::size_t done = 0;
  if (peeked_at_ < peeked_.size()) {
    done = std::min(to.size(), peeked_.size() - peeked_at_);
    std::memcpy(to.data(), peeked_.data() + peeked_at_, done);
    peeked_at_ += done;
  }
  if (inflater_ != nullptr) return done + read_inflated(to.subspan(done));
  while (done < to.size() && refill()) {
    const std::size_t count = std::min(to.size() - done, input_end_ - input_at_);
    std::memcpy(to.data() + done, input_.data() + input_at_, count);
    input_at_ += count;
    consumed_ += count;
    done += count;
  }
  return done;
}

std::string_view ByteSource::peek(std::size_t count) {
  const std::size_t have = peeked_.size() - peeked_at_;
  if (have < count) {
    std::vector<char> more(count);
    const std::size_t got = read(more);  // Takes what is peeked already first.
    more.resize(got);
    peeked_ = std::move(more);
    peeked_at_ = 0;
  }
  return {peeked_.data() + peeked_at_, std::min(count, peeked_.size() - peeked_at_)};
}

std::string read_all(ByteSource& source, std::uint64_t max_bytes) {
  std::string all;
  std::size_t size = 0;
  for (;;) {
    if (size > max_bytes) {
      throw TraceError(source.path(), 0, fmt::format("more than {} bytes", max_bytes), "a file under the size limit");
    }
    all.resize(std::max(size + kChunk, size + size / 2));
    const std::size_t got = source.read({all.data() + size, all.size() - size});
    size += got;
    if (got == 0) break;
  }
  all.resize(size);
  if (size > max_bytes) {
    throw TraceError(source.path(), 0, fmt::format("more than {} bytes", max_bytes), "a file under the size limit");
  }
  return all;
}

LineReader::LineReader(ByteSource& source) : source_(source), buffer_(kChunk + kMaxLine) {}

bool LineReader::refill() {
  if (finished_) return false;
  std::memmove(buffer_.data(), buffer_.data() + at_, end_ - at_);
  end_ -= at_;
  at_ = 0;
  try {
    const std::size_t got = source_.read({buffer_.data() + end_, buffer_.size() - end_});
    end_ += got;
    finished_ = got == 0;
    return got != 0;
  } catch (const TraceError& e) {
    throw TraceError(e.file(), number_ + 1, e.found(), e.expected());
  }
}

bool LineReader::next(std::string_view& line) {
  std::size_t searched = 0;
  for (;;) {
    const char* from = buffer_.data() + at_;
    const std::size_t have = end_ - at_;
    const void* hit = have > searched ? std::memchr(from + searched, '\n', have - searched) : nullptr;
    if (hit == nullptr && have <= kMaxLine) {
      searched = have;
      if (refill()) continue;
      if (have == 0) return false;
    }
    ++number_;
    from = buffer_.data() + at_;
    std::size_t size = hit != nullptr ? static_cast<std::size_t>(static_cast<const char*>(hit) - from) : end_ - at_;
    if (size > kMaxLine) {
      throw TraceError(path(), number_, fmt::format("a line of more than {} bytes: {}", kMaxLine, quoted({from, 40})),
                       "text lines of a trace");
    }
    at_ += size + (hit != nullptr ? 1 : 0);
    if (size != 0 && from[size - 1] == '\r') --size;
    line = {from, size};
    return true;
  }
}

}  // namespace cistern::trace
