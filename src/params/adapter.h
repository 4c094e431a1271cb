// An adapter: parameters beside a frozen weight, or a part of one, that change what it computes. Each kind is a class
// in params/adapters and a row of the table of kinds (params/adapter_kind.h). Models record it, files hold its tensors
// and merging forms the weight through this interface.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/lora_dropout.h"
#include "params/lora.h"
#include "tape/tape.h"

namespace hone {

struct AdapterKind;

/// The outputs of a weight that an adapter changes: all of them, or gate or up of a fused gate_up.
struct AdapterPlace {
  std::string target = {};  ///< PEFT's name of the adapted projection: "q_proj", "gate_proj", "experts.gate_up_proj"
  int64_t out_begin = 0;    ///< first output row of the weight
  int64_t out_count = 0;
  bool shared = false;  ///< PEFT target_parameters: one A for the fused gate_up
};

/// Rank and alpha in force for one adapter, in memory or in a file.
struct AdapterScale {
  int64_t rank = 0;
  double alpha = 0;

  bool operator==(const AdapterScale&) const = default;
};

/// The place of an adapter, and the arguments of its constructor.
struct AdapterSite {
  ParameterStore& store;
  Parameter& adapted;
  const AdapterKind& kind;
  const LoraOptions& options;
  AdapterPlace place;
  AdapterScale scale;
  std::string module;      ///< prefix of its parameters' names
  uint32_t stream_id = 0;  ///< separates its random numbers from those of other adapters

  /// Adds the parameter <module><suffix>, float32 and trainable, to the adapted weight's layer and group.
  Parameter& add(const std::string& suffix, const Shape& shape) const;
};

/// One parameter of an adapter, as files hold it.
struct AdapterPart {
  /// The dimension that grows with the rank: rows of A, columns of B, none of others.
  enum class Role { kA, kB, kOther };

  Parameter* parameter = nullptr;
  Role role = Role::kOther;
  const char* suffix = "";  ///< ends its key, after the module: ".lora_A.weight"
};

/// A and B of an adapter that adds scaling · B A: as ops multiply with them, and as parameters.
struct LowRank {
  Adapter factors;
  Parameter* a = nullptr;  ///< [r, in] or [E, r, in]
  Parameter* b = nullptr;  ///< [out_count, r] or [E, out_count, r]
};

class AttachedAdapter {
 public:
  explicit AttachedAdapter(const AdapterSite& site);
  virtual ~AttachedAdapter() = default;
  AttachedAdapter(const AttachedAdapter&) = delete;
  AttachedAdapter& operator=(const AttachedAdapter&) = delete;

  const AdapterKind& kind() const { return kind_; }
  const AdapterPlace& place() const { return place_; }
  const AdapterScale& scale() const { return scale_; }

  /// Its parameters, in the order of files.
  virtual std::vector<AdapterPart> tensors() const = 0;

  /// Queues their initialisation on the context's device, which holds `adapted`. Values depend only on the seed, the
  /// parameters' names and `adapted`.
  virtual void initialise(const Context& context, const Parameter& adapted, uint64_t seed, LoraInit init) const = 0;

  /// Records y [T, out] of x [T, in] through a linear weight [out, in], its bias (or null) and the adapter; these, and
  /// what `rows` points to, must outlive the tape.
  virtual Var forward(Tape& tape, Var x, Weight& weight, Weight* bias, const LoraDropoutContext& rows) const = 0;

  /// The identity of a router [E, H]: the matrix [E, E], frozen and in no file; null for other weights. The router's
  /// op, which multiplies with a weight itself, then chooses by logits that forward() has made.
  Weight* identity() const;
  /// Queues its values.
  void initialise_identity(const Context& context) const;

  /// The low-rank factors that it adds to the weight, all that ops of experts and of the head support; null: none.
  virtual const LowRank* low_rank() const { return nullptr; }

  /// Whether merging calls merge_row() after W + scaling · B A (W itself without factors).
  virtual bool merges_rows() const { return false; }
  /// Turns row `output` of that, [in], into the merged weight's. The adapter's values are in host memory. Safe to call
  /// from several threads.
  virtual void merge_row(std::span<float> row, int64_t output) const;
  /// The same in float64. `bounds` holds, for each number, the magnitude to which errors of the float32 sum are
  /// relative, and receives that of the result.
  virtual void merge_row(std::span<double> row, std::span<double> bounds, int64_t output) const;

 private:
  const AdapterKind& kind_;
  AdapterPlace place_;
  AdapterScale scale_;
  Parameter* identity_ = nullptr;
};

/// Adds scaling · B A into the weights in float32, in place, finishes rows as their adapters say, and detaches every
/// adapter. If a weight has a float32 master (or is float32), nothing is rounded twice. The parameters are in host
/// memory.
void merge_adapters(ParameterStore& store);

}  // namespace hone
