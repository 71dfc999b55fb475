// NodePool: heap nodes from chunks, recycled last in first out. Under the device's lock.
#pragma once

#include <memory>
#include <vector>

#include "core/page_heap.hpp"

namespace cistern::core {

class NodePool {
 public:
  // A node with what it last held.
  HeapNode* take() {
    if (free_ == nullptr) refill();
    HeapNode* node = free_;
    free_ = node->next;
    return node;
  }

  void give(HeapNode* node) {
    node->next = free_;
    free_ = node;
  }

 private:
  static constexpr std::size_t kChunk = 256;  // Nodes; 26 KiB.

  void refill() {
    chunks_.push_back(std::make_unique<HeapNode[]>(kChunk));
    for (std::size_t i = 0; i < kChunk; ++i) give(&chunks_.back()[i]);
  }

  std::vector<std::unique_ptr<HeapNode[]>> chunks_;
  HeapNode* free_ = nullptr;
};

}  // namespace cistern::core
