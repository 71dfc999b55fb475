// OrderModel: an independent look at stream order. Knows of every physical byte who freed it and when, and from the
// orders that the backing was asked for what each stream comes after. Byte by byte where the product joins labels. For
// tests.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/fake_backing.hpp"
#include "core/page_heap.hpp"

namespace cistern::core {

class OrderModel {
 public:
  OrderModel(FakeDevice& device, std::uint64_t cell_bytes, std::size_t streams)
      : device_(device), cell_bytes_(cell_bytes), known_(streams, std::vector<std::uint64_t>(streams, 0)) {}

  // The node was just allocated. Empty, or what its stream does not come after.
  std::string allocated(const HeapNode& node, const FakeBacking& backing) {
    follow();
    std::string broken;
    const std::size_t stream = raw(node.stream);
    for_cells(node, backing, [&](std::vector<Part>& parts, std::uint64_t from, std::uint64_t to) {
      std::vector<Part> left;
      for (const Part& part : parts) {
        if (part.from < to && from < part.to && part.stream != stream && known_[stream][part.stream] < part.when) {
          broken = "stream " + std::to_string(stream) + " does not come after what stream " +
                   std::to_string(part.stream) + " freed at " + std::to_string(part.when);
        }
        if (part.from < from) left.push_back({part.from, std::min(part.to, from), part.stream, part.when});
        if (part.to > to) left.push_back({std::max(part.from, to), part.to, part.stream, part.when});
      }
      parts = std::move(left);
    });
    return broken;
  }
  // The node is about to be freed.
  void freed(const HeapNode& node, const FakeBacking& backing) {
    follow();
    ++now_;
    for_cells(node, backing, [&](std::vector<Part>& parts, std::uint64_t from, std::uint64_t to) {
      parts.push_back({from, to, raw(node.stream), now_});
    });
  }

 private:
  struct Part {
    std::uint64_t from, to;  // Bytes of the cell.
    std::size_t stream;
    std::uint64_t when;
  };

  void follow() {
    for (; followed_ < device_.orders.size(); ++followed_) {
      const auto [earlier, later] = device_.orders[followed_];
      auto& knows = known_[raw(later)];
      for (std::size_t i = 0; i < knows.size(); ++i) knows[i] = std::max(knows[i], known_[raw(earlier)][i]);
      knows[raw(earlier)] = now_;
    }
  }
  template <class Visit>
  void for_cells(const HeapNode& node, const FakeBacking& backing, Visit visit) {
    for (std::uint64_t at = node.offset; at < node.offset + node.size;) {
      const std::uint64_t cell = at / cell_bytes_, end = std::min((cell + 1) * cell_bytes_, node.offset + node.size);
      visit(cells_[backing.behind(static_cast<std::uint32_t>(cell))], at % cell_bytes_, end - cell * cell_bytes_);
      at = end;
    }
  }

  FakeDevice& device_;
  const std::uint64_t cell_bytes_;
  std::vector<std::vector<std::uint64_t>> known_;  // By stream: how far it comes after each other one.
  std::map<std::pair<Piece, std::uint32_t>, std::vector<Part>> cells_;
  std::size_t followed_ = 0;
  std::uint64_t now_ = 0;
};

}  // namespace cistern::core
