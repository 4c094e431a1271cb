#include "dist/transport/nccl_communicator.h"

#include "core/base/error.h"
#include "core/cuda/vendor_library.h"
#include "dist/transport/nccl_library.h"

#ifdef HONE_NCCL
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>
#include <vector>

#include "core/base/quiet_thread.h"
#include "core/cuda/cuda_check.h"

namespace hone {

namespace {

using Clock = std::chrono::steady_clock;

/// Time limits for connecting, and for leaving.
constexpr auto kConnectTime = std::chrono::minutes(5);
constexpr auto kLeaveTime = std::chrono::seconds(10);
/// After NCCL reports a broken connection: the time in which the control channel reports which rank is lost.
constexpr auto kTimeToHearWho = std::chrono::seconds(25);
constexpr auto kPause = std::chrono::microseconds(20);
/// In which NCCL mostly completes a call; a pause lasts longer than it says.
constexpr auto kBeforePauses = std::chrono::microseconds(200);
/// Between looks at running collectives; shorter than the interval of heartbeats.
constexpr auto kBetweenLooks = std::chrono::milliseconds(250);

/// The size of the ring of events that mark finished collectives. A wait for an older collective uses a later event,
/// which is correct since collectives run in order.
constexpr int64_t kEvents = 512;

ncclDataType_t sum_type(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return ncclFloat32;
    case DType::kF64:
      return ncclFloat64;
    case DType::kBF16:
      return ncclBfloat16;
    case DType::kI64:
      return ncclInt64;
    default:
      HONE_ASSERT(false, "no sum of " + std::string(name_of(dtype)));
  }
}

/// Whether the parts are equal and consecutive in rank order, as NCCL's all-gather and reduce-scatter require.
bool are_even(std::span<const Part> parts) {
  for (size_t r = 1; r < parts.size(); ++r) {
    if (parts[r].count != parts[0].count || parts[r].offset != parts[r - 1].offset + parts[0].count) return false;
  }
  return parts[0].count > 0;
}

/// The NCCL communicator of this rank among `ranks`, of which the first makes the id. All ranks of `control` construct
/// one, of their group. Any thread may abort it.
class Connection {
 public:
  Connection(Control& control, const NcclLibrary& nccl, const std::vector<int>& ranks)
      : control_(control),
        nccl_(nccl),
        rank_(static_cast<int>(std::find(ranks.begin(), ranks.end(), control.rank()) - ranks.begin())),
        size_(static_cast<int>(ranks.size())) {
    ncclUniqueId id{};
    if (rank_ == 0) check(nccl.get_unique_id(&id), "making an id");
    const std::string text =
        control.exchange({id.internal, rank_ == 0 ? sizeof id.internal : 0})[static_cast<size_t>(ranks.front())];
    HONE_ASSERT(text.size() == sizeof id.internal);
    std::memcpy(id.internal, text.data(), text.size());
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    const std::lock_guard lock(mutex_);
    try {
      check(nccl.init(&communicator_, size_, id, rank_, &config), "connecting the ranks");
      settle("connecting the ranks", kConnectTime);
    } catch (const Error&) {
      if (communicator_) nccl.abort(communicator_);
      throw;
    }
  }
  ~Connection() {
    if (ending_.joinable()) ending_.join();
    const std::lock_guard lock(mutex_);
    if (!communicator_) return;
    try {
      check(nccl_.finalize(communicator_), "ending");
      settle("ending", kLeaveTime);
      nccl_.destroy(communicator_);
    } catch (const Error&) {
      nccl_.abort(communicator_);
    }
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }

  /// Queues the NCCL calls that `calls` makes, as one group.
  void queue(const char* what, const std::function<ncclResult_t(ncclComm_t)>& calls) {
    const std::lock_guard lock(mutex_);
    throw_if_aborted();
    check(nccl_.group_start(), what);
    const ncclResult_t result = calls(communicator_);
    const ncclResult_t end = nccl_.group_end();
    check(result, what);
    check(end, what);
    settle(what, kConnectTime);  // the first collective of a kind makes connections
  }

  /// Ends kernels that wait for a lost rank; their results are undefined. Nothing can be queued afterwards.
  void abort() {
    const std::lock_guard lock(mutex_);
    if (communicator_) nccl_.abort(communicator_);
    communicator_ = nullptr;
  }

  /// Aborts on a thread of its own; called once. NCCL frees memory while it aborts, for which the driver waits until
  /// the GPU is idle: also for kernels of other communicators, which wait for the lost rank until these are aborted,
  /// too.
  void end() {
    ending_ = quiet_thread([this] { abort(); });
  }

  /// Throws if a queued collective has failed.
  void check_async() {
    const std::lock_guard lock(mutex_);
    throw_if_aborted();
    ncclResult_t state = ncclSuccess;
    nccl_.async_error(communicator_, &state);
    if (state != ncclInProgress) check(state, "a collective");
  }

