// Best fit over one growing range per stream; see placement.hpp.
#include "trace/placement.hpp"

#include <iterator>
#include <map>
#include <set>
#include <utility>

namespace cistern::trace {
namespace {

constexpr std::uint64_t kBase = std::uint64_t{1} << 40;   // First address; any that looks like one.
constexpr std::uint64_t kLimit = std::uint64_t{1} << 53;  // Whole numbers that a double holds exactly.
constexpr std::uint64_t kSegment = std::uint64_t{2} << 20;

// Free parts of [0, end), by offset and by size.
class Arena {
 public:
  std::uint64_t take(std::uint64_t size) {
    const auto best = by_size_.lower_bound({size, 0});
    if (best != by_size_.end()) {
      const auto [free_size, offset] = *best;
      remove(offset, free_size);
      if (free_size > size) insert(offset + size, free_size - size);
      return offset;
    }
    // Grow, beginning with a free part at the end.
    std::uint64_t offset = end_;
    if (!by_offset_.empty()) {
      const auto last = *by_offset_.rbegin();
      if (last.first + last.second == end_) {
        offset = last.first;
        remove(last.first, last.second);
      }
    }
    end_ = offset + size;
    return offset;
  }

  void give(std::uint64_t offset, std::uint64_t size) {
    auto next = by_offset_.lower_bound(offset);
    if (next != by_offset_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second == offset) {
        offset = before->first;
        size += before->second;
        remove(before->first, before->second);
      }
    }
    next = by_offset_.lower_bound(offset);
    if (next != by_offset_.end() && offset + size == next->first) {
      const auto [next_offset, next_size] = *next;
      remove(next_offset, next_size);
      size += next_size;
    }
    insert(offset, size);
  }

  std::uint64_t end() const { return end_; }

 private:
  void insert(std::uint64_t offset, std::uint64_t size) {
    by_offset_.emplace(offset, size);
    by_size_.emplace(size, offset);
  }
  void remove(std::uint64_t offset, std::uint64_t size) {
    by_offset_.erase(offset);
    by_size_.erase({size, offset});
  }

  std::map<std::uint64_t, std::uint64_t> by_offset_;
  std::set<std::pair<std::uint64_t, std::uint64_t>> by_size_;
  std::uint64_t end_ = 0;
};

}  // namespace

Placement place(const Trace& trace, const std::string& path) {
  std::vector<Arena> arenas(trace.streams.size());
  std::vector<std::uint16_t> home(trace.allocations);
  Placement result;
  result.addresses.resize(trace.allocations);
  for (const TraceEvent& e : trace.events) {
    const std::uint64_t size = placed_size(e.size);
    if (e.kind == TraceEventKind::free) {
      arenas[home[e.id]].give(result.addresses[e.id], size);
      continue;
    }
    home[e.id] = e.stream;
    Arena& arena = arenas[e.stream];
    if (size < kLimit) result.addresses[e.id] = arena.take(size);
    if (size >= kLimit || arena.end() > kLimit) {
      throw TraceError(path, 0, "a trace of more than 2^53 bytes", "a trace whose addresses fit in 53 bits");
    }
  }
  std::uint64_t at = kBase;
  for (std::size_t i = 0; i < arenas.size(); ++i) {
    if (arenas[i].end() == 0) continue;
    const std::uint64_t size = (arenas[i].end() + kSegment - 1) / kSegment * kSegment;
    result.ranges.push_back({static_cast<std::uint16_t>(i), at, size});
    at += size;
    if (at > kLimit) {
      throw TraceError(path, 0, "a trace of more than 2^53 bytes", "a trace whose addresses fit in 53 bits");
    }
  }
  std::vector<std::uint64_t> base(arenas.size());
  for (const Placement::Range& range : result.ranges) base[range.stream] = range.address;
  for (std::size_t id = 0; id < home.size(); ++id) result.addresses[id] += base[home[id]];
  return result;
}

}  // namespace cistern::trace
