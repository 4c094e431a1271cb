// Checks collectives with the ranks of a real launcher; every rank runs this program. Exit code 0 if all checks hold, 1
// if one does not, 4 if a rank was lost (expected with --fault).
//   mpirun -n 3 hone_ranks_check                     collectives of host memory
//   hone_ranks_check --device cuda                   of GPUs, with torchrun's variables set
//   hone_ranks_check --bandwidth                     and how fast they are; on GPUs also what they take from products
//   hone_ranks_check --fault kill|stop|hang|fail     rank 1 is lost after some collectives
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "core/base/checksum.h"
#include "core/base/error.h"
#include "core/base/philox.h"
#include "core/cpu/thread_pool.h"
#include "core/cuda/cuda_device.h"
#include "core/memory/arena.h"
#include "core/memory/buffer.h"
#include "core/memory/host_buffer.h"
#include "core/stream/context.h"
#include "core/stream/copy_lane.h"
#include "core/stream/transfer.h"
#include "dist/control/guarded.h"
#include "dist/exchange/peer_memory.h"
#include "dist/transport/rendezvous.h"
#include "ops/linear/linear.h"

namespace hone {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

/// Integers that every dtype represents, and whose sums over eight ranks are exact in any order.
template <class T>
T whole(int rank, int64_t i) {
  return static_cast<T>(static_cast<float>((i * 7 + rank * 3) % 16 - 8));
}
template <>
int64_t whole<int64_t>(int rank, int64_t i) {
  return (((i * 7 + rank * 3) % 16 - 8) << 40) + i;
}

class Checks {
 public:
  Checks(Communicator& ranks, Stream& stream) : ranks_(ranks), stream_(stream) {}

  void types() {
    type<float>("f32");
    type<double>("f64");
    type<BFloat16>("bf16");
    type<int64_t>("i64");
  }

  template <class T>
  void type(const char* name) {
    begin(fmt::format("collectives of {} on {} ranks", name, ranks_.size()));
    for (const int64_t count : {int64_t{0}, int64_t{1}, int64_t{2}, int64_t{7}, int64_t{4099}, int64_t{3000001}}) {
      all_reduce<T>(name, count);
      parts<T>(name, count, even_parts(count, ranks_.size()), "even parts");
      parts<T>(name, count, even_parts(count, ranks_.size(), 64), "parts of whole lines");
      parts<T>(name, count, awkward_parts(count), "awkward parts");
      for (int root = 0; root < ranks_.size(); ++root) broadcast<T>(name, count, root);
      ring<T>(name, count);
    }
  }

