// Muon (ops/muon) for hidden matrices. Another rule steps everything else.
#pragma once

#include <memory>

#include "ops/muon/muon.h"
#include "optim/optimizer.h"

namespace hone {

/// Defaults are those of torch.optim.Muon.
struct MuonOptions {
  double momentum = 0.95;
  bool nesterov = true;
  int steps = 5;  ///< of Newton-Schulz
  double epsilon = 1e-7;
  MuonRate rate = MuonRate::kOriginal;
};

std::shared_ptr<const Rule> muon_rule(const MuonOptions& options = {});

/// A run's groups: `muon` for hidden matrices, `others` for the rest, at one learning rate and decay.
std::vector<OptimizerGroup> muon_groups(const std::shared_ptr<const Rule>& muon,
                                        const std::shared_ptr<const Rule>& others, const GroupOptions& options);

/// The parameters that Muon is meant for: linear weights of attention, MLPs and experts, and the factors of adapters.
/// Not embeddings, heads, routers, norms, biases, convolutions and other vectors.
bool is_hidden_matrix(const Parameter& parameter);

}  // namespace hone
