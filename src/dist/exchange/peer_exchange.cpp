#include "dist/exchange/peer_exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/aligned.h"
#include "core/base/quiet_thread.h"
#include "core/cuda/cuda_device.h"
#include "core/stream/flags.h"
#include "core/stream/profiler.h"
#include "core/stream/transfer.h"
#include "ops/add/add.h"
#include "ops/cast/cast.h"

namespace hone {

namespace {

/// Places of the stage, and of the inbox of each rank: calls that are under way at a time. Backward has two gathers and
/// two sums of each of two rounds under way.
constexpr uint32_t kStages = 4, kPlaces = 4;
constexpr size_t kKinds = 4;  // kinds of flags

/// Tensors lie one after another, each on a line.
size_t on_lines(size_t bytes) { return aligned(bytes, 256); }

size_t flag_bytes(int ranks) { return aligned(kKinds * static_cast<size_t>(ranks) * kFlagBytes, 4096); }

/// The first row of a rank.
int64_t begin_of(std::span<const int64_t> rows, int rank) {
  int64_t begin = 0;
  for (int r = 0; r < rank; ++r) begin += rows[static_cast<size_t>(r)];
  return begin;
}

Tensor rows_of(const Tensor& all, std::span<const int64_t> rows, int rank) {
  return all.rows(begin_of(rows, rank), rows[static_cast<size_t>(rank)]);
}

/// Whether another rank of the group has the same GPU: if that waited for a rank, the other could not go on.
bool shares_device(Communicator& group, Device device) {
  Control& control = group.control();
  const std::string own = device.kind == DeviceKind::kCuda ? cuda::device_info(device.index).pci_bus_id : "";
  const std::vector<std::string> all = control.exchange(own);
  const auto first = all.begin() + (control.rank() - group.rank());
  return !own.empty() && std::count(first, first + group.size(), own) > 1;
}

}  // namespace

size_t PeerExchange::staged_bytes(const Tensor& own) { return on_lines(own.bytes()); }

size_t PeerExchange::Sizes::stage() const { return on_lines(gathered); }
size_t PeerExchange::Sizes::inbox() const { return on_lines(summed); }
size_t PeerExchange::Sizes::window(int ranks, size_t granularity) const {
  return aligned(flag_bytes(ranks) + kStages * stage() + kPlaces * static_cast<size_t>(ranks) * inbox(), granularity);
}

/// This rank's memory, and the end of the waits for it.
class PeerExchange::Window {
 public:
  Window(Device device, size_t bytes, int ranks)
      : memory(device, {bytes}), device_(device), addresses_(device, bytes), ranks_(ranks) {
    const std::string problem = addresses_.map(0, memory, 0, bytes);
    HONE_ASSERT(problem.empty(), problem);
  }
  ~Window() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    stop_.notify_all();
    if (thread_.joinable()) thread_.join();
  }
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  std::byte* data() const { return addresses_.data(); }

  /// Lets the streams that wait for this rank's flags go on, until this object ends: a rank that still runs may write
  /// a flag again. Called once.
  void release() {
    thread_ = quiet_thread([this] {
      constexpr auto kPause = std::chrono::milliseconds(20);
      constexpr uint32_t kPast = 1u << 30;  // more calls than a run makes
      std::unique_lock lock(mutex_);
      do {
        set_flags(device_, data(), kKinds * static_cast<size_t>(ranks_), latest.load() + kPast);
      } while (!stop_.wait_for(lock, kPause, [this] { return stopping_; }));
    });
  }

  const MappableMemory memory;
  std::atomic<uint32_t> latest = 0;  ///< the last call, which no flag has passed

 private:
  Device device_;
  AddressRange addresses_;
  int ranks_;
  std::mutex mutex_;
  std::condition_variable stop_;
  bool stopping_ = false;
  std::thread thread_;  // last: it uses the members above
};