  /// Sums with rounding have the same bits on all ranks and in every run.
  void determinism() {
    begin("the same bits");
    std::string first;
    for (int run = 0; run < 3; ++run) {
      std::vector<float> values(1 << 20);
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] = 1.0f / static_cast<float>(i * 13 + static_cast<size_t>(ranks_.rank()) * 7 + 1);
      }
      const std::vector<float> sums = after(values, [&](Tensor tensor) { ranks_.all_reduce_sum(stream_, tensor); });
      const std::string hash = hash_text(Xxh64().update(std::as_bytes(std::span(sums))).digest());
      for (const std::string& other : ranks_.control().exchange(hash))
        expect(other == hash, "the same bits on all ranks");
      if (first.empty()) first = hash;
      expect(hash == first, "the same bits in each run");
    }
  }

  /// Collectives see work queued on the compute stream before fork(); work queued after join() sees the sums.
  void order() {
    begin("order");
    const int64_t count = 1 << 22;
    std::vector<float> ones(static_cast<size_t>(count), 1), twos(static_cast<size_t>(count), 2);
    Buffer memory(stream_.device(), static_cast<size_t>(count) * sizeof(float));
    const Tensor tensor = memory.tensor({count}, DType::kF32);
    bool right = true;
    for (int round = 0; round < 20; ++round) {
      stream_.upload(tensor, round % 2 ? ones : twos);
      ranks_.fork(stream_);
      ranks_.all_reduce_sum(stream_, tensor);
      ranks_.join(stream_);
      const std::vector<float> sums = stream_.download<float>(tensor);
      const float expected = static_cast<float>(ranks_.size() * (round % 2 ? 1 : 2));
      right &= sums.front() == expected && sums[sums.size() / 2] == expected && sums.back() == expected;
    }
    expect(right, "fork and join keep the order");
  }

  /// Gathers and reductions of two lanes at once, as of weights and gradients.
  void lanes(Communicator& other) {
    begin("two lanes");
    const int64_t each = 1 << 20, count = each * ranks_.size();
    const std::vector<Part> parts = even_parts(count, ranks_.size());
    const std::vector<float> ones(static_cast<size_t>(count), 1);
    const std::vector<float> place(static_cast<size_t>(each), static_cast<float>(ranks_.rank()));
    const auto memory = [&](int64_t elements) {
      return Buffer(stream_.device(), static_cast<size_t>(elements) * sizeof(float));
    };
    const Buffer gradient_memory = memory(count), sum_memory = memory(each), part_memory = memory(each),
                 weight_memory = memory(count);
    const Tensor gradients = gradient_memory.tensor({count}, DType::kF32), sum = sum_memory.tensor({each}, DType::kF32),
                 part = part_memory.tensor({each}, DType::kF32), weights = weight_memory.tensor({count}, DType::kF32);
    stream_.upload(part, place);
    bool right = true;
    for (int round = 0; round < 50; ++round) {
      stream_.upload(gradients, ones);
      ranks_.fork(stream_);
      ranks_.reduce_scatter_sum(stream_, gradients, parts, sum);
      other.fork(stream_);
      other.all_gather(stream_, weights, parts, part);
      other.all_gather(stream_, weights, parts, part);
      other.join(stream_);
      const std::vector<float> gathered = stream_.download<float>(weights);
      ranks_.join(stream_);
      const std::vector<float> sums = stream_.download<float>(sum);
      for (int r = 0; r < ranks_.size(); ++r) right &= gathered[static_cast<size_t>(r * each)] == static_cast<float>(r);
      right &= sums.front() == static_cast<float>(ranks_.size()) && sums.back() == sums.front();
    }
    expect(right, "collectives of two lanes at once");
  }

  void bandwidth(int64_t bytes) {
    Buffer memory(stream_.device(), static_cast<size_t>(bytes));
    const int64_t n = ranks_.size();
    for (const int64_t size : {int64_t{4096}, bytes / 64, bytes}) {
      const Tensor tensor = memory.tensor({size / 4}, DType::kF32);
      const std::vector<Part> shards = even_parts(size / 4, ranks_.size());
      const auto time = [&](const char* name, double factor, auto&& collective) {
        double best = 1e9;
        for (int i = 0; i < 5; ++i) {
          ranks_.control().barrier();
          const Clock::time_point begin = Clock::now();
          collective();
          ranks_.finish(stream_);
          best = std::min(best, seconds_since(begin));
        }
        if (ranks_.rank() != 0) return;
        fmt::print("{} of {} bytes on {} ranks: {:.3f} ms, {:.2f} GB/s on the bus\n", name, size, n, best * 1e3,
                   static_cast<double>(size) * factor / best * 1e-9);
      };
      const double part = static_cast<double>(n - 1) / static_cast<double>(n);
      time("all-reduce", 2 * part, [&] { ranks_.all_reduce_sum(stream_, tensor); });
      time("reduce-scatter", part, [&] { ranks_.reduce_scatter_sum(stream_, tensor, shards); });
      time("all-gather", part, [&] { ranks_.all_gather(stream_, tensor, shards); });
    }
    const Clock::time_point begin = Clock::now();
    for (int i = 0; i < 100; ++i) ranks_.control().barrier();
    if (ranks_.rank() == 0) fmt::print("host barrier: {:.1f} us\n", seconds_since(begin) * 1e4);
  }

  /// What moving weights takes from the products beside it: the time of a series of products alone, and beside copies
  /// from peers, gathers and reduce-scatters that go on all the time.
  void beside_products(int64_t bytes) {
    constexpr int64_t kSize = 8192;
    constexpr int kProducts = 40;
    Arena scratch(stream_.device(), "check");
    scratch.reserve(size_t{64} << 20);
    const Context context(stream_, scratch);
    const Buffer operands(stream_.device(), static_cast<size_t>(3 * kSize * kSize) * sizeof(BFloat16));
    const auto matrix = [&](size_t i) {
      return operands.tensor({kSize, kSize}, DType::kBF16, i * static_cast<size_t>(kSize * kSize) * sizeof(BFloat16));
    };
    std::vector<BFloat16> values(static_cast<size_t>(kSize * kSize));
    for (size_t i = 0; i < 2; ++i) {
      PhiloxSequence random(i);
      for (BFloat16& value : values) value = BFloat16(random.normal());
      copy_from_host(matrix(i), values.data(), values.size() * sizeof(BFloat16));
    }
    const auto multiply = [&] {
      for (int i = 0; i < kProducts; ++i)
        linear(context, {.x = matrix(0), .w = {.payload = matrix(1)}, .y = matrix(2)});
    };
    const Buffer memory(stream_.device(), static_cast<size_t>(bytes));
    const Tensor to = memory.tensor({bytes / 4}, DType::kF32);
    const MappableMemory own(stream_.device(), {static_cast<size_t>(bytes)});
    const std::vector<Part> parts = even_parts(bytes / 4, ranks_.size());
    std::string why_not;
    const auto peers = PeerMemory::connect(ranks_.control(), {0, ranks_.size()}, stream_, own, {0}, why_not);
    if (!peers && ranks_.rank() == 0) fmt::print("no copies from peers: {}\n", why_not);
    CopyLane lane(stream_.device());
    const int own_rank = ranks_.rank(), size = ranks_.size();
    const auto pull = [&] {
      Tensor from = to;
      from.data = peers->at((own_rank + 1) % size, 0);
      lane.fork(stream_);
      lane.copy(stream_, to, from);
    };
    // As a gather: a part of each other rank, the next one's first.
    const auto pull_from_all = [&] {
      lane.fork(stream_);
      for (int i = 1; i < size; ++i) {
        const int peer = (own_rank + i) % size;
        const Part& part = parts[static_cast<size_t>(peer)];
        const Tensor into{element_at(to, part.offset), to.dtype, {part.count}, to.device};
        Tensor from = into;
        from.data = peers->at(peer, 0) + (into.data - to.data);
        lane.copy(stream_, into, from);
      }
    };
    const HostBuffer host(stream_.device(), static_cast<size_t>(bytes));
    const Tensor on_host = host.tensor(to.shape, to.dtype);
    const auto from_host = [&] {
      lane.fork(stream_);
      lane.copy(stream_, to, on_host);
    };
    const auto to_host = [&] {
      lane.fork(stream_);
      lane.copy(stream_, on_host, to);
    };
    const auto gather = [&] { ranks_.all_gather(stream_, to, parts); };
    const auto scatter = [&] { ranks_.reduce_scatter_sum(stream_, to, parts); };
    const auto wait = [&] {
      lane.finish(stream_, lane.calls());
      ranks_.finish(stream_);
    };
    multiply();
    double alone = 0;
    const auto time = [&](const std::string& name, double factor, const auto& move) {
      double moving = 1e9, multiplying = 1e9;
      int moves = 0;
      for (int run = 0; run < 3; ++run) {
        stream_.synchronize();
        ranks_.control().barrier();
        Clock::time_point begin = Clock::now();
        move();
        wait();
        moving = std::min(moving, seconds_since(begin));
        const int most = std::max(1, static_cast<int>(0.8 * alone / moving));  // less than the products last
        moves = std::stoi(ranks_.control().broadcast(std::to_string(most), 0));
        begin = Clock::now();
        for (int i = 0; i < moves; ++i) move();
        multiply();
        stream_.synchronize();
        multiplying = std::min(multiplying, seconds_since(begin));
        wait();
      }
      if (ranks_.rank() != 0) return;
      fmt::print("{}: {:.0f} GB/s; products beside {} of them {:.2f} ms, alone {:.2f} ms: {:+.1f} %\n", name,
                 static_cast<double>(bytes) * factor / moving * 1e-9, moves, multiplying * 1e3, alone * 1e3,
                 (multiplying / alone - 1) * 100);
    };
    for (int run = 0; run < 3; ++run) {
      stream_.synchronize();
      ranks_.control().barrier();
      const Clock::time_point begin = Clock::now();
      multiply();
      stream_.synchronize();
      const double seconds = seconds_since(begin);
      alone = alone > 0 ? std::min(alone, seconds) : seconds;
    }
    const double part = static_cast<double>(size - 1) / size;
    if (peers) time("copy from a peer", 1, pull);
    if (peers && size > 2) time(fmt::format("copies from {} peers", size - 1), part, pull_from_all);
    time("all-gather", part, gather);
    time("reduce-scatter", part, scatter);
    time("copy from host memory, on every GPU at once", 1, from_host);
    time("copy to host memory, on every GPU at once", 1, to_host);
    ranks_.control().barrier();
  }

  bool all_held() const { return failures_ == 0; }

 private:
  void expect(bool held, const std::string& what) {
    if (held) return;
    ++failures_;
    fmt::print("rank {}: did not hold: {}\n", ranks_.rank(), what);
  }

  /// Returns `values` after `collective` on the device.
  template <class T, class Collective>
  std::vector<T> after(const std::vector<T>& values, Collective collective) {
    Buffer memory(stream_.device(), std::max<size_t>(values.size() * sizeof(T), 1));
    const Tensor tensor = memory.tensor({static_cast<int64_t>(values.size())}, DTypeOf<T>::value);
    copy_from_host(tensor, values.data(), values.size() * sizeof(T));
    ranks_.fork(stream_);
    collective(tensor);
    ranks_.join(stream_);
    ranks_.finish(stream_);
    stream_.synchronize();
    std::vector<T> result(values.size());
    copy_to_host(result.data(), tensor);
    return result;
  }

  template <class T>
  std::vector<T> values_of(int rank, int64_t count) const {
    std::vector<T> values;
    for (int64_t i = 0; i < count; ++i) values.push_back(whole<T>(rank, i));
    return values;
  }

  template <class T>
  double sum_of(int64_t i) const {
    double sum = 0;
    for (int rank = 0; rank < ranks_.size(); ++rank) sum += static_cast<double>(whole<T>(rank, i));
    return sum;
  }

  template <class T>
  bool are_sums(const std::vector<T>& values, const Part& part) const {
    for (int64_t i = part.offset; i < part.offset + part.count; ++i) {
      if (static_cast<double>(values[static_cast<size_t>(i)]) != sum_of<T>(i)) return false;
    }
    return true;
  }

  template <class T>
  void all_reduce(const char* name, int64_t count) {
    const std::vector<T> sums =
        after(values_of<T>(ranks_.rank(), count), [&](Tensor tensor) { ranks_.all_reduce_sum(stream_, tensor); });
    expect(are_sums(sums, {0, count}), fmt::format("all-reduce of {} {}", count, name));
  }

  template <class T>
  void parts(const char* name, int64_t count, const std::vector<Part>& parts, const char* kind) {
    const std::vector<T> scattered = after(values_of<T>(ranks_.rank(), count),
                                           [&](Tensor tensor) { ranks_.reduce_scatter_sum(stream_, tensor, parts); });
    expect(are_sums(scattered, parts[static_cast<size_t>(ranks_.rank())]),
           fmt::format("reduce-scatter of {} {}, {}", count, name, kind));
    const std::vector<T> gathered = after(scattered, [&](Tensor tensor) { ranks_.all_gather(stream_, tensor, parts); });
    for (const Part& part : parts) {
      expect(are_sums(gathered, part), fmt::format("all-gather of {} {}, {}", count, name, kind));
    }
  }

  template <class T>
  void broadcast(const char* name, int64_t count, int root) {
    const std::vector<T> values =
        after(values_of<T>(ranks_.rank(), count), [&](Tensor tensor) { ranks_.broadcast(stream_, tensor, root); });
    bool right = true;
    for (int64_t i = 0; i < count; ++i) right &= values[static_cast<size_t>(i)] == whole<T>(root, i);
    expect(right, fmt::format("broadcast of {} {} from rank {}", count, name, root));
  }

  /// Each rank sends the first half of its tensor to the next rank, which receives it as its second half.
  template <class T>
  void ring(const char* name, int64_t count) {
    const int ranks = ranks_.size(), own = ranks_.rank(), before = (own + ranks - 1) % ranks;
    const int64_t half = count / 2;
    if (ranks == 1) return;
    const std::vector<T> values = after(values_of<T>(own, count), [&](Tensor tensor) {
      const Transfer out{(own + 1) % ranks, {tensor.data, tensor.dtype, {half}, tensor.device}};
      const Transfer in{before, {element_at(tensor, half), tensor.dtype, {half}, tensor.device}};
      ranks_.send_receive(stream_, {&out, 1}, {&in, 1});
      ranks_.send_receive(stream_, {}, {});
    });
    bool right = true;
    for (int64_t i = 0; i < half; ++i) {
      right &= values[static_cast<size_t>(i)] == whole<T>(own, i);
      right &= values[static_cast<size_t>(half + i)] == whole<T>(before, i);
    }
    expect(right, fmt::format("send and receive of {} {} around a ring", half, name));
  }

  /// Unequal parts in reverse order with gaps; the second one is empty.
  std::vector<Part> awkward_parts(int64_t count) const {
    std::vector<Part> parts(static_cast<size_t>(ranks_.size()));
    int64_t at = 0;
    for (int r = ranks_.size() - 1; r >= 0; --r) {
      const int64_t length = r == 1 ? 0 : std::min(count - at, count / ranks_.size() + r);
      parts[static_cast<size_t>(r)] = {at, length};
      at = std::min(count, at + length + 1);
    }
    return parts;
  }

  /// Says what is checked next, so that a check that does not end has a name.
  void begin(const std::string& what) const {
    if (ranks_.control().rank() > 0) return;
    fmt::print("{}\n", what);
    std::fflush(stdout);
  }

  Communicator& ranks_;
  Stream& stream_;
  int failures_ = 0;
};

