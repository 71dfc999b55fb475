// PlannedArena: checks of the arguments, and the way to its core.
#include "cistern/planned_arena.hpp"

#include <atomic>
#include <string>
#include <utility>

#include "cistern/error.hpp"
#include "pool/planned_arena_core.hpp"

namespace cistern {

namespace {

// Owners of slots are told apart by numbers; those of arenas have the top bit set.
std::atomic<std::uint64_t> next_arena_id{(std::uint64_t{1} << 63) + 1};

[[noreturn]] void refuse(const std::string& what, const std::string& why) {
  throw invalid_argument("PlannedArena::" + what + ": " + why);
}

std::unique_ptr<pooling::ArenaCore> make_core(Allocator& allocator, const Stream& stream, const ArenaOptions& options,
                                              detail::ArenaFront& front) {
  if (stream.device() != allocator.device()) {
    refuse("PlannedArena",
           "the stream is of " + to_string(stream.device()) + ", the allocator of " + to_string(allocator.device()));
  }
  // Not less or equal: NaN is refused too.
  if (!(options.plan_time.count() > 0)) refuse("PlannedArena", "plan_time must be more than 0 seconds");
  if (options.record_cycles == 0 || options.replan_after == 0 || options.max_shapes == 0) {
    refuse("PlannedArena", "record_cycles, replan_after and max_shapes must be at least 1");
  }
  return std::make_unique<pooling::ArenaCore>(allocator, stream, options,
                                              next_arena_id.fetch_add(1, std::memory_order_relaxed), front);
}

}  // namespace

const TypedBuffer& PlannedBuffer::empty() noexcept {
  static const TypedBuffer nothing;
  return nothing;
}

PlannedArena::PlannedArena(Device device, ArenaOptions options)
    : PlannedArena(cistern::allocator(device), Stream(device), options) {}

PlannedArena::PlannedArena(const Stream& stream, ArenaOptions options)
    : PlannedArena(cistern::allocator(stream.device()), stream, options) {}

PlannedArena::PlannedArena(Allocator& allocator, const Stream& stream, ArenaOptions options)
    : core_(make_core(allocator, stream, options, front_)) {}

PlannedArena::~PlannedArena() = default;

// NOLINTNEXTLINE(performance-unnecessary-value-param): see the declaration.
const TypedBuffer* PlannedArena::alloc_slow(std::size_t byte_len, DType dtype, Shape shape) {
  const TypedBuffer& next = front_.next->handle;
  if (detail::HandleAccess::differs(next, dtype, shape, detail::kMore) == 0 && next.byte_len() == byte_len) {
    return detail::PlannedAccess::open(core_->alloc_again());
  }
  if (!is_valid(dtype)) refuse("alloc", "there is no dtype number " + std::to_string(static_cast<unsigned>(dtype)));
  const auto type = [dtype] { return std::string(name_of(dtype)); };
  std::size_t need = 0;
  if (!shape.count_bytes(size_of(dtype), need)) {
    refuse("alloc", "the bytes of " + type() + to_string(shape) + " do not fit in 64 bits");
  }
  if (need != byte_len) {
    refuse("alloc", std::to_string(byte_len) + " bytes do not match " + type() + to_string(shape) + ", which needs " +
                        std::to_string(need));
  }
  if (byte_len > detail::kMaxRequest) {
    refuse("alloc", std::to_string(byte_len) + " bytes are more than any device could have");
  }
  return detail::PlannedAccess::open(core_->alloc(byte_len, dtype, shape));
}

// NOLINTNEXTLINE(performance-unnecessary-value-param): see the declaration.
const TypedBuffer* PlannedArena::alloc_slow(DType dtype, Shape shape) {
  // What is wrong with dtype or shape is said there.
  std::size_t bytes = 0;
  if (is_valid(dtype)) (void)shape.count_bytes(size_of(dtype), bytes);
  return alloc_slow(bytes, dtype, shape);
}

void PlannedArena::release(TypedBuffer& buffer) { core_->release(buffer); }

void PlannedArena::release(PlannedBuffer& buffer) {
  if (!buffer) {
    TypedBuffer empty;
    core_->release(empty);  // Throws.
  }
  TypedBuffer handle = detail::HandleAccess::same(*buffer);
  try {
    core_->release(handle);
  } catch (...) {
    detail::HandleAccess::forget(handle);
    throw;
  }
  (void)detail::PlannedAccess::open(std::move(buffer));
}

void PlannedArena::end_cycle() { core_->end_cycle(); }

void PlannedArena::finish_planning() {
  if (core_->in_cycle()) refuse("finish_planning", "a cycle is going on; end it first");
  core_->finish_planning();
}

void PlannedArena::learn(std::span<const ArenaLife> cycle) {
  if (core_->in_cycle()) refuse("learn", "a cycle is going on; end it first");
  if (cycle.size() >= UINT32_MAX) refuse("learn", std::to_string(cycle.size()) + " requests are too many");
  pooling::Recording recording;
  recording.reserve(cycle.size());
  for (std::size_t i = 0; i < cycle.size(); ++i) {
    const ArenaLife& life = cycle[i];
    if (life.dead_at <= i || life.dead_at > cycle.size()) {
      refuse("learn", "request " + std::to_string(i) + " of " + std::to_string(cycle.size()) + " cannot be dead at " +
                          std::to_string(life.dead_at));
    }
    if (life.byte_len > detail::kMaxRequest) {
      refuse("learn", "request " + std::to_string(i) + ": " + std::to_string(life.byte_len) +
                          " bytes are more than any device could have");
    }
    recording.push_back({life.byte_len, life.byte_len, static_cast<std::uint32_t>(life.dead_at), 0, false});
  }
  core_->learn(recording);
}

void PlannedArena::clear() { core_->clear(); }

ArenaFigures PlannedArena::figures() const { return core_->figures(); }
Device PlannedArena::device() const noexcept { return core_->stream().device(); }
const Stream& PlannedArena::stream() const noexcept { return core_->stream(); }
const ArenaOptions& PlannedArena::options() const noexcept { return core_->options(); }
std::vector<std::string> PlannedArena::check_invariants() const { return core_->check_invariants(); }

}  // namespace cistern