 private:
  void throw_if_aborted() {
    if (communicator_) return;
    control_.check();
    throw Error(ExitCode::kDeviceFailed, "the connection between the ranks has ended", "", "look at their logs");
  }

  void check(ncclResult_t result, const char* what) {
    if (result == ncclSuccess || result == ncclInProgress) return;
    const std::string problem =
        fmt::format("NCCL, {}: {}{}{}", what, nccl_.error_string(result), communicator_ ? ": " : "",
                    communicator_ ? nccl_.last_error(communicator_) : "");
    if (result == ncclRemoteError || result == ncclSystemError) {
      for (const auto end = Clock::now() + kTimeToHearWho; Clock::now() < end;) {
        control_.check();
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
      }
    }
    throw Error(ExitCode::kDeviceFailed, problem, "",
                "set NCCL_DEBUG=WARN for details; look at the other ranks' logs, too");
  }

  /// Waits for an asynchronous call to complete. The caller holds the mutex.
  void settle(const char* what, Clock::duration limit) {
    const auto begin = Clock::now(), end = begin + limit;
    while (true) {
      ncclResult_t state = ncclSuccess;
      nccl_.async_error(communicator_, &state);
      if (state != ncclInProgress) return check(state, what);
      if (Clock::now() < begin + kBeforePauses) {
        std::this_thread::yield();
        continue;
      }
      control_.check();
      if (Clock::now() > end) {
        throw Error(ExitCode::kDeviceFailed,
                    fmt::format("NCCL, {}: not completed after {} s", what,
                                std::chrono::duration_cast<std::chrono::seconds>(limit).count()),
                    "", "set NCCL_DEBUG=INFO to see which network it uses; NCCL_SOCKET_IFNAME selects one");
      }
      std::this_thread::sleep_for(kPause);
    }
  }

  Control& control_;
  const NcclLibrary& nccl_;
  const int rank_, size_;
  std::mutex mutex_;
  ncclComm_t communicator_ = nullptr;
  std::thread ending_;
};

/// Reports to the control channel which collectives have ended. A thread looks at the last one of each communicator: it
/// may wait for the driver, which the threads that train and that answer other ranks may not.
class CollectiveWatch {
 public:
  CollectiveWatch(Control& control, Device device)
      : control_(control), thread_(quiet_thread([this, device] { watch(device); })) {}
  ~CollectiveWatch() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    stop_.notify_all();
    thread_.join();
  }
  CollectiveWatch(const CollectiveWatch&) = delete;
  CollectiveWatch& operator=(const CollectiveWatch&) = delete;

  /// `event` marks the end of collective `number` (Control::begin_collective) of a communicator, its last so far.
  void queued(const void* communicator, cudaEvent_t event, int64_t number) {
    const std::lock_guard lock(mutex_);
    last_[communicator] = {event, number};
  }
  void forget(const void* communicator) {
    const std::lock_guard lock(mutex_);
    last_.erase(communicator);
  }

 private:
  struct Last {
    cudaEvent_t event;
    int64_t number;
  };
  void watch(Device device) {
    cudaSetDevice(device.index);
    std::unique_lock lock(mutex_);
    while (!stop_.wait_for(lock, kBetweenLooks, [this] { return stopping_; })) {
      int64_t ended = 0;
      const bool all = std::all_of(last_.begin(), last_.end(), [&](const auto& last) {
        ended = std::max(ended, last.second.number);
        return cudaEventQuery(last.second.event) != cudaErrorNotReady;
      });
      if (all) control_.end_collectives(ended);
    }
  }

  Control& control_;
  std::mutex mutex_;
  std::condition_variable stop_;
  bool stopping_ = false;
  std::map<const void*, Last> last_;
  std::thread thread_;  // last: it uses the members above
};

/// A stream of collectives.
class LaneStream {
 public:
  LaneStream() {
    int lowest = 0, highest = 0;
    cuda::check(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "reading stream priorities");
    cuda::check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, highest), "creating a stream");
  }
  ~LaneStream() { cudaStreamDestroy(stream_); }
  LaneStream(const LaneStream&) = delete;
  LaneStream& operator=(const LaneStream&) = delete;

  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

/// What the communicators of a process share.
struct NcclProcess {
  NcclProcess(std::unique_ptr<Control> of_all, Device gpu)
      : control(std::move(of_all)), device(gpu), nccl(nccl_library()), watch(*control, device) {}

  std::unique_ptr<Control> control;
  Device device;
  const NcclLibrary& nccl;
  CollectiveWatch watch;
};