/// Rank 1 is lost after ten steps; the other ranks print which rank it was, and the time to detect it.
int run_fault(const std::string& fault, Communicator& ranks, Stream& stream) {
  Buffer memory(stream.device(), 1 << 20);
  const Tensor tensor = memory.tensor({1 << 18}, DType::kF32);
  const auto lane = ranks.split(0), group = ranks.split(ranks.rank() / 2);
  Clock::time_point begin = Clock::now();
  try {
    for (int64_t step = 1;; ++step) {
      ranks.control().at_step(step);
      if (step == 10) begin = Clock::now();
      if (step == 10 && ranks.rank() == 1) {
        if (fault == "kill") ::raise(SIGKILL);
        if (fault == "stop") ::raise(SIGSTOP);
        if (fault == "hang") std::this_thread::sleep_for(std::chrono::hours(1));
        if (fault == "fail") throw UserError("no space left on device", "/full");
      }
      for (Communicator* communicator : {&ranks, lane.get(), group.get()}) {
        communicator->fork(stream);
        communicator->all_reduce_sum(stream, tensor);
        communicator->join(stream);
        communicator->finish(stream);
      }
    }
  } catch (const Error& error) {
    const double seconds = seconds_since(begin);
    ranks.control().fail(error.message());
    const std::vector<int> lost = ranks.control().lost();
    fmt::print("rank {}: after {:.1f} s: {} [lost: {}]\n", ranks.rank(), seconds, error.message(),
               lost.empty() ? -1 : lost.front());
    std::fflush(stdout);
    return static_cast<int>(ExitCode::kDeviceFailed);
  }
}

