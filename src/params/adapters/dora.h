// DoRA: LoRA whose sum with the weight is rescaled, row by row, to trained magnitudes (ops/dora). For linear weights.
#pragma once

#include "params/adapters/lora.h"

namespace hone {

class DoraAdapter final : public LoraAdapter {
 public:
  /// Adds <module>.lora_magnitude_vector [out_count] after A and B.
  explicit DoraAdapter(const AdapterSite& site);

  std::vector<AdapterPart> tensors() const override;
  /// Magnitudes are the norms of the rows of W + scaling · B A, so that DoRA begins as LoRA does.
  void initialise(const Context& context, const Parameter& adapted, uint64_t seed, LoraInit init) const override;
  Var forward(Tape& tape, Var x, Weight& weight, Weight* bias, const LoraDropoutContext& rows) const override;
  bool merges_rows() const override { return true; }
  /// Rescales the row to its trained norm.
  void merge_row(std::span<float> row, int64_t output) const override;
  void merge_row(std::span<double> row, std::span<double> bounds, int64_t output) const override;

 private:
  Parameter* magnitude_;
};

void describe_dora(const LoraOptions& options, Json& config);
void read_dora(const Json& config, LoraOptions& options);

}  // namespace hone
