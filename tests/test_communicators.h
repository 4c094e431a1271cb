// Communicators for tests that wrap those of thread ranks: LazyCommunicator, HostedCommunicator.
//
// LazyCommunicator: collectives of host memory that run asynchronously, as on a GPU, and as late as possible: only when
// a caller waits for them or for a later one. Until then, the destinations of a gather are NaN, which a reader that
// does not wait reads.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <future>
#include <limits>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "core/cpu/thread_pool.h"
#include "core/memory/buffer.h"
#include "core/stream/transfer.h"
#include "dist/transport/communicator.h"

namespace hone {

class LazyCommunicator : public Communicator {
 public:
  /// `inner` must outlive the result, or belongs to it.
  explicit LazyCommunicator(Communicator& inner) : inner_(inner), pool_(1), beside_(Device{}, pool_) {}
  explicit LazyCommunicator(std::unique_ptr<Communicator> inner)
      : owned_(std::move(inner)), inner_(*owned_), pool_(1), beside_(Device{}, pool_) {}
  ~LazyCommunicator() override { ask(std::numeric_limits<int64_t>::max()); }

  Control& control() const override { return inner_.control(); }
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  std::unique_ptr<Communicator> split(int colour) override {
    return std::make_unique<LazyCommunicator>(inner_.split(colour));
  }
  void all_reduce_sum(Stream&, Tensor inout) override {
    queue([&] { inner_.all_reduce_sum(beside_, inout); });
  }
  void reduce_scatter_sum(Stream&, Tensor full, std::span<const Part> parts, Tensor own) override {
    queue([&] { inner_.reduce_scatter_sum(beside_, full, parts, own); });
  }
  void all_gather(Stream& stream, Tensor full, std::span<const Part> parts, Tensor own) override {
    const int kept = own.defined() ? -1 : rank();
    stream.enqueue([full, all = std::vector(parts.begin(), parts.end()), kept](ThreadPool&) {
      for (int r = 0; r < static_cast<int>(all.size()); ++r) {  // all bits set: NaN
        const Part& part = all[static_cast<size_t>(r)];
        const size_t bytes = static_cast<size_t>(part.count) * size_of(full.dtype);
        if (r != kept && bytes > 0) std::memset(element_at(full, part.offset), 0xFF, bytes);
      }
    });
    fork(stream);
    queue([&] { inner_.all_gather(beside_, full, parts, own); });
  }
  void broadcast(Stream&, Tensor inout, int root) override {
    queue([&] { inner_.broadcast(beside_, inout, root); });
  }
  void send_receive(Stream& stream, std::span<const Transfer> sends, std::span<const Transfer> receives) override {
    stream.enqueue([receives = std::vector(receives.begin(), receives.end())](ThreadPool&) {
      for (const Transfer& from : receives) {  // all bits set: NaN
        if (from.tensor.bytes() > 0) std::memset(from.tensor.data, 0xFF, from.tensor.bytes());
      }
    });
    fork(stream);
    queue([&] { inner_.send_receive(beside_, sends, receives); });
  }

  void fork(Stream& stream) override {
    const auto reached = std::make_shared<std::promise<void>>();
    stream.enqueue([reached](ThreadPool&) { reached->set_value(); });
    beside_.enqueue([reached](ThreadPool&) { reached->get_future().wait(); });
  }
  void follow(const Communicator& other) override {
    const auto& first = dynamic_cast<const LazyCommunicator&>(other);
    before_.push_back([&first, calls = first.calls()] {
      first.ask(calls);
      first.wait([&] { return first.done_ >= calls; });
    });
  }
  void join(Stream& stream, int64_t calls) override {
    ask(calls);
    stream.enqueue([this, calls](ThreadPool&) { wait([&] { return done_ >= calls; }); });
  }
  void finish(Stream&, int64_t calls) override {
    ask(calls);
    wait([&] { return done_ >= calls; });
    control().check();
  }
  int64_t calls() const override { return calls_; }

 private:
  template <class Collective>
  void queue(Collective collective) {
    const int64_t call = ++calls_;
    beside_.enqueue([this, call, before = std::exchange(before_, {})](ThreadPool&) {
      wait([&] { return asked_ >= call; });
      for (const auto& work : before) work();
    });
    collective();
    beside_.enqueue([this, call](ThreadPool&) {
      const std::lock_guard lock(mutex_);
      done_ = call;
      changed_.notify_all();
    });
  }
  void ask(int64_t calls) const {
    const std::lock_guard lock(mutex_);
    asked_ = std::max(asked_, calls);
    changed_.notify_all();
  }
  template <class Condition>
  void wait(Condition condition) const {
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, std::chrono::milliseconds(50), condition)) control().check();
  }

  std::unique_ptr<Communicator> owned_;  // may be null
  Communicator& inner_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  mutable int64_t asked_ = 0;
  int64_t calls_ = 0, done_ = 0;
  std::vector<std::function<void()>> before_;  // what the next collective follows
  ThreadPool pool_;
  Stream beside_;  // last: its queue uses the members above
};

