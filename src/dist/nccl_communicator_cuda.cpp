#include "dist/nccl_communicator.h"

#include "core/error.h"
#include "dist/nccl_library.h"

#ifdef HONE_NCCL
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <array>
#include <chrono>
#include <cstring>
#include <functional>
#include <mutex>
#include <thread>

#include "core/cuda_check.h"

namespace hone {

namespace {

using Clock = std::chrono::steady_clock;

/// Time limits for connecting, and for leaving.
constexpr auto kConnectTime = std::chrono::minutes(5);
constexpr auto kLeaveTime = std::chrono::seconds(10);
/// After NCCL reports a broken connection: the time in which the control channel reports which rank is lost.
constexpr auto kTimeToHearWho = std::chrono::seconds(25);
constexpr auto kPause = std::chrono::microseconds(20);

/// The size of the ring of events that mark finished collectives. A wait for an older collective uses a later event,
/// which is correct since collectives run in order.
constexpr int64_t kEvents = 128;

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

/// The NCCL communicator of this rank. Any thread may abort it.
class Connection {
 public:
  Connection(Control& control, const NcclLibrary& nccl) : control_(control), nccl_(nccl) {
    ncclUniqueId id{};
    if (control.rank() == 0) check(nccl.get_unique_id(&id), "making an id");
    const std::string text = control.broadcast({id.internal, sizeof id.internal}, 0);
    HONE_ASSERT(text.size() == sizeof id.internal);
    std::memcpy(id.internal, text.data(), text.size());
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    const std::lock_guard lock(mutex_);
    try {
      check(nccl.init(&communicator_, control.size(), id, control.rank(), &config), "connecting the ranks");
      settle("connecting the ranks", kConnectTime);
    } catch (const Error&) {
      if (communicator_) nccl.abort(communicator_);
      throw;
    }
  }
  ~Connection() {
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
    const auto end = Clock::now() + limit;
    while (true) {
      ncclResult_t state = ncclSuccess;
      nccl_.async_error(communicator_, &state);
      if (state != ncclInProgress) return check(state, what);
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
  std::mutex mutex_;
  ncclComm_t communicator_ = nullptr;
};

/// Reports to the control channel when the device is in a collective.
class CollectiveWatch {
 public:
  explicit CollectiveWatch(Control& control) : control_(control) {}
  void queued(const char* name) {
    const std::lock_guard lock(mutex_);
    ++under_way_;
    control_.in_collective(name);
  }
  static void CUDART_CB done(void* watch) {
    auto& self = *static_cast<CollectiveWatch*>(watch);
    const std::lock_guard lock(self.mutex_);
    if (--self.under_way_ == 0) self.control_.in_collective("");
  }

 private:
  Control& control_;
  std::mutex mutex_;
  int64_t under_way_ = 0;
};

class NcclCommunicator : public Communicator {
 public:
  NcclCommunicator(std::unique_ptr<Control> control, Stream& stream)
      : control_(std::move(control)),
        device_(stream.device()),
        nccl_(nccl_library()),
        connection_(std::make_shared<Connection>(*control_, nccl_)),
        watch_(*control_) {
    int lowest = 0, highest = 0;
    cuda::check(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "reading stream priorities");
    cuda::check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, highest), "creating a stream");
    cuda::check(cudaStreamCreateWithFlags(&watching_, cudaStreamNonBlocking), "creating a stream");
    cuda::check(cudaEventCreateWithFlags(&forked_, cudaEventDisableTiming), "creating an event");
    for (cudaEvent_t& event : done_) {
      cuda::check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "creating an event");
    }
    control_->on_end([connection = std::weak_ptr(connection_)] {
      if (const auto alive = connection.lock()) alive->abort();
    });
  }
  ~NcclCommunicator() override {
    try {
      control_->barrier();  // other ranks' queued collectives need this rank
    } catch (const Error&) {
      connection_->abort();
    }
    cudaStreamSynchronize(stream_);
    cudaStreamSynchronize(watching_);
    connection_.reset();
    for (cudaEvent_t event : done_) cudaEventDestroy(event);
    cudaEventDestroy(forked_);
    cudaStreamDestroy(watching_);
    cudaStreamDestroy(stream_);
  }

  Control& control() const override { return *control_; }

  void all_reduce_sum(Stream& stream, Tensor inout) override {
    queue(stream, "all-reduce", [&](ncclComm_t ranks) {
      return nccl_.all_reduce(inout.data, inout.data, static_cast<size_t>(inout.numel()), sum_type(inout.dtype),
                              ncclSum, ranks, stream_);
    });
  }