int run(const std::vector<std::string>& arguments) {
  std::string device = "cpu", fault;
  bool bandwidth = false;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == "--bandwidth") bandwidth = true;
    if (i + 1 == arguments.size()) continue;
    if (arguments[i] == "--device") device = arguments[i + 1];
    if (arguments[i] == "--fault") fault = arguments[i + 1];
  }
  const LaunchEnvironment environment = launch_environment();
  if (environment.world_size == 1) {
    fmt::print(stderr, "start several ranks: mpirun -n 2 hone_ranks_check\n");
    return static_cast<int>(ExitCode::kUserInput);
  }
  fmt::print("{}\n", environment.describe());
  std::fflush(stdout);
  ControlTimes times{.rendezvous = 60};
  if (fault == "hang") times.hang = 4;
  std::unique_ptr<ControlChannel> control =
      rendezvous(environment, secret_places(environment, [] { return std::string(); }), times);
  ThreadPool pool(2);
  Stream stream(device == "cuda" ? Device{DeviceKind::kCuda, environment.local_rank} : Device{}, pool);
  const Clock::time_point begin = Clock::now();
  const std::unique_ptr<Communicator> ranks = connect_ranks(std::move(control), stream);
  if (ranks->rank() == 0) fmt::print("connected in {:.2f} s\n", seconds_since(begin));
  if (!fault.empty()) return run_fault(fault, *ranks, stream);
  return guarded(&ranks->control(), [&] {
    Checks checks(*ranks, stream);
    checks.types();
    checks.determinism();
    checks.order();
    bool groups_held = true;
    checks.lanes(*ranks->split(0));
    for (const bool neighbours : {false, true}) {  // every second rank, or two neighbours
      const auto group = ranks->split(neighbours ? ranks->rank() / 2 : ranks->rank() % 2);
      Checks of_group(*group, stream);
      of_group.type<float>("f32");
      groups_held &= of_group.all_held();
    }
    if (bandwidth) checks.bandwidth(device == "cuda" ? int64_t{1} << 30 : int64_t{1} << 26);
    if (bandwidth && device == "cuda") checks.beside_products(int64_t{1} << 30);
    const bool held = !ranks->control().any(!checks.all_held() || !groups_held);
    if (ranks->rank() == 0) fmt::print("{}\n", held ? "all collectives held" : "collectives FAILED");
    return held ? 0 : 1;
  });
}

}  // namespace
}  // namespace hone

int main(int count, char** arguments) {
  try {
    return hone::run(std::vector<std::string>(arguments + 1, arguments + count));
  } catch (const hone::Error& error) {
    fmt::print("error: {}\n  fix: {}\n", error.message(), error.fix());
    return static_cast<int>(error.code());
  }
}
