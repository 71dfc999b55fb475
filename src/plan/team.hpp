// Runs tasks on threads so that the outcome does not depend on how many there are. Internal to src/plan.
// Locking: the workers share one atomic; `run` must not touch state of other workers.
#pragma once

#include <atomic>
#include <cstddef>
#include <exception>
#include <thread>
#include <vector>

#include "plan/exact.hpp"

namespace cistern::planner {

// Calls run(task, worker, cancel) for task = 0, 1, ... on up to `threads` workers and returns the lowest task that
// returned true, `tasks` if none did. Tasks after a success are cancelled, those before it run to their end. An
// exception in a task is thrown again once all workers have stopped.
template <class Run>
std::size_t first_success(std::size_t tasks, unsigned threads, Run&& run) {
  std::atomic<std::size_t> winner{tasks};
  std::atomic<std::size_t> next{0};
  std::vector<std::exception_ptr> errors(threads);
  const auto work = [&](unsigned worker) {
    try {
      for (;;) {
        const std::size_t task = next.fetch_add(1, std::memory_order_relaxed);
        if (task >= winner.load(std::memory_order_relaxed)) return;
        if (!run(task, worker, Cancel{&winner, task})) continue;
        std::size_t best = winner.load();
        while (task < best && !winner.compare_exchange_weak(best, task)) {
        }
      }
    } catch (...) {
      errors[worker] = std::current_exception();
      winner = 0;
    }
  };
  if (threads <= 1 || tasks <= 1) {
    work(0);
  } else {
    // Joined also when the next one cannot be started. Not std::jthread, which Apple's library lacks.
    struct Helpers {
      ~Helpers() {
        for (std::thread& thread : threads) thread.join();
      }
      std::vector<std::thread> threads;
    } helpers;
    helpers.threads.reserve(threads);
    for (unsigned w = 1; w < threads && w < tasks; ++w) helpers.threads.emplace_back(work, w);
    work(0);
  }
  for (const std::exception_ptr& e : errors) {
    if (e) std::rethrow_exception(e);
  }
  return winner.load();
}

}  // namespace cistern::planner
