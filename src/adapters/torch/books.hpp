// What the PyTorch adapter knows besides the allocator: figures as PyTorch names them, the history, and which pool of
// PyTorch's is which capture pool. One instance a process, never destroyed: PyTorch frees in static destructors. Used
// by src/adapters/torch/ only. Locking: each class has one lock of its own. Those of Figures and History are leaves;
// that of Pools is held while capture pools are made, begun and ended, which call nobody back.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cistern/capture.hpp"
#include "cistern/torch.h"

namespace cistern::torch_adapter {

inline constexpr int kMaxDevices = 64;
inline constexpr std::size_t kSmallBytes = std::size_t{1} << 20;  // PyTorch's border between its two pools.

// Figures of one device.
class Figures {
 public:
  void add(std::size_t requested, std::size_t capacity);
  void subtract(std::size_t requested, std::size_t capacity);
  void note_out_of_memory();
  void read(cistern_torch_figures& out) const;
  void reset_peaks();
  void reset_accumulated();
  // To hold and let go around fork().
  std::mutex& mutex() { return mutex_; }

 private:
  static void grow(cistern_torch_figure& figure, std::int64_t by);

  mutable std::mutex mutex_;
  cistern_torch_figures f_{};
};

// The newest events, and what live buffers were asked for. Costs one load while it is off.
class History {
 public:
  // Keeps the newest events that fit, unless they are to be cleared.
  void start(std::size_t capacity, bool clear);
  bool on() const { return on_.load(std::memory_order_relaxed); }
  void note(cistern_torch_action action, int device, std::uint64_t address, std::size_t bytes, const void* stream);
  std::vector<cistern_torch_event> events() const;
  // 0 when it is not known.
  std::size_t requested(std::uint64_t address) const;
  // To hold and let go around fork().
  std::mutex& mutex() { return mutex_; }

 private:
  std::atomic<bool> on_{false};
  mutable std::mutex mutex_;
  std::vector<cistern_torch_event> ring_;
  std::size_t capacity_ = 0;
  std::size_t next_ = 0;  // Where the ring is written when it is full.
  std::unordered_map<std::uint64_t, std::size_t> requested_;
};

using PoolId = std::pair<unsigned long long, unsigned long long>;  // As c10::MempoolId_t.
using PoolFilter = std::function<bool(void*)>;

// PyTorch counts the uses of a pool: one for each begin, one less for each release; the last one ends it.
class Pools {
 public:
  void begin(int device, PoolId id, PoolFilter filter);
  void end(int device, PoolId id);
  void release(int device, PoolId id);
  // Of the calling thread, on the device.
  int abort(int device);
  // Of one begin, whoever made it.
  int abort_begin(std::uint64_t number);
  // Number of the calling thread's newest begin; 0 when there was none.
  static std::uint64_t newest_begin();
  // PyTorch's id of a capture pool; {0, 0} when it has none.
  PoolId id_of(std::uint64_t capture_pool) const;
  // In a forked child, which has no use for graphs. Held around fork() it would come before the locks of devices.
  void renew_lock();

 private:
  struct Pool {
    CapturePool pool;
    int uses = 0;
    bool open = false;
    std::thread::id opener;
    std::uint64_t begin = 0;  // Number of the begin that opened it.
  };
  using Key = std::tuple<int, unsigned long long, unsigned long long>;
  static Key key(int device, PoolId id) { return {device, id.first, id.second}; }
  // pre: mutex_ is held. What is to be released once it is let go; no pool when others use it.
  CapturePool drop(std::map<Key, Pool>::iterator pool);
  template <typename Which>
  int abort_where(Which which);

  mutable std::mutex mutex_;
  std::map<Key, Pool> pools_;
  std::uint64_t begins_ = 0;
};

struct Books {
  std::array<Figures, kMaxDevices> figures;
  std::array<std::atomic<bool>, kMaxDevices> used{};
  History history;
  Pools pools;

  static Books& get();
  // pre: a device number that can be.
  bool is_used(int device) const { return used[static_cast<std::size_t>(device)].load(std::memory_order_relaxed); }

 private:
  void hold();
  void let_go();
};

// Throws invalid_argument for a device number that cannot be.
Device checked_device(int device);
// For one that is not there, too. Asks the driver where nothing was allocated yet.
Device present_device(int device);
Figures& figures_of(int device);

}  // namespace cistern::torch_adapter
