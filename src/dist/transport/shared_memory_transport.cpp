#include "dist/transport/transport.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <vector>

#include "core/base/error.h"

namespace hone {

namespace {

/// Fits a core's L2 cache together with the data that is summed.
constexpr size_t kRingBytes = size_t{256} << 10;
/// Bytes that are published at a time: the other side copies them while this side continues.
constexpr size_t kStride = size_t{32} << 10;
/// A ring buffer from one rank to another. Each count has one writer and its own cache line.
struct Ring {
  alignas(64) std::atomic<uint64_t> written;
  alignas(64) std::atomic<uint64_t> read;
  alignas(64) std::byte data[kRingBytes];
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

ssize_t nothing_now() {
  errno = EAGAIN;
  return -1;
}

ssize_t put(Ring& ring, const std::byte* data, size_t bytes) {
  const uint64_t written = ring.written.load(std::memory_order_relaxed);
  const uint64_t used = written - ring.read.load(std::memory_order_acquire);
  const size_t at = written % kRingBytes;
  const size_t count = std::min({bytes, kStride, kRingBytes - used, kRingBytes - at});
  if (count == 0) return nothing_now();
  std::memcpy(ring.data + at, data, count);
  ring.written.store(written + count, std::memory_order_release);
  return static_cast<ssize_t>(count);
}

ssize_t take(Ring& ring, std::byte* data, size_t bytes) {
  const uint64_t read = ring.read.load(std::memory_order_relaxed);
  const uint64_t there = ring.written.load(std::memory_order_acquire) - read;
  const size_t at = read % kRingBytes;
  const size_t count = std::min({bytes, kStride, size_t{there}, kRingBytes - at});
  if (count == 0) return nothing_now();
  std::memcpy(data, ring.data + at, count);
  ring.read.store(read + count, std::memory_order_release);
  return static_cast<ssize_t>(count);
}

/// The rings of one receiving rank, by sending rank.
class Inbox {
 public:
  Inbox() = default;
  /// Maps the descriptor's memory, which must have the size of `ranks` rings.
  Inbox(int descriptor, size_t ranks) {
    struct stat facts {};
    if (::fstat(descriptor, &facts) != 0 || static_cast<size_t>(facts.st_size) != ranks * sizeof(Ring)) return;
    void* memory = ::mmap(nullptr, ranks * sizeof(Ring), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (memory == MAP_FAILED) return;
    rings_ = static_cast<Ring*>(memory);
    ranks_ = ranks;
  }
  ~Inbox() {
    if (rings_) ::munmap(rings_, ranks_ * sizeof(Ring));
  }
  Inbox(Inbox&& other) noexcept : rings_(std::exchange(other.rings_, nullptr)), ranks_(other.ranks_) {}
  Inbox& operator=(Inbox&&) = delete;

  bool mapped() const { return rings_ != nullptr; }
  Ring& from(size_t rank) const { return rings_[rank]; }

 private:
  Ring* rings_ = nullptr;
  size_t ranks_ = 0;
};

class SharedMemoryTransport : public Transport {
 public:
  SharedMemoryTransport(ControlChannel& control, std::vector<Inbox> inboxes)
      : control_(control), inboxes_(std::move(inboxes)), out_(inboxes_.size()), in_(inboxes_.size()) {}
  ~SharedMemoryTransport() override { end_together(control_); }
  SharedMemoryTransport(const SharedMemoryTransport&) = delete;
  SharedMemoryTransport& operator=(const SharedMemoryTransport&) = delete;

  int rank() const override { return control_.rank(); }
  int size() const override { return control_.size(); }
  void send(int to, const std::byte* data, size_t bytes) override {
    if (bytes > 0) out_[static_cast<size_t>(to)].push_back({data, bytes});
  }
  void receive(int from, std::byte* data, size_t bytes) override {
    if (bytes > 0) in_[static_cast<size_t>(from)].push_back({data, bytes});
  }

  void wait() override {
    PatientWait patient(control_);
    while (true) {
      bool moved = false, done = true;
      for (size_t peer = 0; peer < inboxes_.size(); ++peer) {
        Ring& to_peer = inboxes_[peer].from(static_cast<size_t>(rank()));
        Ring& from_peer = inboxes_[static_cast<size_t>(rank())].from(peer);
        // One stride of each direction alternately: neither waits for the other.
        moved |= step(out_[peer], [&](const std::byte* data, size_t bytes) { return put(to_peer, data, bytes); });
        moved |= step(in_[peer], [&](std::byte* data, size_t bytes) { return take(from_peer, data, bytes); });
        done &= out_[peer].empty() && in_[peer].empty();
      }
      if (done) return;
      if (moved) {
        patient.moved();
      } else {
        patient.pause();
      }
    }
  }

 private:
  template <class Byte, class Move>
  static bool step(std::deque<Piece<Byte>>& pieces, Move move) {
    return advance(pieces, move) == PieceProgress::kSome;
  }

  ControlChannel& control_;
  std::vector<Inbox> inboxes_;                           // one for each rank
  std::vector<std::deque<Piece<const std::byte>>> out_;  // by rank; this rank's entry is unused
  std::vector<std::deque<Piece<std::byte>>> in_;
};

/// Another rank's inbox; not mapped if its memory cannot be opened.
Inbox inbox_of(const RankFacts& rank, const std::string& descriptor, size_t ranks) {
  const std::string path = fmt::format("/proc/{}/fd/{}", rank.pid, std::atoi(descriptor.c_str()));
  const Socket memory(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  return memory.open() ? Inbox(memory.descriptor(), ranks) : Inbox();
}

}  // namespace

std::unique_ptr<Transport> connect_shared_memory(ControlChannel& control) {
  const std::vector<RankFacts>& ranks = control.ranks();
  const auto own = static_cast<size_t>(control.rank());
  const Socket memory(::memfd_create("hone-rank", MFD_CLOEXEC));
  const bool made =
      memory.open() && ::ftruncate(memory.descriptor(), static_cast<off_t>(ranks.size() * sizeof(Ring))) == 0;
  const std::vector<std::string> descriptors = control.exchange(made ? fmt::format("{}", memory.descriptor()) : "");
  std::vector<Inbox> inboxes;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const bool reachable = !descriptors[rank].empty() && ranks[rank].place.same_processes(ranks[own].place);
    inboxes.push_back(rank == own ? Inbox(memory.descriptor(), ranks.size())
                      : reachable ? inbox_of(ranks[rank], descriptors[rank], ranks.size())
                                  : Inbox());
  }
  const bool missing = std::any_of(inboxes.begin(), inboxes.end(), [](const Inbox& inbox) { return !inbox.mapped(); });
  if (control.any(missing)) return nullptr;
  return std::make_unique<SharedMemoryTransport>(control, std::move(inboxes));
}

}  // namespace hone
