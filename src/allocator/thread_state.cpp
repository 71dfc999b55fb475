// Records of threads, the exit hook, and the switch between the short and the long way.
#include "allocator/thread_state.hpp"

#include <pthread.h>

#include <algorithm>
#include <mutex>
#include <new>

#include "allocator/device_allocator.hpp"

namespace cistern::allocation {

constinit thread_local ThreadState thread_state;

namespace {

// Never destroyed: threads may end after static destructors have run.
struct Threads {
  std::mutex mutex;
  ThreadRecord* records = nullptr;
  std::vector<bool> numbers = {true, true};  // In use, by heap number: kNoHeap and kPrimaryHeap always are.
  pthread_key_t key{};
  bool has_key = false;

  static Threads& get() {
    alignas(Threads) static unsigned char storage[sizeof(Threads)];
    static Threads* threads = make(storage);
    return *threads;
  }

 private:
  static Threads* make(void* storage);
};

bool long_way(const core::ThreadCache& cache) { return static_cast<DeviceAllocator*>(cache.front)->instrumented(); }

// pre: the lock is held.
void refresh(ThreadRecord& record) {
  ThreadState& state = *record.state;
  const bool tagged = state.tag != 0;
  for (std::size_t heap = 1; heap < record.caches.size(); ++heap) {
    core::ThreadCache* cache = record.caches[heap];
    const bool slow = cache == nullptr || long_way(*cache);
    if (cache != nullptr) cache->fast_thread.store(slow ? nullptr : &record, std::memory_order_relaxed);
    if (heap < kInlineHeaps) {
      state.caches[heap].store(slow || tagged ? &core::empty_cache : cache, std::memory_order_relaxed);
    }
  }
  state.fast.store(tagged ? static_cast<const void*>(&core::empty_cache) : &record, std::memory_order_relaxed);
}

// Thread-exit hook. Runs after the destructors of thread_local objects.
void leave(void* argument) {
  auto* record = static_cast<ThreadRecord*>(argument);
  Threads& threads = Threads::get();
  {
    const std::lock_guard lock(threads.mutex);
    ThreadState& state = *record->state;
    for (auto& cache : state.caches) cache.store(&core::empty_cache, std::memory_order_relaxed);
    state.fast.store(&core::empty_cache, std::memory_order_relaxed);
    state.record = nullptr;
    state.gone = true;
    (record->prev != nullptr ? record->prev->next : threads.records) = record->next;
    if (record->next != nullptr) record->next->prev = record->prev;
  }
  for (core::ThreadCache* cache : record->caches) {
    if (cache != nullptr) static_cast<DeviceAllocator*>(cache->front)->abandon(*cache);
  }
  delete record;
}

Threads* Threads::make(void* storage) {
  auto* threads = new (storage) Threads;
  threads->has_key = pthread_key_create(&threads->key, &leave) == 0;
  return threads;
}

}  // namespace

ThreadRecord* this_record() {
  ThreadState& state = thread_state;
  if (state.record != nullptr || state.gone) return state.record;
  Threads& threads = Threads::get();
  if (!threads.has_key) return nullptr;
  auto* record = new (std::nothrow) ThreadRecord;
  if (record == nullptr) return nullptr;
  record->state = &state;
  if (pthread_setspecific(threads.key, record) != 0) {
    delete record;
    return nullptr;
  }
  const std::lock_guard lock(threads.mutex);
  record->next = threads.records;
  if (record->next != nullptr) record->next->prev = record;
  threads.records = record;
  state.record = record;
  refresh(*record);
  return record;
}

bool install(ThreadRecord& record, std::uint32_t heap, core::ThreadCache& cache) {
  const std::lock_guard lock(Threads::get().mutex);
  try {
    if (record.caches.size() <= heap) record.caches.resize(std::max<std::size_t>(heap + 1, kInlineHeaps));
  } catch (const std::bad_alloc&) {
    return false;
  }
  record.caches[heap] = &cache;
  cache.thread = &record;
  refresh(record);
  return true;
}

void refresh_all_threads() {
  Threads& threads = Threads::get();
  const std::lock_guard lock(threads.mutex);
  for (ThreadRecord* record = threads.records; record != nullptr; record = record->next) refresh(*record);
}

std::uint16_t exchange_tag(std::uint16_t tag) {
  ThreadState& state = thread_state;
  const std::uint16_t before = std::exchange(state.tag, tag);
  if ((before == 0) != (tag == 0) && state.record != nullptr) {
    const std::lock_guard lock(Threads::get().mutex);
    refresh(*state.record);
  }
  return before;
}

void forget_heap(std::uint32_t heap) {
  Threads& threads = Threads::get();
  const std::lock_guard lock(threads.mutex);
  for (ThreadRecord* record = threads.records; record != nullptr; record = record->next) {
    if (heap < record->caches.size()) record->caches[heap] = nullptr;
    if (heap < kInlineHeaps) record->state->caches[heap].store(&core::empty_cache, std::memory_order_relaxed);
  }
}

std::uint32_t take_heap_number() {
  Threads& threads = Threads::get();
  const std::lock_guard lock(threads.mutex);
  const auto free = std::find(threads.numbers.begin(), threads.numbers.end(), false);
  const auto number = static_cast<std::uint32_t>(free - threads.numbers.begin());
  if (free == threads.numbers.end()) {
    threads.numbers.push_back(true);
  } else {
    *free = true;
  }
  return number;
}

void give_heap_number(std::uint32_t number) {
  Threads& threads = Threads::get();
  const std::lock_guard lock(threads.mutex);
  if (number > kPrimaryHeap) threads.numbers[number] = false;
}

void lock_threads() { Threads::get().mutex.lock(); }
void unlock_threads() { Threads::get().mutex.unlock(); }

void forget_other_threads() {
  Threads& threads = Threads::get();
  ThreadRecord* own = thread_state.record;
  for (ThreadRecord* record = threads.records; record != nullptr;) {
    ThreadRecord* next = record->next;
    if (record != own) delete record;
    record = next;
  }
  threads.records = own;
  if (own != nullptr) own->prev = own->next = nullptr;
}

}  // namespace cistern::allocation