std::vector<int> all_ranks(const Control& control) {
  std::vector<int> ranks(static_cast<size_t>(control.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

class NcclCommunicator : public Communicator {
 public:
  NcclCommunicator(std::shared_ptr<NcclProcess> process, std::shared_ptr<LaneStream> lane,
                   const std::vector<int>& ranks)
      : process_(std::move(process)),
        control_(*process_->control),
        nccl_(process_->nccl),
        lane_(std::move(lane)),
        stream_(lane_->get()),
        connection_(std::make_shared<Connection>(control_, nccl_, ranks)) {
    cuda::check(cudaEventCreateWithFlags(&forked_, cudaEventDisableTiming), "creating an event");
    for (cudaEvent_t& event : done_) {
      cuda::check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "creating an event");
    }
    control_.on_end([connection = std::weak_ptr(connection_)] {
      if (const auto alive = connection.lock()) alive->end();
    });
  }
  ~NcclCommunicator() override {
    try {
      control_.barrier();  // other ranks' queued collectives need this rank
    } catch (const Error&) {
      connection_->abort();
    }
    cudaStreamSynchronize(stream_);
    process_->watch.forget(this);
    connection_.reset();
    for (cudaEvent_t event : done_) cudaEventDestroy(event);
    cudaEventDestroy(forked_);
  }

  Control& control() const override { return control_; }
  int rank() const override { return connection_->rank(); }
  int size() const override { return connection_->size(); }

  std::unique_ptr<Communicator> split(int colour) override {
    HONE_ASSERT(size() == control_.size(), "only all ranks are divided");
    return std::make_unique<NcclCommunicator>(process_,
                                              orders_communicators(nccl_) ? std::make_shared<LaneStream>() : lane_,
                                              ranks_of_colour(control_, colour));
  }

  void all_reduce_sum(Stream& stream, Tensor inout) override {
    queue(stream, "all-reduce", [&](ncclComm_t ranks) {
      return nccl_.all_reduce(inout.data, inout.data, static_cast<size_t>(inout.numel()), sum_type(inout.dtype),
                              ncclSum, ranks, stream_);
    });
  }

  using Communicator::all_gather;
  using Communicator::reduce_scatter_sum;

  void reduce_scatter_sum(Stream& stream, Tensor full, std::span<const Part> parts, Tensor own) override {
    check_parts(full, parts, own, *this);
    std::byte* const to = place_of(own, full, parts);
    queue(stream, "reduce-scatter", [&](ncclComm_t ranks) {
      const ncclDataType_t type = sum_type(full.dtype);
      if (are_even(parts)) {
        return nccl_.reduce_scatter(element_at(full, parts[0].offset), to, static_cast<size_t>(parts[0].count), type,
                                    ncclSum, ranks, stream_);
      }
      return each_part(parts, [&](int root, const Part& part) {
        std::byte* data = element_at(full, part.offset);
        return nccl_.reduce(data, root == rank() ? to : data, static_cast<size_t>(part.count), type, ncclSum, root,
                            ranks, stream_);
      });
    });
  }

  void all_gather(Stream& stream, Tensor full, std::span<const Part> parts, Tensor own) override {
    const Gather one{full, {parts.begin(), parts.end()}, own};
    all_gathers(stream, {&one, 1});
  }
  void all_gathers(Stream& stream, std::span<const Gather> gathers) override {
    for (const Gather& gather : gathers) check_parts(gather.full, gather.parts, gather.own, *this);
    queue(stream, "all-gather", [&](ncclComm_t ranks) {
      for (const Gather& gather : gathers) {
        if (const ncclResult_t result = queue_gather(gather, ranks); result != ncclSuccess) return result;
      }
      return ncclSuccess;
    });
  }

  void broadcast(Stream& stream, Tensor inout, int root) override {
    queue(stream, "broadcast", [&](ncclComm_t ranks) {
      return nccl_.broadcast(inout.data, inout.data, inout.bytes(), ncclInt8, root, ranks, stream_);
    });
  }

  void send_receive(Stream& stream, std::span<const Transfer> sends, std::span<const Transfer> receives) override {
    queue(stream, "send and receive", [&](ncclComm_t ranks) {
      for (const Transfer& to : sends) {
        const ncclResult_t result = nccl_.send(to.tensor.data, to.tensor.bytes(), ncclInt8, to.rank, ranks, stream_);
        if (result != ncclSuccess) return result;
      }
      for (const Transfer& from : receives) {
        const ncclResult_t result =
            nccl_.recv(from.tensor.data, from.tensor.bytes(), ncclInt8, from.rank, ranks, stream_);
        if (result != ncclSuccess) return result;
      }
      return ncclSuccess;
    });
  }

  void fork(Stream& stream) override { wait_for(static_cast<cudaStream_t>(stream.cuda().stream())); }

  void follow(const CopyLane& lane) override { lane.hold(stream_); }
  void follow(const Communicator& other) override { wait_for(static_cast<cudaStream_t>(other.cuda_stream())); }

  void join(Stream& stream, int64_t calls) override {
    control_.check();
    if (calls == 0) return;
    cuda::check(cudaStreamWaitEvent(static_cast<cudaStream_t>(stream.cuda().stream()), done(calls)),
                "waiting for an event");
  }

  void finish(Stream&, int64_t calls) override {
    for (int64_t polls = 0; calls > 0; ++polls) {
      const cudaError_t state = cudaEventQuery(done(calls));
      if (state == cudaSuccess) break;
      if (state != cudaErrorNotReady) cuda::check(state, "a collective");
      if (polls % 64 == 63) {
        control_.check();
        connection_->check_async();
      }
      std::this_thread::sleep_for(kPause);
    }
    control_.check();
  }

  int64_t calls() const override { return calls_; }
  void* cuda_stream() const override { return stream_; }

 private:
  /// The event after the first `calls` collectives, or after a later one.
  cudaEvent_t done(int64_t calls) const { return done_[static_cast<size_t>((calls - 1) % kEvents)]; }

  /// Where this rank's part is: `own`, or in `full`.
  std::byte* place_of(const Tensor& own, const Tensor& full, std::span<const Part> parts) const {
    return own.defined() ? own.data : element_at(full, parts[static_cast<size_t>(rank())].offset);
  }

  void wait_for(cudaStream_t other) {
    cuda::check(cudaEventRecord(forked_, other), "recording an event");
    cuda::check(cudaStreamWaitEvent(stream_, forked_), "waiting for an event");
  }

  ncclResult_t queue_gather(const Gather& gather, ncclComm_t ranks) {
    const std::span<const Part> parts = gather.parts;
    const std::byte* const from = place_of(gather.own, gather.full, parts);
    const size_t element = size_of(gather.full.dtype);
    if (are_even(parts)) {
      return nccl_.all_gather(from, element_at(gather.full, parts[0].offset),
                              static_cast<size_t>(parts[0].count) * element, ncclInt8, ranks, stream_);
    }
    return each_part(parts, [&](int root, const Part& part) {
      std::byte* data = element_at(gather.full, part.offset);
      return nccl_.broadcast(root == rank() ? from : data, data, static_cast<size_t>(part.count) * element, ncclInt8,
                             root, ranks, stream_);
    });
  }

  template <class Call>
  static ncclResult_t each_part(std::span<const Part> parts, Call call) {
    for (size_t r = 0; r < parts.size(); ++r) {
      if (parts[r].count == 0) continue;
      if (const ncclResult_t result = call(static_cast<int>(r), parts[r]); result != ncclSuccess) return result;
    }
    return ncclSuccess;
  }

  void queue(Stream& stream, const char* name, const std::function<ncclResult_t(ncclComm_t)>& calls) {
    HONE_ASSERT(stream.device() == process_->device);
    control_.check();
    const int64_t number = control_.begin_collective(name);
    connection_->queue(name, calls);
    const cudaEvent_t event = done(++calls_);
    cuda::check(cudaEventRecord(event, stream_), "recording an event");
    process_->watch.queued(this, event, number);
  }

  const std::shared_ptr<NcclProcess> process_;
  Control& control_;
  const NcclLibrary& nccl_;
  const std::shared_ptr<LaneStream> lane_;
  const cudaStream_t stream_;
  std::shared_ptr<Connection> connection_;
  cudaEvent_t forked_ = nullptr;
  std::array<cudaEvent_t, kEvents> done_{};
  int64_t calls_ = 0;
};

}  // namespace

std::unique_ptr<Communicator> connect_nccl(std::unique_ptr<Control> control, Stream& stream) {
  cuda::check(cudaSetDevice(stream.device().index), "selecting a GPU");  // NCCL takes the calling thread's
  auto process = std::make_shared<NcclProcess>(std::move(control), stream.device());
  const std::vector<int> ranks = all_ranks(*process->control);
  return std::make_unique<NcclCommunicator>(std::move(process), std::make_shared<LaneStream>(), ranks);
}

std::string nccl_version() {
  try {
    int version = 0;
    if (nccl_library().get_version(&version) != ncclSuccess) return "none: it does not say its version";
    return vendor_version_text(static_cast<size_t>(version), nccl_library().path);
  } catch (const UserError& error) {
    return missing_text(error.message(), error.fix());
  }
}

}  // namespace hone

#else

namespace hone {

std::unique_ptr<Communicator> connect_nccl(std::unique_ptr<Control>, Stream&) {
  throw UserError("this program was built without NCCL, which several GPU ranks need", "nccl.h",
                  "install libnccl-dev on the build machine and build again");
}

std::string nccl_version() { return "none: this program was built without it"; }

}  // namespace hone
#endif
