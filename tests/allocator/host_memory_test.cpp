// Places where the host has no memory for the books, many of them while blocks go back: nothing is lost, and nothing is
// done by half. What every allocation of a workload does when it fails is in tests/programs/host_memory.cpp.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <exception>
#include <new>
#include <vector>

#include "allocator/allocator_fixture.hpp"
#include "cistern/error.hpp"
#include "pool/counting_new.hpp"

namespace cistern::allocation {
namespace {

TEST(HostMemory, AHostBufferThatAnotherStreamUsedIsNotLost) {
  Model model({.lag_us = 10});
  ASSERT_TRUE(model.driver->capabilities().asynchronous);
  ASSERT_FALSE(model.driver->capabilities().host_accessible);
  std::vector<Buffer> used;
  for (int i = 0; i < 3; ++i) used.push_back(model->malloc(1_MiB));
  for (const Buffer& b : used) model->record_use(b, model.stream(1));
  for (const Buffer& b : used) model->free(b);
  // The first record of the next call is that of the first of them.
  failing = allocations + 1;
  const Buffer next = model->malloc(4_MiB);
  EXPECT_GT(allocations, failing);
  failing = 0;
  model->free(next);
  expect_sound(*model);
  model->clear_cache();
  EXPECT_EQ(model->stats().reserved, 0u);
}

TEST(HostMemory, EachTicketWithoutEventsIsWaitedFor) {
  drivers::ModelDriver driver({.manual = true});
  StreamTable streams;
  streams.add(UINT64_MAX, nullptr, nullptr, 0);
  DeviceWork work(driver, streams);
  std::array<core::Ticket, 2> tickets{};
  for (core::Ticket& ticket : tickets) {
    driver.fail(drivers::Call::synchronize_device, 1, drivers::Status::capturing);
    failing_from = allocations + 1;
    work.new_frees();
    ticket = work.mark();
    failing_from = 0;
    EXPECT_NE(ticket, core::Ticket::none);
  }
  drivers::Event last{};
  ASSERT_EQ(driver.record(nullptr, last), drivers::Status::ok);
  EXPECT_FALSE(work.passed(tickets[0]));
  EXPECT_TRUE(work.wait(tickets[0]));
  EXPECT_TRUE(driver.passed(last)) << "nothing but the device's end says that the work is done";
  driver.release(last);
}

TEST(HostMemory, ARangeThatWasReservedKeepsItsSize) {
  for (std::size_t nth = 1; nth <= 6; ++nth) {  // Among them the book of the heaps.
    // Of 256 MiB that are asked for 32 can be had.
    Model model({.total_memory = 64_MiB, .address_space = 40_MiB});
    failing = allocations + nth;
    try {
      model->free(model->malloc(1_MiB, model.stream(0)));
    } catch (const std::bad_alloc&) {
      // Most often another way is found.
    }
    failing = 0;
    EXPECT_THROW(model->malloc(48_MiB, model.stream(0)), out_of_memory) << nth;
    model->free(model->malloc(16_MiB, model.stream(0)));
    expect_sound(*model);
  }
}

TEST(HostMemory, AStreamThatTakesOverAHeapHasItInItsOwnOrder) {
  for (std::size_t nth = 4; nth <= 12; ++nth) {  // The first ones are the model's.
    Model model({.lag_us = 10});
    void* const native = reinterpret_cast<void*>(std::uintptr_t{2});
    drivers::Event event{};
    ASSERT_EQ(model.driver->record(native, event), drivers::Status::ok);  // The model knows it.
    model.driver->release(event);
    const Stream gone = model.stream(1);
    model->free(model->malloc(4_MiB, gone));
    for (std::uintptr_t other = 20; other < 26; ++other) model->free(model->malloc(1_MiB, model.stream(other)));
    model->stream_destroyed(gone);
    failing = allocations + nth;
    try {
      static_cast<void>(model.stream(2));
    } catch (const std::exception&) {
      // Then the next attempt gives it.
    }
    failing = 0;
    const Stream s = model.stream(2);
    const Buffer b = model->malloc(4_MiB, s);
    const Central::Lock lock(model->central());
    EXPECT_EQ(model->central().native_of(b.block()), s.native()) << nth;
  }
}

TEST(HostMemory, AUseThatIsNotRecordedLeavesNoTrace) {
  for (std::size_t nth = 1; nth <= 3; ++nth) {
    core::StreamUses uses;
    const core::Block block{}, other{};
    failing = allocations + nth;
    bool threw = false;
    try {
      uses.add(&block, 1);
    } catch (const std::bad_alloc&) {
      threw = true;
    }
    failing = 0;
    if (!threw) break;
    uses.add(&other, 1);
    EXPECT_EQ(uses.size(), 1u) << nth;
    EXPECT_FALSE(uses.contains(&block)) << nth;
  }
}

TEST(HostMemory, TheWorkBeforeACaptureIsCoveredThoughItsTicketHasNoEvents) {
  drivers::ModelDriver driver({.manual = true});
  StreamTable streams;
  streams.add(UINT64_MAX, nullptr, nullptr, 0);
  void* const native = reinterpret_cast<void*>(std::uintptr_t{1});
  StreamEntry& entry = *streams.add(driver.stream_id(native), native, nullptr, 1);
  DeviceWork work(driver, streams);
  drivers::Event before{};
  ASSERT_EQ(driver.record(native, before), drivers::Status::ok);  // Stands for work that was submitted.
  driver.fail(drivers::Call::synchronize_device, 1, drivers::Status::capturing);
  failing_from = allocations + 1;
  work.begin_capture(entry);
  failing_from = 0;
  work.new_frees();
  const core::Ticket ticket = work.mark();  // Of something that the stream may use.
  driver.complete(nullptr);
  EXPECT_FALSE(driver.passed(before));
  EXPECT_FALSE(work.passed(ticket)) << "work of the captured stream is pending";
  work.end_capture(&entry, false);
  driver.release(before);
}

TEST(HostMemory, MallocThrowsItsOwnErrorWhileAPoolIsOpen) {
  Model model({.lag_us = 10});
  const Stream s = model.stream(1);
  const std::uint64_t pool = model->make_pool();
  model->begin_pool(pool, s);
  for (std::size_t nth = 1; nth <= 2; ++nth) {
    failing = allocations + nth;
    try {
      model->free(model->malloc(1_MiB, s));
    } catch (const out_of_memory&) {
      // What the interface promises.
    } catch (const std::bad_alloc&) {
      ADD_FAILURE() << nth << ": std::bad_alloc";
    }
    failing = 0;
  }
  model->end_pool(pool);
  model->release_pool(pool);
}

TEST(HostMemory, WhatTheDriverRefusesToGiveBackIsKeptWithoutMemoryOfTheHosts) {
  int met = 0;
  for (std::size_t nth = 1; nth <= 60; ++nth) {
    for (const drivers::Call call : {drivers::Call::unmap, drivers::Call::destroy}) {
      Model model({.lag_us = 0});
      std::vector<Buffer> live;
      for (int i = 0; i < 40; ++i) live.push_back(model->malloc(6_MiB, model.stream(0)));
      for (const Buffer& b : live) model->free(b);
      model.driver->complete_all();
      model.driver->fail(call, 1 + nth % 3, drivers::Status::failed, 3);
      bool threw = false;
      failing_from = allocations + nth;
      try {
        model->clear_cache();
      } catch (const std::bad_alloc&) {
        threw = true;
      }
      failing_from = 0;
      if (model.driver->injected_faults() != 0) ++met;
      EXPECT_FALSE(threw) << drivers::name(call) << ' ' << nth;
      expect_sound(*model);
      model->clear_cache();
      EXPECT_EQ(model->stats().reserved, 0u);
    }
  }
  EXPECT_GT(met, 0);
}

TEST(HostMemory, ListsOfSizesThatAreGoneNeedNoMemoryToGo) {
  drivers::ModelConfig config;
  config.virtual_memory = false;
  config.block_objects = true;
  drivers::ModelDriver driver(config);
  StreamTable streams;
  streams.add(UINT64_MAX, nullptr, nullptr, 0);
  DeviceWork work(driver, streams);
  BlockObjects objects(driver, work, 0);
  drivers::Segment segment;
  ASSERT_EQ(driver.create_segment(32_MiB, segment), drivers::Status::ok);
  for (std::uint64_t i = 0; i < 3; ++i) ASSERT_NE(objects.acquire(0, 0, segment, 0, 512 + i), nullptr);
  // Ever new sizes, of which few are left: now and then the lists of the others go.
  for (std::uint64_t bytes = 1024; bytes < 6000 * 512; bytes += 512) {
    ASSERT_NE(objects.acquire(0, 512, segment, 512, bytes), nullptr);
    failing = bytes < 4000 * 512 ? 0 : allocations + 2;
    EXPECT_NO_THROW(objects.release(segment.base + 512, bytes)) << bytes;
    failing = 0;
    driver.complete_all();
    objects.settle();
    if (HasFailure()) break;
  }
  for (std::uint64_t i = 0; i < 3; ++i) objects.release(segment.base, 512 + i);
  driver.complete_all();
  objects.drop_idle();
  driver.complete_all();
  objects.settle();
  driver.destroy_segment(segment);
}

}  // namespace
}  // namespace cistern::allocation
