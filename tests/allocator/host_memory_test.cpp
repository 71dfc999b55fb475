// Places where the host has no memory for the books while blocks go back: none may be lost. What every allocation of a
// workload does when it fails is in tests/programs/host_memory.cpp.
#include <gtest/gtest.h>

#include <array>

#include "allocator/allocator_fixture.hpp"
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
    failing = allocations + 1;
    work.new_frees();
    ticket = work.mark();
    failing = 0;
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

}  // namespace
}  // namespace cistern::allocation
