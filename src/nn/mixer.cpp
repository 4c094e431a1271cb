#include "nn/mixer.h"

#include "core/base/error.h"
#include "nn/attention.h"
#include "nn/gated_delta_net.h"
#include "nn/latent_attention.h"
#include "nn/mamba2.h"

namespace hone {

std::unique_ptr<Mixer> make_mixer(const DecoderConfig& config, int layer, ParameterStore& store, DType dtype) {
  switch (config.layers[static_cast<size_t>(layer)].mixer) {
    case MixerKind::kNone:
      return nullptr;
    case MixerKind::kAttention:
      return std::make_unique<Attention>(config, layer, store, dtype);
    case MixerKind::kLatentAttention:
      return std::make_unique<LatentAttention>(config, layer, store, dtype);
    case MixerKind::kGatedDeltaNet:
      return std::make_unique<GatedDeltaNet>(config, layer, store, dtype);
    case MixerKind::kMamba2:
      return std::make_unique<Mamba2>(config, layer, store, dtype);
  }
  HONE_ASSERT(false, "not a mixer");
}

}  // namespace hone
