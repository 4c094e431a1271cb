// PeerExchange: the exchange of tokens among the ranks of one host over which experts are spread, by copies between
// their devices (dist/exchange/peer_memory.h), which need no multiprocessor of a GPU.
//
// Each rank has a window of mapped memory, in which it stages its own rows for others to read, and which has an inbox
// that others write partial sums to. Flags (core/stream/flags.h) order the copies; every rank counts the same calls:
//   gather g: own rows are staged; `staged` of every other rank becomes g; once this rank's `staged` of rank p is g,
//   the
//     rows of p are copied from its window, and its `read` becomes g. A place of the stage is used again once all have
//     read it.
//   sum s: once this rank's `taken` of rank p is s - kPlaces, the rows of p are copied to its inbox, and its `arrived`
//     becomes s. await() adds the rows in the order of ranks, and tells the other ranks with `taken`.
// When the group ends, since a rank is lost, flags count past every call, so that no stream waits for ever.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>

#include "core/stream/copy_lane.h"
#include "dist/exchange/peer_memory.h"
#include "dist/transport/communicator.h"
#include "ops/moe_experts/token_exchange.h"

namespace hone {

class PeerExchange {
 public:
  /// The most bytes of a rank's rows in a call: in all tensors of a gather, by staged_bytes(), and in a sum.
  struct Sizes {
    size_t gathered = 0, summed = 0;

    size_t stage() const;
    size_t inbox() const;
    /// Bytes of a window, for so many ranks.
    size_t window(int ranks, size_t granularity) const;
  };

  /// Bytes that a tensor takes in the stage.
  static size_t staged_bytes(const Tensor& own);

  /// Collective of all ranks, in groups of consecutive ones (dist/transport/mesh.h). The largest sizes of any rank
  /// count. Returns null on all ranks, with a reason, if some cannot: other hosts, GPUs without access to each other.
  /// The stream, which all calls' contexts have, must outlive the exchange.
  static std::unique_ptr<PeerExchange> connect(Communicator& group, Stream& stream, Sizes sizes, std::string& why_not);
  /// Waits for the stream, whose work reads other ranks' memory.
  ~PeerExchange();

  /// As those of TokenExchange.
  int64_t gather(const Context& context, std::span<const TokenExchange::Gathered> tensors,
                 std::span<const int64_t> rows);
  int64_t scatter_sum(const Context& context, const Tensor& all, const Tensor& own, std::span<const int64_t> rows);
  void await(const Context& context, int64_t call);

 private:
  class Window;
  enum class Flag { kStaged, kRead, kArrived, kTaken };

  /// A sum whose rows are not added up yet, or a gather.
  struct Pending {
    int64_t call = 0, copies = 0;
    bool sums = false;
    uint32_t number = 0;            ///< counts the sums
    Tensor own = {}, partial = {};  ///< this rank's rows
  };

  PeerExchange(Communicator& group, Stream& stream, const Sizes& sizes, std::shared_ptr<Window> window,
               std::unique_ptr<PeerMemory> peers);

  /// The flag of rank `of` that rank `by` writes.
  std::byte* flag(Flag kind, int of, int by) const;
  /// Rank `i` after this one.
  int after(int i) const { return (rank_ + i) % ranks_; }
  Tensor inbox(int of, int from, uint32_t number, const Tensor& like) const;
  void finish(const Context& context, const Pending& pending);

  Communicator& group_;
  Stream& stream_;
  const int rank_, ranks_;
  const Sizes sizes_;
  std::shared_ptr<Window> window_;
  std::unique_ptr<PeerMemory> peers_;
  uint32_t gathers_ = 0, sums_ = 0;
  int64_t calls_ = 0;
  std::deque<Pending> pending_;
  CopyLane gather_lane_, sum_lane_;  // last: their copies use the memory
};

}  // namespace hone
