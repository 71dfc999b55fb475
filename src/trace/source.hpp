// Bytes of a file, decompressed on the way when the file is gzip (by its content, not its name), and lines of them.
// Refuses folders, cut or damaged gzip data and anything behind it. One reader, one thread; no locking.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cistern::trace {

class ByteSource {
 public:
  // Opens the file. Throws TraceError: not there, a folder, unreadable, empty.
  explicit ByteSource(std::string path);
  ~ByteSource();
  ByteSource(const ByteSource&) = delete;
  ByteSource& operator=(const ByteSource&) = delete;

  // Fills `to` from its start; returns how many bytes were written: 0 only at the end of the data.
  // Throws TraceError for a read error and for gzip data that is cut, damaged or followed by something else.
  std::size_t read(std::span<char> to);

  // The next bytes, left in place; fewer than `count` only when the data is shorter. `count` <= 4096.
  std::string_view peek(std::size_t count);

  const std::string& path() const { return path_; }
  bool compressed() const { return inflater_ != nullptr; }

 private:
  struct Inflater;

  std::size_t read_file(char* to, std::size_t count);
  std::size_t read_inflated(std::span<char> to);
  // Makes sure that the input buffer holds a byte, if the file has one.
  bool refill();

  std::string path_;
  std::FILE* file_ = nullptr;
  std::unique_ptr<Inflater> inflater_;
  std::vector<char> input_;
  std::size_t input_at_ = 0;
  std::size_t input_end_ = 0;
  std::uint64_t consumed_ = 0;  // Bytes of the file taken out of input_.
  std::vector<char> peeked_;
  std::size_t peeked_at_ = 0;
};

// The rest of the source as one string. Throws TraceError when there are more than `max_bytes`.
std::string read_all(ByteSource& source, std::uint64_t max_bytes);

class LineReader {
 public:
  static constexpr std::size_t kMaxLine = 64 * 1024;

  explicit LineReader(ByteSource& source);

  // The next line without its line end ("\n" or "\r\n"); false at the end of the data. The view lives until the next
  // call. Faults of the source are thrown again with the line where they were met.
  bool next(std::string_view& line);

  // Number of the line that next() gave last; the first is 1.
  std::uint64_t number() const { return number_; }
  const std::string& path() const { return source_.path(); }

 private:
  bool refill();

  ByteSource& source_;
  std::vector<char> buffer_;
  std::size_t at_ = 0;
  std::size_t end_ = 0;
  bool finished_ = false;
  std::uint64_t number_ = 0;
};

}  // namespace cistern::trace
