// Patterns, overlaps, resident memory. See replay_check.hpp.
#include "trace/replay_check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#ifdef __APPLE__
#include <mach/mach.h>
#else
#include <unistd.h>

#include <cstdio>
#endif

namespace cistern::trace {
namespace {

// Word i of a block holds key + i * kStep; the bytes after the last whole word hold the low bytes of the next one.
constexpr std::uint64_t kStep = 0x9E3779B97F4A7C15;

void fill(unsigned char* base, std::uint64_t from, std::uint64_t to, std::uint64_t key) {
  std::uint64_t at = from;
  for (; at + 8 <= to; at += 8) {
    const std::uint64_t word = key + (at / 8) * kStep;
    std::memcpy(base + at, &word, 8);
  }
  const std::uint64_t word = key + (at / 8) * kStep;
  if (at < to) std::memcpy(base + at, &word, to - at);
}

// The first word's offset that differs, or `to`.
std::uint64_t find_difference(const unsigned char* base, std::uint64_t from, std::uint64_t to, std::uint64_t key) {
  constexpr std::uint64_t kChunk = 512;  // Compared without a branch each word.
  std::uint64_t at = from;
  while (at + 8 <= to) {
    const std::uint64_t end = std::min(at + kChunk, at + (to - at) / 8 * 8);
    std::uint64_t difference = 0;
    for (std::uint64_t i = at; i < end; i += 8) {
      std::uint64_t word;
      std::memcpy(&word, base + i, 8);
      difference |= word ^ (key + (i / 8) * kStep);
    }
    if (difference != 0) {
      for (std::uint64_t i = at; i < end; i += 8) {
        const std::uint64_t word = key + (i / 8) * kStep;
        if (std::memcmp(base + i, &word, 8) != 0) return i;
      }
    }
    at = end;
  }
  const std::uint64_t word = key + (at / 8) * kStep;
  return at < to && std::memcmp(base + at, &word, to - at) != 0 ? at : to;
}

// Calls visit(from, to) for each part that is written; stops when it returns false.
template <class Visit>
void for_each_part(std::uint64_t bytes, bool whole, Visit visit) {
  if (whole) {
    visit(std::uint64_t{0}, bytes);
    return;
  }
  if (!visit(std::uint64_t{0}, Pattern::kEdge)) return;
  const std::uint64_t tail = (bytes - Pattern::kEdge) & ~std::uint64_t{7};
  for (std::uint64_t at = Pattern::kEdge; at + Pattern::kLine <= tail; at += Pattern::kPage) {
    if (!visit(at, at + Pattern::kLine)) return;
  }
  visit(tail, bytes);
}

}  // namespace

std::optional<std::uint64_t> resident_bytes() {
#ifdef __APPLE__
  mach_task_basic_info info{};
  mach_msg_type_number_t count = MACH_TASK_BASIC_INFO_COUNT;
  if (task_info(mach_task_self(), MACH_TASK_BASIC_INFO, reinterpret_cast<task_info_t>(&info), &count) != KERN_SUCCESS) {
    return std::nullopt;
  }
  return info.resident_size;
#else
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr) return std::nullopt;
  unsigned long size = 0, resident = 0;
  const int read = std::fscanf(file, "%lu %lu", &size, &resident);
  std::fclose(file);
  if (read != 2) return std::nullopt;
  return std::uint64_t{resident} * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
#endif
}

std::optional<std::string> resident_fault(std::uint64_t resident, std::uint64_t reserved, std::uint64_t blocks) {
  const double books = static_cast<double>(kResidentBooks + blocks * kResidentBlock);
  const double held = static_cast<double>(reserved), grew = static_cast<double>(resident);
  if (grew <= held * (1 + kResidentTolerance) + books) return std::nullopt;
  return fmt::format(
      "resident memory grew by {} bytes, {} more than the {} bytes reserved; expected at most {:.0f} % and {:.0f} more",
      resident, resident - reserved, reserved, kResidentTolerance * 100, books);
}

Pattern::Mark Pattern::write(void* at, std::uint64_t bytes, std::uint64_t key) {
  Mark mark{key, true};
  if (bytes > kSmall) {
    mark.whole = whole_left_ >= bytes;
    if (mark.whole) whole_left_ -= bytes;
  }
  for_each_part(bytes, mark.whole, [&](std::uint64_t from, std::uint64_t to) {
    fill(static_cast<unsigned char*>(at), from, to, key);
    return true;
  });
  return mark;
}

std::optional<std::uint64_t> Pattern::verify(const void* at, std::uint64_t bytes, Mark mark) {
  std::optional<std::uint64_t> found;
  for_each_part(bytes, mark.whole, [&](std::uint64_t from, std::uint64_t to) {
    const std::uint64_t difference = find_difference(static_cast<const unsigned char*>(at), from, to, mark.key);
    if (difference < to) found = difference;
    verified_ += to - from;
    return !found;
  });
  return found;
}

BlockChecker::BlockChecker(const Program& program, std::uint64_t alignment, bool writable, std::uint64_t whole_bytes)
    : alignment_(alignment), writable_(writable), pattern_(whole_bytes), slots_(program.slots) {}

void BlockChecker::fault(std::string message) {
  ++faults_;
  if (messages_.size() < kMessages) messages_.push_back(std::move(message));
}

void BlockChecker::allocated(const Op& op, std::uint64_t id, std::uint64_t address) {
  Live& live = slots_[op.slot];
  live = {address, op.bytes, {}, true};
  if (op.bytes == 0) return;
  if (address == 0) {
    fault(fmt::format("block {}: {} bytes at a null address", id, op.bytes));
    live.bytes = 0;
    return;
  }
  if (address % alignment_ != 0)
    fault(fmt::format("block {}: {:#x} is not aligned to {} bytes", id, address, alignment_));
  const std::uint64_t end = address + op.bytes;
  const auto next = ranges_.upper_bound(address);
  const Range* other = nullptr;
  if (next != ranges_.end() && next->first < end) other = &next->second;
  if (next != ranges_.begin() && std::prev(next)->second.end > address) other = &std::prev(next)->second;
  if (other != nullptr) {
    fault(fmt::format("block {}: [{:#x}, {:#x}) overlaps live block {}", id, address, end, other->id));
    live.bytes = 0;  // Neither written nor verified, so that one fault is told once.
    return;
  }
  ranges_[address] = {end, id};
  if (writable_) live.mark = pattern_.write(reinterpret_cast<void*>(address), op.bytes, ++serial_ * 0xD1B54A32D192ED03);
}

void BlockChecker::freeing(const Op& op, std::uint64_t id) {
  Live& live = slots_[op.slot];
  if (!live.alive) return;  // Its allocation failed, which was counted.
  live.alive = false;
  ++blocks_;
  if (live.bytes == 0) return;
  ranges_.erase(live.address);
  if (!writable_) return;
  if (const auto at = pattern_.verify(reinterpret_cast<const void*>(live.address), live.bytes, live.mark)) {
    fault(fmt::format("block {}: of {} bytes at {:#x}, the bytes from {} on are not as written", id, live.bytes,
                      live.address, *at));
  }
}

void BlockChecker::finish() {
  for (const auto& [address, range] : ranges_) {
    fault(fmt::format("block {}: still known at {:#x} after the pass", range.id, address));
  }
  ranges_.clear();
}

void BlockChecker::report(CheckResult& out) const {
  out.blocks = blocks_;
  out.bytes_verified = pattern_.bytes_verified();
  out.faults = faults_;
  out.messages = messages_;
}

}  // namespace cistern::trace
