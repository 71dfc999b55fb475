// What a test can tell the stand-in (standin.hpp says what each function does), and the start and end of the library.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>

#include "standin/metal/standin.hpp"
#include "standin/metal/state.hpp"

using namespace cistern::standin::metal;

namespace {

std::size_t copy_text(const std::string& text, char* out, std::size_t bytes) {
  if (bytes != 0) {
    const std::size_t length = std::min(bytes - 1, text.size());
    std::memcpy(out, text.data(), length);
    out[length] = '\0';
  }
  return text.size();
}

std::string leak_text(const Leak& leak) { return leak.name + ": " + std::to_string(leak.count) + " alive"; }

int launch(void* queue, Operation::Kind kind, void* object, std::size_t offset, std::size_t bytes, std::uint64_t seed,
           bool retained) {
  const Guard guard;
  auto* const buffer = static_cast<Buffer*>(object);
  if (!alive(buffer) || buffer->bytes == nullptr || offset > buffer->length || bytes > buffer->length - offset) {
    violation("a kernel was given no such part of a buffer");
    return 1;
  }
  auto* const commands = make<CommandBuffer>(static_cast<Queue*>(queue));
  Operation op;
  op.kind = kind;
  if (retained) {
    op.buffer = Strong<Buffer>(buffer);
  } else {
    op.unretained = buffer;
  }
  op.offset = offset;
  op.bytes = bytes;
  op.value = seed;
  commands->operations.push_back(std::move(op));
  enqueue(commands);
  release(commands);
  return 0;
}

void print_calls() {
  std::map<std::string, std::uint64_t> sorted;
  for (const auto& [selector, count] : books().calls) sorted.emplace(selector, count);
  for (const auto& [selector, count] : sorted) {
    std::fprintf(stderr, "metal stand-in: %10llu %s\n", static_cast<unsigned long long>(count), selector.c_str());
  }
}

struct Library {
  Library() {
    const Guard guard;
    add_memory_classes();
    add_work_classes();
    add_residency_classes();
    read_settings();
  }
  ~Library() {
    const Guard guard;
    if (state().settings.report.empty()) return;
    if (state().settings.report == "calls") print_calls();
    bool any = books().violation_count != 0;
    for (const std::string& text : books().violations) std::fprintf(stderr, "metal stand-in: %s\n", text.c_str());
    for (const Leak& leak : leaks()) {
      any = true;
      std::fprintf(stderr, "metal stand-in: leak: %s\n", leak_text(leak).c_str());
    }
    if (any && state().settings.report == "strict") _exit(kStrictExit);
  }
};

Library library;

}  // namespace

#define CISTERN_CONTROL(name, result, ...) CISTERN_METAL_ENTRY result cistern_metal_standin_##name(__VA_ARGS__)

CISTERN_CONTROL(reset, void) {
  const Guard guard;
  read_settings();
}
CISTERN_CONTROL(set_lag_us, void, double us) {
  const Guard guard;
  state().settings.lag_us = us;
}
CISTERN_CONTROL(set_manual, void, int on) {
  const Guard guard;
  state().settings.manual = on != 0;
}
CISTERN_CONTROL(complete, void, void* queue) {
  const Guard guard;
  complete(static_cast<Queue*>(queue));
}
CISTERN_CONTROL(complete_all, void) {
  const Guard guard;
  complete(nullptr);
}
CISTERN_CONTROL(pending, std::size_t) {
  const Guard guard;
  pump();
  std::size_t count = 0;
  for (const Queue* queue : state().queues) count += queue->pending.size();
  return count;
}
CISTERN_CONTROL(launch_fill, int, void* queue, void* buffer, std::size_t offset, std::size_t bytes, std::uint64_t seed,
                int retained) {
  return launch(queue, Operation::write_pattern, buffer, offset, bytes, seed, retained != 0);
}
CISTERN_CONTROL(launch_check, int, void* queue, void* buffer, std::size_t offset, std::size_t bytes, std::uint64_t seed,
                int retained) {
  return launch(queue, Operation::check_pattern, buffer, offset, bytes, seed, retained != 0);
}
CISTERN_CONTROL(mismatches, std::uint64_t) {
  const Guard guard;
  return state().mismatches;
}
CISTERN_CONTROL(violation_count, std::size_t) {
  const Guard guard;
  return books().violations.size();
}
CISTERN_CONTROL(violation, std::size_t, std::size_t i, char* out, std::size_t bytes) {
  const Guard guard;
  return i < books().violations.size() ? copy_text(books().violations[i], out, bytes) : 0;
}
CISTERN_CONTROL(clear_violations, void) {
  const Guard guard;
  books().violations.clear();
  books().violation_count = 0;
}
CISTERN_CONTROL(leak_count, std::size_t) {
  const Guard guard;
  return leaks().size();
}
CISTERN_CONTROL(leak, std::size_t, std::size_t i, char* out, std::size_t bytes) {
  const Guard guard;
  const std::vector<Leak> all = leaks();
  return i < all.size() ? copy_text(leak_text(all[i]), out, bytes) : 0;
}
CISTERN_CONTROL(live_objects, std::size_t, const char* name) {
  const Guard guard;
  return live_objects(name);
}
CISTERN_CONTROL(fail, void, const char* selector, std::uint64_t nth, std::uint64_t times) {
  const Guard guard;
  Books& b = books();
  b.fail_selector = std::strcmp(selector, "*") == 0 ? nullptr : intern(selector);
  b.fail_skip = nth == 0 ? 0 : nth - 1;
  b.fail_left = nth == 0 ? 0 : times;
}
CISTERN_CONTROL(injected, std::uint64_t) {
  const Guard guard;
  return books().injected;
}
CISTERN_CONTROL(calls, std::uint64_t, const char* selector) {
  const Guard guard;
  if (std::strcmp(selector, "*") == 0) return books().all_calls;
  const auto found = books().calls.find(intern(selector));
  return found == books().calls.end() ? 0 : found->second;
}
CISTERN_CONTROL(allocated_bytes, std::size_t) {
  const Guard guard;
  std::size_t sum = 0;
  for (const Device* device : state().devices) sum += device->allocated;
  return sum;
}
CISTERN_CONTROL(resident_bytes, std::size_t) {
  const Guard guard;
  std::set<const Object*> seen;
  std::size_t sum = 0;
  for (const ResidencySet* set : state().residency) {
    if (!set->requested) continue;
    for (const auto& [allocation, kept] : set->committed) {
      if (seen.insert(allocation).second) sum += allocation_size(allocation);
    }
  }
  return sum;
}
CISTERN_CONTROL(set_memory, void, std::size_t bytes) {
  const Guard guard;
  state().settings.memory = bytes;
}
