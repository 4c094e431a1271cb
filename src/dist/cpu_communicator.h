// CpuCommunicator: collectives of host memory, run by the compute stream itself, in order.
#pragma once

#include <memory>

#include "dist/communicator.h"
#include "dist/pairwise.h"

namespace hone {

/// Outlives the work it has queued.
class CpuCommunicator : public Communicator {
 public:
  CpuCommunicator(std::unique_ptr<Control> control, std::unique_ptr<Transport> transport,
                  size_t scratch_bytes = size_t{16} << 20);

  Control& control() const override { return *control_; }
  void all_reduce_sum(Stream& stream, Tensor inout) override;
  void reduce_scatter_sum(Stream& stream, Tensor full, std::span<const Part> parts) override;
  void all_gather(Stream& stream, Tensor full, std::span<const Part> parts) override;
  void broadcast(Stream& stream, Tensor inout, int root) override;
  void fork(Stream&) override {}
  void join(Stream&, int64_t) override {}
  void finish(Stream& stream, int64_t calls) override;
  int64_t calls() const override { return calls_; }

 private:
  void queue(Stream& stream, const char* name, Stream::Work work);

  std::unique_ptr<Control> control_;
  std::unique_ptr<Transport> transport_;
  PairwiseCollectives collectives_;
  int64_t calls_ = 0;
};

}  // namespace hone
