// RunBins: the free mapped runs of a heap by size: 16 bins a doubling, a bitmap over the bins, a list in each.
// Does not own the nodes. Called by PageHeap alone, under the device's lock.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "core/page_heap.hpp"

namespace cistern::core {

class RunBins {
 public:
  void insert(HeapNode* node) {
    const std::uint32_t bin = bin_of(node->size);
    node->bin = static_cast<std::uint16_t>(bin);
    node->bin_prev = nullptr;
    node->bin_next = heads_[bin];
    if (heads_[bin] != nullptr) heads_[bin]->bin_prev = node;
    heads_[bin] = node;
    bits_[bin / 64] |= std::uint64_t{1} << (bin % 64);
  }

  void remove(HeapNode* node) {
    if (node->bin_next != nullptr) node->bin_next->bin_prev = node->bin_prev;
    if (node->bin_prev != nullptr) {
      node->bin_prev->bin_next = node->bin_next;
    } else {
      heads_[node->bin] = node->bin_next;
      if (node->bin_next == nullptr) bits_[node->bin / 64] &= ~(std::uint64_t{1} << (node->bin % 64));
    }
  }

  // The node, which is in its bin, has `size` bytes from now on.
  void resize(HeapNode* node, std::uint64_t size) {
    if (bin_of(size) == node->bin) {
      node->size = size;
      return;
    }
    remove(node);
    node->size = size;
    insert(node);
  }

  // Calls f for up to `limit` runs of at least `size` bytes, smaller bins first.
  template <class F>
  void for_fitting(std::uint64_t size, int limit, F&& f) const {
    const std::uint32_t first = bin_of(size);
    std::uint32_t w = first / 64;
    std::uint64_t word = bits_[w] & (~std::uint64_t{0} << (first % 64));
    for (;;) {
      for (; word != 0; word &= word - 1) {
        for (HeapNode* n = heads_[w * 64 + static_cast<std::uint32_t>(std::countr_zero(word))]; n != nullptr;
             n = n->bin_next) {
          if (n->size < size) continue;  // In the first bin.
          f(n);
          if (--limit == 0) return;
        }
      }
      if (++w == kWords) return;
      word = bits_[w];
    }
  }

  // The largest run, or null.
  HeapNode* largest() const {
    for (std::uint32_t w = kWords; w-- > 0;) {
      if (bits_[w] == 0) continue;
      const std::uint32_t bin = w * 64 + 63 - static_cast<std::uint32_t>(std::countl_zero(bits_[w]));
      HeapNode* best = heads_[bin];
      for (HeapNode* n = best; n != nullptr; n = n->bin_next) {
        if (n->size > best->size) best = n;
      }
      return best;
    }
    return nullptr;
  }

  // Unit is 64 bytes. Below 16 units each size has its bin; above, 16 bins a doubling.
  static std::uint32_t bin_of(std::uint64_t size) {
    const std::uint64_t u = size / 64;
    if (u < 16) return static_cast<std::uint32_t>(u);
    const auto log = static_cast<std::uint32_t>(std::bit_width(u)) - 1;
    return (log - 3) * 16 + static_cast<std::uint32_t>((u >> (log - 4)) & 15);
  }

 private:
  static constexpr std::uint32_t kBins = 16 * 48;  // Up to 2^56 bytes.
  static constexpr std::uint32_t kWords = kBins / 64;

  std::array<HeapNode*, kBins> heads_{};
  std::array<std::uint64_t, kWords> bits_{};
};

}  // namespace cistern::core
