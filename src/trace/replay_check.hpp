// What `replay --check` watches: live blocks never overlap, every byte stays as written until the block is freed, and
// the process's resident memory grows by what the allocator says it has reserved. Does not: allocate from the memory
// under test. Called by the replay engine on one thread. No lock.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "trace/replay.hpp"

namespace cistern::trace {

// Bytes of this process in physical memory; nothing where the system does not say (Linux and macOS do).
std::optional<std::uint64_t> resident_bytes();

// What is wrong with resident memory that grew by `resident` when `reserved` was reserved for at most `blocks` alive at
// once; nothing when it is within 3 % and an allowance for what is no allocator's memory, but the process's all the
// same.
inline constexpr double kResidentTolerance = 0.03;
inline constexpr std::uint64_t kResidentBooks = std::uint64_t{1} << 20;  // Tables, code that had not run before.
inline constexpr std::uint64_t kResidentBlock = 128;  // A descriptor (64), and what BlockChecker notes of a block.
std::optional<std::string> resident_fault(std::uint64_t resident, std::uint64_t reserved, std::uint64_t blocks);

// Writes a pattern that depends on the block and the position, and verifies it later.
//
//   |#######|#---|#---|#---|...|#---|#######|      # written    - left alone
//    edge     one line in every page     edge
//
// Small blocks are written whole, and large ones too while `whole_bytes` of them lasts; then large ones get both edges
// and a line in each page, which is enough to see any page that was moved, dropped, cleared or given to somebody else.
class Pattern {
 public:
  static constexpr std::uint64_t kSmall = std::uint64_t{64} << 10;
  static constexpr std::uint64_t kPage = 4096;  // Smallest page of the systems that we run on.
  static constexpr std::uint64_t kEdge = 4096;
  static constexpr std::uint64_t kLine = 64;

  explicit Pattern(std::uint64_t whole_bytes) : whole_left_(whole_bytes) {}

  struct Mark {
    std::uint64_t key = 0;
    bool whole = true;
  };
  Mark write(void* at, std::uint64_t bytes, std::uint64_t key);
  // Offset of the first byte that is not as written.
  std::optional<std::uint64_t> verify(const void* at, std::uint64_t bytes, Mark mark);
  std::uint64_t bytes_verified() const { return verified_; }

 private:
  std::uint64_t whole_left_;
  std::uint64_t verified_ = 0;
};

class BlockChecker {
 public:
  // `alignment`: bytes, of every start. `writable`: addresses may be followed.
  BlockChecker(const Program& program, std::uint64_t alignment, bool writable, std::uint64_t whole_bytes);

  void allocated(const Op& op, std::uint64_t id, std::uint64_t address);
  // Before the block is freed.
  void freeing(const Op& op, std::uint64_t id);
  void fault(std::string message);
  // Blocks that are still known (the pass ended without their frees) are a fault.
  void finish();
  // Sets what the checker found; figures of residence are the engine's.
  void report(CheckResult& out) const;

 private:
  struct Live {
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;
    Pattern::Mark mark;
    bool alive = false;
  };
  struct Range {
    std::uint64_t end = 0;
    std::uint64_t id = 0;
  };
  static constexpr std::size_t kMessages = 20;

  std::uint64_t alignment_;
  bool writable_;
  Pattern pattern_;
  std::vector<Live> slots_;
  std::map<std::uint64_t, Range> ranges_;  // Live blocks by start; those of size 0 are not here.
  std::uint64_t serial_ = 0;
  std::uint64_t blocks_ = 0;
  std::uint64_t faults_ = 0;
  std::vector<std::string> messages_;
};

}  // namespace cistern::trace
