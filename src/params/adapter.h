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
  std::string target = {};  ///< what it adapts, as PEFT names it: "q_proj", "gate_proj", "experts.gate_up_proj"
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

/// Where an adapter is attached, and what it is told there.
struct AdapterSite {
  ParameterStore& store;
  Parameter& adapted;
  const AdapterKind& kind;
  const LoraOptions& options;
  AdapterPlace place;
  AdapterScale scale;
  std::string module;      ///< what the names of its parameters begin with
  uint32_t stream_id = 0;  ///< separates its random numbers from all other adapters'

  /// Adds the parameter <module><suffix>, float32 and trainable, to the adapted weight's layer and group.
  Parameter& add(const std::string& suffix, const Shape& shape) const;
};

/// One parameter of an adapter, as files hold it.
struct AdapterPart {
  /// What a larger rank in a file adds: rows to A, columns to B, nothing to others.
  enum class Role { kA, kB, kOther };

  Parameter* parameter = nullptr;
  Role role = Role::kOther;
  const char* suffix = "";  ///< of its key, after the module: ".lora_A.weight"
};

/// A and B of an adapter that adds scaling · B A: as ops multiply with them, and as parameters.
struct LowRank {
  Adapter factors;
  Parameter* a = nullptr;  ///< [r, in] or [E, r, in]
  Parameter* b = nullptr;  ///< [out_count, r] or [E, out_count, r]
};

class AttachedAdapter {
 public:
  explicit AttachedAdapter(const AdapterSite& site) : kind_(site.kind), place_(site.place), scale_(site.scale) {}
  virtual ~AttachedAdapter() = default;
  AttachedAdapter(const AttachedAdapter&) = delete;
  AttachedAdapter& operator=(const AttachedAdapter&) = delete;

  const AdapterKind& kind() const { return kind_; }
  const AdapterPlace& place() const { return place_; }
  const AdapterScale& scale() const { return scale_; }

  /// Its parameters, in the order of files.
  virtual std::vector<AdapterPart> tensors() const = 0;

  /// Gives them their first values, on the context's device, where those of `adapted` are; queued there. They depend on
  /// the seed, the parameters' names and `adapted` only.
  virtual void initialise(const Context& context, const Parameter& adapted, uint64_t seed, LoraInit init) const = 0;

  /// Records y [T, out] of x [T, in] through a linear weight [out, in], its bias (or null) and the adapter; these, and
  /// what `rows` points to, must outlive the tape.
  virtual Var forward(Tape& tape, Var x, Weight& weight, Weight* bias, const LoraDropoutContext& rows) const = 0;

  /// The factors it adds to the weight, to which ops of experts and of the head add nothing else; null: it has none.
  virtual const LowRank* low_rank() const { return nullptr; }

  /// Whether merging goes on with merge_row() after W + scaling · B A (W itself without factors).
  virtual bool merges_rows() const { return false; }
  /// Turns row `output` of that, [in], into the merged weight's. The adapter's values are in host memory. Safe to call
  /// from several threads.
  virtual void merge_row(std::span<float> row, int64_t output) const;
  /// The same in float64. `bounds` holds, for each number, what the errors of the sum in float32 are relative to, and
  /// gets that of the result.
  virtual void merge_row(std::span<double> row, std::span<double> bounds, int64_t output) const;

 private:
  const AdapterKind& kind_;
  AdapterPlace place_;
  AdapterScale scale_;
};

/// Adds scaling · B A into the weights in float32, in place, finishes rows as their adapters say, and detaches every
/// adapter. Where a weight has a float32 master (or is float32) nothing is rounded twice. The parameters are in host
/// memory.
void merge_adapters(ParameterStore& store);

}  // namespace hone
