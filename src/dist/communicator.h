// Communicator: what the ranks of a run do together. Sums and copies of tensors are queued on streams, as ops are; what
// hosts say to each other is dist/control.h. Every rank makes the same calls in the same order.
//
// Sums are taken in the order of the ranks (MPI, threads) or in an order that depends on sizes and the number of ranks
// alone (NCCL), and a sum is formed once: all ranks hold the same bits, and two runs on equally many ranks agree.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/copy_lane.h"
#include "core/stream.h"
#include "dist/control.h"

namespace hone {

/// Elements [offset, offset + count) of a tensor, counted through its dimensions.
struct Part {
  int64_t offset = 0, count = 0;

  bool operator==(const Part&) const = default;
};

/// `total` elements in `ranks` parts, one behind the other: ceil(total / ranks) each, rounded up to a multiple of
/// `multiple`, and less or nothing at the end. All are equal if `total` is a multiple of ranks · multiple.
std::vector<Part> even_parts(int64_t total, int ranks, int64_t multiple = 1);

/// Asserts that `parts` are one a rank and lie in the tensor.
void check_parts(const Tensor& tensor, std::span<const Part> parts, int ranks);

/// Where element `offset` of the tensor is.
inline std::byte* element_at(const Tensor& tensor, int64_t offset) {
  return tensor.data + static_cast<size_t>(offset) * size_of(tensor.dtype);
}

class Communicator {
 public:
  virtual ~Communicator() = default;

  /// The hosts of the same ranks.
  virtual Control& control() const = 0;
  int rank() const { return control().rank(); }
  int size() const { return control().size(); }

  // Tensors: f32, f64, bf16 and i64, on the stream's device. Memory is the communicator's until the stream has been
  // joined (or waited for). Where a rank is lost, the call, join() or the stream's synchronize() throws
  // Error(kDeviceFailed) that names it.

  /// inout = Σ over ranks of inout. bf16 is summed in float32 and rounded once by MPI and threads; NCCL rounds at each
  /// addition.
  virtual void all_reduce_sum(Stream& stream, Tensor inout) = 0;
  /// Part r of `full` becomes the sum over ranks on rank r; what stands in the other parts afterwards is undefined.
  /// `parts` has one part a rank, which do not overlap; they may be empty and need not cover the tensor.
  virtual void reduce_scatter_sum(Stream& stream, Tensor full, std::span<const Part> parts) = 0;
  /// Part r of `full` becomes what it is on rank r, on all ranks. `parts` as above; any type of 1 to 8 bytes.
  virtual void all_gather(Stream& stream, Tensor full, std::span<const Part> parts) = 0;
  /// inout becomes what it is on rank `root`; any type.
  virtual void broadcast(Stream& stream, Tensor inout, int root) = 0;

  /// On a GPU collectives run on a stream of the communicator's own, beside the compute stream and in the order of
  /// their calls; on a CPU they run in `stream` itself, and these two do nothing. fork: collectives called from now on
  /// run after what is queued on `stream` now. join: what is queued on `stream` from now on runs after the first
  /// `calls` collectives.
  virtual void fork(Stream& stream) = 0;
  /// Collectives called from now on run after the copies that the lane has been given.
  virtual void follow(const CopyLane&) {}
  virtual void join(Stream& stream, int64_t calls) = 0;
  void join(Stream& stream) { join(stream, calls()); }
  /// The host waits until the first `calls` collectives have run. Throws if a rank is lost, so that nothing is queued
  /// that would work with half a sum.
  virtual void finish(Stream& stream, int64_t calls) = 0;
  void finish(Stream& stream) { finish(stream, calls()); }
  /// Collectives called so far.
  virtual int64_t calls() const = 0;
  /// The cudaStream_t on which collectives run beside the compute stream; null where they run in it.
  virtual void* cuda_stream() const { return nullptr; }
};

}  // namespace hone
