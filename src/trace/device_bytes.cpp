// Edges of blocks, written by the device and read back. See device_bytes.hpp.
#include "trace/device_bytes.hpp"

#include <algorithm>

namespace cistern::trace {

using drivers::HostKind;
using drivers::Status;

DeviceBytes::~DeviceBytes() {
  driver_.synchronize_device();
  for (unsigned char* const chunk : chunks_) driver_.free_host(HostKind::pinned, chunk, kChunk);
}

// Pinned memory for one edge; null when there is none.
unsigned char* DeviceBytes::room(std::size_t bytes) {
  if (used_ + bytes > kChunk) {
    if (!chunks_.empty()) ++chunk_;
    if (chunk_ >= chunks_.size()) {
      void* memory = nullptr;
      if (driver_.allocate_host(HostKind::pinned, kChunk, memory) != Status::ok) return nullptr;
      chunks_.push_back(static_cast<unsigned char*>(memory));
      chunk_ = chunks_.size() - 1;
    }
    used_ = 0;
  }
  unsigned char* const out = chunks_[chunk_] + used_;
  used_ += bytes;
  return out;
}

void DeviceBytes::write(drivers::Address at, std::size_t bytes, std::uint8_t value, void* native) {
  const std::size_t edge = std::min(bytes, kEdge);
  if (edge == 0) return;
  if (driver_.fill(at, value, edge, native) != Status::ok) ++failed_;
  if (bytes > kEdge && driver_.fill(at + bytes - edge, value, edge, native) != Status::ok) ++failed_;
}

void DeviceBytes::read(drivers::Address at, std::size_t bytes, std::uint8_t value, void* native) {
  const std::size_t edge = std::min(bytes, kEdge);
  const auto one = [&](drivers::Address from) {
    unsigned char* const to = room(edge);
    const auto address = static_cast<drivers::Address>(reinterpret_cast<std::uintptr_t>(to));
    if (to == nullptr || driver_.copy(address, from, edge, native) != Status::ok) {
      ++failed_;
      return;
    }
    expected_.push_back({to, static_cast<std::uint8_t>(edge), value});
  };
  if (edge == 0) return;
  one(at);
  if (bytes > kEdge) one(at + bytes - edge);
}

std::uint64_t DeviceBytes::finish() {
  if (driver_.synchronize_device() != Status::ok) ++failed_;
  std::uint64_t bad = failed_;
  for (const Expected& e : expected_) {
    const bool same = std::all_of(e.host, e.host + e.bytes, [&](unsigned char byte) { return byte == e.value; });
    if (!same) ++bad;
    verified_ += e.bytes;
  }
  expected_.clear();
  failed_ = 0;
  chunk_ = 0;
  used_ = chunks_.empty() ? kChunk : 0;
  return bad;
}

}  // namespace cistern::trace
