// The table of uses and the ledger of waits.
#include "core/stream_order.hpp"

#include <algorithm>

namespace cistern::core {

void StreamUses::add(const Block* block, std::uint32_t stream) {
  const std::lock_guard lock(mutex_);
  auto& streams = uses_[block];
  if (std::find(streams.begin(), streams.end(), stream) == streams.end()) streams.push_back(stream);
  count_.store(uses_.size(), std::memory_order_release);
}

bool StreamUses::has(const Block* block) const {
  const std::lock_guard lock(mutex_);
  return uses_.contains(block);
}

std::vector<std::uint32_t> StreamUses::take(const Block* block) {
  if (empty()) return {};
  const std::lock_guard lock(mutex_);
  const auto found = uses_.find(block);
  if (found == uses_.end()) return {};
  std::vector<std::uint32_t> streams = std::move(found->second);
  uses_.erase(found);
  count_.store(uses_.size(), std::memory_order_release);
  return streams;
}

void StreamUses::replace_stream(std::uint32_t gone, std::uint32_t heir) {
  if (empty()) return;
  const std::lock_guard lock(mutex_);
  for (auto& [block, streams] : uses_) {
    const auto found = std::find(streams.begin(), streams.end(), gone);
    if (found == streams.end()) continue;
    if (std::find(streams.begin(), streams.end(), heir) == streams.end()) {
      *found = heir;
    } else {
      streams.erase(found);
    }
  }
}

bool OrderLedger::needs_wait(std::uint32_t to, std::uint32_t from) {
  if (to == from) return false;
  const std::uint64_t frees = slot(from).frees;
  auto& seen = slot(to).seen;
  return from >= seen.size() || seen[from] != frees;
}

void OrderLedger::waited(std::uint32_t to, std::uint32_t from) {
  const std::uint64_t frees = slot(from).frees;
  auto& seen = slot(to).seen;
  if (from >= seen.size()) seen.resize(from + 1);
  seen[from] = frees;
}

void OrderLedger::forget(std::uint32_t heap) {
  ++slot(heap).frees;
  slot(heap).seen.clear();
}

}  // namespace cistern::core
