// CpuCommunicator: collectives of host memory. The compute stream runs them in order, as messages between pairs of
// ranks.
#pragma once

#include <memory>
#include <span>

#include "core/base/tensor.h"
#include "dist/transport/communicator.h"
#include "dist/transport/transport.h"

namespace hone {

// Collectives of host memory from messages between pairs of ranks: each rank sends every other rank its part, and sums
// received parts in rank order. A rank sends as many bytes as in a ring, (N-1)/N of the tensor for a reduce-scatter,
// and sums do not depend on the division of the tensor into parts.

class PairwiseCollectives {
 public:
  /// Allocates `scratch_bytes` for the pieces that other ranks send.
  explicit PairwiseCollectives(Transport& transport, size_t scratch_bytes);

  /// As in Communicator, but complete when they return.
  void all_reduce_sum(Tensor inout, ThreadPool& pool);
  void reduce_scatter_sum(Tensor full, std::span<const Part> parts, Tensor own, ThreadPool& pool);
  void all_gather(Tensor full, std::span<const Part> parts, Tensor own, ThreadPool& pool);
  void broadcast(Tensor inout, int root, ThreadPool& pool);
  void send_receive(std::span<const Transfer> sends, std::span<const Transfer> receives);

 private:
  void sum_from_all(Tensor inout, ThreadPool& pool);
  int64_t piece_of(DType dtype) const;

  Transport& transport_;
  size_t scratch_bytes_;
  std::unique_ptr<std::byte[]> scratch_;
};

/// The object must outlive the work it has queued. Communicators of one rank queue their work on one stream: they share
/// a transport, which one thread may use at a time.
class CpuCommunicator : public Communicator {
 public:
  /// `transport` has all ranks of `control`, or some of them.
  CpuCommunicator(std::shared_ptr<Control> control, std::shared_ptr<Transport> transport,
                  size_t scratch_bytes = size_t{16} << 20);

  Control& control() const override { return *control_; }
  int rank() const override { return transport_->rank(); }
  int size() const override { return transport_->size(); }
  std::unique_ptr<Communicator> split(int colour) override;
  void all_reduce_sum(Stream& stream, Tensor inout) override;
  using Communicator::all_gather;
  using Communicator::reduce_scatter_sum;
  void reduce_scatter_sum(Stream& stream, Tensor full, std::span<const Part> parts, Tensor own) override;
  void all_gather(Stream& stream, Tensor full, std::span<const Part> parts, Tensor own) override;
  void broadcast(Stream& stream, Tensor inout, int root) override;
  void send_receive(Stream& stream, std::span<const Transfer> sends, std::span<const Transfer> receives) override;
  void fork(Stream&) override {}
  void join(Stream&, int64_t) override {}
  void finish(Stream& stream, int64_t calls) override;
  int64_t calls() const override { return calls_; }

 protected:
  /// The transport of all ranks for a new communicator.
  virtual std::shared_ptr<Transport> lane() { return transport_; }

 private:
  void queue(Stream& stream, const char* name, Stream::Work work);

  std::shared_ptr<Control> control_;
  std::shared_ptr<Transport> transport_;
  size_t scratch_bytes_;
  PairwiseCollectives collectives_;
  int64_t calls_ = 0;
};

}  // namespace hone
