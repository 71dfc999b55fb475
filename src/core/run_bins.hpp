// RunBins: the free mapped runs of a heap by size: 16 bins a doubling, one list through all of them, small bins first,
// and a bitmap over the bins. Does not own the nodes. Called by PageHeap alone, under the device's lock.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "core/page_heap.hpp"

namespace cistern::core {

class RunBins {
 public:
  RunBins() {
    front_.bin_next = &end_;
    end_.bin_prev = &front_;
    end_.bin_next = &end_;
    front_.bin = end_.bin = kBins;
    heads_[kBins] = &end_;
    bits_[kWords] = 1;
  }
  RunBins(const RunBins&) = delete;
  RunBins& operator=(const RunBins&) = delete;

  void insert(HeapNode* node) {
    const std::uint32_t bin = bin_of(node->size);
    node->bin = static_cast<std::uint16_t>(bin);
    HeapNode* const next = head_from(bin);
    HeapNode* const prev = next->bin_prev;
    node->bin_prev = prev;
    node->bin_next = next;
    prev->bin_next = node;
    next->bin_prev = node;
    heads_[bin] = node;
    bits_[bin / 64] |= std::uint64_t{1} << (bin % 64);
    words_ |= 1u << (bin / 64);
  }

  void remove(HeapNode* node) {
    HeapNode* const next = node->bin_next;
    node->bin_prev->bin_next = next;
    next->bin_prev = node->bin_prev;
    // Whether it was the first or the last of its bin is a toss: no branches.
    const std::uint32_t bin = node->bin, w = bin / 64;
    const bool first = heads_[bin] == node;
    heads_[bin] = first ? next : heads_[bin];
    bits_[w] &= ~(std::uint64_t{first && next->bin != bin} << (bin % 64));
    words_ &= ~(std::uint32_t{bits_[w] == 0} << w);
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

  // The first of the runs among which those of at least `size` bytes are; the others of them follow through bin_next
  // until end(), which has no bytes and is followed by itself. Those of the first bin may be smaller.
  HeapNode* first_from(std::uint64_t size) const { return head_from(bin_of(size)); }
  const HeapNode* end() const { return &end_; }

  // The largest run, or null.
  HeapNode* largest() const {
    HeapNode* best = end_.bin_prev;
    if (best == &front_) return nullptr;
    for (HeapNode* n = best->bin_prev; n->bin == best->bin; n = n->bin_prev) {
      if (n->size > best->size) best = n;
    }
    return best;
  }

  // Unit is 64 bytes. Below 16 units each size has its bin; above, 16 bins a doubling.
  static std::uint32_t bin_of(std::uint64_t size) {
    const std::uint64_t u = size / 64;
    if (u < 16) return static_cast<std::uint32_t>(u);
    const auto log = static_cast<std::uint32_t>(std::bit_width(u)) - 1;
    return (log - 3) * 16 + static_cast<std::uint32_t>((u >> (log - 4)) & 15);
  }

 private:
  static constexpr std::uint32_t kBins = 16 * 56;  // Every size has one.
  static constexpr std::uint32_t kWords = kBins / 64;

  // The first run of the bin or a larger one; the end when there is none.
  HeapNode* head_from(std::uint32_t bin) const {
    const std::uint32_t w = bin / 64;
    const std::uint64_t here = bits_[w] & (~std::uint64_t{0} << (bin % 64));
    const auto next = static_cast<std::uint32_t>(std::countr_zero(words_ & (~std::uint32_t{1} << w)));
    const std::uint64_t there = bits_[next];
    const std::uint32_t base = (here != 0 ? w : next) * 64;
    return heads_[base + static_cast<std::uint32_t>(std::countr_zero(here != 0 ? here : there))];
  }

  // The end has a bin of its own behind the others.
  std::array<HeapNode*, kBins + 1> heads_;  // Of bins whose bit is set.
  std::array<std::uint64_t, kWords + 1> bits_{};
  std::uint32_t words_ = 1u << kWords;  // Those of `bits_` that are not 0.
  HeapNode front_, end_;                // Before the first and after the last.
};

}  // namespace cistern::core