std::unique_ptr<PeerExchange> PeerExchange::connect(Communicator& group, Stream& stream, Sizes sizes,
                                                    std::string& why_not) {
  Control& control = group.control();
  const Device device = stream.device();
  const size_t granularity = mapping_granularity(device);
  if (control.any(granularity == 0 || !has_flags(device))) {
    why_not = "a rank's device cannot share memory";
    return nullptr;
  }
  if (control.any(shares_device(group, device))) {
    why_not = "two ranks have the same GPU";
    return nullptr;
  }
  for (const std::string& text : control.exchange(fmt::format("{} {}", sizes.gathered, sizes.summed))) {
    Sizes of_rank;
    std::istringstream(text) >> of_rank.gathered >> of_rank.summed;
    sizes = {std::max(sizes.gathered, of_rank.gathered), std::max(sizes.summed, of_rank.summed)};
  }
  const auto window = std::make_shared<Window>(device, sizes.window(group.size(), granularity), group.size());
  const size_t stage = flag_bytes(group.size()), inbox = stage + kStages * sizes.stage();
  auto peers = PeerMemory::connect(control, {control.rank() - group.rank(), group.size()}, stream, window->memory,
                                   {0, stage, inbox}, why_not);
  if (!peers) return nullptr;
  control.on_end([weak = std::weak_ptr(window)] {
    if (const auto alive = weak.lock()) alive->release();
  });
  return std::unique_ptr<PeerExchange>(new PeerExchange(group, stream, sizes, window, std::move(peers)));
}

PeerExchange::PeerExchange(Communicator& group, Stream& stream, const Sizes& sizes, std::shared_ptr<Window> window,
                           std::unique_ptr<PeerMemory> peers)
    : group_(group),
      stream_(stream),
      rank_(group.rank()),
      ranks_(group.size()),
      sizes_(sizes),
      window_(std::move(window)),
      peers_(std::move(peers)),
      gather_lane_(stream.device()),
      sum_lane_(stream.device()) {}

PeerExchange::~PeerExchange() { stream_.settle(); }

std::byte* PeerExchange::flag(Flag kind, int of, int by) const {
  std::byte* const first = of == rank_ ? window_->data() : peers_->at(of, 0);
  return first + (static_cast<size_t>(kind) * static_cast<size_t>(ranks_) + static_cast<size_t>(by)) * kFlagBytes;
}

/// Rows like those of `like` that rank `from` has sent to rank `of`.
Tensor PeerExchange::inbox(int of, int from, uint32_t number, const Tensor& like) const {
  std::byte* const first =
      of == rank_ ? window_->data() + flag_bytes(ranks_) + kStages * sizes_.stage() : peers_->at(of, 2);
  Tensor place = like;
  place.data = first + ((number % kPlaces) * static_cast<size_t>(ranks_) + static_cast<size_t>(from)) * sizes_.inbox();
  return place;
}

int64_t PeerExchange::gather(const Context& context, std::span<const TokenExchange::Gathered> tensors,
                             std::span<const int64_t> rows) {
  group_.control().check();
  Stream& stream = context.stream();
  const uint32_t number = ++gathers_;
  window_->latest = static_cast<uint32_t>(++calls_);
  const size_t stage = (number % kStages) * sizes_.stage();
  double bytes = 0;
  for (const TokenExchange::Gathered& tensor : tensors) bytes += static_cast<double>(tensor.all.bytes());
  if (number > kStages) await_flags(stream, flag(Flag::kRead, rank_, 0), ranks_, rank_, number - kStages);
  // In the stream of the ops: a copy within a GPU is a kernel, which waits in a lane until products leave it room.
  std::byte* at = window_->data() + flag_bytes(ranks_) + stage;
  for (const TokenExchange::Gathered& tensor : tensors) {
    Tensor staged = tensor.own;
    staged.data = at;
    at += staged_bytes(tensor.own);
    if (tensor.own.numel() == 0) continue;
    copy(context, tensor.own, staged);
    copy(context, tensor.own, rows_of(tensor.all, rows, rank_));
  }
  HONE_ASSERT(at <= window_->data() + flag_bytes(ranks_) + stage + sizes_.stage());
  for (int i = 1; i < ranks_; ++i) write_flag(stream, flag(Flag::kStaged, after(i), rank_), number);
  // What the ops wait for anyway, they wait for themselves: the lane would notice late.
  const bool hidden = std::ranges::any_of(pending_, [](const Pending& pending) { return !pending.sums; });
  if (!hidden) await_flags(stream, flag(Flag::kStaged, rank_, 0), ranks_, rank_, number);
  gather_lane_.fork(stream);
  {
    const ProfileScope scope(stream, gather_lane_.cuda_stream(), OpGroup::kCollectives, "peer copy", "tokens", bytes);
    // Each rank begins with the next rank's rows, so that no memory is read by all at once.
    for (int i = 1; i < ranks_; ++i) {
      const int peer = after(i);
      if (hidden) gather_lane_.await_flag(stream, flag(Flag::kStaged, rank_, peer), number);
      std::byte* theirs = peers_->at(peer, 1) + stage;
      for (const TokenExchange::Gathered& tensor : tensors) {
        const Tensor to = rows_of(tensor.all, rows, peer);
        Tensor from = to;
        from.data = theirs;
        if (to.numel() > 0) gather_lane_.copy(stream, to, from);
        theirs += staged_bytes(to);
      }
      gather_lane_.write_flag(stream, flag(Flag::kRead, peer, rank_), number);
    }
  }
  pending_.push_back({.call = calls_, .copies = gather_lane_.calls()});
  return calls_;
}

