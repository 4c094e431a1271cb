// Communicator: collectives of tensors among a group of ranks, queued on streams as ops are. Host-side communication is
// dist/control/control.h, which is of all ranks.
//
// split() makes communicators of some ranks, or one more of all. On a GPU each has a lane of its own (a stream), so
// that a gather of weights does not wait for the reduction of gradients before it. A collective occupies its GPU until
// its peers have reached it; ranks that began two of them in different orders would wait for each other for ever. So
// every rank calls the collectives of all its communicators from one thread, in an order that is the same on all ranks,
// and a GPU begins them in the order of the calls. NCCL 2.26 and newer does this with NCCL_LAUNCH_ORDER_IMPLICIT=1,
// which is set: a kernel begins after the kernel before it has begun, and both run at the same time. (NCCL's
// documentation, "Using multiple NCCL communicators concurrently".) With an older NCCL, or if the variable is 0, the
// communicators of a rank share one lane.
//
// Sums are formed in rank order (CPU ranks) or in an order that depends only on sizes and the number of ranks
// (NCCL). Each sum is computed once: all ranks get the same bits, and runs with the same number of ranks agree.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/stream/copy_lane.h"
#include "core/stream/stream.h"
#include "dist/control/control.h"

namespace hone {

/// Elements [offset, offset + count) of a flattened tensor.
struct Part {
  int64_t offset = 0, count = 0;

  bool operator==(const Part&) const = default;
};

/// Splits `total` elements into `ranks` consecutive parts of ceil(total / ranks), rounded up to a multiple of
/// `multiple`; the last parts may be smaller or empty. All are equal if `total` is a multiple of ranks · multiple.
std::vector<Part> even_parts(int64_t total, int ranks, int64_t multiple = 1);

/// Memory of this rank that is sent to another rank, or that receives what the other rank sends.
struct Transfer {
  int rank = 0;  ///< the other rank
  Tensor tensor;
};

/// The address of element `offset` of the tensor.
inline std::byte* element_at(const Tensor& tensor, int64_t offset) {
  return tensor.data + static_cast<size_t>(offset) * size_of(tensor.dtype);
}

/// The elements of a part, [count].
inline Tensor elements_of(const Tensor& tensor, const Part& part) {
  return {element_at(tensor, part.offset), tensor.dtype, {part.count}, tensor.device};
}

/// The ranks that pass the same colour, in ascending order. All ranks call it.
std::vector<int> ranks_of_colour(Control& control, int colour);

class Communicator {
 public:
  virtual ~Communicator() = default;

  /// The host-side communication of all ranks, also of those outside the group.
  virtual Control& control() const = 0;
  /// The number of ranks of the group, and this rank's place among them.
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// The communicator of the ranks that pass the same colour, in the order of their ranks. All ranks call it, on a
  /// communicator of all ranks, and destroy what it returns in the same order. Throws as the constructor does.
  virtual std::unique_ptr<Communicator> split(int colour) = 0;

  // Tensors: f32, f64, bf16 and i64, on the stream's device. The communicator uses their memory until the stream has
  // been joined or synchronized. If a rank is lost, the call, join() or the stream's synchronize() throws
  // Error(kDeviceFailed) with the rank.

  /// inout = Σ over ranks of inout. bf16 is summed in float32 and rounded once by CPU ranks; NCCL rounds at each
  /// addition.
  virtual void all_reduce_sum(Stream& stream, Tensor inout) = 0;
  /// Part r of `full` becomes the sum over ranks on rank r; the other parts are undefined afterwards. `parts` has one
  /// part per rank. Parts must not overlap, may be empty, and need not cover the tensor.
  void reduce_scatter_sum(Stream& stream, Tensor full, std::span<const Part> parts) {
    reduce_scatter_sum(stream, full, parts, {});
  }
  /// The same, but the sum is written to `own` [count of this rank's part] if it is defined; `full` is undefined
  /// afterwards.
  virtual void reduce_scatter_sum(Stream& stream, Tensor full, std::span<const Part> parts, Tensor own) = 0;
  /// Copies part r of `full` from rank r to all ranks. `parts` as above; any dtype of 1 to 8 bytes.
  void all_gather(Stream& stream, Tensor full, std::span<const Part> parts) { all_gather(stream, full, parts, {}); }
  /// The same, but this rank's part comes from `own` [count] if it is defined, and is copied to `full` as well.
  virtual void all_gather(Stream& stream, Tensor full, std::span<const Part> parts, Tensor own) = 0;
  /// Several gathers at once.
  struct Gather {
    Tensor full;
    std::vector<Part> parts;
    Tensor own;
  };
  virtual void all_gathers(Stream& stream, std::span<const Gather> gathers) {
    for (const Gather& gather : gathers) all_gather(stream, gather.full, gather.parts, gather.own);
  }
  /// Copies inout from rank `root` of the group to all its ranks; any dtype.
  virtual void broadcast(Stream& stream, Tensor inout, int root) = 0;
  /// Sends each tensor of `sends` to its rank, and receives each of `receives` from its rank; any dtype. What one rank
  /// sends to another arrives in the order of both lists, which have the same bytes. All ranks call it, those without
  /// a transfer with empty lists, and those do not wait.
  virtual void send_receive(Stream& stream, std::span<const Transfer> sends, std::span<const Transfer> receives) = 0;

  /// On a GPU, collectives run on the communicator's own stream, in the order of their calls and concurrently with the
  /// compute stream. On a CPU they run in `stream`, and fork() and join() do nothing. fork: later collectives run after
  /// the work queued on `stream` so far. join: work queued on `stream` later runs after the first `calls` collectives.
  virtual void fork(Stream& stream) = 0;
  /// Later collectives run after the copies queued on the lane so far.
  virtual void follow(const CopyLane& lane) { lane.hold(nullptr); }
  /// Later collectives run after the collectives of another communicator called so far.
  virtual void follow(const Communicator&) {}
  virtual void join(Stream& stream, int64_t calls) = 0;
  void join(Stream& stream) { join(stream, calls()); }
  /// The host waits until the first `calls` collectives have run. Throws if a rank is lost, so that no work is queued
  /// that would read incomplete sums.
  virtual void finish(Stream& stream, int64_t calls) = 0;
  void finish(Stream& stream) { finish(stream, calls()); }
  /// Collectives called so far.
  virtual int64_t calls() const = 0;
  /// The cudaStream_t of the collectives; null if they run in the compute stream.
  virtual void* cuda_stream() const { return nullptr; }
};

/// Asserts that there is one part per rank, that all are inside the tensor, and that `own`, if defined, has the
/// elements of this rank's.
void check_parts(const Tensor& full, std::span<const Part> parts, const Tensor& own, const Communicator& ranks);

}  // namespace hone
