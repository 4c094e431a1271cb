// TokenExchange: how the ranks over which a layer's experts are spread bring tokens together and bring results back.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/base/tensor.h"
#include "core/stream/context.h"

namespace hone {

/// All ranks call the same functions in the same order, with rows [n_r, ...] of rank r: `rows` has n_r for each rank
/// and is the same on all. Which calls are made, and their sizes, depend on the numbers of tokens alone. Nothing moves
/// in a dry pass. Tensors are used until await() of the call's number. If a rank is lost, the call, await() or the
/// stream throws (dist/transport/communicator.h).
class TokenExchange {
 public:
  virtual ~TokenExchange() = default;
  /// The number of ranks, and this rank's place among them: it has the block `rank` of the experts.
  virtual int ranks() const = 0;
  virtual int rank() const = 0;
  /// The tokens of each rank in this pass; in a dry pass the most that it may have.
  virtual std::span<const int64_t> tokens() const = 0;
  /// About how many tokens of all ranks are exchanged at a time; the same on all ranks.
  virtual int64_t round_tokens() const = 0;

  /// A rank's rows and those of all ranks.
  struct Gathered {
    Tensor own;  ///< [n_r, ...], any dtype
    Tensor all;  ///< [Σ n_r, ...], in the order of ranks
  };
  /// Copies every rank's `own` to `all` on each rank. Returns the number of the call.
  virtual int64_t gather(const Context& context, std::span<const Gathered> tensors, std::span<const int64_t> rows) = 0;
  /// own [n_r, ...] = this rank's rows of the sum over ranks of `all` [Σ n_r, ...], which is undefined afterwards;
  /// float32 or bfloat16. Returns the number of the call.
  virtual int64_t scatter_sum(const Context& context, const Tensor& all, const Tensor& own,
                              std::span<const int64_t> rows) = 0;
  /// Work queued later runs after this call and those before it.
  virtual void await(const Context& context, int64_t call) = 0;
};

}  // namespace hone
