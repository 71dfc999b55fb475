// The CPU driver: the only file with mmap() and its kin. Contract, callers and locking are in cpu_driver.hpp.
#include "drivers/cpu/cpu_driver.hpp"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <exception>
#include <iterator>
#include <map>
#include <unordered_map>

#include "drivers/aligned_memory.hpp"
#include "drivers/cpu/host_memory.hpp"
#include "drivers/error_text.hpp"

namespace cistern::drivers {
namespace {

// Size of a transparent huge page on x86-64 and on arm64 with 4 KiB pages: a cell that is given back frees a whole one.
constexpr std::size_t kGranularity = std::size_t{2} << 20;
constexpr std::size_t kAlignment = 64;  // A cache line, and the widest vector register.
// Every event has passed, so all of them are this one.
constexpr Event kPassed{1};
// Sets the CPU's stream ids apart from those of drivers that count theirs.
constexpr std::uint64_t kStreamIds = std::uint64_t{1} << 63;

thread_local ErrorText last_error;

void* pointer(Address address) { return reinterpret_cast<void*>(static_cast<std::uintptr_t>(address)); }
Address address_of(const void* ptr) { return static_cast<Address>(reinterpret_cast<std::uintptr_t>(ptr)); }

#if defined(MAP_NORESERVE)
constexpr int kMapFlags = MAP_PRIVATE | MAP_ANON | MAP_NORESERVE;
#else
constexpr int kMapFlags = MAP_PRIVATE | MAP_ANON;
#endif

class CpuDriver final : public Driver {
 public:
  explicit CpuDriver(CpuMode mode) {
    const bool cached = mode == CpuMode::cached;
    capabilities_.name = cached ? "CPU" : "CPU (system allocator)";
    capabilities_.total_memory = usable_memory();
    capabilities_.granularity = kGranularity;
    capabilities_.alignment = kAlignment;
    capabilities_.max_buffer = SIZE_MAX / 2;
    capabilities_.virtual_memory = cached;
    capabilities_.double_mapping = cached;
    capabilities_.whole_buffers = !cached;
    capabilities_.fresh_is_zero = true;
    capabilities_.commit_on_touch = true;
    capabilities_.bytes_follow_piece = false;
    capabilities_.can_copy = true;
  }

  ~CpuDriver() override {
    for (const auto& [base, bytes] : ranges_) munmap(pointer(base), bytes);
  }

  const Capabilities& capabilities() const noexcept override { return capabilities_; }
  std::string error_text() const override { return last_error.c_str(); }

  Status reserve(std::size_t bytes, Address& base) override;
  Status unreserve(Address base, std::size_t bytes) override;
  Status create(std::size_t bytes, Physical& out) override;
  Status destroy(Physical piece) override;
  Status map(Address at, Physical piece, std::size_t bytes) override;
  Status unmap(Address at, std::size_t bytes) override;

  Status create_segment(std::size_t, Segment&) override { return unsupported("segments"); }
  Status destroy_segment(const Segment&) override { return unsupported("segments"); }
  Status create_object(const Segment&, std::size_t, std::size_t, void*&) override { return unsupported("objects"); }
  void destroy_object(void*) override {}
  void block_layout(std::size_t bytes, std::size_t& size, std::size_t& alignment) const override {
    size = bytes > SIZE_MAX - (kAlignment - 1) ? SIZE_MAX & ~(kAlignment - 1)
                                               : (bytes + kAlignment - 1) & ~(kAlignment - 1);
    alignment = kAlignment;
  }

  Status allocate_host(HostKind, std::size_t bytes, void*& out) override {
    count_call();
    void* const memory = aligned_calloc(bytes, kAlignment);
    if (memory == nullptr) {
      last_error.set("the C library has no %zu bytes", bytes);
      return Status::out_of_memory;
    }
    out = memory;
    return Status::ok;
  }
  Status free_host(HostKind, void* ptr, std::size_t) override {
    count_call();
    aligned_free(ptr);
    return Status::ok;
  }
  Status wrap(void* ptr, std::size_t bytes, void*& object) override {
    if (ptr == nullptr || bytes == 0) return failed("wrap: there is no memory to wrap");
    object = ptr;
    return Status::ok;
  }
  void unwrap(void*) override {}

