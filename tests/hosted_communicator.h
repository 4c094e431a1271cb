// HostedCommunicator: collectives of tensors wherever they are, through host memory and the communicator of ranks that
// are threads. So ranks that share one GPU run there what several GPUs run through NCCL. Every call waits.
#pragma once

#include <span>
#include <vector>

#include "core/buffer.h"
#include "core/thread_pool.h"
#include "core/transfer.h"
#include "dist/communicator.h"

namespace hone {

class HostedCommunicator : public Communicator {
 public:
  explicit HostedCommunicator(Communicator& inner) : inner_(inner), pool_(1), host_(Device{}, pool_) {}

  Control& control() const override { return inner_.control(); }
  void all_reduce_sum(Stream& stream, Tensor inout) override {
    through_host(stream, inout, [&](const Tensor& here) { inner_.all_reduce_sum(host_, here); });
  }
  void reduce_scatter_sum(Stream& stream, Tensor full, std::span<const Part> parts) override {
    through_host(stream, full, [&](const Tensor& here) { inner_.reduce_scatter_sum(host_, here, parts); });
  }
  void all_gather(Stream& stream, Tensor full, std::span<const Part> parts) override {
    through_host(stream, full, [&](const Tensor& here) { inner_.all_gather(host_, here, parts); });
  }
  void broadcast(Stream& stream, Tensor inout, int root) override {
    through_host(stream, inout, [&](const Tensor& here) { inner_.broadcast(host_, here, root); });
  }

  void fork(Stream&) override {}
  void follow(const CopyLane& lane) override { lane.finish(host_, lane.calls()); }
  void join(Stream&, int64_t) override { control().check(); }
  void finish(Stream& stream, int64_t) override {
    stream.synchronize();
    control().check();
  }
  int64_t calls() const override { return inner_.calls(); }

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

  Communicator& inner_;
  ThreadPool pool_;
  Stream host_;  // last: its queue uses what is above
};

}  // namespace hone
