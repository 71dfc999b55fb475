// Random sequences of operations on a pool, against a model that knows who holds what. Set CISTERN_POOL_SEED and
// CISTERN_POOL_STEPS to run a sequence again or longer ones.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <random>
#include <set>

#include "cistern/buffer_pool.hpp"
#include "cistern/error.hpp"
#include "pool/counting_allocator.hpp"
#include "pool/expect_rules.hpp"

namespace cistern {
namespace {

using testing::CountingAllocator;

std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

// A piece of memory as the model sees it.
struct Piece {
  std::size_t handles = 0;
  std::size_t bucket = 0;   // Bytes.
  bool handed_out = false;  // Since the last reset.
  bool released = false;
  bool of_pool = true;    // Not from before clear().
  std::uint8_t mark = 0;  // First and last byte.
};

struct Held {
  TypedBuffer handle;
  std::size_t piece = 0;
};

class Sequence {
 public:
  Sequence(std::uint64_t seed, PoolOptions options)
      : random_(seed), options_(options), pool_(below_, Stream(Device::cpu()), options) {}

  void step() {
    switch (random_() % 32) {
      default:
        alloc();
        break;
      case 14:
      case 15:
      case 16:
        copy();
        break;
      case 17:
      case 18:
      case 19:
      case 20:
      case 21:
      case 22:
      case 23:
        drop();
        break;
      case 24:
      case 25:
      case 26:
      case 27:
        release();
        break;
      case 28:
        if (random_() % 4 == 0) reset();
        break;
      case 29:
        if (random_() % 16 == 0) pool_.trim();
        break;
      case 30:
        if (random_() % 64 == 0) clear();
        break;
      case 31:
        fail();
        break;
    }
  }

  void check() {
    testing::expect_rules(pool_);
    std::size_t in_use = 0;
    std::size_t bytes = 0;
    std::size_t orphans = 0;
    for (const auto& [id, piece] : pieces_) {
      in_use += piece.of_pool;
      bytes += piece.of_pool ? piece.bucket : 0;
      orphans += !piece.of_pool;
    }
    ASSERT_EQ(pool_.in_use_count(), in_use);
    ASSERT_EQ(pool_.in_use_bytes(), bytes);
    ASSERT_EQ(below_.live(), pool_.total_count() + orphans);
    ASSERT_EQ(below_.wrong_frees, 0u);
    std::map<const std::byte*, std::size_t> owners;
    for (const Held& held : held_) {
      const Piece& piece = pieces_.at(held.piece);
      ASSERT_EQ(held.handle.use_count(), piece.handles);
      const auto base = held.handle.data() - held.handle.byte_offset();
      const auto [place, fresh] = owners.emplace(base, held.piece);
      ASSERT_EQ(place->second, held.piece) << "two pieces at one address";
      if (held.handle.byte_len() == 0) continue;
      ASSERT_EQ(static_cast<std::uint8_t>(held.handle.as_span<std::byte>().front()), piece.mark);
      ASSERT_EQ(static_cast<std::uint8_t>(held.handle.as_span<std::byte>().back()), piece.mark);
    }
  }

  void finish() {
    if (random_() % 2 == 0) held_.clear();
    pool_.reset();
    testing::expect_rules(pool_);
    pool_.clear();
    held_.clear();
    ASSERT_EQ(below_.live(), 0u);
  }

 private:
  void alloc() {
    if (held_.size() > 200) return drop();
    const std::size_t bytes = (random_() % 4096) >> (random_() % 12);
    Held held{pool_.alloc(bytes, DType::u8, {bytes}), next_piece_++};
    Piece& piece = pieces_[held.piece];
    piece.handles = 1;
    piece.handed_out = true;
    piece.bucket = pool_.bucket_bytes(bytes);
    piece.mark = static_cast<std::uint8_t>(random_());
    const auto content = held.handle.as_span<std::byte>();
    if (options_.zero_on_reuse) {
      for (const std::byte byte : content) ASSERT_EQ(byte, std::byte{0});
    }
    std::fill(content.begin(), content.end(), std::byte{piece.mark});
    held_.push_back(std::move(held));
  }

