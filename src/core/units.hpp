// Strong types for the numbers of the core, and the arithmetic on them. No state, no locking; any layer may use it.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace cistern::core {

inline constexpr std::size_t KiB = std::size_t{1} << 10;
inline constexpr std::size_t MiB = std::size_t{1} << 20;
inline constexpr std::size_t GiB = std::size_t{1} << 30;

// Bytes from the start of a heap's reserved range.
enum class Offset : std::uint64_t {};
// Number of a granularity-sized piece (2 MiB on an H200) of a heap's reserved range.
enum class Cell : std::uint32_t {};
// Number of a stream on its device, or of a stream within a capture pool.
enum class StreamIndex : std::uint16_t {};

constexpr std::uint64_t raw(Offset v) { return static_cast<std::uint64_t>(v); }
constexpr std::uint32_t raw(Cell v) { return static_cast<std::uint32_t>(v); }
constexpr std::uint16_t raw(StreamIndex v) { return static_cast<std::uint16_t>(v); }

constexpr std::uint64_t align_down(std::uint64_t v, std::uint64_t a) { return v & ~(a - 1); }
constexpr std::uint64_t align_up(std::uint64_t v, std::uint64_t a) { return (v + a - 1) & ~(a - 1); }
constexpr std::uint64_t floor_pow2(std::uint64_t v) { return v == 0 ? 0 : std::bit_floor(v); }

// Largest request that is not refused at once: half the address space leaves room for every rounding.
inline constexpr std::size_t kMaxRequest = SIZE_MAX / 2;

}  // namespace cistern::core