  std::uint64_t stream_id(void* native) override { return kStreamIds | address_of(native); }
  Status record(void*, Event& out) override {
    out = kPassed;
    return Status::ok;
  }
  Status wait(void*, Event) override { return Status::ok; }
  bool passed(Event) override { return true; }
  Status synchronize(Event) override { return Status::ok; }
  Status synchronize_device() override { return Status::ok; }
  void release(Event) override {}

  Status copy(Address to, Address from, std::size_t bytes, void*) override {
    if (bytes != 0) std::memmove(pointer(to), pointer(from), bytes);
    return Status::ok;
  }
  Status fill(Address at, std::uint8_t value, std::size_t bytes, void*) override {
    if (bytes != 0) std::memset(pointer(at), value, bytes);
    return Status::ok;
  }
  Status set_wired_limit(std::size_t) override { return unsupported("a wired limit"); }

 private:
  struct Piece {
    std::size_t bytes = 0;
    std::size_t maps = 0;  // Count of mappings that show it.
  };
  struct Mapping {
    std::size_t bytes = 0;
    std::uint64_t piece = 0;
  };
  using Mappings = std::map<Address, Mapping>;

  static Status failed(const char* text) {
    last_error.set("%s", text);
    return Status::failed;
  }
  Status unsupported(const char* what) const {
    last_error.set("%s has no use for %s", capabilities_.name.c_str(), what);
    return Status::unsupported;
  }
  static bool whole(std::size_t bytes) { return bytes != 0 && bytes % kGranularity == 0; }
  // Whether a mapping touches [at, at + bytes).
  bool any_mapping(Address at, std::size_t bytes) const {
    const auto next = mappings_.lower_bound(at);
    if (next != mappings_.end() && next->first - at < bytes) return true;
    return next != mappings_.begin() && at - std::prev(next)->first < std::prev(next)->second.bytes;
  }
  bool in_a_range(Address at, std::size_t bytes) const {
    auto range = ranges_.upper_bound(at);
    if (range == ranges_.begin()) return false;
    --range;
    const std::size_t offset = at - range->first;
    return offset < range->second && bytes <= range->second - offset;
  }
  Status discard(Address at, std::size_t bytes);

