// A file being written, compressed when its name ends with ".gz". It takes its place only when it is whole: commit()
// renames a temporary file; without it nothing is left behind. One writer, one thread; no locking.
#pragma once

#include <cstdio>
#include <memory>
#include <string>
#include <string_view>

#include "cistern/trace.hpp"

namespace cistern::trace {

// The disk is full, the folder is gone: nothing is wrong with what was to be written.
class WriteError : public TraceError {
 public:
  using TraceError::TraceError;
};

// What the path names after its symbolic links, also where the last one leads to nothing yet: the file to write.
std::string follow_links(const std::string& path);

class ByteSink {
 public:
  static constexpr std::size_t kChunk = 256 * 1024;  // Bytes; callers gather about so much before write().

  enum class Mode {
    replace,  // Under a temporary name until commit().
    direct,   // Under its own name from the start: a recording that must outlive a crash of the program.
  };

  // Throws TraceError when the file cannot be made: a directory, else WriteError. A symbolic link is written through.
  explicit ByteSink(std::string path, int gzip_level = 6, Mode mode = Mode::replace);
  ~ByteSink();
  ByteSink(const ByteSink&) = delete;
  ByteSink& operator=(const ByteSink&) = delete;

  // Throws WriteError (disk full, ...).
  void write(std::string_view bytes);
  // Hands what was written to the operating system; with gzip, up to a point from which a reader can decompress.
  void flush();
  // Ends the file and puts it in its place. Throws WriteError.
  void commit();

 private:
  struct Deflater;

  void write_file(const char* data, std::size_t size);
  void deflate_all(std::string_view bytes, int flush);
  [[noreturn]] void fail(const std::string& what) const;

  std::string path_;
  std::string target_;     // What it names after symbolic links.
  std::string temporary_;  // Empty: written in place.
  std::FILE* file_ = nullptr;
  std::unique_ptr<Deflater> deflater_;
};

}  // namespace cistern::trace