// HostedCommunicator: collectives of tensors on any device, through host memory and the communicator of thread ranks.
// With it, ranks that share one GPU run the code that several GPUs run with NCCL. Every call waits.

class HostedCommunicator : public Communicator {
 public:
  /// `inner` must outlive the result, or belongs to it.
  explicit HostedCommunicator(Communicator& inner) : inner_(inner), pool_(1), host_(Device{}, pool_) {}
  explicit HostedCommunicator(std::unique_ptr<Communicator> inner)
      : owned_(std::move(inner)), inner_(*owned_), pool_(1), host_(Device{}, pool_) {}

  Control& control() const override { return inner_.control(); }
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  std::unique_ptr<Communicator> split(int colour) override {
    return std::make_unique<HostedCommunicator>(inner_.split(colour));
  }
  void all_reduce_sum(Stream& stream, Tensor inout) override {
    through_host(stream, inout, [&](const Tensor& here) { inner_.all_reduce_sum(host_, here); });
  }
  void reduce_scatter_sum(Stream& stream, Tensor full, std::span<const Part> parts, Tensor own) override {
    through_host(stream, full, [&](const Tensor& here) {
      inner_.reduce_scatter_sum(host_, here, parts, {});
      host_.synchronize();
      const Tensor sum = elements_of(here, parts[static_cast<size_t>(rank())]);
      if (own.defined()) copy_from_host(own, sum.data, sum.bytes());
    });
  }
  void all_gather(Stream& stream, Tensor full, std::span<const Part> parts, Tensor own) override {
    through_host(stream, full, [&](const Tensor& here) {
      if (own.defined()) copy_to_host(element_at(here, parts[static_cast<size_t>(rank())].offset), own);
      inner_.all_gather(host_, here, parts, {});
    });
  }
  void broadcast(Stream& stream, Tensor inout, int root) override {
    through_host(stream, inout, [&](const Tensor& here) { inner_.broadcast(host_, here, root); });
  }
  void send_receive(Stream& stream, std::span<const Transfer> sends, std::span<const Transfer> receives) override {
    stream.synchronize();
    std::vector<Buffer> memory;
    const auto in_host = [&](std::span<const Transfer> transfers) {
      std::vector<Transfer> here;
      for (const Transfer& transfer : transfers) {
        memory.emplace_back(Device{}, transfer.tensor.bytes());
        here.push_back({transfer.rank, memory.back().tensor(transfer.tensor.shape, transfer.tensor.dtype)});
      }
      return here;
    };
    const std::vector<Transfer> sent = in_host(sends), received = in_host(receives);
    for (size_t i = 0; i < sent.size(); ++i) copy_to_host(sent[i].tensor.data, sends[i].tensor);
    inner_.send_receive(host_, sent, received);
    host_.synchronize();
    for (size_t i = 0; i < received.size(); ++i) {
      copy_from_host(receives[i].tensor, received[i].tensor.data, received[i].tensor.bytes());
    }
  }

  void fork(Stream&) override {}
  void follow(const CopyLane& lane) override { lane.finish(host_, lane.calls()); }
  void join(Stream&, int64_t) override { control().check(); }
  void finish(Stream& stream, int64_t) override {
    stream.synchronize();
    control().check();
  }
  int64_t calls() const override { return inner_.calls(); }

 protected:
  Communicator& inner() { return inner_; }

 private:
  template <class Collective>
  void through_host(Stream& stream, const Tensor& tensor, Collective collective) {
    stream.synchronize();
    const Buffer memory(Device{}, tensor.bytes());
    const Tensor here = memory.tensor(tensor.shape, tensor.dtype);
    copy_to_host(here.data, tensor);
    collective(here);
    host_.synchronize();
    copy_from_host(tensor, here.data, here.bytes());
  }

  std::unique_ptr<Communicator> owned_;  // may be null
  Communicator& inner_;
  ThreadPool pool_;
  Stream host_;  // last: its queue uses the members above
};

}  // namespace hone
