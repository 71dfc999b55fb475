// Default limits, the list of allocators, and what happens around fork().
#include "allocator/defaults.hpp"

#include <pthread.h>

#include <algorithm>
#include <mutex>
#include <new>

#include "allocator/device_allocator.hpp"
#include "allocator/out_of_memory.hpp"
#include "allocator/registry.hpp"
#include "allocator/tags.hpp"

namespace cistern::allocation {
namespace {

// Never destroyed: allocators live until the process ends.
struct Instances {
  std::mutex mutex;
  DeviceAllocator* head = nullptr;

  static Instances& get() {
    alignas(Instances) static unsigned char storage[sizeof(Instances)];
    static Instances* instances = make(storage);
    return *instances;
  }

 private:
  static Instances* make(void* storage);
};

// The locks of Cistern, in lock order, so that no other thread is inside when the process is copied. Not the
// registry's: see renew_registry_lock().
void before_fork() {
  Instances::get().mutex.lock();
  for (DeviceAllocator* a = Instances::get().head; a != nullptr; a = a->next_instance) a->lock_for_fork();
  lock_threads();
  lock_callbacks();
  lock_tags();
  core::BlockPool::lock_store();
}

void after_fork() {
  core::BlockPool::unlock_store();
  unlock_tags();
  unlock_callbacks();
  unlock_threads();
  for (DeviceAllocator* a = Instances::get().head; a != nullptr; a = a->next_instance) a->unlock_after_fork();
  Instances::get().mutex.unlock();
}

void after_fork_in_child() {
  for (DeviceAllocator* a = Instances::get().head; a != nullptr; a = a->next_instance) {
    a->become_only_thread(thread_state.record);
  }
  forget_other_threads();
  renew_registry_lock();
  after_fork();
}

Instances* Instances::make(void* storage) {
  auto* instances = new (storage) Instances;
  // A failure (no memory for the handlers) only means that a child may not use Cistern.
  static_cast<void>(pthread_atfork(&before_fork, &after_fork, &after_fork_in_child));
  return instances;
}

}  // namespace

std::uint64_t default_memory_limit(DeviceType type, const drivers::Capabilities& capabilities) {
  const std::uint64_t total = capabilities.total_memory;
  const std::uint64_t most = total / 100 * 95;
  switch (type) {
    case DeviceType::cpu:
      return total / 10 * 8;
    case DeviceType::metal: {
      const std::uint64_t working_set = capabilities.recommended_working_set;
      return working_set == 0 ? most : std::min<std::uint64_t>(working_set / 2 * 3, most);
    }
    case DeviceType::cuda:
    case DeviceType::model:
      return most;
  }
  return most;
}

void register_instance(DeviceAllocator& instance) {
  Instances& instances = Instances::get();
  const std::lock_guard lock(instances.mutex);
  instance.next_instance = instances.head;
  instances.head = &instance;
}

void unregister_instance(DeviceAllocator& instance) {
  Instances& instances = Instances::get();
  const std::lock_guard lock(instances.mutex);
  DeviceAllocator** at = &instances.head;
  while (*at != nullptr && *at != &instance) at = &(*at)->next_instance;
  if (*at != nullptr) *at = instance.next_instance;
}

}  // namespace cistern::allocation