  Capabilities capabilities_;
  std::map<Address, std::size_t> ranges_;
  Mappings mappings_;
  std::unordered_map<std::uint64_t, Piece> pieces_;
  std::uint64_t next_piece_ = 1;
};

Status CpuDriver::reserve(std::size_t bytes, Address& base) {
  if (!capabilities_.virtual_memory) return unsupported("virtual memory");
  if (!whole(bytes)) return failed("reserve: not a multiple of the granularity");
  if (bytes > SIZE_MAX - kGranularity) {
    last_error.set("reserve: %zu bytes are more than the address space", bytes);
    return Status::out_of_memory;
  }
  // One granule more than asked for leaves room to start at a boundary; what is too much goes back at once.
  const std::size_t asked = bytes + kGranularity;
  count_call();
  void* const start = mmap(nullptr, asked, PROT_READ | PROT_WRITE, kMapFlags, -1, 0);
  if (start == MAP_FAILED) {
    const int error = errno;
    last_error.set("mmap of %zu bytes: %s", asked, std::strerror(error));
    return error == ENOMEM || error == EAGAIN ? Status::out_of_memory : Status::failed;
  }
  const Address from = address_of(start);
  const Address aligned = (from + kGranularity - 1) & ~Address{kGranularity - 1};
  const std::size_t head = aligned - from;
  try {
    ranges_.emplace(aligned, bytes);
  } catch (const std::exception&) {
    munmap(start, asked);
    last_error.set("no memory for the driver's own records");
    return Status::out_of_memory;
  }
  if (head != 0) {
    count_call();
    munmap(start, head);
  }
  count_call();
  munmap(pointer(aligned + bytes), kGranularity - head);
#if defined(MADV_HUGEPAGE)
  count_call();
  // A wish: systems without huge pages refuse it and work all the same.
  madvise(pointer(aligned), bytes, MADV_HUGEPAGE);
#endif
  base = aligned;
  return Status::ok;
}

Status CpuDriver::unreserve(Address base, std::size_t bytes) {
  const auto range = ranges_.find(base);
  if (range == ranges_.end() || range->second != bytes) return failed("unreserve: not a reserved range");
  if (any_mapping(base, bytes)) return failed("unreserve: something is mapped in the range");
  count_call();
  if (munmap(pointer(base), bytes) != 0) {
    last_error.set("munmap of %zu bytes: %s", bytes, std::strerror(errno));
    return Status::failed;
  }
  ranges_.erase(range);
  return Status::ok;
}

Status CpuDriver::create(std::size_t bytes, Physical& out) {
  if (!capabilities_.virtual_memory) return unsupported("virtual memory");
  if (!whole(bytes)) return failed("create: not a multiple of the granularity");
  if (bytes > capabilities_.max_buffer) {
    last_error.set("create: %zu bytes are more than the address space", bytes);
    return Status::out_of_memory;
  }
  try {
    pieces_.emplace(next_piece_, Piece{bytes, 0});
  } catch (const std::exception&) {
    last_error.set("no memory for the driver's own records");
    return Status::out_of_memory;
  }
  out = Physical{next_piece_++};
  return Status::ok;
}

Status CpuDriver::destroy(Physical piece) {
  const auto found = pieces_.find(static_cast<std::uint64_t>(piece));
  if (found == pieces_.end()) return failed("destroy: no such piece");
  if (found->second.maps != 0) return failed("destroy: the piece is mapped");
  pieces_.erase(found);
  return Status::ok;
}

Status CpuDriver::map(Address at, Physical piece, std::size_t bytes) {
  const auto found = pieces_.find(static_cast<std::uint64_t>(piece));
  if (found == pieces_.end() || found->second.bytes != bytes) return failed("map: no such piece of this size");
  if (at % kGranularity != 0 || !in_a_range(at, bytes)) return failed("map: not in a reserved range");
  if (any_mapping(at, bytes)) return failed("map: something is mapped there");
  try {
    mappings_.emplace(at, Mapping{bytes, found->first});
  } catch (const std::exception&) {
    last_error.set("no memory for the driver's own records");
    return Status::out_of_memory;
  }
  ++found->second.maps;
  return Status::ok;
}

Status CpuDriver::unmap(Address at, std::size_t bytes) {
  const auto found = mappings_.find(at);
  if (found == mappings_.end() || found->second.bytes != bytes) return failed("unmap: not a whole mapping");
  if (const Status status = discard(at, bytes); status != Status::ok) return status;
  --pieces_.find(found->second.piece)->second.maps;
  mappings_.erase(found);
  return Status::ok;
}

// Gives the memory under [at, at + bytes) back; the range stays and reads zero.
Status CpuDriver::discard(Address at, std::size_t bytes) {
#if defined(__linux__)
  count_call();
  if (madvise(pointer(at), bytes, MADV_DONTNEED) == 0) return Status::ok;
#endif
  // Other systems keep the bytes after madvise(), and Linux refuses it for locked memory: a new mapping is always
  // empty.
  count_call();
  if (mmap(pointer(at), bytes, PROT_READ | PROT_WRITE, kMapFlags | MAP_FIXED, -1, 0) == MAP_FAILED) {
    last_error.set("mmap over %zu bytes: %s", bytes, std::strerror(errno));
    return Status::failed;
  }
#if defined(MADV_HUGEPAGE)
  count_call();
  madvise(pointer(at), bytes, MADV_HUGEPAGE);
#endif
  return Status::ok;
}

}  // namespace

std::unique_ptr<Driver> make_cpu_driver(CpuMode mode) { return std::make_unique<CpuDriver>(mode); }

}  // namespace cistern::drivers