  void reduce_scatter_sum(Stream& stream, Tensor full, std::span<const Part> parts) override {
    check_parts(full, parts, size());
    queue(stream, "reduce-scatter", [&](ncclComm_t ranks) {
      const ncclDataType_t type = sum_type(full.dtype);
      if (are_even(parts)) {
        return nccl_.reduce_scatter(element_at(full, parts[0].offset),
                                    element_at(full, parts[static_cast<size_t>(rank())].offset),
                                    static_cast<size_t>(parts[0].count), type, ncclSum, ranks, stream_);
      }
      return each_part(parts, [&](int root, const Part& part) {
        std::byte* data = element_at(full, part.offset);
        return nccl_.reduce(data, data, static_cast<size_t>(part.count), type, ncclSum, root, ranks, stream_);
      });
    });
  }

  void all_gather(Stream& stream, Tensor full, std::span<const Part> parts) override {
    check_parts(full, parts, size());
    const size_t element = size_of(full.dtype);
    queue(stream, "all-gather", [&](ncclComm_t ranks) {
      if (are_even(parts)) {
        return nccl_.all_gather(element_at(full, parts[static_cast<size_t>(rank())].offset),
                                element_at(full, parts[0].offset), static_cast<size_t>(parts[0].count) * element,
                                ncclInt8, ranks, stream_);
      }
      return each_part(parts, [&](int root, const Part& part) {
        std::byte* data = element_at(full, part.offset);
        return nccl_.broadcast(data, data, static_cast<size_t>(part.count) * element, ncclInt8, root, ranks, stream_);
      });
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

  void fork(Stream& stream) override {
    cuda::check(cudaEventRecord(forked_, static_cast<cudaStream_t>(stream.cuda().stream())), "recording an event");
    cuda::check(cudaStreamWaitEvent(stream_, forked_), "waiting for an event");
  }

  void follow(const CopyLane& lane) override { lane.hold(stream_); }

  void join(Stream& stream, int64_t calls) override {
    control_->check();
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
        control_->check();
        connection_->check_async();
      }
      std::this_thread::sleep_for(kPause);
    }
    control_->check();
  }

  int64_t calls() const override { return calls_; }
  void* cuda_stream() const override { return stream_; }

 private:
  /// The event after the first `calls` collectives, or after a later one.
  cudaEvent_t done(int64_t calls) const { return done_[static_cast<size_t>((calls - 1) % kEvents)]; }

  template <class Call>
  static ncclResult_t each_part(std::span<const Part> parts, Call call) {
    for (size_t r = 0; r < parts.size(); ++r) {
      if (parts[r].count == 0) continue;
      if (const ncclResult_t result = call(static_cast<int>(r), parts[r]); result != ncclSuccess) return result;
    }
    return ncclSuccess;
  }

  void queue(Stream& stream, const char* name, const std::function<ncclResult_t(ncclComm_t)>& calls) {
    HONE_ASSERT(stream.device() == device_);
    control_->check();
    watch_.queued(name);
    connection_->queue(name, calls);
    const cudaEvent_t event = done(++calls_);
    cuda::check(cudaEventRecord(event, stream_), "recording an event");
    // On a separate stream, so that collectives do not wait for the host.
    cuda::check(cudaStreamWaitEvent(watching_, event), "waiting for an event");
    cuda::check(cudaLaunchHostFunc(watching_, CollectiveWatch::done, &watch_), "queueing a callback");
  }

  std::unique_ptr<Control> control_;
  Device device_;
  const NcclLibrary& nccl_;
  std::shared_ptr<Connection> connection_;
  CollectiveWatch watch_;
  cudaStream_t stream_ = nullptr, watching_ = nullptr;
  cudaEvent_t forked_ = nullptr;
  std::array<cudaEvent_t, kEvents> done_{};
  int64_t calls_ = 0;
};

}  // namespace

std::unique_ptr<Communicator> connect_nccl(std::unique_ptr<Control> control, Stream& stream) {
  return std::make_unique<NcclCommunicator>(std::move(control), stream);
}

}  // namespace hone

#else

namespace hone {

std::unique_ptr<Communicator> connect_nccl(std::unique_ptr<Control>, Stream&) {
  throw UserError("this program was built without NCCL, which several GPU ranks need", "nccl.h",
                  "install libnccl-dev on the build machine and build again");
}

}  // namespace hone
#endif
