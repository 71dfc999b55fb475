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

bool OrderLedger::any_ahead(StreamIndex stream, const Freed& freed) const {
  return std::any_of(freed.parts_.begin(), freed.parts_.end(), [&](std::uint64_t part) {
    if (part == 0) return false;
    if (Freed::stream_of(part) != Freed::kAll) return ahead(stream, Freed::stream_of(part), Freed::when_of(part));
    bool any = false;
    for (std::uint64_t other = 0; other < streams_.size(); ++other) {
      any = any || ahead(stream, other, Freed::when_of(part));
    }
    return any;
  });
}

void OrderLedger::come_after(StreamIndex stream, StreamIndex other) {
  know(stream);
  know(other);
  auto& seen = streams_[raw(stream)].seen;
  const auto& before = streams_[raw(other)].seen;
  seen.resize(streams_.size());
  for (std::size_t i = 0; i < before.size(); ++i) seen[i] = std::max(seen[i], before[i]);
  seen[raw(other)] = clock_;
}

void OrderLedger::forget(StreamIndex stream) {
  if (raw(stream) < streams_.size()) streams_[raw(stream)].seen.clear();
}

}  // namespace cistern::core
