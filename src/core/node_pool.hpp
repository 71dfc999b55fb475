// NodePool: heap nodes from chunks, recycled last in first out. Asks the host for memory in reserve() alone, so that a
// step that takes several nodes does not stop half way. Under the device's lock.
#pragma once

#include <memory>
#include <vector>

#include "core/page_heap.hpp"

namespace cistern::core {

class NodePool {
 public:
  // Makes sure that so many can be taken. Throws std::bad_alloc.
  void reserve(std::size_t count) {
    while (spare_ < count) refill();
  }

  // A node with what it last held. pre: reserve().
  HeapNode* take() {
    HeapNode* node = free_;
    free_ = node->next;
    --spare_;
    return node;
  }

  void give(HeapNode* node) {
    node->next = free_;
    free_ = node;
    ++spare_;
  }

 private:
  static constexpr std::size_t kChunk = 256;  // Nodes; 32 KiB.

  [[gnu::noinline, gnu::cold]] void refill() {
    chunks_.push_back(std::make_unique<HeapNode[]>(kChunk));
    for (std::size_t i = 0; i < kChunk; ++i) give(&chunks_.back()[i]);
  }

  std::vector<std::unique_ptr<HeapNode[]>> chunks_;
  HeapNode* free_ = nullptr;
  std::size_t spare_ = 0;
};

}  // namespace cistern::core
