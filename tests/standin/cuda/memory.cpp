// Frames, addresses, regions, and the device's pool.
#include "standin/cuda/memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <iterator>

#include "standin/cuda/state.hpp"

namespace cistern::standin {
namespace {

constexpr std::size_t kPoolChunk = std::size_t{32} << 20;  // Bytes.
constexpr std::size_t kPoolAlignment = 512;                // Bytes.
constexpr int kRubbish = 0xA5;

std::size_t round_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

DevicePtr AddressSpace::take(std::size_t bytes, std::size_t alignment) {
  if (bytes == 0 || bytes > kEnd - kStart) return 0;
  for (DevicePtr from = next_;; from = kStart) {
    DevicePtr at = round_up(from, alignment);
    auto next = used_.lower_bound(at);
    if (next != used_.begin()) {
      const auto& [start, size] = *std::prev(next);
      if (start + size > at) at = round_up(start + size, alignment);
    }
    while (next != used_.end() && next->first < at + bytes) {
      at = round_up(next->first + next->second, alignment);
      ++next;
    }
    if (at + bytes <= kEnd) {
      used_.emplace(at, bytes);
      next_ = at + bytes;
      return at;
    }
    if (from == kStart) return 0;
  }
}

bool AddressSpace::give(DevicePtr at, std::size_t bytes) {
  const auto found = used_.find(at);
  if (found == used_.end() || found->second != bytes) return false;
  used_.erase(found);
  return true;
}

DevicePtr AddressSpace::range_of(DevicePtr at, std::size_t bytes) const {
  auto found = used_.upper_bound(at);
  if (found == used_.begin()) return 0;
  --found;
  const std::size_t offset = at - found->first;
  return offset < found->second && bytes <= found->second - offset ? found->first : 0;
}

Memory::~Memory() {
  if (base_ != nullptr) munmap(base_, capacity_);
  if (file_ >= 0) close(file_);
}

bool Memory::start(std::size_t bytes) {
  capacity_ = bytes / kFrame * kFrame;
  total_ = bytes;
  file_ = memfd_create("cistern-standin", MFD_CLOEXEC);
  if (file_ < 0 || ftruncate(file_, static_cast<off_t>(capacity_)) != 0) return false;
  void* const base = mmap(nullptr, capacity_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file_, 0);
  if (base == MAP_FAILED) return false;
  base_ = static_cast<std::byte*>(base);
  return true;
}

bool Memory::take(std::size_t frames, bool junk, std::vector<std::byte*>& out) {
  if (frames > total_ / kFrame || used_ + frames * kFrame > total_) return false;
  out.clear();
  out.reserve(frames);
  // New frames first: what was given back is seen again late. The physical order is none.
  while (out.size() < frames) {
    if (next_ + kFrame <= capacity_) {
      out.push_back(base_ + next_);
      next_ += kFrame;
    } else {
      out.push_back(free_.back());
      free_.pop_back();
    }
  }
  used_ += frames * kFrame;
  if (junk) {
    for (std::byte* const frame : out) std::memset(frame, kRubbish, kFrame);
  }
  return true;
}

void Memory::give(const std::vector<std::byte*>& frames) {
  for (std::byte* const frame : frames) {
    fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, frame - base_, static_cast<off_t>(kFrame));
  }
  free_.insert(free_.begin(), frames.begin(), frames.end());
  used_ -= frames.size() * kFrame;
}

Regions::Map::iterator Regions::around(DevicePtr at) {
  auto found = map_.upper_bound(at);
  if (found == map_.begin()) return map_.end();
  --found;
  return at - found->first < found->second.bytes ? found : map_.end();
}

bool Regions::any(DevicePtr at, std::size_t bytes) {
  const auto next = map_.lower_bound(at);
  return (next != map_.end() && next->first - at < bytes) || around(at) != map_.end();
}

bool resolve(State& s, int device, DevicePtr at, std::size_t bytes, bool pageable, std::vector<Hit>& out,
             std::string& why) {
  char text[128];
  while (bytes != 0) {
    const auto region = s.regions.around(at);
    if (region == s.regions.all().end()) {
      if (pageable && !AddressSpace::inside(at)) {
        auto host = std::make_shared<Backing>();
        host->bytes = bytes;
        host->host = static_cast<std::byte*>(reinterpret_cast<void*>(static_cast<std::uintptr_t>(at)));
        out.push_back({std::move(host), 0, bytes});
        return true;
      }
      std::snprintf(text, sizeof text, "nothing is mapped at %#llx", at);
      why = text;
      return false;
    }
    const Region& r = region->second;
    const std::size_t offset = at - region->first;
    std::size_t run = std::min(bytes, r.bytes - offset);
    if ((r.access >> device & 1) == 0) {
      std::snprintf(text, sizeof text, "device %d was given no access to %#llx", device, at);
      why = text;
      return false;
    }
    if (r.kind == Kind::pool) {
      const PoolState& pool = s.devices[static_cast<std::size_t>(r.backing->device)]->pool;
      const auto block = std::prev(pool.blocks.upper_bound(at));
      const std::size_t inside = at - block->first;
      if (!block->second.live) {
        std::snprintf(text, sizeof text, "the memory at %#llx is freed", at);
        why = text;
        return false;
      }
      run = std::min(run, block->second.bytes - inside);
    }
    out.push_back({r.backing, offset, run});
    at += run;
    bytes -= run;
  }
  return true;
}

bool make_backing(State& s, int device, std::size_t bytes, BackingPtr& out) {
  auto made = std::make_shared<Backing>();
  made->device = device;
  made->bytes = bytes;
  Memory& memory = s.devices[static_cast<std::size_t>(device)]->memory;
  if (bytes > memory.total() || !memory.take((bytes + kFrame - 1) / kFrame, s.config.junk, made->frames)) return false;
  out = std::move(made);
  return true;
}

void release_host(DevicePtr at, std::size_t bytes) {
  munmap(reinterpret_cast<void*>(static_cast<std::uintptr_t>(at)), bytes);
}

void drop_backing(State& s, const BackingPtr& backing) {
  if (backing->device < 0 || backing->handles != 0 || backing->maps != 0) return;
  s.devices[static_cast<std::size_t>(backing->device)]->memory.give(backing->frames);
}

bool doom(State& s, DevicePtr at, std::size_t bytes, const char* call) {
  bool any = false;
  for (auto& [id, stream] : s.streams.by_id) {
    for (Op& op : stream.queue) {
      for (const Access& access : op.work.accesses) {
        if (op.doomed || access.at >= at + bytes || at >= access.at + access.bytes) continue;
        op.doomed = true;
        any = true;
        violation(s, kSuccess, "%s: %s still uses [%#llx, +%zu): the kernel dies", call, op.work.name.c_str(), at,
                  bytes);
      }
    }
  }
  return any;
}

DevicePtr pool_allocate(State& s, Device& device, std::size_t bytes) {
  PoolState& pool = device.pool;
  const std::size_t size = round_up(bytes, kPoolAlignment);
  auto best = pool.blocks.end();
  for (auto block = pool.blocks.begin(); block != pool.blocks.end(); ++block) {
    const auto& b = block->second;
    if (b.live || b.pending || b.bytes < size) continue;
    if (best == pool.blocks.end() || b.bytes < best->second.bytes) best = block;
  }
  if (best == pool.blocks.end()) {
    const std::size_t chunk = std::max(kPoolChunk, round_up(size, kFrame));
    BackingPtr backing;
    const DevicePtr at = s.addresses.take(chunk, kFrame);
    if (at == 0) return 0;
    if (!make_backing(s, device.index, chunk, backing)) {
      s.addresses.give(at, chunk);
      return 0;
    }
    backing->maps = 1;
    const std::uint64_t access = pool.peers | std::uint64_t{1} << device.index;
    s.regions.all().emplace(at, Region{chunk, Kind::pool, backing, access});
    pool.chunks.emplace(at, chunk);
    best = pool.blocks.emplace(at, PoolState::Block{chunk, false, false}).first;
    pool.reserved += chunk;
    pool.reserved_high = std::max(pool.reserved_high, pool.reserved);
  }
  if (best->second.bytes > size) {
    pool.blocks.emplace(best->first + size, PoolState::Block{best->second.bytes - size, false, false});
    best->second.bytes = size;
  }
  best->second.live = true;
  pool.used += size;
  pool.used_high = std::max(pool.used_high, pool.used);
  return best->first;
}

void pool_return(State&, Device& device, DevicePtr at) {
  PoolState& pool = device.pool;
  auto block = pool.blocks.find(at);
  block->second.live = false;
  block->second.pending = false;
  pool.used -= block->second.bytes;
  const auto joins = [&](auto left, auto right) {
    return !left->second.live && !left->second.pending && !right->second.live && !right->second.pending &&
           left->first + left->second.bytes == right->first && !pool.chunks.contains(right->first);
  };
  if (const auto next = std::next(block); next != pool.blocks.end() && joins(block, next)) {
    block->second.bytes += next->second.bytes;
    pool.blocks.erase(next);
  }
  if (block != pool.blocks.begin() && joins(std::prev(block), block)) {
    std::prev(block)->second.bytes += block->second.bytes;
    pool.blocks.erase(block);
  }
}

void pool_trim(State& s, Device& device, std::size_t keep) {
  PoolState& pool = device.pool;
  for (auto chunk = pool.chunks.begin(); chunk != pool.chunks.end();) {
    const auto [at, bytes] = *chunk;
    const auto block = pool.blocks.find(at);
    const bool empty = !block->second.live && !block->second.pending && block->second.bytes == bytes;
    if (!empty || pool.reserved <= keep) {
      ++chunk;
      continue;
    }
    const auto region = s.regions.all().find(at);
    region->second.backing->maps = 0;
    drop_backing(s, region->second.backing);
    s.regions.all().erase(region);
    s.addresses.give(at, bytes);
    pool.blocks.erase(block);
    pool.reserved -= bytes;
    chunk = pool.chunks.erase(chunk);
  }
}

}  // namespace cistern::standin
