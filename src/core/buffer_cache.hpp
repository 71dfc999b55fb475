// BufferCache: keeps whole buffers that were freed and hands out the one closest in size. For resources that cannot be
// split: Metal without heaps, pinned host memory, `replay --allocator buffer-cache`.
//
// Does: find the smallest buffer of capacity >= n and < min(2n, n + 2 pages), most recently freed first among equals;
// evict the least recently freed above a cap of bytes. Does not: make buffers, look into them, round sizes (rounded()
// tells how), lock. The caller locks; `evict` runs inside of put(), trim(), set_cap(), clear() and the destructor, and
// must neither throw nor call the cache.
//
// A buffer is in one of two states:
//
//   state    owner      may become
//   cached   the cache  out (take), gone (evict)
//   out      the caller cached (put)
//
// Buffers of about one capacity form a class: below a page those between two powers of two, from a page on those with
// the same number of whole pages. A request's sizes span at most three classes, which a hash table finds:
//
//   table   | class 7: first |   -   | class 31: first | ...
//                  |
//                  v
//   class     [4096] -> [4096] -> [5000]          by capacity, then most recent first
//   age       oldest <-> ... <-> newest           over all classes
//
// With rounded capacities a class has one capacity, and every operation takes constant time. Others work too; then
// put() and take() are linear in the buffers of a class. Memory grows only when more buffers or classes are held than
// ever before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace cistern::core {

class BufferCache {
 public:
  // Gives a buffer back to where it came from.
  using Evict = std::function<void(void* buffer, std::size_t capacity)>;

  struct Taken {
    void* buffer = nullptr;  // Null when nothing fits.
    std::size_t capacity = 0;
  };

  // pre: `page` is a power of two. Both numbers are bytes.
  BufferCache(std::size_t page, std::size_t cap, Evict evict);
  ~BufferCache();
  BufferCache(const BufferCache&) = delete;
  BufferCache& operator=(const BufferCache&) = delete;

  // The capacity to make a buffer with when take() finds none: a power of two below a page, whole pages above.
  // pre: bytes <= SIZE_MAX / 2.
  std::size_t rounded(std::size_t bytes) const;

  // The closest buffer, which leaves the cache.
  Taken take(std::size_t bytes);
  // The buffer enters the cache, or is evicted at once: when it is larger than the cap, or the host has no memory for
  // the cache's own records. pre: buffer is not null and not in the cache.
  void put(void* buffer, std::size_t capacity);

  // The least recently freed buffer, whatever its size, which leaves the cache.
  Taken take_oldest();

  // Evicts the oldest until at most `keep` bytes are left; the bytes evicted.
  std::size_t trim(std::size_t keep);
  std::size_t clear() { return trim(0); }
  // Evicts what is above the new cap; the previous one.
  std::size_t set_cap(std::size_t cap);

  std::size_t cap() const { return cap_; }
  std::size_t bytes() const { return bytes_; }
  std::size_t count() const { return count_; }

  // One message a broken rule; empty when all hold.
  std::vector<std::string> check_invariants() const;

 private:
  static constexpr std::uint32_t kNone = UINT32_MAX;

  struct Node {
    void* buffer = nullptr;
    std::size_t capacity = 0;
    std::uint32_t prev = kNone;  // In its class; `next` also links unused nodes.
    std::uint32_t next = kNone;
    std::uint32_t older = kNone;
    std::uint32_t newer = kNone;
  };
  struct Slot {
    std::size_t key = 0;  // 0: never used.
    std::uint32_t first = kNone;
  };

  std::size_t key_of(std::size_t capacity) const;
  std::size_t home_of(std::size_t key) const;
  std::size_t find(std::size_t key) const;
  bool make_room();
  void unlink(Slot& slot, std::uint32_t index);
  void evict_node(std::uint32_t index);

  std::size_t page_;
  std::size_t cap_;
  Evict evict_;
  unsigned page_bits_;
  unsigned table_shift_;
  std::size_t used_slots_ = 0;
  std::size_t bytes_ = 0;
  std::size_t count_ = 0;
  std::uint32_t unused_ = kNone;
  std::uint32_t oldest_ = kNone;
  std::uint32_t newest_ = kNone;
  std::vector<Node> nodes_;
  std::vector<Slot> table_;
};

}  // namespace cistern::core