int64_t PeerExchange::scatter_sum(const Context& context, const Tensor& all, const Tensor& own,
                                  std::span<const int64_t> rows) {
  group_.control().check();
  Stream& stream = context.stream();
  const uint32_t number = ++sums_;
  window_->latest = static_cast<uint32_t>(++calls_);
  // What is in the inbox's place is added up first: other ranks wait for that, as this one for theirs.
  const auto before = std::ranges::find_if(
      pending_, [&](const Pending& pending) { return pending.sums && pending.number + kPlaces == number; });
  if (before != pending_.end()) await(context, before->call);
  sum_lane_.fork(stream);
  {
    const ProfileScope scope(stream, sum_lane_.cuda_stream(), OpGroup::kCollectives, "peer copy", "sums of tokens",
                             static_cast<double>(all.bytes()));
    for (int i = 1; i < ranks_; ++i) {
      const int peer = after(i);
      if (number > kPlaces) {
        sum_lane_.await_flag(stream, flag(Flag::kTaken, rank_, peer), number - kPlaces);
      }
      const Tensor from = rows_of(all, rows, peer);
      HONE_ASSERT(from.bytes() <= sizes_.inbox());
      if (from.numel() > 0) sum_lane_.copy(stream, inbox(peer, rank_, number, from), from);
      sum_lane_.write_flag(stream, flag(Flag::kArrived, peer, rank_), number);
    }
  }
  pending_.push_back({.call = calls_,
                      .copies = sum_lane_.calls(),
                      .sums = true,
                      .number = number,
                      .own = own,
                      .partial = rows_of(all, rows, rank_)});
  return calls_;
}

void PeerExchange::await(const Context& context, int64_t call) {
  group_.control().check();
  while (!pending_.empty() && pending_.front().call <= call) {
    finish(context, pending_.front());
    pending_.pop_front();
  }
}

void PeerExchange::finish(const Context& context, const Pending& pending) {
  Stream& stream = context.stream();
  if (!pending.sums) return gather_lane_.join(stream, pending.copies);
  sum_lane_.join(stream, pending.copies);
  await_flags(stream, flag(Flag::kArrived, rank_, 0), ranks_, rank_, pending.number);
  if (pending.own.numel() > 0) {
    const auto part = [&](int rank) {
      return rank == rank_ ? pending.partial : inbox(rank_, rank, pending.number, pending.partial);
    };
    add(context, {.a = part(0), .b = part(1), .y = pending.own});
    for (int rank = 2; rank < ranks_; ++rank) add(context, {.a = part(rank), .b = {}, .y = pending.own, .beta = 1.0f});
  }
  sum_lane_.fork(stream);
  for (int i = 1; i < ranks_; ++i) {
    sum_lane_.write_flag(stream, flag(Flag::kTaken, after(i), rank_), pending.number);
  }
}

}  // namespace hone
