// Best fit in the order of begins. See online_fit.hpp.
#include "plan/online_fit.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

namespace cistern::planner {
namespace {

// Free ranges below the top of memory, by offset and by size. Neighbours are joined.
class FreeRanges {
 public:
  void give(Bytes offset, Bytes size) {
    if (size == 0) return;
    auto next = by_offset_.lower_bound(offset);
    if (next != by_offset_.end() && next->first == offset + size) {
      size += next->second;
      next = drop(next);
    }
    if (next != by_offset_.begin()) {
      const auto prev = std::prev(next);
      if (prev->first + prev->second == offset) {
        offset = prev->first;
        size += prev->second;
        drop(prev);
      }
    }
    if (offset + size == top_) {
      top_ = offset;
      return;
    }
    by_offset_.emplace(offset, size);
    by_size_.emplace(size, offset);
  }

  Bytes take(Bytes size, Bytes alignment) {
    for (auto it = by_size_.lower_bound({size, 0}); it != by_size_.end(); ++it) {
      const Bytes from = it->second;
      const Bytes to = from + it->first;
      const Bytes offset = align_up(from, alignment);
      if (offset + size > to) continue;  // lost by alignment
      drop(by_offset_.find(from));
      give(from, offset - from);
      give(offset + size, to - offset - size);
      return offset;
    }
    const Bytes from = top_;
    const Bytes offset = align_up(from, alignment);
    top_ = offset + size;
    give(from, offset - from);
    return offset;
  }

 private:
  std::map<Bytes, Bytes>::iterator drop(std::map<Bytes, Bytes>::iterator it) {
    by_size_.erase({it->second, it->first});
    return by_offset_.erase(it);
  }
  Bytes top_ = 0;
  std::map<Bytes, Bytes> by_offset_;           // offset -> size
  std::set<std::pair<Bytes, Bytes>> by_size_;  // size, offset
};

}  // namespace

std::vector<Bytes> online_fit(const Strip& strip) {
  const std::size_t n = strip.size.size();
  std::vector<std::int32_t> begins(n);
  std::iota(begins.begin(), begins.end(), 0);
  std::vector<std::int32_t> ends = begins;
  const auto by = [](const std::vector<std::int32_t>& key) {
    return [&key](std::int32_t x, std::int32_t y) {
      return key[static_cast<std::size_t>(x)] < key[static_cast<std::size_t>(y)];
    };
  };
  std::stable_sort(begins.begin(), begins.end(), by(strip.first));
  std::stable_sort(ends.begin(), ends.end(), by(strip.last));
  std::vector<Bytes> offsets(n, 0);
  FreeRanges free;
  std::size_t ended = 0;
  for (const std::int32_t i : begins) {
    const auto b = static_cast<std::size_t>(i);
    for (; ended < n && strip.last[static_cast<std::size_t>(ends[ended])] <= strip.first[b]; ++ended) {
      const auto e = static_cast<std::size_t>(ends[ended]);
      free.give(offsets[e], strip.size[e]);
    }
    offsets[b] = free.take(strip.size[b], strip.alignment[b]);
  }
  return offsets;
}

}  // namespace cistern::planner
