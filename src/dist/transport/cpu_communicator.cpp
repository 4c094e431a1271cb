#include "dist/transport/cpu_communicator.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "dist/transport/rank_sum_baseline.h"

namespace hone {
namespace {

/// Up to this size, all ranks send the whole tensor to all ranks: one round of messages instead of two.
constexpr size_t kSmallBytes = 16 << 10;
/// Bytes of a message: few are in flight.
constexpr int64_t kMessageBytes = int64_t{4} << 20;
/// Bytes that a thread copies at a time.
constexpr int64_t kCopiedBytes = int64_t{1} << 20;

/// The piece of `part` that begins `at` elements in, at most `piece` long.
Part piece_at(const Part& part, int64_t at, int64_t piece) {
  const int64_t begin = std::min(part.count, at);
  return {part.offset + begin, std::min(part.count - begin, piece)};
}

int64_t longest(std::span<const Part> parts) {
  int64_t count = 0;
  for (const Part& part : parts) count = std::max(count, part.count);
  return count;
}

size_t bytes_of(const Tensor& tensor, int64_t count) { return static_cast<size_t>(count) * size_of(tensor.dtype); }

}  // namespace

PairwiseCollectives::PairwiseCollectives(Transport& transport, size_t scratch_bytes)
    : transport_(transport),
      scratch_bytes_(scratch_bytes),
      scratch_(std::make_unique_for_overwrite<std::byte[]>(scratch_bytes)) {
  HONE_ASSERT(scratch_bytes >= static_cast<size_t>(transport.size()) * kSmallBytes,
              "scratch memory is too small for small sums");
}

/// Elements of each rank's share of half of the scratch memory.
int64_t PairwiseCollectives::piece_of(DType dtype) const {
  const size_t place = scratch_bytes_ / 2 / static_cast<size_t>(transport_.size());
  return static_cast<int64_t>(place / size_of(dtype));
}

void PairwiseCollectives::sum_from_all(Tensor inout, ThreadPool& pool) {
  const int ranks = transport_.size(), own = transport_.rank();
  std::vector<const std::byte*> sources;
  for (int r = 0; r < ranks; ++r) {
    std::byte* place = r == own ? inout.data : scratch_.get() + static_cast<size_t>(r) * inout.bytes();
    sources.push_back(place);
    if (r == own) continue;
    transport_.receive(r, place, inout.bytes());
    transport_.send(r, inout.data, inout.bytes());
  }
  transport_.wait();
  rank_sum(inout.dtype, inout.data, sources, inout.numel(), pool);
}

void PairwiseCollectives::all_reduce_sum(Tensor inout, ThreadPool& pool) {
  if (inout.bytes() <= kSmallBytes) return sum_from_all(inout, pool);
  const std::vector<Part> parts = even_parts(inout.numel(), transport_.size());
  reduce_scatter_sum(inout, parts, {}, pool);
  all_gather(inout, parts, {}, pool);
}

void PairwiseCollectives::reduce_scatter_sum(Tensor full, std::span<const Part> parts, Tensor sum, ThreadPool& pool) {
  const int ranks = transport_.size(), own = transport_.rank();
  if (!sum.defined()) sum = elements_of(full, parts[static_cast<size_t>(own)]);
  const int64_t piece = piece_of(full.dtype), length = longest(parts);
  const auto place = [&](int64_t round, int r) {
    return scratch_.get() + bytes_of(full, ((round % 2) * ranks + r) * piece);
  };
  const auto start = [&](int64_t round) {
    for (int step = 1; step < ranks; ++step) {  // no rank receives from all others at once
      const int to = (own + step) % ranks, from = (own + ranks - step) % ranks;
      const Part sent = piece_at(parts[static_cast<size_t>(to)], round * piece, piece);
      const Part received = piece_at(parts[static_cast<size_t>(own)], round * piece, piece);
      if (received.count > 0) transport_.receive(from, place(round, from), bytes_of(full, received.count));
      if (sent.count > 0) transport_.send(to, element_at(full, sent.offset), bytes_of(full, sent.count));
    }
  };
  const int64_t rounds = (length + piece - 1) / piece;
  if (rounds > 0) start(0);
  for (int64_t round = 0; round < rounds; ++round) {
    transport_.wait();
    if (round + 1 < rounds) start(round + 1);  // transferred while this round is summed
    const Part mine = piece_at(parts[static_cast<size_t>(own)], round * piece, piece);
    if (mine.count == 0) continue;
    std::vector<const std::byte*> sources;
    for (int r = 0; r < ranks; ++r) sources.push_back(r == own ? element_at(full, mine.offset) : place(round, r));
    rank_sum(full.dtype, element_at(sum, round * piece), sources, mine.count, pool);
  }
}

void PairwiseCollectives::all_gather(Tensor full, std::span<const Part> parts, Tensor mine, ThreadPool& pool) {
  const int ranks = transport_.size(), own = transport_.rank();
  if (mine.defined()) {
    std::byte* to = element_at(full, parts[static_cast<size_t>(own)].offset);
    pool.parallel_ranges(static_cast<int64_t>(mine.bytes()), kCopiedBytes, [&](int64_t begin, int64_t end) {
      std::memcpy(to + begin, mine.data + begin, static_cast<size_t>(end - begin));
    });
  }
  const int64_t piece = kMessageBytes / static_cast<int64_t>(size_of(full.dtype)), length = longest(parts);
  for (int64_t begin = 0; begin < length; begin += piece) {
    const Part sent = piece_at(parts[static_cast<size_t>(own)], begin, piece);
    for (int step = 1; step < ranks; ++step) {
      const int to = (own + step) % ranks, from = (own + ranks - step) % ranks;
      const Part received = piece_at(parts[static_cast<size_t>(from)], begin, piece);
      if (received.count > 0) {
        transport_.receive(from, element_at(full, received.offset), bytes_of(full, received.count));
      }
      if (sent.count > 0) transport_.send(to, element_at(full, sent.offset), bytes_of(full, sent.count));
    }
    transport_.wait();
  }
}

void PairwiseCollectives::broadcast(Tensor inout, int root, ThreadPool& pool) {
  // The root sends one part to each rank, and each rank sends its part to all: the root sends the tensor once, not N
  // times.
  const int ranks = transport_.size(), own = transport_.rank();
  const std::vector<Part> parts = even_parts(inout.numel(), ranks);
  const int64_t piece = kMessageBytes / static_cast<int64_t>(size_of(inout.dtype));
  for (int64_t begin = 0; begin < longest(parts); begin += piece) {
    for (int r = 0; r < ranks; ++r) {
      const Part part = piece_at(parts[static_cast<size_t>(r)], begin, piece);
      if (part.count == 0 || r == root) continue;
      if (own == root) transport_.send(r, element_at(inout, part.offset), bytes_of(inout, part.count));
      if (own == r) transport_.receive(root, element_at(inout, part.offset), bytes_of(inout, part.count));
    }
    transport_.wait();
  }
  all_gather(inout, parts, {}, pool);
}

void PairwiseCollectives::send_receive(std::span<const Transfer> sends, std::span<const Transfer> receives) {
  // Both sides cut a tensor into the same messages.
  const auto each_message = [](const Transfer& transfer, const auto& start) {
    const auto bytes = transfer.tensor.bytes(), most = static_cast<size_t>(kMessageBytes);
    for (size_t at = 0; at < bytes; at += most) start(transfer.tensor.data + at, std::min(most, bytes - at));
  };
  for (const Transfer& transfer : receives) {
    each_message(transfer, [&](std::byte* data, size_t bytes) { transport_.receive(transfer.rank, data, bytes); });
  }
  for (const Transfer& transfer : sends) {
    each_message(transfer, [&](std::byte* data, size_t bytes) { transport_.send(transfer.rank, data, bytes); });
  }
  if (!sends.empty() || !receives.empty()) transport_.wait();
}

CpuCommunicator::CpuCommunicator(std::shared_ptr<Control> control, std::shared_ptr<Transport> transport,
                                 size_t scratch_bytes)
    : control_(std::move(control)),
      transport_(std::move(transport)),
      scratch_bytes_(scratch_bytes),
      collectives_(*transport_, scratch_bytes) {}

std::unique_ptr<Communicator> CpuCommunicator::split(int colour) {
  HONE_ASSERT(size() == control_->size(), "only all ranks are divided");
  std::vector<int> ranks = ranks_of_colour(*control_, colour);
  return std::make_unique<CpuCommunicator>(control_, std::make_shared<GroupTransport>(lane(), std::move(ranks)),
                                           scratch_bytes_);
}

void CpuCommunicator::queue(Stream& stream, const char* name, Stream::Work work) {
  ++calls_;
  stream.enqueue([this, name, work = std::move(work)](ThreadPool& pool) {
    control_->check();
    const int64_t number = control_->begin_collective(name);
    work(pool);
    control_->end_collectives(number);
  });
}

void CpuCommunicator::all_reduce_sum(Stream& stream, Tensor inout) {
  queue(stream, "all-reduce", [this, inout](ThreadPool& pool) { collectives_.all_reduce_sum(inout, pool); });
}

void CpuCommunicator::reduce_scatter_sum(Stream& stream, Tensor full, std::span<const Part> parts, Tensor own) {
  check_parts(full, parts, own, *this);
  queue(stream, "reduce-scatter", [this, full, own, parts = std::vector(parts.begin(), parts.end())](ThreadPool& pool) {
    collectives_.reduce_scatter_sum(full, parts, own, pool);
  });
}

void CpuCommunicator::all_gather(Stream& stream, Tensor full, std::span<const Part> parts, Tensor own) {
  check_parts(full, parts, own, *this);
  queue(stream, "all-gather", [this, full, own, parts = std::vector(parts.begin(), parts.end())](ThreadPool& pool) {
    collectives_.all_gather(full, parts, own, pool);
  });
}

void CpuCommunicator::broadcast(Stream& stream, Tensor inout, int root) {
  HONE_ASSERT(root >= 0 && root < size());
  queue(stream, "broadcast", [this, inout, root](ThreadPool& pool) { collectives_.broadcast(inout, root, pool); });
}

void CpuCommunicator::send_receive(Stream& stream, std::span<const Transfer> sends,
                                   std::span<const Transfer> receives) {
  queue(
      stream, "send and receive",
      [this, sends = std::vector(sends.begin(), sends.end()), receives = std::vector(receives.begin(), receives.end())](
          ThreadPool&) { collectives_.send_receive(sends, receives); });
}

void CpuCommunicator::finish(Stream& stream, int64_t) {
  stream.synchronize();
  control_->check();
}

}  // namespace hone
