// DeepSeek-V2 and V2-Lite: latent attention; a softmax router whose choice may be limited to the best groups of
// experts. norm_topk_prob is refused: Hugging Face's model ignores it, the code released with the weights normalises
// instead of scaling, and no released checkpoint sets it.
#include <fmt/format.h>

#include "core/text/json.h"
#include "models/deepseek.h"
#include "models/registry.h"

namespace hone {

DecoderConfig read_deepseek_v2(const HfConfig& config) {
  DecoderConfig decoder = read_deepseek(config, {.decoder = {.router_aux_loss_coef = 0},
                                                 .first_k_dense_replace = 0,
                                                 .n_shared_experts = 2,
                                                 .routed_scaling_factor = 1.0});
  config.require("scoring_func", "softmax");
  config.require("norm_topk_prob", false);
  decoder.moe.router.normalise = false;
  const std::string method = config.string_or("topk_method", "greedy");
  if (method == "group_limited_greedy") {
    config.read_expert_groups(GroupScore::kLargest, config.integer("n_group"), config.integer("topk_group"),
                              decoder.moe);
  } else if (method != "greedy") {
    config.refuse(fmt::format("topk_method: \"{}\" is not supported (only greedy, group_limited_greedy)", method));
  }
  return decoder;
}

}  // namespace hone
