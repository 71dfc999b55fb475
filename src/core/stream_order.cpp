// The table of uses and the ledger of waits.
#include "core/stream_order.hpp"

#include <algorithm>
#include <utility>

namespace cistern::core {

void StreamUses::add(const Block* block, std::uint32_t stream) {
  const std::lock_guard lock(mutex_);
  if (const auto found = uses_.find(block); found == uses_.end()) {
    uses_.emplace(block, std::vector<std::uint32_t>{stream});
  } else if (std::find(found->second.begin(), found->second.end(), stream) == found->second.end()) {
    found->second.push_back(stream);
  }
  count_.store(uses_.size(), std::memory_order_release);
}

bool StreamUses::has(const Block* block) const {
  const std::lock_guard lock(mutex_);
  return uses_.contains(block);
}

StreamUses::Taken StreamUses::take(const Block* block) {
  if (empty()) return {};
  const std::lock_guard lock(mutex_);
  Taken taken = uses_.extract(block);
  count_.store(uses_.size(), std::memory_order_release);
  return taken;
}

void StreamUses::put_back(Taken taken) {
  const std::lock_guard lock(mutex_);
  uses_.insert(std::move(taken));
  count_.store(uses_.size(), std::memory_order_release);
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

void Freed::add(const Part& part) {
  for (Part& mine : parts_) {
    if (mine.mark == 0 || stream_of(mine.mark) == stream_of(part.mark)) return mine.join(part);
  }
  Part all = part;
  std::uint64_t last = when_of(part.mark);
  for (const Part& mine : parts_) {
    last = std::max(last, when_of(mine.mark));
    all.join(mine);
  }
  all.mark = pack(kAll, last);
  parts_ = {all};
}

void Freed::clip(Stretch bounds) {
  const std::uint32_t first = unit_of(bounds.begin), last = unit_after(bounds.end);
  std::size_t kept = 0;
  for (Part part : std::exchange(parts_, {})) {
    part.first = std::max(part.first, first);
    part.last = std::min(part.last, last);
    if (part.mark != 0 && part.first < part.last) parts_[kept++] = part;
  }
}

void Freed::move_to(Stretch place) {
  for (Part& part : parts_) {
    if (part.mark != 0) part.first = unit_of(place.begin), part.last = unit_after(place.end);
  }
}

bool Freed::within(Stretch bounds) const {
  return std::all_of(parts_.begin(), parts_.end(), [&](const Part& part) {
    const std::uint64_t stream = stream_of(part.mark);
    return stream == 0 || stream == kAll ||
           (unit_of(bounds.begin) <= part.first && part.last <= unit_after(bounds.end));
  });
}

bool OrderLedger::any_ahead(StreamIndex stream, const Freed& freed, Stretch where) const {
  return std::any_of(freed.parts_.begin(), freed.parts_.end(), [&](const Freed::Part& part) {
    if (part.mark == 0 || !touches(part, where)) return false;
    const std::uint64_t when = Freed::when_of(part.mark);
    if (Freed::stream_of(part.mark) != Freed::kAll) return ahead(stream, Freed::stream_of(part.mark), when);
    bool any = false;
    for (std::uint64_t other = 0; other < streams_.size(); ++other) any = any || ahead(stream, other, when);
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
  if (raw(stream) >= streams_.size()) return;
  Stream& forgotten = streams_[raw(stream)];
  forgotten.seen.clear();
  if (std::exchange(forgotten.frees, false)) --sharing_;
}

}  // namespace cistern::core
