#include "dist/cpu_communicator.h"

#include <utility>

namespace hone {

CpuCommunicator::CpuCommunicator(std::unique_ptr<Control> control, std::unique_ptr<Transport> transport,
                                 size_t scratch_bytes)
    : control_(std::move(control)), transport_(std::move(transport)), collectives_(*transport_, scratch_bytes) {
  HONE_ASSERT(control_->rank() == transport_->rank() && control_->size() == transport_->size());
}

void CpuCommunicator::queue(Stream& stream, const char* name, Stream::Work work) {
  ++calls_;
  stream.enqueue([this, name, work = std::move(work)](ThreadPool& pool) {
    control_->check();
    control_->in_collective(name);
    work(pool);
    control_->in_collective("");
  });
}

void CpuCommunicator::all_reduce_sum(Stream& stream, Tensor inout) {
  queue(stream, "all-reduce", [this, inout](ThreadPool& pool) { collectives_.all_reduce_sum(inout, pool); });
}

void CpuCommunicator::reduce_scatter_sum(Stream& stream, Tensor full, std::span<const Part> parts) {
  check_parts(full, parts, size());
  queue(stream, "reduce-scatter", [this, full, parts = std::vector(parts.begin(), parts.end())](ThreadPool& pool) {
    collectives_.reduce_scatter_sum(full, parts, pool);
  });
}

void CpuCommunicator::all_gather(Stream& stream, Tensor full, std::span<const Part> parts) {
  check_parts(full, parts, size());
  queue(stream, "all-gather", [this, full, parts = std::vector(parts.begin(), parts.end())](ThreadPool&) {
    collectives_.all_gather(full, parts);
  });
}

void CpuCommunicator::broadcast(Stream& stream, Tensor inout, int root) {
  HONE_ASSERT(root >= 0 && root < size());
  queue(stream, "broadcast", [this, inout, root](ThreadPool&) { collectives_.broadcast(inout, root); });
}

void CpuCommunicator::finish(Stream& stream, int64_t) {
  stream.synchronize();
  control_->check();
}

}  // namespace hone
