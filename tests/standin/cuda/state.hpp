// The stand-in's state: configuration, devices, contexts, faults, what was seen. Memory is in memory.hpp, streams in
// work.hpp. Internal to the stand-in. One mutex guards everything; it is given up only while a host function runs.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "standin/cuda/memory.hpp"
#include "standin/cuda/standin.hpp"
#include "standin/cuda/work.hpp"

namespace cistern::drivers::cuda {
// The vendor's opaque handles; here each is what the stand-in knows of it.
struct ContextObject {
  int device = 0;
  int retained = 0;
};
struct StreamObject {
  std::uint64_t id = 0;  // 0: destroyed; the handle waits for its next use.
};
struct EventObject {
  bool live = false;
  int device = 0;
  standin::Point point;             // Where it was recorded; stream 0: never.
  standin::Clock clock;             // What comes before that.
  std::uint64_t capture = 0;        // Recorded in this capture.
  std::uint64_t captured_work = 0;  // Work of its stream in the capture up to there.
};
struct PoolObject {
  int device = 0;
};
}  // namespace cistern::drivers::cuda

namespace cistern::standin {

using namespace drivers::cuda;

struct Config {
  int devices = 1;
  std::size_t memory = std::size_t{8} << 30;
  int version = 13000;
  double lag_us = 100;
  bool manual = false;
  bool junk = false;
  std::set<std::string> without;
  std::set<std::string> refuse;
};

struct Faults {
  std::string name;
  std::uint64_t skip = 0;
  std::uint64_t left = 0;
  std::uint64_t injected = 0;
  Result result = kOutOfMemory;
};

struct Device {
  int index = 0;
  Memory memory;
  ContextObject context;
  PoolObject pool_handle;
  PoolState pool;
  std::uint64_t peers = 0;  // Devices that may use its plain allocations.
  Result error = kSuccess;  // A kernel died: every call says so.
};

struct State {
  std::mutex mutex;
  std::condition_variable worker_wakes;
  std::condition_variable work_done;

  Config config;
  bool initialised = false;
  bool ended = false;
  int owner_process = 0;
  std::vector<std::unique_ptr<Device>> devices;
  AddressSpace addresses;
  Regions regions;
  std::map<PhysicalHandle, BackingPtr> pieces;
  std::uint64_t next_piece = 1;  // Numbers are not used again, not even after reset().
  std::uint64_t next_stream = 1;
  std::uint64_t next_capture = 1;
  bool worker = false;  // The thread that does work is there.
  Streams streams;
  std::set<EventObject*> events;  // All that were ever made.
  std::vector<EventObject*> free_events;
  std::map<std::uint64_t, Capture> captures;
  std::set<GraphObject*> graphs;

  Faults faults;
  std::map<std::string, std::uint64_t, std::less<>> calls;
  std::uint64_t all_calls = 0;
  std::uint64_t host_waits = 0;
  std::uint64_t mismatches = 0;
  std::vector<std::string> violations;
  std::uint64_t violation_count = 0;
};

// Never destroyed: threads and static objects may outlive it at exit.
State& state();

// pre, of all below: the mutex is held.
void start(State& s);
// Reads the environment; a value that is none ends the process with status 2 and a line that says so.
void configure(State& s);
enum class Report { none, print, strict };
Report read_report();
std::vector<std::string> leaks(const State& s);
Result violation(State& s, Result result, const char* format, ...) __attribute__((format(printf, 3, 4)));

// What a thread has by itself.
struct ThreadState {
  std::vector<ContextObject*> contexts;
  int capture_mode = kCaptureGlobal;
  bool in_host_function = false;
  std::uint64_t number = 0;
  std::map<int, std::uint64_t> default_streams;  // The per-thread stream of each device.
};
ThreadState& this_thread();

// Starts an entry point: takes the mutex, counts, injects faults, checks what every call must.
class Call {
 public:
  enum Flags : unsigned {
    plain = 0,
    context = 1,      // Needs a current context, and one whose kernels have not died.
    unsafe = 2,       // Ends a capture that is under way, unless the thread is in relaxed mode.
    before_init = 4,  // Also works before cuInit().
    never_fails = 8,  // No fault is injected for "*": nothing could be done about it.
  };
  Call(const char* name, unsigned flags);

  State& s;
  std::unique_lock<std::mutex> lock;
  Result result = kSuccess;
  Device* device = nullptr;  // Of the current context.
};

}  // namespace cistern::standin
