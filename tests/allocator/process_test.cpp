// Fork, and ways to end a program: with live buffers, running threads, from static destructors.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <thread>
#include <vector>

#include "allocator/registry.hpp"
#include "cistern/allocator.hpp"
#include "cistern/memory.hpp"
#include "sanitizers.hpp"

namespace cistern {
namespace {

// Runs the function in a child; its return value is the exit status.
template <typename Run>
int in_child(Run run) {
  const pid_t child = fork();
  if (child == 0) _exit(run());
  int status = 0;
  if (waitpid(child, &status, 0) != child) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -2;
}

TEST(Fork, TheChildGoesOnWithItsCopies) {
  const Buffer b = allocator(Device::cpu()).malloc(1000);
  EXPECT_EQ(in_child([&] {
              Allocator& a = allocator(Device::cpu());
              a.free(b);
              for (int i = 0; i < 1000; ++i) a.free(a.malloc(static_cast<std::size_t>(i) * 100));
              std::thread([&] { a.free(a.malloc(100)); }).join();
              clear_cache(Device::cpu());
              return 0;
            }),
            0);
  EXPECT_TRUE(b.live());
  allocator(Device::cpu()).free(b);
}

TEST(Fork, WhileOtherThreadsAllocate) {
  Allocator& a = allocator(Device::cpu());
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&] {
      std::vector<Buffer> live;
      for (std::size_t i = 0; !stop; ++i) {
        live.push_back(a.malloc(1 + i % 40 * 1000));
        if (live.size() < 64) continue;
        for (const Buffer& b : live) a.free(b);
        live.clear();
      }
      for (const Buffer& b : live) a.free(b);
    });
  }
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(in_child([&] {
                for (std::size_t n = 1; n < 500; ++n) a.free(a.malloc(n * 997));
                clear_cache(Device::cpu());
                return 0;
              }),
              0);
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  for (const std::string& message : allocation::device_allocator(Device::cpu()).check_invariants()) {
    ADD_FAILURE() << message;
  }
}

TEST(Fork, WhileOtherThreadsUseASecondAllocator) {
  Allocator& a = system_allocator();
  std::atomic<bool> stop{false};
  std::thread other([&] {
    const Stream stream(Device::cpu());
    while (!stop) a.free(a.malloc(64, stream), stream);
  });
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(in_child([&] {
                alarm(10);
                const Stream stream(Device::cpu());
                a.free(a.malloc(64, stream), stream);
                return 0;
              }),
              0);
  }
  stop = true;
  other.join();
}

TEST(Fork, WhileAnotherThreadMakesAnAllocator) {
  if (kSanitized)
    GTEST_SKIP() << "the sanitizers' allocators are not ready for a fork, which may come at any moment here";
  // Each device is made once, so that the race is run in processes of their own.
  for (int run = 0; run < 10; ++run) {
    EXPECT_EQ(in_child([] {
                static_cast<void>(allocator(Device::model(62)));  // From here on forks are known of.
                std::thread other([] {
                  for (int i = 0; i < 60; ++i) static_cast<void>(allocator(Device::model(i)));
                });
                int worst = 0;
                for (int i = 0; i < 10; ++i) {
                  worst = std::max(worst, std::abs(in_child([] {
                                     alarm(10);
                                     static_cast<void>(allocator(Device::model(63)));
                                     return 0;
                                   })));
                }
                other.join();
                return worst;
              }),
              0);
  }
}

struct FreesAtExit {
  Buffer buffer;
  ~FreesAtExit() {
    if (!buffer) return;
    cistern::free(buffer);
    cistern::free(allocator(Device::cpu()).malloc(5000));
  }
};

TEST(Exit, WithLiveBuffersRunningThreadsAndStaticDestructors) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        static FreesAtExit at_exit;
        Allocator& a = allocator(Device::cpu());
        at_exit.buffer = a.malloc(100);
        for (std::size_t i = 1; i < 100; ++i) a.malloc(i * 1000);
        static std::atomic<bool> started{false};
        std::thread([&a] {
          for (;;) {
            a.free(a.malloc(100));
            a.free(a.malloc(100000));
            started = true;
          }
        }).detach();
        while (!started) std::this_thread::yield();
        std::exit(0);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace cistern
