// FakeBacking: a backing for heap tests that checks every rule it can see and fails on demand. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/backing.hpp"

namespace cistern::core {

// What the heaps of one fake device share: its pieces, its clock, its failures.
struct FakeDevice {
  struct PieceState {
    std::uint32_t cells = 0;
    int mapped = 0;  // Addresses that show it.
  };
  std::map<std::uint64_t, PieceState> pieces;
  std::uint64_t next_piece = 1;
  std::uint64_t capacity_cells = UINT64_MAX;
  std::uint64_t now = 0;
  std::uint64_t lag = 0;  // 0: nothing runs behind the host.
  std::vector<std::uint64_t> tickets;
  std::uint64_t calls = 0;
  std::uint64_t fail_at = 0;  // Number of the call that fails; 0: none.
  std::uint64_t waits = 0;
  bool wait_fails = false;                                  // The host cannot wait: a failure, a graph capture.
  std::vector<std::pair<StreamIndex, StreamIndex>> orders;  // Earlier, later; in the order of the calls.
  std::set<StreamIndex> unordered;                          // Nobody can wait for these: they are being captured.

  bool fails() { return ++calls == fail_at; }
  std::uint64_t cells() const {
    std::uint64_t sum = 0;
    for (const auto& [id, p] : pieces) sum += p.cells;
    return sum;
  }
};

class FakeBacking : public Backing {
 public:
  explicit FakeBacking(FakeDevice& device) : device_(device) {}

  bool create(std::uint32_t cells, Piece& piece) override {
    if (device_.fails() || device_.cells() + cells > device_.capacity_cells) return false;
    piece = Piece{device_.next_piece++};
    device_.pieces[static_cast<std::uint64_t>(piece)] = {cells, 0};
    return true;
  }
  void destroy(Piece piece, std::uint32_t cells) override {
    const auto it = find(piece, cells);
    require(it->second.mapped == 0, "a destroyed piece is mapped nowhere");
    device_.pieces.erase(it);
  }
  bool map(Cell at, Piece piece, std::uint32_t cells) override {
    const auto it = find(piece, cells);
    if (device_.fails()) return false;
    for (std::uint32_t c = raw(at); c < raw(at) + cells; ++c) {
      require(shown_.emplace(c, Mapping{piece, raw(at), cells}).second, "nothing is mapped over a mapping");
    }
    ++it->second.mapped;
    return true;
  }
  void unmap(Cell at, Piece piece, std::uint32_t cells) override {
    const auto entry = shown_.find(raw(at));
    require(entry != shown_.end() && entry->second.at == raw(at) && entry->second.cells == cells &&
                entry->second.piece == piece,
            "an unmap ends one whole mapping");
    --find(entry->second.piece, cells)->second.mapped;
    for (std::uint32_t c = raw(at); c < raw(at) + cells; ++c) shown_.erase(c);
  }
  Ticket mark() override {
    if (device_.lag == 0) return Ticket::none;
    device_.tickets.push_back(device_.now + device_.lag);
    return Ticket{device_.tickets.size()};
  }
  bool passed(Ticket ticket) override { return device_.tickets.at(raw_ticket(ticket)) <= device_.now; }
  bool wait(Ticket ticket) override {
    if (device_.wait_fails) return false;
    ++device_.waits;
    device_.now = std::max(device_.now, device_.tickets.at(raw_ticket(ticket)));
    return true;
  }
  bool order(StreamIndex earlier, StreamIndex later) override {
    require(earlier != later, "a stream is in order with itself");
    if (device_.fails() || device_.unordered.contains(earlier)) return false;
    device_.orders.emplace_back(earlier, later);
    return true;
  }
  bool shows(std::uint32_t cell) const { return shown_.contains(cell); }
  // The physical cell behind one of the range: its piece, and its number in there.
  std::pair<Piece, std::uint32_t> behind(std::uint32_t cell) const {
    const Mapping& mapping = shown_.at(cell);
    return {mapping.piece, cell - mapping.at};
  }

 private:
  struct Mapping {
    Piece piece;
    std::uint32_t at;
    std::uint32_t cells;
  };
  static void require(bool ok, const char* rule) {
    if (!ok) throw std::logic_error(std::string("backing rule broken: ") + rule);
  }
  static std::uint64_t raw_ticket(Ticket t) { return static_cast<std::uint64_t>(t) - 1; }
  std::map<std::uint64_t, FakeDevice::PieceState>::iterator find(Piece piece, std::uint32_t cells) {
    const auto it = device_.pieces.find(static_cast<std::uint64_t>(piece));
    require(it != device_.pieces.end() && it->second.cells == cells, "a piece is known and of the size named");
    return it;
  }

  FakeDevice& device_;
  std::map<std::uint32_t, Mapping> shown_;
};

}  // namespace cistern::core
