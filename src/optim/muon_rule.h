// Muon (ops/muon) for hidden matrices. Another rule steps the other parameters.
#pragma once

#include <memory>

#include "ops/muon/muon.h"
#include "optim/optimizer.h"

namespace hone {

/// The defaults are those of torch.optim.Muon.
struct MuonOptions {
  double momentum = 0.95;
  bool nesterov = true;
  int steps = 5;  ///< Newton-Schulz iterations
  double epsilon = 1e-7;
  MuonRate rate = MuonRate::kOriginal;
};

std::shared_ptr<const Rule> muon_rule(const MuonOptions& options = {});

/// The groups of a run: `muon` for hidden matrices, `others` for the rest, with the same learning rate and decay.
std::vector<OptimizerGroup> muon_groups(const std::shared_ptr<const Rule>& muon,
                                        const std::shared_ptr<const Rule>& others, const GroupOptions& options);

/// Whether Muon steps the parameter: true for linear weights of attention, MLPs and experts, and the factors of
/// adapters; false for embeddings, heads, routers, norms, biases, convolutions and other vectors.
bool is_hidden_matrix(const Parameter& parameter);

}  // namespace hone