  void copy() {
    if (held_.empty() || held_.size() > 200) return;
    const Held& held = held_[random_() % held_.size()];
    const std::size_t length = held.handle.byte_len();
    const std::size_t from = length == 0 ? 0 : random_() % length;
    const std::size_t id = held.piece;
    TypedBuffer other = random_() % 2 == 0 ? held.handle : held.handle.slice_view(from, length - from);
    ++pieces_[id].handles;
    held_.push_back({std::move(other), id});
  }

  void drop() {
    if (held_.empty()) return;
    const std::size_t at = random_() % held_.size();
    const std::size_t id = held_[at].piece;
    if (random_() % 2 == 0) {
      held_[at].handle.reset();
      std::swap(held_[at], held_.back());
    } else {
      std::swap(held_[at], held_.back());
    }
    held_.pop_back();
    dropped(id);
  }

  void dropped(std::size_t id) {
    Piece& piece = pieces_.at(id);
    if (--piece.handles == 0 && !piece.handed_out) pieces_.erase(id);
  }

  void release() {
    if (held_.empty()) return;
    const std::size_t at = random_() % held_.size();
    Held& held = held_[at];
    Piece& piece = pieces_.at(held.piece);
    if (!piece.of_pool || piece.released || held.handle.is_view()) {
      ASSERT_THROW(pool_.release(held.handle), invalid_argument);
      ASSERT_TRUE(held.handle);
      return;
    }
    pool_.release(held.handle);
    piece.released = true;
    piece.handed_out = false;
    const std::size_t id = held.piece;
    std::swap(held, held_.back());
    held_.pop_back();
    dropped(id);
  }

  void reset() {
    bool refused = false;
    for (const auto& [id, piece] : pieces_) refused = refused || (piece.handed_out && piece.handles > 0);
    if (random_() % 4 == 0 && refused) {
      ASSERT_THROW(pool_.reset(Escape::error), invalid_argument);
      return;
    }
    pool_.reset(refused ? Escape::keep : Escape::error);
    ended();
  }

  void clear() {
    pool_.clear();
    for (auto& [id, piece] : pieces_) piece.of_pool = false;
    ended();
  }

  // No piece is of this cycle any more.
  void ended() {
    for (auto it = pieces_.begin(); it != pieces_.end();) {
      it->second.handed_out = false;
      it = it->second.handles == 0 ? pieces_.erase(it) : std::next(it);
    }
  }

  void fail() {
    below_.limit = 0;
    try {
      const TypedBuffer buffer = pool_.alloc(DType::u8, {3000});
      Piece& piece = pieces_[next_piece_++];
      piece.handed_out = true;
      piece.bucket = pool_.bucket_bytes(3000);
    } catch (const out_of_memory&) {
    }
    below_.limit = SIZE_MAX;
  }

  std::mt19937_64 random_;
  PoolOptions options_;
  CountingAllocator below_;
  BufferPool pool_;
  std::vector<Held> held_;
  std::map<std::size_t, Piece> pieces_;
  std::size_t next_piece_ = 0;
};

TEST(PoolRandomTest, AgreesWithTheModel) {
  const std::uint64_t seed = from_environment("CISTERN_POOL_SEED", std::random_device{}());
  const std::uint64_t steps = from_environment("CISTERN_POOL_STEPS", 20000);
  RecordProperty("seed", std::to_string(seed));
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  for (const Bucketing bucketing : {Bucketing::power_of_two, Bucketing::eight_steps, Bucketing::exact}) {
    for (const bool zero : {false, true}) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", bucketing " + std::to_string(static_cast<int>(bucketing)));
      Sequence sequence(seed, {.bucketing = bucketing, .zero_on_reuse = zero});
      for (std::uint64_t i = 0; i < steps && !::testing::Test::HasFailure(); ++i) {
        sequence.step();
        if (i % 16 == 0) sequence.check();
      }
      sequence.check();
      sequence.finish();
    }
  }
}

}  // namespace
}  // namespace cistern
