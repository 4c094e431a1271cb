// CpuCommunicator: collectives of host memory, run by the compute stream itself, in order; and the messages between
// pairs of ranks that they consist of.
#pragma once

#include <memory>
#include <span>

#include "core/tensor.h"
#include "dist/communicator.h"
#include "dist/transport.h"

namespace hone {

// Collectives of host memory, out of messages between pairs of ranks: each rank sends each other one its part, and sums
// what it receives in the order of the ranks. That moves as few bytes as a ring does, (N-1)/N of the tensor a rank for
// a reduce-scatter, and the sums do not depend on how a tensor is cut or on who sends them.

class PairwiseCollectives {
 public:
  /// What other ranks send is received into `scratch_bytes`, piece after piece.
  explicit PairwiseCollectives(Transport& transport, size_t scratch_bytes);

  /// As in Communicator, done when they return.
  void all_reduce_sum(Tensor inout, ThreadPool& pool);
  void reduce_scatter_sum(Tensor full, std::span<const Part> parts, ThreadPool& pool);
  void all_gather(Tensor full, std::span<const Part> parts);
  void broadcast(Tensor inout, int root);

 private:
  void sum_from_all(Tensor inout, ThreadPool& pool);
  int64_t piece_of(DType dtype) const;

  Transport& transport_;
  size_t scratch_bytes_;
  std::unique_ptr<std::byte[]> scratch_;
};

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
